"""Rules about what a restore itself needs here: CRIU, rights, a terminal, kernel features."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.returning.target.rule import Rule, some
from gpuckpt.image import compare
from gpuckpt.image.identity import changes
from gpuckpt.image.manifest import unknown_needs
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding

# <linux/capability.h>, in its order
_CAPABILITIES: Final = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE "
    "NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO "
    "SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME "
    "SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG "
    "WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
)


def needs(manifest: Manifest, _: TargetFacts) -> Iterator[Finding]:
    """An image may need what this gpuckpt has never heard of; then it must not guess."""
    for need in unknown_needs(manifest):
        yield blocker(
            "need-unknown",
            need,
            f"The image needs {need}, unknown to this gpuckpt.",
            "Use the gpuckpt version that wrote it, or a newer one.",
        )


def criu(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """Without a CRIU that works nothing else matters, but the rest is told all the same."""
    if facts.no_criu is not None:
        why = facts.no_criu
        yield blocker(why.name.replace("_", "-"), "CRIU", f"{why.message}.", why.hint)


def gates(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """Kernel, CPU, C library, driver and GPUs against those of the image."""
    yield from compare.gates(manifest, facts.host, facts.nvidia, facts.criu, facts.gpus)


def privilege(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """CRIU needs most of what root has."""
    if missing := facts.host.missing_capabilities:
        yield blocker(
            "not-privileged",
            "capabilities",
            f"A restore needs {', '.join(missing)}, which this process lacks.",
            "Run it as root (sudo gpuckpt restore ...).",
        )


def capabilities(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """Nobody can give a task what he has not himself; CRIU finds out when the tasks are made."""
    if not facts.own.bounding:
        return
    lacking = {
        one.pid: found for one in manifest.tree if (found := one.permitted & ~facts.own.permitted)
    }
    if lacking:
        pid, bits = next(iter(lacking.items()))
        yield blocker(
            "capabilities",
            f"pid {some(list(lacking))}",
            f"Process {pid} had {some(_capabilities(bits))}, which gpuckpt has not and cannot "
            "give.",
            "Restore outside of the container or service that takes it away.",
            pid,
        )
        return
    bounds = 0
    for one in manifest.tree:
        bounds |= one.bounding & ~facts.own.bounding
    if bounds:
        yield warning(
            "capabilities",
            "bounding set",
            f"The job could have gained {some(_capabilities(bounds))}; here it never will.",
            "Nothing to do, unless the job starts privileged programs.",
        )


def _capabilities(bits: int) -> list[str]:
    names = _CAPABILITIES.split()
    found = (bit for bit in range(bits.bit_length()) if bits & 1 << bit)
    return [f"CAP_{names[bit]}" if bit < len(names) else f"capability {bit}" for bit in found]


def terminal(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """A job that had somebody else's terminal open gets ours: CRIU finds out too late."""
    opened = manifest.outside.terminals
    foreign = "/dev/ptmx" not in opened and any(path.startswith("/dev/pts/") for path in opened)
    if manifest.options.shell_job and foreign and facts.apart:
        yield blocker(
            "no-terminal",
            "standard input",
            "The job had a terminal open, and in a pid namespace it could not be given ours.",
            "Restore it without --pid-namespace, when its pids are free.",
        )
    elif manifest.options.shell_job and foreign and not facts.terminal:
        yield blocker(
            "no-terminal",
            "standard input",
            "The job had a terminal open, and there is none here to give it.",
            "Run the restore in a terminal: by hand, or under `script` or tmux.",
        )


def time_namespace(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """Clocks that count from boot go on where they stood: that takes a time namespace."""
    recorded = any(entry.name.startswith("timens") for entry in manifest.files)
    if recorded and not facts.host.time_namespaces:
        yield blocker(
            "gate-time-namespace",
            "kernel",
            "The job's clocks can go on only in a time namespace, and this kernel has none.",
            "Boot a kernel with CONFIG_TIME_NS.",
        )


def label(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """A task that a security module held under a label gets the same or does not come back."""
    labels = sorted({one.label for one in manifest.tree if one.label} - {facts.own.label})
    if labels:
        yield warning(
            "security-label",
            labels[0],
            f"The job ran under the security label {some(labels)}, gpuckpt runs under "
            f"{facts.own.label or 'none'}.",
            "Load the same profile or policy here: CRIU puts the label back or fails.",
        )


def control_group(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """The job comes back in our control group; a login session's makes no difference."""
    was = manifest.tree[0].cgroup
    plain = was in {"", "/", facts.own.cgroup} or was.startswith("/user.slice")
    if not plain:
        yield warning(
            "cgroup",
            was,
            f"The job was in the control group {was}; it comes back in gpuckpt's own, "
            f"{facts.own.cgroup or '/'}, with its limits.",
            "Start gpuckpt in the group that the job shall be in.",
        )


def parent_death(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """The kernel ends such a job when gpuckpt ends, after all has been reported as well."""
    number = manifest.tree[0].parent_death
    if number and not facts.stays and not facts.apart:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        yield blocker(
            "gate-parent-death",
            name,
            f"The job has asked for {name} when its parent ends, and gpuckpt would be its parent.",
            "Restore it with --wait: gpuckpt then stays for as long as the job runs; or with "
            "--pid-namespace, where it has a parent of its own.",
            manifest.root_pid,
        )


def identity(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """A program's environment stays as it was, and so does what it has remembered of it."""
    found = changes(manifest, facts.host, facts.gpus)
    if not (found.variables and (found.hostname or found.gone)):
        return
    where = f"on {found.hostname[0]}" if found.hostname else f"where it had {some(found.gone)}"
    yield warning(
        "identity",
        some(found.variables),
        f"The job was started {where}; its host name, addresses and these variables stay as "
        "they were there.",
        "Look whether the job or those it talks to use them again.",
        manifest.root_pid,
    )


def others(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """Two restores at once share the numbers that CRIU's own helpers take in passing."""
    for entry in facts.others if not facts.apart else ():
        if facts.taken.keys() & set(entry.pids):
            continue  # it makes the very pids of this job, and is told of there
        yield warning(
            "another-restore",
            entry.image,
            f"Another gpuckpt, process {entry.owner.pid}, restores {entry.image} right now.",
            "Let it end first: its helpers may hold a pid of this job for a moment.",
            entry.owner.pid,
        )


RULES: Final[tuple[Rule, ...]] = (
    needs,
    criu,
    privilege,
    gates,
    capabilities,
    terminal,
    time_namespace,
    label,
    control_group,
    parent_death,
    identity,
    others,
)
