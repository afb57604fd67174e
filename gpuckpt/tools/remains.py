"""What a run that was cut short can be known by among all processes, and signals to just these."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.descriptors import targets
from gpuckpt.tools.mappings import mappings
from gpuckpt.tools.procfs import link, numbers, parse_stat, parse_status, read

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpuckpt.model import ProcessRef

_UNBLOCKABLE: Final = {signal.SIGKILL, signal.SIGSTOP}
_CATCHABLE: Final = sum(1 << n - 1 for n in range(1, 32) if n not in _UNBLOCKABLE)


def half_made(root: Path, pid: int) -> bool:
    """Whether a process is still what CRIU works with in a restore, and not yet its own.

    Until its memory is in place it runs CRIU's program, after that CRIU's own code with all
    signals blocked (4.2.1).
    """
    status = parse_status(read(f"{root}/{pid}/status") or b"")
    blocked = int(status.get("SigBlk", "0"), 16) & _CATCHABLE == _CATCHABLE
    return blocked or Path(link(f"{root}/{pid}/exe") or "").name == "criu"


def users(root: Path, paths: Collection[str]) -> dict[str, int]:
    """Return those of the files that a process has open or mapped under that name, and who."""
    found: dict[str, int] = {}
    for pid in numbers(root) if paths else ():
        folder = f"{root}/{pid}"
        with suppress(PermissionError):
            names = {target for _, target in targets(folder)}
            names |= {one.target for one in mappings(folder) if not one.deleted}
            found |= dict.fromkeys(names.intersection(paths), pid)
    return found


def send(root: Path, ref: ProcessRef, signum: int) -> None:
    """Send a signal to this very process; nothing if it is gone or the pid is another's now."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(ref.pid)
        try:
            # opened first, compared second: the pidfd then surely means this process
            raw = read(f"{root}/{ref.pid}/stat")
            if raw and parse_stat(raw).start_time == ref.start_time:
                signal.pidfd_send_signal(pidfd, signum)
        finally:
            os.close(pidfd)
