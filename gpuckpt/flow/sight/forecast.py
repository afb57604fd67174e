"""What a dump or a restore will take, before it is begun: every number with what it rests on.

Pure: from the facts of a look, a measured write speed, and the records of earlier operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.work.history import DONE, command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.work.history import Record
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.timing import Phase

# what one H200 host did (driver 580.159): GPU copies are bound by the first touch of host memory
GPU_OUT: Final = 1.6e9  # bytes a second
# one core compresses and hashes about this much; CRIU's own thread gives no more than the second
STREAM_PER_CORE: Final = 0.4e9
STREAM_MOST: Final = 3.1e9
GPU_IN: Final = 3.7e9
READ_MOST: Final = 1.6e9
START: Final = 0.4  # seconds from CRIU's start to the first byte, and from the last to the job
LOCK_ONE: Final = 0.1  # seconds
# ranks that wait for each other are locked in rounds: 1 to 6 were seen
LOCK_MANY: Final = 1.5
LOCK_NONE: Final = 0.01
COMMIT: Final = 0.05
# a driver helper a process, made ready side by side, bound by the cores
ATTACH: Final = 0.4
# phases that moved less say more about starting than about rates
_WORTH: Final = 64 << 20
ASSUMED: Final = "assumed"
# a rehearsal in place locks and moves GPU bytes as a dump does, and writes nothing
_LIKE_IT: Final = ("dump", "rehearse")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number of bytes or seconds, and what it rests on."""

    value: float
    basis: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a dump will take.

    `raw` and `stored` are the image's bytes, `memory` those of host memory while the GPU's are in
    it, with `memory_available` to be had. The pause is the sum of `lock`, `gpu_out`, `stream` and
    `commit`, and of `gpu_in` if the job goes on afterwards; `attach` comes before it.
    `write_speed` is None if it was not measured.
    """

    raw: Estimate
    stored: Estimate
    memory: Estimate
    memory_available: int
    disk_free: int | None
    attach: Estimate
    lock: Estimate
    gpu_out: Estimate
    stream: Estimate
    commit: Estimate
    gpu_in: Estimate
    write_speed: float | None = None
    inodes_free: int | None = None
    filesystem: str = ""
    network: bool = False

    @property
    def pause(self) -> float:
        """How long the job will stand still, in seconds."""
        return sum(one.value for one in self.parts.values())

    @property
    def parts(self) -> dict[str, Estimate]:
        """What the pause is made of, by the names of the dump's phases."""
        return {
            "lock": self.lock,
            "gpu-out": self.gpu_out,
            "stream": self.stream,
            "commit": self.commit,
            "gpu-in": self.gpu_in,
        }


def forecast(
    facts: DumpFacts,
    records: Iterable[Record] = (),
    write_speed: float | None = None,
    *,
    leave_running: bool = False,
) -> Forecast:
    """Estimate what a dump of these facts takes; `write_speed` in bytes a second, if measured."""
    done = tuple(one for one in records if one.outcome == DONE)
    past = tuple(one for one in done if one.operation in _LIKE_IT)
    root = facts.tree.root
    mine = tuple(one for one in past if one.command == command(root.argv, root.comm))
    raw = Estimate(facts.image_bytes, "resident memory, GPU bytes, deleted files, plus 5 %")
    stored = _stored(raw.value, mine, past)
    stream = _stream(facts, raw.value, past)
    need = facts.gpu_bytes + facts.gpu_bytes // 20
    known = "GPU bytes plus 5 %" if facts.gpu_bytes_known else "at most: all in use on the GPUs"
    place = facts.place
    return Forecast(
        raw=raw,
        stored=stored,
        memory=Estimate(need, known if facts.cuda_pids else "no CUDA process"),
        memory_available=facts.memory_available,
        disk_free=facts.free_bytes,
        attach=_attach(facts, past),
        lock=_lock(facts, mine),
        gpu_out=_gpu_copy("gpu-out", facts, past, GPU_OUT),
        stream=stream,
        commit=_commit(stored.value, stream.value, write_speed, past),
        gpu_in=(
            _gpu_copy("gpu-in", facts, done, GPU_IN)
            if leave_running
            else Estimate(0.0, "the job ends")
        ),
        write_speed=write_speed,
        inodes_free=place.free_inodes if place else None,
        filesystem=place.filesystem if place else "",
        network=place.network if place else False,
    )


@dataclass(frozen=True, slots=True)
class Return:
    """What a restore will take: `criu` reads the image, `gpu_in` is the driver's part."""

    criu: Estimate
    gpu_in: Estimate

    @property
    def seconds(self) -> float:
        """How long it takes until the job runs again; the look afterwards is not counted."""
        return self.criu.value + self.gpu_in.value


def returning(manifest: Manifest, cores: int, records: Iterable[Record] = ()) -> Return:
    """Estimate what the restore of an image takes on a host with so many cores."""
    past = tuple(one for one in records if one.operation == "restore" and one.outcome == DONE)
    held = sum(use.bytes for use in manifest.nvidia.uses) if manifest.nvidia else 0
    rate = min(READ_MOST, STREAM_PER_CORE * cores)
    reading = _moving(manifest.totals.raw, _rate("criu", past), rate)
    return Return(
        criu=Estimate(START + reading.value, reading.basis),
        gpu_in=_moving(held, _rate("gpu-in", past), GPU_IN)
        if held
        else Estimate(0.0, "no GPU bytes"),
    )


def _stored(raw: float, mine: tuple[Record, ...], past: tuple[Record, ...]) -> Estimate:
    """The same command compresses as it did; others are a hint; else nothing is known."""
    for records, whose in ((mine, " of this command"), (past, "")):
        usable = [one for one in records if one.stored and one.raw >= _WORTH]
        if usable:
            share = sum(one.stored for one in usable) / sum(one.raw for one in usable)
            return Estimate(raw * share, _from(len(usable)) + whose)
    return Estimate(raw, f"{ASSUMED}: nothing compresses")


def _attach(facts: DumpFacts, past: tuple[Record, ...]) -> Estimate:
    """A helper for each process loads the driver before anything stands still."""
    count = len(facts.cuda_pids)
    if not count:
        return Estimate(0.0, "no CUDA process")
    spent = [(one.cuda, phase.seconds) for one in past if one.cuda for phase in _of("prepare", one)]
    if spent:
        each = sum(seconds for _, seconds in spent) / sum(number for number, _ in spent)
        return Estimate(count * each, _from(len(spent)))
    waves = -(-count // max(1, facts.host.cpu_count))
    return Estimate(waves * ATTACH, ASSUMED)


def _lock(facts: DumpFacts, mine: tuple[Record, ...]) -> Estimate:
    spent = sorted(phase.seconds for one in mine for phase in _of("lock", one))
    if spent:
        return Estimate(spent[len(spent) // 2], _from(len(spent)))
    count = len(facts.cuda_pids)
    return Estimate((LOCK_NONE, LOCK_ONE)[count] if count <= 1 else LOCK_MANY, ASSUMED)


def _gpu_copy(name: str, facts: DumpFacts, past: tuple[Record, ...], assumed: float) -> Estimate:
    if not facts.gpu_bytes:
        return Estimate(0.0, "no GPU bytes")
    return _moving(facts.gpu_bytes, _rate(name, past), assumed)


def _stream(facts: DumpFacts, raw: float, past: tuple[Record, ...]) -> Estimate:
    found = _rate("stream", past)
    return _moving(raw, found, min(STREAM_MOST, STREAM_PER_CORE * facts.host.cpu_count))


def _commit(
    stored: float, stream: float, speed: float | None, past: tuple[Record, ...]
) -> Estimate:
    """What the disk has not taken while the stream ran it takes at the end, synced."""
    if speed:
        left = max(0.0, stored / speed - stream)
        return Estimate(COMMIT + left, "write speed measured")
    spent = [(one.stored, phase.seconds) for one in past for phase in _of("commit", one)]
    spent = [(size, seconds) for size, seconds in spent if size >= _WORTH]
    if spent:
        each = sum(seconds for _, seconds in spent) / sum(size for size, _ in spent)
        return Estimate(COMMIT + stored * each, _from(len(spent)))
    return Estimate(COMMIT, f"{ASSUMED}: the disk keeps up")


def _rate(name: str, past: tuple[Record, ...]) -> tuple[float, int] | None:
    """Return bytes a second over all phases of this name, and how many there were."""
    phases = [phase for one in past for phase in _of(name, one, _large)]
    seconds = sum(phase.seconds for phase in phases)
    return (sum(phase.bytes for phase in phases) / seconds, len(phases)) if seconds else None


def _moving(amount: float, found: tuple[float, int] | None, assumed: float) -> Estimate:
    rate, basis = assumed, ASSUMED
    if found is not None:
        rate, basis = found[0], _from(found[1])
    return Estimate(amount / rate, f"{basis}, {rate / 1e9:.1f} GB/s")


def _of(name: str, record: Record, fits: Callable[[Phase], bool] = bool) -> list[Phase]:
    return [one for one in record.receipt.phases if one.name == name and fits(one)]


def _large(phase: Phase) -> bool:
    return phase.bytes >= _WORTH


def _from(count: int) -> str:
    return f"from {count} receipt{'s' * (count != 1)}"
