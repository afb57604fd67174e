"""The software and data an image needs, as they are on this host: engine, model, tracked paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import field

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.engine import TrackedRecord
    from gpuckpt.image.manifest import Manifest


class Weight(Value, frozen=True):
    """A file as it is here."""

    size: int
    digest: str


class Tracked(Value, frozen=True):
    """A tracked path as it is here.

    `changes` has paths in it with missing, new or changed; nothing if no listing tells. `unread`
    says why it could not be looked at.
    """

    digest: str = ""
    entries: int = 0
    changes: tuple[tuple[str, str], ...] = ()
    unread: str = ""


class Software(Value, frozen=True):
    """One look; None, or "" for a version, is what is not there.

    `pythons` has versions by the file that is the Python, `installed` version and build by folder
    and name of the distribution, `libraries` the versions that lie beside a path.
    """

    pythons: dict[str, str] = field(default_factory=dict)
    packages: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    installed: dict[str, dict[str, tuple[str, str] | None]] = field(default_factory=dict)
    libraries: dict[str, tuple[str, ...]] = field(default_factory=dict)
    weights: dict[str, Weight | None] = field(default_factory=dict)
    tracked: dict[str, Tracked | None] = field(default_factory=dict)


def needed(manifest: Manifest) -> Iterator[str]:
    """Yield all paths that are going to be looked at."""
    for python in manifest.outside.pythons:
        yield from (path for path in (python.program, python.prefix) if path)
    yield from (one.folder for one in manifest.engine.distributions)
    yield from (one.path for one in manifest.models)
    yield from (one.path for one in manifest.tracked)


def software(tools: Toolbox, manifest: Manifest) -> Software:
    """Look at what the manifest tells of."""
    pythons = manifest.outside.pythons
    return Software(
        pythons={one.program: tools.software.python(one.program) for one in pythons if one.program},
        packages={one.prefix: tools.files.packages(one.prefix) for one in pythons},
        installed=_installed(tools, manifest),
        libraries={one.path: tools.software.beside(one.path) for one in manifest.engine.libraries},
        weights=_weights(tools, manifest),
        tracked={one.path: _tracked(tools, one) for one in manifest.tracked},
    )


def _installed(tools: Toolbox, manifest: Manifest) -> dict[str, dict[str, tuple[str, str] | None]]:
    names: dict[str, list[str]] = {}
    for one in manifest.engine.distributions:
        names.setdefault(one.folder, []).append(one.name)
    told: dict[str, dict[str, tuple[str, str] | None]] = {}
    for folder, wanted in names.items():
        here = tools.software.installed(folder, wanted)
        found = {name: here.get(name) for name in wanted}
        told[folder] = {
            name: (one.version, one.build) if one else None for name, one in found.items()
        }
    return told


def _weights(tools: Toolbox, manifest: Manifest) -> dict[str, Weight | None]:
    """Read the files as the dump has read them; those that the image carries are told of there."""
    carried = {name for one in manifest.carried for name in one.names}
    found: dict[str, Weight | None] = {}
    for full in (False, True):
        paths = [
            one.path for one in manifest.models if one.path not in carried and one.sampled != full
        ]
        for path, digest in tools.software.digests(paths, full=full).items() if paths else ():
            found[path] = Weight(digest.size, digest.hex) if digest is not None else None
    return found


def _tracked(tools: Toolbox, record: TrackedRecord) -> Tracked | None:
    try:
        found = tools.software.walk(record.path, full=record.full)
    except OSError as why:
        return Tracked(unread=f"{why.filename or record.path}: {why.strerror}")
    if found is None:
        return None
    same = found.digest == record.digest
    changes = () if same else tools.software.differences(record.listing, found.listing)
    return Tracked(digest=found.digest, entries=found.entries, changes=tuple(changes))
