"""What a dump that succeeded may still have to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.model import Finding, Severity

if TYPE_CHECKING:
    from gpuckpt.model import Process


def late_failure(why: Exception) -> Finding:
    """CRIU complained when there was nothing left to lose."""
    return Finding(
        id="criu-late-failure",
        severity=Severity.WARNING,
        object="criu dump",
        reason=f"CRIU reported a failure after the image was complete and the tree gone: {why}",
        remedy="Nothing is lost; `gpuckpt verify` proves the image.",
    )


def left_behind(process: Process) -> Finding:
    """A process of the tree has ended and its pid is not free yet."""
    state = "a zombie" if process.zombie else f"in state {process.state}"
    return Finding(
        id="pid-not-gone",
        severity=Severity.WARNING,
        object=f"pid {process.pid}",
        reason=f"it is {state} until its parent, process {process.ppid}, waits for it",
        remedy="A restore on this host needs this pid: wait, or end the parent.",
        pid=process.pid,
    )
