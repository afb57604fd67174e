"""plan IMAGE: what a restore of this image would meet on this host; nothing is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.flow.returning.opening import examined
from gpuckpt.flow.returning.relocating import mapped
from gpuckpt.flow.returning.target.facts import TargetFacts, gather
from gpuckpt.flow.returning.target.judge import judge, refusal
from gpuckpt.flow.returning.target.numbers import without_us
from gpuckpt.flow.returning.target.room import carried_bytes, memory_needed
from gpuckpt.flow.sight.homecoming import Return, returning
from gpuckpt.flow.work import hugepages
from gpuckpt.flow.work.history import History
from gpuckpt.image.identity import changes
from gpuckpt.value import Value

if TYPE_CHECKING:
    from gpuckpt.errors import GpuckptError
    from gpuckpt.flow.returning.target.fileplan import Choice
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.identity import Identity
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.location import Location
    from gpuckpt.model import Finding


class Preview(Value, frozen=True):
    """What was found; `error` is the refusal that a restore would end in, None if it would begin.

    `same_boot` tells whether this is the very boot it ran on, `memory` the bytes of host memory
    that a restore needs; `thp`: with huge pages it would be clearly quicker.
    """

    path: Location
    manifest: Manifest
    facts: TargetFacts
    findings: tuple[Finding, ...]
    error: GpuckptError | None
    same_boot: bool
    memory: int
    forecast: Return
    thp: bool = False

    @property
    def identity(self) -> Identity:
        """What the job knows of its host and is another here."""
        return changes(self.manifest, self.facts.host, self.facts.gpus)


def preview(
    tools: Toolbox,
    path: Location,
    force: frozenset[str] = frozenset(),
    *,
    stays: bool = False,
    gpu_map: tuple[tuple[str, str], ...] = (),
    apart: bool = False,
    choice: Choice = "refuse",
    moved: tuple[tuple[str, str], ...] = (),
) -> Preview:
    """Compare an image with this host from its manifest and the sizes of its files.

    Raises:
        ImageError: there is no image, or its manifest cannot be read.
        NotPrivileged: this user may not read it.
        UsageError: `moved` names what is no path of it.
    """
    opened = examined(path, tools.stores)
    manifest = mapped(opened.manifest, moved)
    facts = gather(
        tools,
        manifest,
        stays=stays,
        gpu_map=gpu_map,
        apart=apart,
        choice=choice,
        moved=moved,
        place=str(path),
    )
    found = judge(manifest, without_us(facts))
    error = opened.error or refusal(found, force)
    held = sum(use.bytes for use in manifest.nvidia.uses) if manifest.nvidia else 0
    return Preview(
        path=path,
        manifest=manifest,
        facts=facts,
        findings=(*opened.findings, *found),
        error=error,
        same_boot=manifest.host.boot_id == facts.host.boot_id,
        memory=memory_needed(manifest) + carried_bytes(facts),
        thp=hugepages.helps(facts.host, held),
        forecast=returning(manifest, facts.host.cpu_count, History(tools.state_dir).records()),
    )
