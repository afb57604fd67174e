"""The images that may bring a job back, newest first; those that cannot be read are told first."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError, UsageError
from gpuckpt.flow.returning.elapsed import TICKS, made_at
from gpuckpt.flow.work.opening import read_manifest
from gpuckpt.image import names
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.flow.work.storetool import StoresTool
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.location import Location, Url

_NAME_THEM = "Name the images of one job, in place of their folder."
_LEAVE_OUT = "Name the images of one job only."


class Candidate(Value, frozen=True):
    """One image; `manifest` is None, or `error` says why, where it cannot be read."""

    path: Location
    manifest: Manifest | None = None
    error: GpuckptError | None = None

    @property
    def created(self) -> str:
        """When it was made, "" if that is not known."""
        return self.manifest.created if self.manifest else ""


def candidates(
    stores: StoresTool, places: Iterable[Location], *, several: bool
) -> tuple[Candidate, ...]:
    """Return the images at some places; with `several` a place may be a folder of them.

    Raises:
        UsageError: there are images of more than one job.
    """
    found: dict[Location, Candidate] = {}
    for place in places:
        inside = images_in(stores, place) if several else ()
        listed = [_read(stores, path) for path in inside or (place,)]
        _one_job(place, listed)
        found |= {one.path: one for one in listed}
    _nonebeside(found.values())
    return tuple(sorted(found.values(), key=_order))


def images_in(stores: StoresTool, folder: Location) -> tuple[Location, ...]:
    """Return the images that lie in a folder, none if it is an image itself."""
    try:
        inside = _inside(folder) if isinstance(folder, Path) else _objects(stores, folder)
    except (OSError, GpuckptError):  # not there, closed to us: whoever opens it says so
        return ()
    return () if "" in inside else tuple(folder / name for name in sorted(inside))


def _inside(folder: Path) -> set[str]:
    """Return the names of images below a folder of this host, "" for itself."""
    if _is_image(folder):
        return {""}
    below = (one for one in folder.iterdir() if not one.name.startswith("."))
    return {one.name for one in below if _is_image(one)}


def _is_image(folder: Path) -> bool:
    # Path.is_file would raise where a folder is closed to us
    return os.path.isfile(folder / names.MANIFEST)  # noqa: PTH113


def _objects(stores: StoresTool, folder: Url) -> set[str]:
    """Return the same of a store, which has no folders but names."""
    parts = (name.rpartition("/") for name in stores.folder(folder).names())
    return {above for above, _, name in parts if name == names.MANIFEST and "/" not in above}


def manifests(found: Iterable[Candidate]) -> Iterator[Manifest]:
    """Go through those that could be read."""
    return (one.manifest for one in found if one.manifest is not None)


def _read(stores: StoresTool, path: Location) -> Candidate:
    """Read the manifest of an image, and trust nobody else's."""
    try:
        return Candidate(path, read_manifest(path, stores))
    except GpuckptError as why:
        return Candidate(path, error=why)


def _order(one: Candidate) -> tuple[bool, float, str]:
    made = made_at(one.manifest) if one.manifest else None
    return one.manifest is not None, -(made or 0.0), str(one.path)


def _one_job(folder: Location, listed: Iterable[Candidate]) -> None:
    """What another job did is no older state of this one."""
    known = [(one.path, one.manifest) for one in listed if one.manifest]
    for (_, first), (path, other) in combinations(known, 2):
        if _does(first) != _does(other) or beside(first, other):
            raise UsageError(
                f"{folder} has images of several jobs: {_called(first)} and, in {path.name}, "
                f"{_called(other)}",
                hint=_NAME_THEM,
            )


def _nonebeside(found: Iterable[Candidate]) -> None:
    """Images that are named one by one may differ: their job may have been given other options."""
    known = [(one.path, one.manifest) for one in found if one.manifest]
    for (path, first), (other, second) in combinations(known, 2):
        if beside(first, second):
            raise UsageError(
                f"these are images of several jobs, which ran at the same time: {_called(first)} "
                f"in {path.name}, {_called(second)} in {other.name}",
                hint=_LEAVE_OUT,
            )


def _does(manifest: Manifest) -> tuple[tuple[str, ...], str, int]:
    root = manifest.tree[0]
    return root.argv, root.cwd, root.uid


def beside(one: Manifest, other: Manifest) -> bool:
    """Whether both ran at the same time as different processes: a job comes back with its pid.

    Two that ran one after the other may be the same job, started anew.
    """
    first, second = one.tree[0], other.tree[0]
    if first.pid == second.pid or one.host.boot_id != other.host.boot_id:
        return False
    began = max(first.start_time, second.start_time) / TICKS
    return began < min(first.clock, second.clock)


def _called(manifest: Manifest) -> str:
    root = manifest.tree[0]
    return f"{' '.join(root.argv)[:80]} (pid {root.pid})"
