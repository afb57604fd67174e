"""Rules about room: host memory, huge pages, GPU memory, and who has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.room import no_programs
from gpuckpt.flow.sight.rules.rule import size
from gpuckpt.model import blocker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.flow.returning.target.rule import Rule
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding

# what the driver and CRIU need beside the pages themselves
MEMORY_FACTOR = 1.05


def memory_host(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """All pages, those with the GPU's bytes among them, are in host memory for a moment."""
    need = memory_needed(manifest) + carried_bytes(facts)
    have = facts.host.memory_available
    if need > have:
        yield blocker(
            "memory-host",
            f"{size(have)} available",
            f"The job needs {size(need)} of host memory, its GPU bytes and this process's cgroup "
            "limits counted.",
            "Free memory, or raise the memory limit of the cgroup that gpuckpt runs in.",
        )


def memory_needed(manifest: Manifest) -> int:
    """Return the host memory that a restore needs at its peak."""
    return int(manifest.totals.pages * MEMORY_FACTOR)


def carried_bytes(facts: TargetFacts) -> int:
    """Return the bytes of files in memory that are not there yet."""
    return sum(step.bytes for step in facts.steps if step.standing and step.standing.file.memory)


def state_noexec(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """As at a dump: CRIU asks by a script whether the tasks may run."""
    if facts.no_programs:
        yield no_programs(facts.no_programs)


def huge_pages(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """Pages of a pool can be had only if the pool has them; CRIU's ENOMEM does not say so."""
    need = max((one.huge_pages for one in manifest.tree), default=0)
    if need > facts.host.huge_pages_free:
        yield blocker(
            "huge-pages",
            f"{size(facts.host.huge_pages_free)} free",
            f"The job holds {size(need)} of huge pages, and the pool here has less.",
            "Raise vm.nr_hugepages (or the pool of the size the job used) and retry.",
        )


def memory_gpu(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """A driver's restore that runs out of memory leaves a process stuck for good."""
    for gpu in facts.nvidia.gpus if facts.nvidia else ():
        if gpu.uuid in facts.gpu_short:
            need, held = facts.gpu_short[gpu.uuid]
            yield blocker(
                "gpu-memory",
                f"GPU {gpu.index} {gpu.uuid}",
                f"GPU {gpu.index} has {size(gpu.memory_free)} free, the job needs {size(need)}; "
                f"{held}.",
                "End what holds the GPU's memory and retry, or choose another GPU with --gpu-map.",
            )


RULES: Final[tuple[Rule, ...]] = (state_noexec, memory_host, huge_pages, memory_gpu)
