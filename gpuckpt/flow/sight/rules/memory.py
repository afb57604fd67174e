"""Rules about memory of special kinds: System V, huge pages, files kept in memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.rule import Rule, size
from gpuckpt.model import Version, blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices
    from gpuckpt.model import Finding
    from gpuckpt.tools.look import Task
    from gpuckpt.tools.mappings import Mapped

_SYSV: Final = re.compile(r"/SYSV[0-9a-f]{8}")
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
# the kernels that have guard pages and do not show them: CRIU sees them from 6.16 on
_GUARDS_FROM: Final = Version("6.13")
_GUARDS_SHOWN: Final = Version("6.16")
_GUARDING_LIBC: Final = Version("2.42")


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


def huge_pages(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU 4.2.1 knows huge pages by mapping one of its own; without a free one it gives up."""
    users = [task for task in facts.look.tasks if task.huge or _anonymous_huge(task)]
    if not users:
        return
    used = sum(task.huge for task in users)
    if facts.look.huge_left == 0:
        yield blocker(
            "huge-pages-full",
            f"{size(used)} of huge pages",
            "The process uses huge pages and none is free; CRIU needs one for a moment to know "
            "them.",
            "Add one page: sysctl vm.nr_hugepages (read it, and set it one higher).",
            users[0].process.pid,
        )
    yield warning(
        "huge-pages",
        f"{size(used)} of huge pages",
        "The process uses huge pages, and a restore needs as many free ones.",
        "Keep vm.nr_hugepages as it is here, and set it where the job will be restored.",
        users[0].process.pid,
    )


def private_huge_pages(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU 4.2.1 dumps them, and brings them back by preadv, which no stream takes (ESPIPE)."""
    for task in facts.look.tasks:
        if any(_is_huge(one) and not one.shared for one in task.mapped):
            yield blocker(
                "huge-pages-private",
                f"{size(task.huge)} of huge pages",
                "The process has private memory of huge pages, which CRIU cannot bring back from a "
                "stream: the image could never be restored.",
                "Let it use transparent huge pages (madvise), or shared ones (MAP_SHARED).",
                task.process.pid,
            )


def _anonymous_huge(task: Task) -> bool:
    return any(_is_huge(one) for one in task.mapped)


def _is_huge(one: Mapped) -> bool:
    return one.target.startswith("/anon_hugepage")


def sealed_memory(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU 4.2.1 maps a memfd before it seals it, and the kernel then refuses the seal (EBUSY)."""
    for task in facts.look.tasks:
        for name in sorted({one.target for one in task.mapped if one.sealed}):
            yield blocker(
                "memfd-sealed",
                name,
                "The process has mapped a memfd that is sealed against writing (F_SEAL_WRITE), "
                "which CRIU cannot seal again: the image could never be restored.",
                "Let it map the memfd by a descriptor opened read-only, or privately.",
                task.process.pid,
            )


def memory_files(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Of files in memory those go along that are open or shared; programs and libraries do not."""
    found = [one for one in facts.look.odd_files if one.filesystem in _IN_MEMORY]
    carried = {one.path for one in found if one.carried is not None}
    carried |= {one.file.path for one in facts.along.taken}
    found = [one for one in found if not one.problem and one.path not in carried]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield warning(
            "memory-file",
            found[0].path + more,
            "The job uses files that lie in this host's memory and do not come along in the image.",
            "Restore on this host, before it is started anew and the files are removed; or copy "
            "them to the other one first.",
            found[0].pid,
        )


def guard_pages(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Linux 6.13 to 6.15 hides guard pages; glibc 2.42 puts one under the stack of each thread."""
    kernel, libc = Version(facts.host.kernel), Version(facts.host.libc.rpartition(" ")[2])
    if _GUARDS_FROM <= kernel < _GUARDS_SHOWN:
        common = libc >= _GUARDING_LIBC
        yield warning(
            "guard-pages",
            f"Linux {facts.host.kernel}",
            "This kernel does not show guard pages, so CRIU cannot keep them"
            + (f", and this C library ({facts.host.libc}) uses them." if common else "."),
            "Update to Linux 6.16 or newer.",
        )


RULES: Final[tuple[Rule, ...]] = (
    sysv_shm,
    huge_pages,
    private_huge_pages,
    sealed_memory,
    memory_files,
    guard_pages,
)
