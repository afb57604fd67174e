"""The regular files that a tree uses: which they are, how it uses them, and what lies in a folder.

Told by descriptors and mappings, never by names alone: a name counts only if it leads to the very
file. What has lost its name is CRIU's, files of /proc and its like are nobody's.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.tools.mappings import Mapped, area_link, behind
from gpuckpt.tools.places import KEPT, mounts
from gpuckpt.tools.procfs import link
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from gpuckpt.model import ProcessRef
    from gpuckpt.tools.descriptors import Descriptor

# whose regular files the kernel makes up; those of hugetlbfs cannot be read
_KERNEL: Final = frozenset({
    *("proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs"),
    *("pstore", "bpf", "efivarfs", "selinuxfs", "mqueue", "binfmt_misc", "fusectl", "hugetlbfs"),
})  # fmt: skip
_ELF: Final = b"\x7fELF"
_TICKS: Final = os.sysconf("SC_CLK_TCK")

Opened = tuple[int, "Sequence[Descriptor]", "Sequence[Mapped]"]


class UsedFile(Value, frozen=True):
    """A regular file that processes have open or mapped.

    `path` is the name that the kernel told first, `names` are all that it told and that lead to
    the file, by which this process finds them. `bytes` is what it takes on disk, but no more than
    its size. `written`: it is open for writing, or mapped shared by who could write. `shared`: it
    is mapped shared. `memory`: it ends with its host. `mapped`: a program may have mapped it.
    """

    path: str
    device: int
    inode: int
    names: tuple[str, ...] = ()
    size: int = 0
    bytes: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    opened: bool = False
    mapped: bool = False
    written: bool = False
    shared: bool = False
    memory: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """What it is, whatever its name."""
        return self.device, self.inode


class Listing(Value, frozen=True):
    """What a path holds: regular files, and how many things of other kinds.

    `whole`: nothing was left out for being too many.
    """

    files: tuple[UsedFile, ...]
    others: int = 0
    whole: bool = True


def used(root: Path, tree: Iterable[Opened], reach: Callable[[str], str]) -> tuple[UsedFile, ...]:
    """Return each file once; `reach` gives the path by which this process finds one."""
    listed = tuple(tree)
    memory, kernel = devices(root, [pid for pid, _, _ in listed])
    found: dict[tuple[int, int], UsedFile] = {}
    for one in _told(root, listed):
        if one.device not in kernel:
            before = found.get(one.key)
            found[one.key] = one if before is None else _merged(before, one)
    return tuple(
        _seen(replace(one, memory=one.device in memory), [reach(name) for name in one.names])
        for one in found.values()
    )


def devices(root: Path, pids: Iterable[int]) -> tuple[frozenset[int], frozenset[int]]:
    """Return the devices of file systems that lie in memory, and of those that are the kernel's.

    Here and for the processes.
    """
    memory: set[int] = set()
    kernel: set[int] = set()
    known: set[str | None] = set()
    for who in ("self", *pids):
        space = link(f"{root}/{who}/ns/mnt")
        if space in known:
            continue
        known.add(space)
        with suppress(OSError):  # a zombie has no mounts
            for one in mounts(f"{root}/{who}").values():
                memory |= {one.device} if one.filesystem in KEPT else set()
                kernel |= {one.device} if one.filesystem in _KERNEL else set()
    return frozenset(memory), frozenset(kernel)


def began(ref: ProcessRef) -> int:
    """Return when a process was started, as files tell times: it has written nothing by then."""
    booted = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return booted + ref.start_time * 1_000_000_000 // _TICKS


def is_program(path: str) -> bool:
    """Whether a file is a program or a library."""
    with suppress(OSError), open(path, "rb", buffering=0) as file:  # noqa: PTH123 - any bytes
        return file.read(len(_ELF)) == _ELF
    return False


def listed(path: str, most: int, leave: Iterable[str] = ()) -> Listing:
    """Return the regular files that a path leads to, or below it, `leave` left out.

    Links below it are not followed.

    Raises:
        OSError: there is nothing, or a folder cannot be read.
    """
    left, files, others = frozenset(leave), [], 0
    # the way into another namespace, /proc/PID/root, is no link but looks like one
    waiting = [path if path.startswith("/proc/") else os.path.realpath(path)]
    while waiting:
        one = waiting.pop()
        if one in left:
            continue
        seen = os.lstat(one)
        if stat.S_ISDIR(seen.st_mode):
            with os.scandir(one) as entries:
                waiting += sorted((entry.path for entry in entries), reverse=True)
        elif not stat.S_ISREG(seen.st_mode):
            others += 1
        else:
            files.append(_with(UsedFile(one, seen.st_dev, seen.st_ino, (one,)), seen))
        if len(files) > most:
            return Listing(tuple(files), others, whole=False)
    return Listing(tuple(files), others)


def _told(root: Path, tree: Iterable[Opened]) -> Iterator[UsedFile]:
    """Go through what processes have; the private mappings of one file are looked at once."""
    private: set[tuple[str, int]] = set()
    for pid, opened, mapped in tree:
        for area in mapped:
            known = (area.target, area.inode)
            if area.deleted or not area.target.startswith("/") or known in private:
                continue
            private |= set() if area.shared else {known}
            yield from _mapped(f"{root}/{pid}", area)
        for fd in opened:
            if fd.kind == "file" and not fd.deleted and fd.target.startswith("/"):
                yield UsedFile(
                    fd.target, fd.device, fd.inode, (fd.target,), opened=True, written=fd.writes
                )


def _mapped(process: str, area: Mapped) -> Iterator[UsedFile]:
    file = behind(process, area)
    if file is not None and file.regular:
        written = area.shared and (area.pieces > 0 or _writable(process, area))
        yield UsedFile(
            area.target,
            file.device,
            file.inode,
            (area.target,),
            mapped=True,
            written=written,
            shared=area.shared,
        )


def _writable(process: str, area: Mapped) -> bool:
    """Whether it was mapped by a descriptor opened for writing: then mprotect alone is needed."""
    try:
        return bool(os.lstat(area_link(process, area.area)).st_mode & stat.S_IWUSR)
    except OSError:
        return False


def _merged(one: UsedFile, other: UsedFile) -> UsedFile:
    return replace(
        one,
        names=tuple(dict.fromkeys((*one.names, *other.names))),
        opened=one.opened or other.opened,
        mapped=one.mapped or other.mapped,
        written=one.written or other.written,
        shared=one.shared or other.shared,
    )


def _seen(file: UsedFile, names: Iterable[str]) -> UsedFile:
    """Look at the file by its names; those that mean something else by now are left out."""
    led: list[str] = []
    for name in names:
        with suppress(OSError):
            seen = os.lstat(name)
            if (seen.st_dev, seen.st_ino) == file.key and stat.S_ISREG(seen.st_mode):
                file = _with(file, seen)
                led.append(name)
    return replace(file, names=tuple(led))


def _with(file: UsedFile, seen: os.stat_result) -> UsedFile:
    return replace(
        file,
        size=seen.st_size,
        bytes=min(seen.st_size, seen.st_blocks * 512),
        mode=stat.S_IMODE(seen.st_mode),
        uid=seen.st_uid,
        gid=seen.st_gid,
        mtime_ns=seen.st_mtime_ns,
        ctime_ns=seen.st_ctime_ns,
    )
