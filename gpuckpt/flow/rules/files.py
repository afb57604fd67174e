"""Rules about what processes have open or mapped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.rules.gpu import GPU_NODE
from gpuckpt.flow.rules.rule import Rule, descriptor, size
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.facts import DumpFacts
    from gpuckpt.flow.rules.rule import DumpChoices
    from gpuckpt.model import Finding
    from gpuckpt.tools.held import DeviceNode

_SYSV: Final = re.compile(r"/SYSV[0-9a-f]{8}")
# what CRIU 4.2 takes: memory devices, terminals, ptys, serial lines of some kinds
_MAJORS: Final = frozenset({1, 5, 188, 204, *range(128, 144)})
_CONSOLES: Final = 4
_LAST_CONSOLE: Final = 63  # minors above are serial lines, which it does not know
_REMEDIES: Final = (
    (
        "/dev/infiniband/",
        "Start the job without RDMA: NCCL_IB_DISABLE=1, UCX_TLS=^ib for UCX and MPI.",
    ),
    ("/dev/gdrdrv", "Start the job without gdrcopy."),
    ("/dev/nvidia-fs", "Start the job without GPUDirect Storage (CUFILE_ALLOW_COMPAT_MODE=true)."),
    ("/dev/dri/", "Start the job without graphics and video."),
    ("/dev/kfd", "Start the job without ROCm."),
    ("/dev/net/tun", "Start the job without a tunnel of its own (VPN, slirp)."),
    ("/dev/fuse", "Mount FUSE file systems from outside the job."),
    ("/dev/kvm", "Dump what runs inside the virtual machine, from inside."),
)


def device_node(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU gives up at a device it has no code for, and it does so after the GPU was copied."""
    seen: set[tuple[int, str]] = set()
    for node in facts.look.nodes:
        if _known(node) or GPU_NODE.fullmatch(node.path) or (node.pid, node.path) in seen:
            continue
        seen.add((node.pid, node.path))
        kind = "block" if node.block else "character"
        yield blocker(
            "device-node",
            descriptor(node.fd, node.path),
            f"CRIU cannot dump the {kind} device {node.major}:{node.minor}.",
            _node_remedy(node.path),
            node.pid,
        )


def _known(node: DeviceNode) -> bool:
    if node.block or node.fd is None:
        return False  # a mapped device is beyond CRIU, whatever it is; /dev/zero is no device here
    console = node.major == _CONSOLES and node.minor <= _LAST_CONSOLE
    return console or node.major in _MAJORS


def _node_remedy(path: str) -> str:
    plain = "Let the job close it, or start the job without what uses it."
    return next((remedy for start, remedy in _REMEDIES if path.startswith(start)), plain)


def deleted_file_large(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """A deleted file that is in use goes into the image whole, up to a limit."""
    for file in facts.look.deleted:
        if not file.links and file.bytes > choices.ghost_limit:
            yield blocker(
                "deleted-file-large",
                descriptor(file.fd, file.path),
                f"The deleted file holds {size(file.bytes)}, the limit is "
                f"{size(choices.ghost_limit)}.",
                "Let the job close it, or raise the limit (--ghost-limit).",
                file.pid,
            )


def linked_file(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """CRIU 4.2.1 keeps such a file on this host by a name that it removes if the job goes on."""
    if not choices.leave_running:
        return
    for file in facts.look.deleted:
        if file.links:
            yield blocker(
                "linked-file",
                descriptor(file.fd, file.path),
                "The file, a semaphore most often, lost the name the job knows and is not carried "
                "in the image: with --leave-running the image could never be restored.",
                "Dump the job without --leave-running.",
                file.pid,
            )


def sysv_shm(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """System V memory belongs to the IPC namespace; CRIU dumps it only together with that."""
    own = facts.look.own_namespaces.get("ipc")
    for task in facts.look.tasks:
        if task.namespaces.get("ipc") != own:
            continue
        for name in sorted({one.target for one in task.mapped if _SYSV.fullmatch(one.target)}):
            yield blocker(
                "sysv-shm",
                name,
                "The process uses System V shared memory of the whole host.",
                "Let it use POSIX shared memory (UCX: UCX_TLS=^sysv), or start it in an IPC "
                "namespace of its own (unshare --ipc).",
                task.process.pid,
            )


def terminal(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """The terminal stays behind: it belongs to a program outside the tree."""
    seen: set[str] = set()
    for one in facts.look.terminals:
        if one.path in seen:
            continue
        seen.add(one.path)
        yield warning(
            "terminal",
            "controlling terminal " + one.path if one.fd is None else descriptor(one.fd, one.path),
            "The tree uses a terminal that stays behind; restore it from another one.",
            "Start jobs in a session of their own with output to a file: "
            "setsid nohup JOB </dev/null >log 2>&1 &",
            one.pid,
        )


RULES: Final[tuple[Rule, ...]] = (
    device_node,
    deleted_file_large,
    linked_file,
    sysv_shm,
    terminal,
)
