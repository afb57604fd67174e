"""What one run of CRIU is asked for: the options, and who takes, gives and decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.model import TcpPolicy
from gpuckpt.tools.criuend import LARGEST_LOG
from gpuckpt.tools.criunames import Names
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuckpt.tools.pidspace import NewSpace, Space

# patience for a whole run: a fixed part, and one that grows at a rate any disk can keep
DEADLINE_SECONDS = 120.0
SLOWEST_BYTES_PER_SECOND = 20 << 20


class CriuOptions(Value, frozen=True):
    """What a dump chooses and its restore must repeat; `ghost_limit` in bytes.

    `drop_waiting`: connections that nobody has accepted go without a word.
    `stand_ins` are the numbers of devices that a dump may take though CRIU has no code for them;
    a restore needs no numbers, but not None.
    """

    tcp: TcpPolicy = TcpPolicy.NONE
    drop_waiting: bool = True
    file_locks: bool = False
    shell_job: bool = False
    link_remap: bool = False
    external_unix: bool = False
    ghost_limit: int = 1 << 30
    stand_ins: frozenset[int] | None = None


class DumpRun(Value, frozen=True):
    """One dump: what to dump, where images go, and who decides.

    `store` takes each image from its pipe, and ends early once `abort` was called. `commit` runs
    when all are stored, the tree still frozen: if it returns, the tree is ended (or goes on with
    `leave_running`), if it raises, the tree goes on. `stop_fd` becoming readable ends CRIU early,
    `deadline` in seconds likewise. `names` explain the numbers in its log. `place` is the pid
    namespace of ours that the tree lives in; `pid` is then its number in there.
    """

    pid: int
    work: Path
    store: Callable[[str, int], None]
    abort: Callable[[], None]
    commit: Callable[[], None]
    options: CriuOptions
    leave_running: bool
    stop_fd: int
    deadline: float
    names: Callable[[], Names] = Names
    place: Space | None = None


class RestoreRun(Value, frozen=True):
    """One restore: where images come from, and who decides.

    `approve` runs when all tasks stand, none of them having run yet; if it raises, they end.
    Every `send` ends soon once `abort` was called. `stdin` is the terminal that a shell job gets
    back, None where there is none. `names` explain the numbers in CRIU's log, which may have
    `largest_log` bytes. `place` is a pid namespace to be made for the job.
    """

    work: Path
    has: Callable[[str], bool]
    send: Callable[[str, int], None]
    approve: Callable[[], None]
    options: CriuOptions
    stop_fd: int
    deadline: float
    stdin: int | None = None
    abort: Callable[[], None] = lambda: None
    names: Callable[[], Names] = Names
    largest_log: int = LARGEST_LOG
    place: NewSpace | None = None


def deadline(size: int) -> float:
    """Return the seconds CRIU may take for `size` bytes of images, whichever way they go."""
    return DEADLINE_SECONDS + size / SLOWEST_BYTES_PER_SECOND
