"""What the verbs are asked for, and what they answer: the contract with the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import field

from gpuckpt.image.identity import Identity
from gpuckpt.model import TcpPolicy
from gpuckpt.value import Value

if TYPE_CHECKING:
    from typing import Literal

    from gpuckpt.account import Account
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.location import Location
    from gpuckpt.model import Attempt, Finding
    from gpuckpt.timing import Receipt


class FileChoice(Value, frozen=True):
    """Which files an image carries, and how well it knows the others.

    `mode` auto is what the job writes, none what a restore cannot do without, all everything it
    uses. `include` are files and folders that are carried besides, `exclude` patterns of names that
    are not, whatever else is said. `full`: of a large file all bytes are hashed.
    """

    mode: Literal["auto", "none", "all"] = "auto"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    full: bool = False


class DumpRequest(Value, frozen=True):
    """What to dump, and how.

    `output` None means a name made from command, pid and time in the current folder. `level` is
    zstd's, None lets it keep nobody waiting; `lock_timeout` seconds for all tries together,
    `ghost_limit` bytes of one deleted file; `quiesce` asks processes that cooperate to let go of
    what cannot be dumped, `quiesce_timeout` seconds for it; `ignore` names blockers that shall not
    stop it; `rehearsal` says that the job must go on in place, whatever becomes of the image; `thp`
    sets transparent huge pages to always meanwhile; `track` are files and folders to be recorded,
    `files` says which are carried.
    """

    pid: int
    output: Location | None = None
    leave_running: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    level: int | None = None
    lock_timeout: float = 30.0
    tcp: TcpPolicy = TcpPolicy.NONE
    file_locks: bool = False
    ghost_limit: int = 1 << 30
    ignore: frozenset[str] = frozenset()
    rehearsal: bool = False
    thp: bool = False
    quiesce: bool = False
    quiesce_timeout: float = 60.0
    track: tuple[str, ...] = ()
    files: FileChoice = FileChoice()


class DumpResult(Value, frozen=True):
    """What came of a dump. `pause` is how long the job stood still, in seconds, so far.

    `expected` is the pause that was forecast.
    """

    image: Location
    manifest: Manifest
    receipt: Receipt
    findings: tuple[Finding, ...]
    pause: float
    running: bool
    expected: float | None = None


class RestoreRequest(Value, frozen=True):
    """What to restore, and when to call it a success.

    `probe` is a shell command that must succeed within `probe_timeout` seconds; `settle` seconds
    pass before the tree is looked at a second time; `force_gates` names gates to be overridden;
    `stays`: gpuckpt will be the job's parent to its end; `thp` sets transparent huge pages to
    always meanwhile. `gpu_map` has pairs of GPUs, of the image and of this host, by the names the
    user gave them. With `pid_namespace` the job gets pids of its own, in a namespace that is made.
    `prove`: all memory is read back and compared before any task runs. `post_restore` is a shell
    command that is told of the job when it runs, and must succeed within `probe_timeout` seconds.
    `files` says what becomes of the job's files that have changed since, `map_path` has paths of
    the image and what they are here.
    `attempts` are those with other images, that came to nothing.
    """

    image: Location
    probe: str | None = None
    probe_timeout: float = 60.0
    settle: float = 1.0
    on_verify_fail: Literal["keep", "kill"] = "keep"
    force_gates: frozenset[str] = frozenset()
    stays: bool = False
    gpu_map: tuple[tuple[str, str], ...] = ()
    thp: bool = False
    pid_namespace: bool = False
    prove: bool = False
    post_restore: str | None = None
    files: Literal["refuse", "keep", "replace"] = "refuse"
    map_path: tuple[tuple[str, str], ...] = ()
    attempts: tuple[Attempt, ...] = ()


class Proved(Value, frozen=True):
    """What a proof of memory has shown: so many `bytes` of `pages` are those of the image.

    `masked` are bytes that differ by right, by the law that says so; `beyond` are bytes in no image
    that were read too, to see that they are zeros; `findings` tell what could not be compared.
    """

    bytes: int
    pages: int
    masked: dict[str, int] = field(default_factory=dict)
    beyond: int = 0
    findings: tuple[Finding, ...] = ()


class CopiesProved(Value, frozen=True):
    """What a round trip of GPU memory has shown.

    So many `bytes` in `places` of the processes came again with the same bytes, `moved` of them at
    other addresses. `elsewhere` are bytes that came to memory which was in use before: whose they
    are is not known, they were not compared. In `stamps` pages 8 bytes, the GPU's time, were left
    out.
    """

    bytes: int
    places: int
    moved: int = 0
    elsewhere: int = 0
    stamps: int = 0


class Inside(Value, frozen=True):
    """A pid namespace that a job lives in: the pid of its process 1 here, the job's pids in it.

    `renamed` has the CUDA driver's Unix sockets that have other names in there, by the old ones.
    """

    init: int
    root_pid: int
    pids: tuple[int, ...]
    renamed: dict[str, str] = field(default_factory=dict)


class RestoreResult(Value, frozen=True):
    """What came of a restore; `gpu_map` is empty if every GPU was the same.

    `progress` says whether the job has used CPU time since: ran or idle. All pids are those on
    this host; `inside` has the others, if there are any. `proved` is None if nobody asked for it.
    `expected` are the seconds until it runs that were forecast, `identity` tells what the job knew
    of its host and is another here. `account` tells what it met and what was looked at, `kept` is
    the file of its record. `aside` are files whose bytes of today, or the later ones of these, were
    put aside, and where to.
    """

    image: Location
    root_pid: int
    pids: tuple[int, ...]
    receipt: Receipt
    findings: tuple[Finding, ...]
    gpu_map: dict[str, str]
    progress: str = ""
    inside: Inside | None = None
    proved: Proved | None = None
    expected: float | None = None
    identity: Identity = Identity()
    account: Account | None = None
    kept: Location | None = None
    image_id: str = ""
    aside: dict[str, str] = field(default_factory=dict)

    @property
    def parent(self) -> int:
        """The process that ends as the job does: its root, or its namespace's process 1."""
        return self.root_pid if self.inside is None else self.inside.init


class RehearseRequest(Value, frozen=True):
    """What to rehearse, and how: `what` is the dump that shall be known to work.

    `stay` seconds pass without the GPU's state, `settle` seconds are watched afterwards. With
    `real` the dump is made, to `what.output` or beside where it would go, and removed unless
    `keep`. `prove`: the GPU state goes away twice, and must be the same both times.
    """

    what: DumpRequest
    stay: float = 0.0
    settle: float = 1.0
    real: bool = False
    keep: bool = False
    prove: bool = False


class RehearseResult(Value, frozen=True):
    """What a rehearsal showed.

    `pause` is how long the job stood still. `image_bytes` is what an image is expected to hold
    before compression, `stored_bytes` after it and `basis` what that rests on; `dumped` tells what
    a real one held and `kept` where it is, if it is.
    `gpu_bytes` went away and came back. `moving` says whether the job used the CPU before and
    afterwards; `wrong` lists what is not as it was, blockers first.
    """

    pid: int
    pids: tuple[int, ...]
    cuda_pids: tuple[int, ...]
    gpu_bytes: int
    image_bytes: int
    pause: float
    stay: float
    moving: tuple[bool, bool]
    receipt: Receipt
    findings: tuple[Finding, ...]
    wrong: tuple[Finding, ...]
    stored_bytes: int = 0
    basis: str = ""
    dumped: DumpResult | None = None
    kept: Location | None = None
    proved: CopiesProved | None = None
