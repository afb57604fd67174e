"""The gates of a restore with both their values: those that were open too.

The rules only tell of what differs. A record must tell what was compared at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blake3 import blake3
from msgspec.structs import replace

from gpuckpt.account import Compared, Place, SeenGpu, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.image.manifest import HostRecord, Manifest
    from gpuckpt.image.outside import FileRecord
    from gpuckpt.model import Finding, Gpu, HostFacts

_NONE = "none"


def place_of(
    host: HostFacts | HostRecord, criu: str, driver: str, cuda: str, gpus: Iterable[Gpu]
) -> Place:
    """Return what is told of a host."""
    return Place(
        hostname=host.hostname,
        kernel=host.kernel,
        boot_id=host.boot_id,
        arch=host.arch,
        libc=host.libc,
        cpu_model=host.cpu_model,
        memory_total=host.memory_total,
        criu=criu,
        driver=driver,
        cuda=cuda,
        gpus=tuple(
            SeenGpu(
                one.index,
                one.uuid or "",
                one.name,
                one.memory_total,
                one.bus_id,
                one.compute_capability,
            )
            for one in gpus
        ),
        addresses=host.addresses,
    )


def old_place(manifest: Manifest) -> Place:
    """Return the host that an image is from."""
    nvidia = manifest.nvidia
    told = (nvidia.driver, nvidia.cuda, nvidia.gpus) if nvidia else ("", "", ())
    return place_of(manifest.host, manifest.criu, *told)


def new_place(facts: TargetFacts) -> Place:
    """Return the host that it meets."""
    nvidia = facts.nvidia
    told = (nvidia.driver, nvidia.cuda, nvidia.gpus) if nvidia else ("", "", ())
    return place_of(facts.host, str(facts.criu or ""), *told)


def compared(
    manifest: Manifest, facts: TargetFacts, findings: Iterable[Finding], force: frozenset[str]
) -> tuple[Compared, ...]:
    """Return every gate that was compared; what only a finding tells of stands at the end."""
    told = [one for one in findings if one.id.startswith("gate-")]
    rows = []
    for gate, thing, old, new in _values(manifest, facts):
        mine = (one for one in told if (one.id, one.object) == (gate, thing))
        if finding := next(mine, None):
            told.remove(finding)
        verdict = Verdict.SAME if old == new else Verdict.PASSED
        row = Compared(gate, thing, old, new, verdict)
        rows.append(_judged(row, finding, force) if finding else row)
    rows += [
        _judged(Compared(one.id, one.object, "", "", Verdict.WARNED), one, force) for one in told
    ]
    return tuple(rows)


def _judged(row: Compared, finding: Finding, force: frozenset[str]) -> Compared:
    verdict = Verdict.WARNED
    if finding.blocks:
        verdict = Verdict.FORCED if row.gate in force else Verdict.CLOSED
    return replace(row, verdict=verdict, reason=finding.reason)


def _values(manifest: Manifest, facts: TargetFacts) -> Iterator[tuple[str, str, str, str]]:
    """Yield gate, object, and both values."""
    old, new = manifest.host, facts.host
    yield "gate-arch", new.arch, old.arch, new.arch
    yield "gate-cpu", "CPU", old.cpu_model, new.cpu_model
    yield "gate-kernel", "kernel", old.kernel, new.kernel
    yield "gate-libc", "C library", old.libc, new.libc
    yield "gate-criu", "CRIU", manifest.criu, str(facts.criu or _NONE)
    names = {(one.kind, one.number): one.name for one in facts.owners}
    for one in manifest.owners:
        what = f"{one.kind} {one.number}"
        yield f"gate-{one.kind}", what, one.name, names.get((one.kind, one.number), "") or _NONE
    yield from _gpus(manifest, facts)
    yield from _engine(manifest, facts)
    yield from _data(manifest, facts)
    files = manifest.outside.files
    now = [found for one in files if (found := facts.files.get(one.path)) is not None]
    thing = f"{len(files)} files"
    yield "files", thing, _digest(files), _digest(now)


def _gpus(manifest: Manifest, facts: TargetFacts) -> Iterator[tuple[str, str, str, str]]:
    old, new = manifest.nvidia, facts.nvidia
    if old is None:
        return
    yield "gate-driver", "NVIDIA driver", old.driver, new.driver if new else _NONE
    count = len(new.gpus) if new else 0
    yield "gate-gpu-count", "GPUs", str(len(old.gpus)), str(count)
    for place in facts.gpus.places if facts.gpus else ():
        one, other = place.old, place.new
        if other is None:
            continue
        name = f"GPU {other.index} {other.uuid}"
        yield "gate-gpu-model", name, _model(one), _model(other)
        yield "gate-gpu-memory", name, str(one.memory_total), str(other.memory_total)


def _engine(manifest: Manifest, facts: TargetFacts) -> Iterator[tuple[str, str, str, str]]:
    """Yield Pythons, loaded packages by the folder they are in, and libraries for computing."""
    here = facts.software
    for python in manifest.outside.pythons:
        if python.version and python.program in here.pythons:
            now = here.pythons[python.program] or _NONE
            yield "gate-engine-python", python.program, python.version, now
    for folder in sorted({one.folder for one in manifest.engine.distributions}):
        ours = [one for one in manifest.engine.distributions if one.folder == folder]
        known = here.installed.get(folder, {})
        old = [f"{one.name} {one.version} {one.build}".strip() for one in ours]
        new = [" ".join((one.name, *(known.get(one.name) or (_NONE,)))).strip() for one in ours]
        yield "gate-engine-package", folder, ", ".join(sorted(old)), ", ".join(sorted(new))
    for library in manifest.engine.libraries:
        if library.path in here.libraries:
            versions = here.libraries[library.path]
            found = library.version if library.version in versions else ", ".join(versions)
            yield "gate-engine-library", library.path, library.version, found or _NONE


def _data(manifest: Manifest, facts: TargetFacts) -> Iterator[tuple[str, str, str, str]]:
    """Yield weights and what is tracked, by their digests."""
    for weights in manifest.models:
        if weights.path in facts.software.weights:
            now = facts.software.weights[weights.path]
            there = f"{now.size} bytes, {now.digest}" if now else _NONE
            yield "gate-model", weights.path, f"{weights.size} bytes, {weights.digest}", there
    for one in manifest.tracked:
        if one.path in facts.software.tracked:
            seen = facts.software.tracked[one.path]
            yield "gate-tracked", one.path, one.digest, (seen.digest if seen else "") or _NONE


def _model(gpu: Gpu) -> str:
    return f"{gpu.name} {gpu.compute_capability}".strip()


def _digest(files: Iterable[FileRecord]) -> str:
    """Return one value for what is compared of many files: path, size, mode, build-id."""
    whole = blake3()
    for one in sorted(files, key=lambda one: one.path):
        fields = (one.path, one.size, one.mode, one.build_id)
        whole.update(repr(fields).encode("utf-8", "surrogateescape"))
    return f"blake3:{whole.hexdigest()}"
