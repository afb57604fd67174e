"""Rules about devices: those CRIU has no code for, and terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.gpu import GPU_NODE
from gpuckpt.flow.sight.rules.rule import Rule, descriptor
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices
    from gpuckpt.model import Finding
    from gpuckpt.tools.held import DeviceNode, Terminal

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
            f"The tree uses {_whose_terminal(one)}, which stays behind; restore it from another "
            "one.",
            "Start jobs in a session of their own with output to a file: `gpuckpt run -- JOB`, or "
            "setsid nohup JOB </dev/null >log 2>&1 &",
            one.pid,
        )


def _whose_terminal(one: Terminal) -> str:
    return f"a terminal of process {one.holder} ({one.comm})" if one.holder else "a terminal"


RULES: Final[tuple[Rule, ...]] = (device_node, terminal)
