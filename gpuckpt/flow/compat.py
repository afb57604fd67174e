"""compat: which images can be restored on which hosts, judged by the rules of a restore.

This host is looked at as `plan IMAGE` does it; others are known from their saved facts, and what
these cannot tell is named. Nothing is touched.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from gpuckpt.errors import HostMismatch
from gpuckpt.flow.returning.opening import examined
from gpuckpt.flow.returning.target.facts import gather
from gpuckpt.flow.returning.target.judge import judge, refusal
from gpuckpt.flow.returning.target.numbers import without_us
from gpuckpt.flow.returning.target.room import carried_bytes, memory_needed
from gpuckpt.flow.returning.target.saved import not_judged, target_facts
from gpuckpt.flow.returning.target.savedhost import load
from gpuckpt.image.identity import changes
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from gpuckpt.errors import GpuckptError
    from gpuckpt.flow.returning.opening import Opened
    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.flow.returning.target.savedhost import SavedHost
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.identity import Identity
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.location import Location
    from gpuckpt.model import Finding

# what is known of a host for one image, and what nobody could look at
Look: TypeAlias = "Callable[[Manifest], tuple[TargetFacts, tuple[str, ...]]]"
_ALL: Final = "Every finding names its remedy; --json has them all."


class Candidate(Value, frozen=True):
    """A host: its name, and the file it is known from, with its age in seconds; None: this one."""

    name: str
    source: Path | None = None
    age: float | None = None


class Fit(Value, frozen=True):
    """One image on one host; `error` is the refusal that a restore would end in.

    `not_judged` names what the image depends on and nobody could look at. `memory` are the bytes
    of host memory that a restore needs.
    """

    image: Location
    manifest: Manifest
    host: str
    facts: TargetFacts
    findings: tuple[Finding, ...]
    error: GpuckptError | None
    not_judged: tuple[str, ...]
    identity: Identity
    memory: int

    @property
    def verdict(self) -> str:
        """The answer in a word: yes, warnings or no."""
        if self.error is not None:
            return "no"
        return "warnings" if self.findings else "yes"

    @property
    def moved(self) -> int:
        """How many GPUs that the job could see come from another place than they had."""
        places = self.facts.gpus.places if self.facts.gpus else ()
        return sum(one.how != "same" for one in places if one.part != "spare")


class Compat(Value, frozen=True):
    """All answers, host by host; the best host is first."""

    images: tuple[Location, ...]
    hosts: tuple[Candidate, ...]
    fits: tuple[Fit, ...]

    def of(self, host: str) -> tuple[Fit, ...]:
        """Return the answers for one host, in the order of the images."""
        return tuple(one for one in self.fits if one.host == host)

    @property
    def taking_all(self) -> tuple[str, ...]:
        """The hosts that every image can be restored on, the best first."""
        return tuple(
            one.name for one in self.hosts if all(fit.error is None for fit in self.of(one.name))
        )

    @property
    def homeless(self) -> tuple[Location, ...]:
        """The images that can be restored on none of the hosts."""
        placed = {fit.image for fit in self.fits if fit.error is None}
        return tuple(image for image in self.images if image not in placed)

    @property
    def error(self) -> GpuckptError | None:
        """Why not every image has a host; None if each has one."""
        if not self.homeless:
            return None
        refused = [one.error for one in self.fits if one.image in self.homeless if one.error]
        if len(self.fits) == 1 or not any(isinstance(one, HostMismatch) for one in refused):
            return refused[0]  # the image itself, wherever it would go
        number, hosts = len(self.homeless), len(self.hosts)
        what = "the image" if len(self.images) == 1 else f"{number} of {len(self.images)} images"
        where = self.hosts[0].name if hosts == 1 else f"any of these {hosts} hosts"
        return HostMismatch(f"{what} cannot be restored on {where}", hint=_ALL)


def compat(
    tools: Callable[[], Toolbox],
    images: Sequence[Location],
    sources: Sequence[Path] = (),
    force: frozenset[str] = frozenset(),
) -> Compat:
    """Judge every image on every host; without `sources` on this one, which `tools` look at.

    Raises:
        UsageError: a file is none of a host's facts.
        ImageError: there is no image, or its manifest cannot be read.
        NotPrivileged: this user may not read it.
    """
    listed = tuple(dict.fromkeys(images))
    hosts = _saved(sources)
    opened = [examined(path) for path in listed]
    hosts = hosts or _here(tools())
    found = {host.name: [_fit(host, look, one, force) for one in opened] for host, look in hosts}
    ranked = sorted((host for host, _ in hosts), key=lambda one: _rank(found[one.name]))
    return Compat(
        images=listed,
        hosts=tuple(ranked),
        fits=tuple(fit for host in ranked for fit in found[host.name]),
    )


def _here(tools: Toolbox) -> list[tuple[Candidate, Look]]:
    def look(image: Manifest) -> tuple[TargetFacts, tuple[str, ...]]:
        return without_us(gather(tools, image)), ()

    return [(Candidate(tools.host.facts().hostname), look)]


def _saved(sources: Iterable[Path]) -> list[tuple[Candidate, Look]]:
    """Name hosts as they name themselves; where two use one name, by their files."""
    files = {path: load(path) for path in sources}
    times = Counter(saved.host.hostname for saved in files.values())
    hosts: list[tuple[Candidate, Look]] = []
    for path, saved in files.items():
        name = saved.host.hostname if times[saved.host.hostname] == 1 else str(path)
        hosts.append((Candidate(name, path, saved.age), partial(_told, saved)))
    return hosts


def _told(saved: SavedHost, manifest: Manifest) -> tuple[TargetFacts, tuple[str, ...]]:
    return target_facts(saved, manifest), not_judged(manifest, saved)


def _fit(host: Candidate, look: Look, opened: Opened, force: frozenset[str]) -> Fit:
    manifest = opened.manifest
    facts, unknown = look(manifest)
    found = judge(manifest, facts)
    return Fit(
        image=opened.path,
        manifest=manifest,
        host=host.name,
        facts=facts,
        findings=(*opened.findings, *found),
        error=opened.error or refusal(found, force),
        not_judged=unknown,
        identity=changes(manifest, facts.host, facts.gpus),
        memory=memory_needed(manifest) + carried_bytes(facts),
    )


def _rank(fits: Iterable[Fit]) -> tuple[int, int, int, int]:
    """Sort hosts: those that take most, with the fewest warnings, fewest moves, most memory."""
    listed = list(fits)
    return (
        sum(one.error is not None for one in listed),
        sum(len(one.findings) for one in listed),
        sum(one.moved for one in listed),
        -min((one.facts.host.memory_available for one in listed), default=0),
    )
