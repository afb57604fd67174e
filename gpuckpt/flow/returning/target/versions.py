"""Rules about engine, model and tracked paths: any difference closes a gate, which has a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.returning.target.rule import Rule, some
from gpuckpt.flow.sight.rules.rule import size
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.image.engine import DistributionRecord, TrackedRecord, WeightRecord
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.outside import PythonRecord
    from gpuckpt.model import Finding


def pythons(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """What a Python has not imported yet is not in its memory: it fails later, out of the blue."""
    for one in manifest.outside.pythons:
        here = facts.software.packages.get(one.prefix, one.packages)
        if here is None:
            yield blocker(
                "gate-python-prefix",
                one.prefix,
                f"{one.prefix}, from which the job's Python imports, is not here.",
                "Put it back, or override with --force-gate gate-python-prefix if the job has "
                "imported all it needs.",
            )
        elif changed := sorted(set(one.packages) ^ set(here)):
            yield from _others(manifest, one, changed)


def _others(manifest: Manifest, python: PythonRecord, changed: list[str]) -> Iterator[Finding]:
    """Tell of packages that the job has not loaded and that are gone, or others now.

    What has only come along since is nothing that the job knows of.
    """
    inside = f"{python.prefix}/"
    loaded = {one.name for one in manifest.engine.distributions if one.folder.startswith(inside)}
    rest = [one for one in changed if _name(one) not in loaded]
    lost = [package for package in rest if package in python.packages]
    if lost:
        yield warning(
            "python-packages",
            python.prefix,
            f"The packages in {python.prefix} have changed: {_changes(lost, rest)}.",
            "Install what the job was started with: what it imports from now on must fit.",
        )


def _name(package: str) -> str:
    return package.partition("-")[0].replace("_", "-").replace(".", "-").lower()


def _changes(lost: list[str], changed: list[str]) -> str:
    names = {_name(package) for package in lost}
    fresh = [one for one in changed if one not in lost and _name(one) in names]
    return ", ".join([f"without {some(lost)}", *([f"with {some(fresh)}"] if fresh else [])])


def python_versions(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """The code that a Python has compiled, and its extension modules, fit to its version."""
    for one in manifest.outside.pythons:
        here = facts.software.pythons.get(one.program, one.version)
        if one.version and here != one.version:
            now = f"{one.implementation} {here}" if here else "not there"
            yield blocker(
                "gate-engine-python",
                one.program,
                f"The job runs in {one.implementation} {one.version}, and {one.program} here is "
                f"{now}.",
                "Install the same version, or override with --force-gate gate-engine-python.",
            )


def distributions(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """What is loaded goes on as it was; what it loads from now on comes from here."""
    missing = {prefix for prefix, here in facts.software.packages.items() if here is None}
    folders: dict[str, list[str]] = {}
    for one in manifest.engine.distributions:
        known = facts.software.installed.get(one.folder, {})
        inside = any(one.folder.startswith(f"{prefix}/") for prefix in missing)
        if one.name not in known or inside:  # the whole place is told of
            continue
        if change := _change(one, known[one.name]):
            folders.setdefault(one.folder, []).append(change)
    for folder, changes in folders.items():
        yield blocker(
            "gate-engine-package",
            folder,
            f"In {folder}: {some(changes)}.",
            "Install what the job was started with, or override with --force-gate "
            "gate-engine-package.",
        )


def _change(one: DistributionRecord, here: tuple[str, str] | None) -> str:
    """Say what has become of a distribution, "" if nothing."""
    loaded = "" if "installed" not in one.known else ", if it was loaded,"
    if here is None:
        return f"{one.name}, which was{loaded} {one.version}, is not there"
    if here[0] != one.version:
        return f"{one.name} was{loaded} {one.version}, now it is {here[0]}"
    if one.build and here[1] and one.build != here[1]:
        return f"{one.name} {one.version} is another build"
    return ""


def libraries(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """A library of a system has its version in its name: another version is another file."""
    for one in manifest.engine.libraries:
        here = facts.software.libraries.get(one.path, (one.version,))
        if "." in one.version and one.version not in here:
            now = f"{some(here)} is" if here else "no other is"
            yield blocker(
                "gate-engine-library",
                one.path,
                f"The job computes with {one.name} {one.version}; here {now}.",
                "Install that version beside the others: the file itself is needed too.",
            )


def models(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """Weights that were read again, or by a copy that is started beside, must be the same."""
    for one in manifest.models:
        if one.path in facts.software.weights:
            now = facts.software.weights[one.path]
            change = "is not here"
            if now is not None and now.size != one.size:
                change = f"has {size(now.size)} instead of {size(one.size)}"
            elif now is not None and now.digest != one.digest:
                change = "has other bytes"
            elif now is not None:
                continue
            yield blocker(
                "gate-model",
                one.path,
                f"{_weight(one)} {change}.",
                "Put the same model there, or override with --force-gate gate-model if the job "
                "does not read it again.",
            )


def _weight(one: WeightRecord) -> str:
    of = f"{one.model} at commit {one.commit[:12]}: " if one.model else ""
    return f"{of}{one.path}, weights of the job,"


def tracked(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """What the user has asked to be compared; what the image carries is told of elsewhere."""
    carried = {name for one in manifest.carried for name in one.names}
    for one in manifest.tracked:
        if one.path in facts.software.tracked:
            here = facts.software.tracked[one.path]
            if here is None:
                change = "is not here"
            elif here.unread:
                change = f"cannot be read ({here.unread})"
            elif here.digest != one.digest:
                rest = [
                    (path, word) for path, word in here.changes if _at(one, path) not in carried
                ]
                if here.changes and not rest:
                    continue
                change = f"has changed: {_first(rest, one, here.entries)}"
            else:
                continue
            yield blocker(
                "gate-tracked",
                one.path,
                f"{one.path}, tracked since the dump, {change}.",
                "Put it back as it was, or override with --force-gate gate-tracked.",
            )


def _at(record: TrackedRecord, path: str) -> str:
    return f"{record.path}/{path}" if path else record.path


def _first(changes: Iterable[tuple[str, str]], record: TrackedRecord, entries: int) -> str:
    told = [f"{path or record.path} is {word}" for path, word in changes]
    return some(told) if told else f"it had {record.entries} entries, now {entries}"


RULES: Final[tuple[Rule, ...]] = (
    pythons,
    python_versions,
    distributions,
    libraries,
    models,
    tracked,
)
