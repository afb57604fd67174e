"""Rules about the processes themselves: privilege, namespaces, tracers, states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding
    from gpuckpt.tools.look import Task

# the tree has to live in these together with us; CRIU 4.2.1 dumps a tree with its own uts, ipc or
# cgroup namespace, but only if all its processes share one
_WITH_US: Final = {"pid": "process", "mnt": "mount", "net": "network", "user": "user"}
# what programs in a container find in their environment
_BY_VARIABLE: Final = {
    "APPTAINER_CONTAINER": "an Apptainer container",
    "SINGULARITY_CONTAINER": "a Singularity container",
    "FLATPAK_ID": "a Flatpak sandbox",
    "SNAP_INSTANCE_NAME": "a snap",
    "ENROOT_ROOTFS": "an Enroot container",
    "KUBERNETES_SERVICE_HOST": "a Kubernetes pod",
}
# and the programs that make them, which stay above or at the top of the tree
_BY_PROGRAM: Final = {
    "systemd-nspawn": "a systemd-nspawn container",
    "conmon": "a Podman container",
    "lxc-start": "an LXC container",
    "starter": "an Apptainer container",
    "starter-suid": "an Apptainer container",
    "appinit": "an Apptainer container",
    "sinit": "a Singularity container",
    "bwrap": "a bubblewrap sandbox",
    "firejail": "a Firejail sandbox",
    "nsjail": "an nsjail sandbox",
    "unshare": "namespaces made by unshare",
}
_TOGETHER: Final = {
    "uts": "host name",
    "ipc": "System V IPC",
    "cgroup": "cgroup",
    "time": "time",  # every restored job lives in one of its own
}


def not_privileged(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Dumping needs root; reading what a process has open needs it too."""
    missing = facts.host.missing_capabilities
    if missing:
        yield blocker(
            "not-privileged",
            ", ".join(missing),
            "This process lacks capabilities that CRIU and the driver need.",
            "Run gpuckpt as root on the host itself (sudo gpuckpt ...), not in a container.",
        )
    for task in facts.look.tasks:
        if not task.readable:
            yield blocker(
                "not-privileged",
                f"/proc/{task.process.pid}/fd",
                "What this process has open may not be read.",
                "Run gpuckpt as root (sudo gpuckpt ...).",
                task.process.pid,
            )


def foreign_limits(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU asks for every process's limits; the kernel has its own rule for who may know them."""
    if not facts.host.only_own or facts.host.euid:
        return
    for process in facts.tree.processes:
        if process.uid or process.gid:
            yield blocker(
                "not-privileged",
                "CAP_SYS_RESOURCE",
                f"The process belongs to user {process.uid}, group {process.gid}, and this root "
                "lacks the capability that CRIU needs to read its limits.",
                "Run gpuckpt on the host itself, not in a container or under a reduced root.",
                process.pid,
            )
            return


def namespaces(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A process in another namespace sees other pids, files or networks than CRIU does."""
    # CRIU goes into those that a restore has made
    home = {**facts.look.own_namespaces, **facts.look.space_namespaces}
    for kind, word in _WITH_US.items():
        here = home.get(kind)
        yield from _others(facts, kind, word, here, "gpuckpt")
    for kind, word in _TOGETHER.items():
        root = facts.look.tasks[0].namespaces.get(kind) if facts.look.tasks else None
        yield from _others(facts, kind, word, root, "the tree's root")
    for task in facts.look.tasks:
        coming = task.namespaces.get("time_for_children")
        if coming is not None and coming != task.namespaces.get("time"):
            yield blocker(
                "namespace-time",
                coming,
                "The process has another time namespace ready for its children, which CRIU cannot "
                "dump.",
                "Start the job without unshare --time, or dump the child that lives in it.",
                task.process.pid,
            )


def _others(
    facts: DumpFacts, kind: str, word: str, expected: str | None, whose: str
) -> Iterator[Finding]:
    """Name each foreign namespace once, with the first process found in it."""
    groups: dict[str, list[Task]] = {}
    for task in facts.look.tasks:
        name = task.namespaces.get(kind)
        if name is not None and expected is not None and name != expected:
            groups.setdefault(name, []).append(task)
    for name, tasks in groups.items():
        more = f" ({len(tasks)} processes of the tree are in it)" if len(tasks) > 1 else ""
        found = _container(facts, tasks[0])
        inside = f" It runs in {found}." if found else ""
        yield blocker(
            f"namespace-{kind}",
            name,
            f"The process is in another {word} namespace than {whose}{more}.{inside}",
            _container_remedy(found, kind),
            tasks[0].process.pid,
        )


def _container(facts: DumpFacts, task: Task) -> str:
    """Name what a process in another namespace lives in, "" if nothing tells."""
    if task.container:
        return task.container
    if told := task.settings.get("container"):
        return f"a {told} container"
    for name, what in _BY_VARIABLE.items():
        if name in task.environment:
            return what
    around = [*(one.process.comm for one in facts.look.tasks)]
    around += [one.comm for one in facts.look.above]
    return next((_BY_PROGRAM[name] for name in around if name in _BY_PROGRAM), "")


def _container_remedy(container: str, kind: str) -> str:
    if container and container != _BY_PROGRAM["unshare"]:
        return "Use the container runtime's own checkpoint, or run the job outside a container."
    if kind == "pid":
        return "Run gpuckpt inside that namespace, or start the job without one of its own."
    return "Start the job without unshare, sandbox or service options that give it a namespace."


def tracer(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Only one tracer can be attached to a thread, and CRIU has to be it."""
    for task in facts.look.tasks:
        for tid, who in task.tracers:
            yield blocker(
                "tracer",
                f"thread {tid}",
                f"Process {who} ({facts.look.tracers.get(who, '?')}) traces it, and only one can.",
                f"End or detach process {who} first: a debugger, strace or a profiler.",
                task.process.pid,
            )


def stopped(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A stopped process cannot answer the driver, whose helper thread is stopped with it.

    The root would not count as restored; what else is stopped comes back as it was.
    """
    needed = {*facts.cuda_pids, facts.tree.root.pid}
    for task in facts.look.tasks:
        pid = task.process.pid
        if task.process.stopped and not task.tracers:
            yield (blocker if pid in needed else warning)(
                "stopped",
                f"state {task.process.state}",
                "The process is stopped; the driver cannot lock it."
                if pid in facts.cuda_pids
                else "The process is stopped, and would come back stopped.",
                f"Let it run: kill -CONT {pid}",
                pid,
            )


def frozen(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """In a frozen cgroup CRIU 4.2 waits for ever, and its timeout does not help."""
    groups: dict[str, int] = {}
    for task in facts.look.tasks:
        if task.frozen:
            groups.setdefault(task.frozen, task.process.pid)
    for group, pid in groups.items():
        yield blocker(
            "frozen",
            group,
            "The process is in a frozen control group.",
            f"Thaw it: echo 0 > {group}/cgroup.freeze, or THAWED > {group}/freezer.state.",
            pid,
        )


def dead_leader(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU 4.2.1 cannot attach to a process whose first thread has ended."""
    for process in facts.tree.processes:
        if process.ended and not process.zombie:
            yield blocker(
                "dead-leader",
                f"{len(process.threads)} threads",
                "The first thread has ended while others run on; CRIU cannot dump that.",
                "Start the job so that its main thread waits for the others.",
                process.pid,
            )


def stuck(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU waits a minute in vain for a thread in uninterruptible sleep; so would the driver."""
    for task in facts.look.tasks:
        if task.frozen:
            continue  # a group of version 1 holds its processes in this very state
        for tid, where in task.stuck:
            vfork = where == "kernel_clone"
            yield blocker(
                "stuck",
                f"thread {tid}" + (f" in {where}" if where else ""),
                "It waits for a child made by vfork to start its program, and cannot be stopped."
                if vfork
                else "It is in uninterruptible sleep and has not run for a while: a disk or a "
                "network file system that does not answer, most often.",
                "Try again when the child has gone on."
                if vfork
                else "Wait until it goes on (dmesg tells of hanging devices), then try again.",
                task.process.pid,
            )


def thread_apart(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU 4.2.1 dumps what the first thread has, for all of them, and says nothing."""
    for task in facts.look.tasks:
        threads: dict[int, list[str]] = {}
        for tid, what in task.apart:
            threads.setdefault(tid, []).append(what)
        for tid, own in threads.items():
            yield blocker(
                "thread-apart",
                f"thread {tid}",
                f"The thread has {', '.join(own)} of its own, which CRIU would lose in silence.",
                "Let the job do without unshare and setns in single threads.",
                task.process.pid,
            )


def confined(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU works from inside the process, where the process's own profile binds it."""
    for task in facts.look.tasks:
        if _binds(task.label):
            yield blocker(
                "confined",
                task.label,
                "A security profile confines the process and may forbid what CRIU does inside it; "
                "a dump was seen to kill such a job.",
                "Run the job unconfined, or try the dump with a small job under this profile and "
                "then use --ignore confined.",
                task.process.pid,
            )
            return  # one profile for a whole job is the rule


def _binds(label: str) -> bool:
    """Whether a label of AppArmor (NAME (MODE)) or SELinux (USER:ROLE:TYPE:LEVEL) confines."""
    name, _, mode = label.partition(" ")
    if not name or name == "unconfined" or mode in {"(complain)", "(unconfined)"}:
        return False
    parts = name.split(":")
    # AppArmor's names of namespaces, :NAME://PROFILE, begin with a colon
    if len(parts) > 2 and parts[0]:  # noqa: PLR2004 - at least user, role and type
        return not (parts[2].startswith("unconfined_") or parts[2] == "kernel_t")
    return True


RULES: Final[tuple[Rule, ...]] = (
    not_privileged,
    foreign_limits,
    namespaces,
    tracer,
    stopped,
    frozen,
    dead_leader,
    stuck,
    thread_apart,
    confined,
)
