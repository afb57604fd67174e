"""What a record tells of a restore beside its times: where, against what, and what was looked at.

Written whether it succeeds or is refused, so that nobody has to believe a log for it.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from gpuckpt.model import Finding  # noqa: TC001 - msgspec reads it
from gpuckpt.value import Value


class Verdict(StrEnum):
    """What came of a gate.

    SAME: both values are the same. PASSED: they differ as they may. WARNED: they differ, and that
    is told. CLOSED: they stop a restore. FORCED: they would, but for --force-gate.
    """

    SAME = "same"
    PASSED = "passed"
    WARNED = "warned"
    CLOSED = "closed"
    FORCED = "forced"


class Compared(Value, frozen=True):
    """One gate with both values, as text; `reason` is what was found, "" for a gate that is open.

    A value is "" where the finding tells of it in its own words.
    """

    gate: str
    object: str
    image: str
    host: str
    verdict: Verdict
    reason: str = ""


class SeenGpu(Value, frozen=True):
    """A GPU of a host, as far as it does not change from one moment to the next."""

    index: int
    uuid: str
    name: str
    memory_total: int
    bus_id: str
    compute_capability: str = ""


class Place(Value, frozen=True):
    """A host: what of it a restore depends on; `driver` and `cuda` are "" without NVIDIA's."""

    hostname: str
    kernel: str
    boot_id: str
    arch: str
    libc: str
    cpu_model: str
    memory_total: int
    criu: str = ""
    driver: str = ""
    cuda: str = ""
    gpus: tuple[SeenGpu, ...] = ()
    addresses: tuple[str, ...] = ()


class Memory(Value, frozen=True):
    """What --prove has read back, in bytes and pages; `masked` are bytes that differ by right."""

    bytes: int
    pages: int
    masked: int = 0
    beyond: int = 0
    not_compared: int = 0


class Account(Value, frozen=True):
    """All of it. `place` is None if the host was not looked at.

    `error` says why it failed. `gpu_map` has UUIDs, `path_map` paths, old to new. `aside` are files
    whose later bytes, or all of today's, were put aside, and where to. `memory` is None without
    --prove. `probe` is the user's command, `settle` the seconds that were asked for, `progress`
    what was seen: ran, idle or "". `forced` are the gates that --force-gate named.
    """

    gpuckpt: str = ""
    place: Place | None = None
    gates: tuple[Compared, ...] = ()
    forced: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    gpu_map: dict[str, str] = field(default_factory=dict)
    path_map: dict[str, str] = field(default_factory=dict)
    aside: dict[str, str] = field(default_factory=dict)
    pids: tuple[int, ...] = ()
    memory: Memory | None = None
    probe: str = ""
    settle: float = 0.0
    progress: str = ""
    error: str = ""
