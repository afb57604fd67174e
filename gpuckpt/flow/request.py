"""What the verbs are asked for, and what they answer: the contract with the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuckpt.model import TcpPolicy

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal

    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding, Receipt


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """What to dump, and how.

    `output` None means a name made from command, pid and time in the current folder. `level` is
    zstd's, `lock_timeout` seconds for all tries together, `ghost_limit` bytes of one deleted file;
    `ignore` names blockers that shall not stop it.
    """

    pid: int
    output: Path | None = None
    leave_running: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    level: int = 1
    lock_timeout: float = 30.0
    tcp: TcpPolicy = TcpPolicy.NONE
    file_locks: bool = False
    ghost_limit: int = 1 << 30
    ignore: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DumpResult:
    """What came of a dump. `pause` is how long the job stood still, in seconds, so far."""

    image: Path
    manifest: Manifest
    receipt: Receipt
    findings: tuple[Finding, ...]
    pause: float
    running: bool


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What to restore, and when to call it a success.

    `probe` is a shell command that must succeed within `probe_timeout` seconds; `settle` seconds
    pass before the tree is looked at a second time; `force_gates` names gates to be overridden.
    """

    image: Path
    probe: str | None = None
    probe_timeout: float = 60.0
    settle: float = 1.0
    on_verify_fail: Literal["keep", "kill"] = "keep"
    force_gates: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What came of a restore; `gpu_map` is empty if every GPU was the same."""

    image: Path
    root_pid: int
    pids: tuple[int, ...]
    receipt: Receipt
    findings: tuple[Finding, ...]
    gpu_map: dict[str, str]
