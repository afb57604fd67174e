"""demo: what gpuckpt does, shown and proved on a small job of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.flow.trial import Trial, trial

if TYPE_CHECKING:
    from gpuckpt.events import Reporter
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox


def demo(tools: Toolbox, reporter: Reporter, interrupts: Interrupts) -> Trial:
    """Dump and restore a counting job, on the GPU if there is one.

    Raises:
        GpuckptError: what failed; nothing of the demo is left.
    """
    nvidia = tools.nvidia.facts()
    device = "gpu" if nvidia is not None and nvidia.gpus else "cpu"
    if device == "cpu":
        reporter.note("no NVIDIA GPU here: the job counts on the CPU")
    return trial(tools, device, reporter, interrupts)
