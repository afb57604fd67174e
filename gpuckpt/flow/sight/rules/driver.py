"""Rules about the NVIDIA driver as a whole: its age, its kind, and what it was seen to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.gpu import GPU_NODE
from gpuckpt.model import Version, blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding

_OLDEST: Final = Version("570")
_PLATFORM: Final = "x86_64"
# versions of the open kernel modules that did harm in the field, and what
_HAZARDS: Final = {"595.71": "ending a restored process was seen to hang the whole host"}


def too_old(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Before 570 there is no lock with a timeout, and NVML's files stay open."""
    if facts.nvidia is None or not uses_gpu(facts):
        return
    if Version(facts.nvidia.driver) < _OLDEST:
        yield blocker(
            "driver-too-old",
            f"driver {facts.nvidia.driver}",
            f"The NVIDIA driver is older than {_OLDEST}: it cannot give up a lock, and leaves the "
            "device files of NVML, as PyTorch uses it, open.",
            f"Install driver {_OLDEST} or newer; 580 or newer to restore on other GPUs.",
        )


def upgrade_pending(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A library newer than the loaded module cannot talk to it: no driver call would work."""
    nvidia = facts.nvidia
    if nvidia is None or not uses_gpu(facts):
        return
    if nvidia.module and nvidia.library and nvidia.module != nvidia.library:
        yield blocker(
            "driver-upgrade",
            f"module {nvidia.module}, libraries {nvidia.library}",
            "The NVIDIA driver was upgraded while the old one is loaded, and the new libraries "
            "cannot work with it.",
            f"Install the libraries of {nvidia.module} again, or let the job end and reboot.",
        )


def hazard(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Some versions are known to do harm."""
    nvidia = facts.nvidia
    if nvidia is None or not uses_gpu(facts) or nvidia.flavour == "proprietary":
        return
    for version, harm in _HAZARDS.items():
        if nvidia.driver == version or nvidia.driver.startswith(f"{version}."):
            yield warning(
                "driver-hazard",
                f"driver {nvidia.driver}",
                f"With this driver {harm}.",
                "Install another version, or end a restored job only by its own means.",
            )


def platform(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """On other processors the driver was seen to lock and then to refuse the checkpoint."""
    if facts.host.arch != _PLATFORM and uses_gpu(facts):
        yield blocker(
            "platform",
            facts.host.arch,
            f"On {facts.host.arch} the driver locks a process and then does not support the rest.",
            f"Dump GPU jobs on {_PLATFORM} only.",
        )


def uses_gpu(facts: DumpFacts) -> bool:
    """Whether the tree has anything to do with a GPU."""
    return bool(facts.cuda_pids) or any(GPU_NODE.fullmatch(one.path) for one in facts.look.nodes)


RULES: Final[tuple[Rule, ...]] = (too_old, upgrade_pending, hazard, platform)
