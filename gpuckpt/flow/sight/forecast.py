"""What a dump will take, before it is begun: every number with what it rests on.

Pure: from the facts of a look, a measured write speed, and the records of earlier operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import field

from gpuckpt.flow.sight.experience import (
    ASSUMED,
    WORTH,
    Estimate,
    Experience,
    Lately,
    lately,
    moving,
    or_assumed,
    phases,
)
from gpuckpt.flow.sight.spooling import Spool, spool
from gpuckpt.flow.work.history import command
from gpuckpt.location import Url, is_url
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.work.history import Record
    from gpuckpt.location import Location

# what one H200 host did (driver 580.159): GPU copies are bound by the first touch of host memory
GPU_OUT: Final = 1.6e9  # bytes a second
# one core compresses and hashes about this much; CRIU's own thread gives no more than the second
STREAM_PER_CORE: Final = 0.4e9
STREAM_MOST: Final = 3.1e9
# what waits in memory goes into buffers that are new, every one of them
SPOOL: Final = 2.0e9
# one thread reads and hashes files: between this and twice as much on two cores
FILES: Final = 0.4e9
# and is opened, looked at twice and written down: 0.05 to 0.25 ms were seen on two cores
FILE: Final = 1e-4
_MANY_FILES: Final = 100
GPU_IN: Final = 3.7e9
LOCK_ONE: Final = 0.1  # seconds
# ranks that wait for each other are locked in rounds: 1 to 6 were seen
LOCK_MANY: Final = 1.5
LOCK_NONE: Final = 0.01
COMMIT: Final = 0.05
# what a store is taken to accept until it was tried, in bytes a second
STORE: Final = 0.1e9
# a driver helper a process, made ready side by side, bound by the cores
ATTACH: Final = 0.4
# CRIU starts, and has all threads held
FREEZE: Final = 0.1
# a rehearsal in place locks and moves GPU bytes as a dump does, and writes nothing
_LIKE_IT: Final = ("dump", "rehearse")
_GIVING: Final = (*_LIKE_IT, "restore")


class Forecast(Value, frozen=True):
    """What a dump will take.

    `raw` and `stored` are the image's bytes, `memory` those of host memory while the GPU's are in
    it, with `memory_available` to be had. The pause is the sum of `lock`, `gpu_out`, `freeze`,
    `stream`, `files` and `commit`, and of `gpu_in` if the job goes on; `attach` comes before it.
    `write_speed` is None if it was not measured, `spool` if the job does not go on; `lately` says
    how good such forecasts were.
    """

    raw: Estimate
    stored: Estimate
    memory: Estimate
    memory_available: int
    disk_free: int | None
    attach: Estimate
    lock: Estimate
    gpu_out: Estimate
    freeze: Estimate
    stream: Estimate
    files: Estimate
    commit: Estimate
    gpu_in: Estimate
    write_speed: float | None = None
    inodes_free: int | None = None
    filesystem: str = ""
    network: bool = False
    lately: Lately = field(default_factory=Lately)
    spool: Spool | None = None

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
            "freeze": self.freeze,
            "stream": self.stream,
            "files": self.files,
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
    known = tuple(records)
    past = _experience(facts, known, _LIKE_IT)
    raw = Estimate(facts.image_bytes, "resident memory, GPU bytes, files, plus 5 %")
    stored = _stored(raw.value, past)
    kept = spool(facts) if leave_running else None
    # how fast bytes are taken is another matter on a disk than in a store
    there = _experience(facts, _to_like_place(facts, known), _LIKE_IT)
    stream = _stream(facts, raw.value - facts.along.bytes, there, kept)
    files = _files(facts, there)
    need = facts.gpu_bytes + facts.gpu_bytes // 20
    whose = "GPU bytes plus 5 %" if facts.gpu_bytes_known else "at most: all in use on the GPUs"
    place = facts.place
    return Forecast(
        raw=raw,
        stored=stored,
        memory=Estimate(need, whose if facts.cuda_pids else "no CUDA process"),
        memory_available=facts.memory_available,
        disk_free=facts.free_bytes,
        attach=_attach(facts, past),
        lock=_lock(facts, past),
        freeze=or_assumed(past.seconds("freeze"), FREEZE),
        gpu_out=_gpu_copy("gpu-out", facts, past, GPU_OUT),
        stream=stream,
        files=files,
        commit=(
            Estimate(0.0, "the job runs by then")
            if leave_running
            else _commit(stored.value, stream.value + files.value, write_speed, there, facts.output)
        ),
        gpu_in=(
            _gpu_copy("gpu-in", facts, _experience(facts, known, _GIVING), GPU_IN)
            if leave_running
            else Estimate(0.0, "the job ends")
        ),
        write_speed=write_speed,
        inodes_free=place.free_inodes if place else None,
        filesystem=place.filesystem if place else "",
        network=place.network if place else in_store(facts.output),
        lately=lately(known, "dump"),
        spool=kept,
    )


def in_store(output: Location | None) -> bool:
    """Whether an image goes to a store."""
    return isinstance(output, Url)


def _to_like_place(facts: DumpFacts, records: tuple[Record, ...]) -> tuple[Record, ...]:
    """Return the records whose image went to a disk, or to this very store, as this one is to."""
    place = _host(str(facts.output))
    return tuple(one for one in records if _host(one.image) == place)


def _host(image: str) -> tuple[str, str]:
    """Return kind and host of the store that an image is in; nothing for a disk."""
    url = Url(image) if is_url(image) else None
    return (url.scheme, url.host) if url else ("", "")


def _experience(
    facts: DumpFacts, records: tuple[Record, ...], operations: tuple[str, ...]
) -> Experience:
    root = facts.tree.root
    line = command(root.argv, root.comm)
    return Experience(records, operations, line, size=facts.image_bytes, cuda=bool(facts.cuda_pids))


def _stored(raw: float, past: Experience) -> Estimate:
    """The same command compresses as it did; others are a hint; else nothing is known."""
    found = past.learn(
        lambda one: [one.stored / one.raw] if one.stored and one.raw >= WORTH else ()
    )
    if found is None:
        return Estimate(raw, f"{ASSUMED}: nothing compresses")
    return Estimate(raw * found.value, found.basis)


def _attach(facts: DumpFacts, past: Experience) -> Estimate:
    """A helper for each process loads the driver before anything stands still."""
    count = len(facts.cuda_pids)
    if not count:
        return Estimate(0.0, "no CUDA process")
    each = past.learn(
        lambda record: (
            phase.seconds / record.cuda for phase in phases("prepare", record) if record.cuda
        )
    )
    if each is not None:
        return Estimate(count * each.value, each.basis)
    waves = -(-count // max(1, facts.host.cpu_count))
    return Estimate(waves * ATTACH, ASSUMED)


def _lock(facts: DumpFacts, past: Experience) -> Estimate:
    """How long a job keeps the driver waiting is its own matter: others say nothing of it."""
    count = len(facts.cuda_pids)
    assumed = (LOCK_NONE, LOCK_ONE)[count] if count <= 1 else LOCK_MANY
    return or_assumed(past.seconds("lock", only_mine=True), assumed)


def _gpu_copy(name: str, facts: DumpFacts, past: Experience, assumed: float) -> Estimate:
    if not facts.gpu_bytes:
        return Estimate(0.0, "no GPU bytes")
    return moving(facts.gpu_bytes, past.rate(name), assumed)


def _stream(facts: DumpFacts, raw: float, past: Experience, kept: Spool | None = None) -> Estimate:
    """What waits in memory is only read; for all that is more the job waits."""
    assumed = min(STREAM_MOST, STREAM_PER_CORE * facts.host.cpu_count)
    whole = moving(raw, past.streaming(parted=False), assumed)
    if kept is None:
        return whole
    read = moving(raw, past.streaming(parted=True), SPOOL)
    share = kept.bytes / max(1, kept.needed)
    if share == 1:
        return read
    value = read.value * share + whole.value * (1 - share)
    return Estimate(value, f"{share:.0%} of it in memory; for the rest: {whole.basis}")


def _files(facts: DumpFacts, past: Experience) -> Estimate:
    """They are read one after the other when CRIU has read the memory."""
    if not facts.along.taken:
        return Estimate(0.0, "no files")
    found, count = moving(facts.along.bytes, past.rate("files"), FILES), len(facts.along.taken)
    basis = f"{found.basis}, {count} files" if count >= _MANY_FILES else found.basis
    return Estimate(found.value + count * FILE, basis)


def _commit(
    stored: float,
    stream: float,
    speed: float | None,
    past: Experience,
    output: Location | None,
) -> Estimate:
    """What the disk has not taken while the stream ran it takes at the end, synced."""
    told = "write speed measured"
    if in_store(output) and not speed and past.seconds("commit") is None:
        speed, told = STORE, f"{ASSUMED}: a store takes {STORE / 1e9:.1f} GB/s"
    if speed:
        left = max(0.0, stored / speed - stream)
        return Estimate(COMMIT + left, told)
    return past.seconds("commit") or Estimate(COMMIT, f"{ASSUMED}: the disk keeps up")
