"""Words for what a job computes with: Pythons and what they have loaded, models, tracked paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.cli import units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.image.engine import WeightRecord
    from gpuckpt.image.manifest import Manifest

# what people ask for first
_FIRST: Final = ("vllm", "sglang", "torch", "jax", "transformers")
_MOST: Final = 8
_SHORT: Final = 12  # of a commit


def rows(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Give a few lines; --json has all of it."""
    for python in manifest.outside.pythons:
        name = f"{python.implementation} {python.version}, " if python.version else ""
        yield "python", f"{name}{python.prefix}"
    engine = manifest.engine
    loaded = sorted(engine.distributions, key=lambda one: (_rank(one.name), one.name))
    if loaded:
        unsure = ", as installed" if not engine.whole else ""
        yield "loaded", _some([f"{one.name} {one.version}" for one in loaded]) + unsure
    libraries = [f"{one.name} {one.version}" for one in engine.libraries if "." in one.version]
    if libraries:
        yield "libraries", _some(libraries)
    yield from _models(manifest)
    for one in manifest.tracked:
        entries = units.count(one.entries, "entry", "entries")
        yield "tracked", f"{one.path}, {entries}, {units.size(one.size)}"


def _rank(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


def _some(words: list[str]) -> str:
    more = len(words) - _MOST
    return ", ".join(words[:_MOST]) + (f" and {more} more" if more > 0 else "")


def _models(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Tell of files of one snapshot or folder together."""
    groups: dict[str, list[WeightRecord]] = {}
    for one in manifest.models:
        name = f"{one.model} at {one.commit[:_SHORT]}" if one.model else one.path.rpartition("/")[0]
        groups.setdefault(name, []).append(one)
    for name, files in groups.items():
        alone = len(files) == 1 and not files[0].model
        count = "" if alone else f", {units.count(len(files), 'file')}"
        told = files[0].path if alone else name
        yield "model", f"{told}{count}, {units.size(sum(one.size for one in files))}"
