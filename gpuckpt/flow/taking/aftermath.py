"""What a dump that succeeded may still have to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuckpt.flow.sight.tcp import leads_out
from gpuckpt.model import Severity, TcpPolicy, warning

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding, Process


def late_failure(why: Exception) -> Finding:
    """CRIU complained when there was nothing left to lose."""
    return warning(
        "criu-late-failure",
        "criu dump",
        f"CRIU reported a failure after the image was complete and the tree gone: {why}.",
        "Nothing is lost; `gpuckpt verify` proves the image.",
    )


def late_gpu(why: Exception) -> Finding:
    """A driver call failed on the way back, and a second one did not."""
    return warning(
        "gpu-late-failure",
        "GPU memory back",
        f"Giving the job its GPU state back worked only at the second try: {why}.",
        "Look whether the job makes progress; the image is whole.",
    )


def unlock(tools: Toolbox, manifest: Manifest, log: Path) -> list[Finding]:
    """Remove the packet filter that CRIU leaves for peers outside, if there are none.

    A restore makes one of its own; this one would outlive an image that never comes back.
    """
    connections = manifest.outside.connections
    if manifest.options.tcp is not TcpPolicy.ESTABLISHED or leads_out(connections):
        return []
    try:
        tools.net.free_connections((), log)
    except OSError as why:
        return [
            warning(
                "filter-left",
                "nftables",
                f"CRIU's packet filter for the job's connections could not be removed: {why}.",
                "Remove it by hand (nft delete table inet NAME; `gpuckpt status` tells the name).",
            )
        ]
    return []


def left_behind(process: Process) -> Finding:
    """A process of the tree has ended and its pid is not free yet."""
    state = "a zombie" if process.zombie else f"in state {process.state}"
    return warning(
        "pid-not-gone",
        f"pid {process.pid}",
        f"It is {state} until its parent, process {process.ppid}, waits for it.",
        "A restore on this host needs this pid: wait, or end the parent.",
        process.pid,
    )


def softened(one: Finding) -> Finding:
    """The image is whole: what the job does not do afterwards is no failure of the dump."""
    return replace(one, severity=Severity.WARNING)
