"""Whether an image can be restored on this host: gates first, then room, nothing touched."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuckpt.errors import HostMismatch, ImageUnsupported
from gpuckpt.flow.memory import memory_need
from gpuckpt.flow.tasks import wait_free
from gpuckpt.image import compare
from gpuckpt.image.manifest import FileRecord, unknown_needs
from gpuckpt.model import blocker
from gpuckpt.tools import foreground
from gpuckpt.tools.net import PortState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuckpt.flow.interrupts import Interrupts
    from gpuckpt.flow.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding, Process

# zombies of the dumped tree wait for a parent, on small hosts seconds for an init that polls
PID_PATIENCE = 30.0
GPU_PATIENCE = 15.0
# the kernel keeps closed connections in TIME_WAIT for 60 s
PORT_PATIENCE = 65.0
# what the driver and CRIU need beside the pages themselves
MEMORY_FACTOR = 1.05
FORCE = "--force-gate ID overrides one named gate."


def check(tools: Toolbox, manifest: Manifest, force: frozenset[str]) -> list[Finding]:
    """Compare the image with this host; return what only warns.

    Raises:
        ImageUnsupported: the image needs something this gpuckpt does not know.
        HostMismatch: a gate is closed and not forced; lists all of them.
    """
    if unknown := unknown_needs(manifest):
        raise ImageUnsupported(f"the image needs {', '.join(unknown)}, unknown to this gpuckpt")
    host, nvidia = tools.host.facts(), tools.nvidia.facts()
    findings = list(compare.gates(manifest, host, nvidia, tools.criu.version))
    findings += compare.files(manifest, _found(tools, manifest))
    if host.missing_capabilities:
        findings.append(_privilege(host.missing_capabilities))
    findings += _terminal(manifest)
    return refuse(findings, force)


def make_room(
    tools: Toolbox,
    manifest: Manifest,
    force: frozenset[str],
    interrupts: Interrupts,
    note: Callable[[str], None],
) -> list[Finding]:
    """Wait, bounded, for pids, ports and GPU memory to become free, then look at host memory.

    `note` is told of a wait that is long.

    Raises:
        HostMismatch: there is no room.
        Interrupted: a signal came while waiting.
    """
    interrupts.check()
    taken = wait_free(tools, manifest.ids, PID_PATIENCE, interrupts)
    findings = _taken(tools, taken)
    findings += _ports(tools, manifest, interrupts, note)
    findings += _host_memory(tools, manifest)
    ends = time.monotonic() + GPU_PATIENCE
    while short := _gpu_memory(tools, manifest):
        interrupts.check()
        if time.monotonic() >= ends:
            break
        time.sleep(0.2)
    return refuse(findings + short, force)


def refuse(findings: Iterable[Finding], force: frozenset[str]) -> list[Finding]:
    """Raise HostMismatch for blockers that are not forced; return the rest as warnings."""
    found = list(findings)
    closed = [finding for finding in found if finding.blocks and finding.id not in force]
    if closed:
        what = closed[0].reason if len(closed) == 1 else f"{len(closed)} things do not match"
        hint = FORCE if any(finding.id.startswith("gate-") for finding in closed) else ""
        raise HostMismatch(f"this host cannot take the image: {what}", findings=closed, hint=hint)
    return found


def _found(tools: Toolbox, manifest: Manifest) -> dict[str, FileRecord | None]:
    found: dict[str, FileRecord | None] = {}
    for record in manifest.outside.files:
        now = tools.files.look(record.path, build_id=bool(record.build_id))
        found[record.path] = (
            None
            if now is None
            else FileRecord(
                path=record.path,
                size=now.size,
                mode=now.mode,
                build_id=now.build_id,
                mtime_ns=now.mtime_ns,
                flags=record.flags,
            )
        )
    return found


def _taken(tools: Toolbox, numbers: tuple[int, ...]) -> list[Finding]:
    """Name whoever uses the job's pids, each with all the numbers it uses."""
    owners: dict[int, tuple[Process, list[int]]] = {}
    for number in numbers:
        if owner := tools.proc.owner(number):
            owners.setdefault(owner.pid, (owner, []))[1].append(number)
    return [
        blocker(
            "pid-taken",
            f"pid {', '.join(map(str, used))}",
            f"the job's pid {used[0]} is taken by process {owner.pid}"
            + (
                f", a zombie that process {owner.ppid} has not waited for"
                if owner.zombie
                else f": {owner.command}"
            ),
            "End it, or have its parent wait for it, and retry.",
            owner.pid,
        )
        for owner, used in owners.values()
    ]


def _ports(
    tools: Toolbox, manifest: Manifest, interrupts: Interrupts, note: Callable[[str], None]
) -> list[Finding]:
    """Find ports in use; those held by closed connections only are waited for."""
    ends = time.monotonic() + PORT_PATIENCE
    noted = False
    while True:
        states = [
            (listener, tools.net.port(listener.protocol, listener.address, listener.port))
            for listener in manifest.outside.listeners
        ]
        lingering = [one.port for one, state in states if state is PortState.LINGERING]
        if not lingering or time.monotonic() >= ends:
            break
        if not noted:
            note(
                f"closed connections hold port {lingering[0]}: waiting, at most {PORT_PATIENCE:g} s"
            )
            noted = True
        interrupts.check()
        time.sleep(0.5)
    return [
        blocker(
            "port-taken",
            f"{listener.protocol} {listener.address}:{listener.port}",
            f"{listener.protocol} port {listener.port}, which the job had, is in use here",
            "End what listens there and retry.",
        )
        for listener, state in states
        if state is not PortState.FREE
    ]


def _host_memory(tools: Toolbox, manifest: Manifest) -> list[Finding]:
    need = int(manifest.totals.pages * MEMORY_FACTOR)
    have = tools.host.facts().memory_available
    if need <= have:
        return []
    reason = f"the job needs {need >> 20} MiB of host memory, {have >> 20} MiB are available"
    return [
        blocker("host-memory", "RAM", reason, "Free memory or raise the memory cgroup's limit.")
    ]


def _gpu_memory(tools: Toolbox, manifest: Manifest) -> list[Finding]:
    nvidia = tools.nvidia.facts()
    if manifest.nvidia is None or nvidia is None or not manifest.nvidia.uses:
        return []
    need = memory_need(manifest.nvidia.uses, compare.gpu_map(manifest, nvidia))
    return [
        blocker(
            "gpu-memory",
            f"GPU {gpu.index} {gpu.uuid}",
            f"GPU {gpu.index} has {gpu.memory_free >> 20} MiB free, "
            f"the job needs {need[gpu.uuid] >> 20} MiB",
            "End what holds the GPU's memory (nvidia-smi lists it) and retry.",
        )
        for gpu in nvidia.gpus
        if gpu.memory_free < need.get(gpu.uuid, 0)
    ]


def _privilege(missing: tuple[str, ...]) -> Finding:
    return blocker(
        "not-privileged",
        "capabilities",
        f"a restore needs {', '.join(missing)}, which this process lacks",
        "Run it as root (sudo gpuckpt restore ...).",
    )


def _terminal(manifest: Manifest) -> list[Finding]:
    """A job that had somebody else's terminal open gets ours: CRIU finds out too late."""
    opened = manifest.outside.terminals
    foreign = "/dev/ptmx" not in opened and any(path.startswith("/dev/pts/") for path in opened)
    if not (manifest.options.shell_job and foreign) or foreground.is_ours(0):
        return []
    return [
        blocker(
            "no-terminal",
            "standard input",
            "the job had a terminal open, and there is none here to give it",
            "Run the restore in a terminal: by hand, or under `script` or tmux.",
        )
    ]
