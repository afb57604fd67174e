"""Rules about kinds of descriptors and mappings: what CRIU has no code for stops a dump.

Everything is judged by lists of what CRIU 4.2.1 was seen to bring back: a kind that nobody has
met yet is refused before the GPU is touched, and not after it was copied.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.rule import Rule, descriptor
from gpuckpt.model import blocker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices
    from gpuckpt.model import Finding
    from gpuckpt.tools.look import Task

_PROBES: Final = "[uprobes]"  # CRIU 4.2.1 wants --allow-uprobes for it, which may carry breakpoints
_RING: Final = "anon_inode:[io_uring]"
_NAMESPACE: Final = re.compile(
    r"(?:pid|mnt|net|user|uts|ipc|cgroup|time)(?:_for_children)?:\[\d+\]"
)
_FINE: Final = frozenset(
    {
        "anon_inode:[eventpoll]",
        "anon_inode:[eventfd]",
        "anon_inode:[signalfd]",
        "anon_inode:[timerfd]",
        "anon_inode:[fanotify]",
        "anon_inode:[pidfd]",
        "anon_inode:inotify",
        _RING,  # has a rule of its own
    }
)
_PROTOCOLS: Final = frozenset(
    {
        *(
            "TCP",
            "TCPv6",
            "UDP",
            "UDPv6",
            "UDP-Lite",
            "UDPLITEv6",
            "RAW",
            "RAWv6",
            "PING",
            "PINGv6",
        ),
        *("UNIX", "UNIX-STREAM", "NETLINK", "PACKET"),
        "",  # gone meanwhile, or a kernel that does not say
    }
)
# what the kernel calls a thing, what it is, and how a job does without it
_THINGS: Final = (
    ("[userfaultfd]", "a userfaultfd", "Start the job without what handles page faults itself."),
    (
        "[perf_event]",
        "a performance counter",
        "Start the job without a profiler, or let the profiler end first.",
    ),
    ("bpf", "a BPF program or map", "Start the job without what traces or filters with BPF."),
    ("seccomp notify", "a seccomp supervisor", "Dump the supervised job, not its supervisor."),
    ("dmabuf", "a buffer shared between devices", "Start the job without what shares buffers."),
    ("sync_file", "a fence of a graphics driver", "Start the job without graphics or video."),
    ("kvm", "a virtual machine", "Dump what runs inside the machine, from inside."),
    ("[fscontext]", "a file system being mounted", "Let the job finish mounting it."),
    ("[landlock-ruleset]", "a Landlock rule set", "Let the job close it once it is enforced."),
    ("secretmem", "secret memory", "Start the job without memfd_secret."),
)
_PLAIN_REMEDY: Final = "Let the job close it, or start the job without what uses it."
_SOCKETS: Final = {
    "MPTCP": "Start the job with plain TCP (GODEBUG=multipathtcp=0 for Go; no mptcpize).",
    "MPTCPv6": "Start the job with plain TCP (GODEBUG=multipathtcp=0 for Go; no mptcpize).",
    "AF_VSOCK": "Start the job without what talks to the hypervisor.",
    "XDP": "Start the job without AF_XDP.",
}


def io_uring(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU 4.2 cannot dump a ring."""
    for task in facts.look.tasks:
        fds = [fd.fd for fd in task.descriptors if fd.target == _RING]
        if fds or any(one.target == _RING for one in task.mapped):
            yield blocker(
                "io-uring",
                descriptor(fds[0] if fds else None, _RING),
                "The process uses io_uring, which CRIU cannot dump.",
                "Start the job with `gpuckpt run`, which refuses it io_uring, or with sysctl "
                "kernel.io_uring_disabled=2; UV_USE_IO_URING=0 helps with older libuv only.",
                task.process.pid,
            )


def unsupported_descriptor(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Kernel objects without a file that CRIU does not know; one finding for each kind."""
    for task in facts.look.tasks:
        seen: set[str] = set()
        for fd in task.descriptors:
            if fd.kind != "anon" or fd.target in _FINE or _NAMESPACE.fullmatch(fd.target):
                continue
            if fd.target not in seen:
                seen.add(fd.target)
                yield _unsupported(task, fd.fd, fd.target)


def foreign_namespace(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """An open namespace comes back only if a process of the tree lives in it."""
    own = {name for task in facts.look.tasks for name in task.namespaces.values()}
    own.update(facts.look.own_namespaces.values())
    for task in facts.look.tasks:
        for fd in task.descriptors:
            if _NAMESPACE.fullmatch(fd.target) and fd.target not in own:
                yield blocker(
                    "namespace-open",
                    descriptor(fd.fd, fd.target),
                    "The process holds a namespace open that no process of the tree lives in.",
                    _PLAIN_REMEDY,
                    task.process.pid,
                )


def unsupported_mapping(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A mapping of anything but a file or memory: rings, counters, packets, secret memory."""
    for task in facts.look.tasks:
        for target in sorted({one.target for one in task.mapped}):
            if target == _PROBES:
                yield blocker(
                    "uprobes",
                    "mapping [uprobes]",
                    "A probe (perf, bpftrace, uprobe) was hit in this process, and its code may "
                    "still hold the probe's breakpoint.",
                    "Remove the probe and start the job anew.",
                    task.process.pid,
                )
            if (target.startswith("anon_inode:") and target != _RING) or target.startswith(
                ("/secretmem", "/dmabuf")
            ):
                yield _unsupported(task, None, target)


def _unsupported(task: Task, fd: int | None, target: str) -> Finding:
    what, remedy = next(
        ((what, remedy) for part, what, remedy in _THINGS if part in target),
        ("a kernel object", _PLAIN_REMEDY),
    )
    return blocker(
        "descriptor-unsupported" if fd is not None else "mapping-unsupported",
        descriptor(fd, target),
        f"The process has {what}, which CRIU cannot dump.",
        remedy,
        task.process.pid,
    )


def unsupported_socket(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Sockets of families and protocols that CRIU does not know; one finding for each."""
    for task in facts.look.tasks:
        seen: set[str] = set()
        for fd in task.descriptors:
            if fd.kind == "socket" and fd.protocol not in _PROTOCOLS | seen:
                seen.add(fd.protocol)
                yield blocker(
                    "socket-unsupported",
                    f"fd {fd.fd} {fd.target} {fd.protocol}",
                    f"The process has a socket of protocol {fd.protocol}, which CRIU cannot dump.",
                    _SOCKETS.get(fd.protocol, _PLAIN_REMEDY),
                    task.process.pid,
                )


def foreign_pidfd(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU brings back a pidfd only if the process it means is brought back too."""
    for one in facts.look.pidfds:
        if one.thread:
            yield blocker(
                "pidfd-thread",
                f"fd {one.fd} pidfd of {one.means}",
                "The process has a pidfd of a single thread, which CRIU cannot dump.",
                _PLAIN_REMEDY,
                one.pid,
            )
        elif one.means > 0 and one.means not in facts.tree.pids:
            yield blocker(
                "pidfd-outside",
                f"fd {one.fd} pidfd of {one.means}",
                f"The process watches process {one.means} ({one.comm}), which is outside the tree.",
                "Dump the tree that holds both, or let the job close the pidfd.",
                one.pid,
            )


# 4.2.1 says `Can't lookup mount` of the one, `packetized mode ... not supported` of the other
_TRAITS: Final = {
    "huge": (
        "memfd-huge",
        "The process has a file of huge pages in memory open, which CRIU cannot dump.",
        "Let the job close it once it is mapped, or start it with ordinary pages.",
    ),
    "packets": (
        "pipe-packets",
        "The process writes packets into a pipe (O_DIRECT), which CRIU cannot dump.",
        "Start the job with a pipe of the ordinary kind, or with its output to a file.",
    ),
}


def unsupported_trait(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """What CRIU knows in general, opened in a way that it does not; one finding for each kind."""
    for task in facts.look.tasks:
        seen: set[str] = set()
        for fd in task.descriptors:
            if fd.trait and fd.trait not in seen:
                seen.add(fd.trait)
                name, reason, remedy = _TRAITS[fd.trait]
                yield blocker(name, descriptor(fd.fd, fd.target), reason, remedy, task.process.pid)


RULES: Final[tuple[Rule, ...]] = (
    io_uring,
    unsupported_trait,
    unsupported_descriptor,
    foreign_namespace,
    unsupported_mapping,
    unsupported_socket,
    foreign_pidfd,
)
