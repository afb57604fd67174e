"""What CRIU leaves undone, done while a restored tree still stands: CPUs, timers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.model import warning

if TYPE_CHECKING:
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest, ProcessRecord
    from gpuckpt.model import Finding


def fire(tools: Toolbox, manifest: Manifest) -> list[Finding]:
    """Let timers that had expired, and that nobody had read, expire again.

    Returns a warning for each that cannot be reached.
    """
    findings: list[Finding] = []
    for process in manifest.tree:
        for fd in process.expired:
            try:
                tools.proc.fire(process.pid, fd)
            except OSError as why:
                findings.append(_silent(process.pid, fd, why))
    return findings


def _silent(pid: int, fd: int, why: OSError) -> Finding:
    return warning(
        "timer-lost",
        f"fd {fd} timerfd",
        f"The timer had expired when the job was dumped, and now it stands: {why.strerror}.",
        "Look whether the job goes on; if its loop waits for it, start it anew.",
        pid,
    )


def bind(tools: Toolbox, manifest: Manifest) -> list[Finding]:
    """Give every thread its CPUs back, all of them to those that were not bound.

    Returns a warning for each process with threads whose CPUs are not all there.
    """
    findings: list[Finding] = []
    for process in manifest.tree:
        cpus = {thread: one.cpus for one in process.bound for thread in one.threads}
        lost = [
            thread
            for thread in process.threads
            if not tools.cpus.bind(thread, cpus.get(thread, ()))
        ]
        if lost:
            findings.append(_unbound(process, len(lost)))
    return findings


def _unbound(process: ProcessRecord, count: int) -> Finding:
    return warning(
        "cpus",
        f"{count} of {len(process.threads)} threads",
        "They were bound to CPUs that are not all here, or not allowed here.",
        "They run where the kernel lets them; bind them with taskset if it matters.",
        pid=process.pid,
    )
