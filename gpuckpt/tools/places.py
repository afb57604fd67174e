"""Where the files of a tree lie: those that CRIU cannot find again, and those on other machines.

CRIU knows a file by its mount and its path there. A file whose mount is gone or hidden under
another one, whose name means another file now, or which root may not open, cannot be dumped.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.descriptors import Descriptor, fdinfo, plain
from gpuckpt.tools.mappings import Mapped, area_link, behind
from gpuckpt.tools.procfs import link, read, text
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_KINDS: Final = frozenset({"file", "folder", "link", "fifo", "chr"})
_MEMORY_MAJOR: Final = 1  # /dev/null and the like: CRIU reopens them by their path
_MEMFD: Final = "/memfd:"
# names that mapped memory has, which is no file anywhere
_NO_FILE: Final = ("/memfd:", "/SYSV", "/dev/zero", "/anon_hugepage", "/[aio]", "/secretmem")
_REMOTE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "gpfs", "beegfs", "ceph", "afs", "virtiofs"}
)
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
# those whose files an image carries
KEPT: Final = frozenset({"tmpfs", "ramfs"})
_ESCAPES: Final = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


class Mount(Value, frozen=True):
    """One line of mountinfo: where it is, what it is, and which device its files tell."""

    point: str
    filesystem: str
    device: int

    @property
    def remote(self) -> bool:
        """Whether its files lie on another machine, or in a program of somebody's own."""
        return self.filesystem in _REMOTE or self.filesystem.startswith("fuse")

    @property
    def in_memory(self) -> bool:
        """Whether its files end with this host."""
        return self.filesystem in _IN_MEMORY


class OddFile(Value, frozen=True):
    """A file that is not simply there.

    `problem` is mount (it has none that can be seen), hidden (its name means another file or
    nothing), denied (root may not open it), or empty. fd None: mapped. `carried`: it goes into the
    image, this many bytes.
    """

    pid: int
    fd: int | None
    path: str
    filesystem: str
    problem: str
    remote: bool
    carried: int | None = None


def mounts(process: Path | str) -> dict[int, Mount]:
    """Return the mounts a process sees, by the number its fdinfo files give."""
    return parse_mounts(read(f"{process}/mountinfo") or b"")


def parse_mounts(raw: bytes) -> dict[int, Mount]:
    """Read a mountinfo file."""
    found: dict[int, Mount] = {}
    for line in text(raw).rstrip("\n").split("\n"):  # a name may hold any other white space
        front, dash, back = line.partition(" - ")
        if not dash:
            continue
        fields = front.split(" ")
        major, _, minor = fields[2].partition(":")
        point = fields[4]
        for written, meant in _ESCAPES:
            point = point.replace(written, meant)
        device = os.makedev(int(major), int(minor))
        found[int(fields[0])] = Mount(point, back.partition(" ")[0], device)
    return found


def odd_files(
    root: Path,
    tree: Sequence[tuple[int, Sequence[Descriptor], Sequence[Mapped]]],
    known: Mapping[int, Mount],
) -> tuple[OddFile, ...]:
    """Look at each file of the tree once, however many processes have it."""
    return (*_opened(root, tree, known), *_mapped(root, tree, known))


def _opened(
    root: Path,
    tree: Sequence[tuple[int, Sequence[Descriptor], Sequence[Mapped]]],
    known: Mapping[int, Mount],
) -> Iterator[OddFile]:
    seen: set[tuple[int, int, str]] = set()
    for pid, opened, _ in tree:
        for fd in opened:
            key = fd.device, fd.inode, fd.target
            if fd.kind not in _KINDS or key in seen or not fd.target.startswith(("/", "(")):
                continue
            seen.add(key)
            if fd.kind == "chr" and fd.rdev[0] != _MEMORY_MAJOR:
                continue
            number = dict(fdinfo(f"{root}/{pid}", fd.fd)).get("mnt_id")
            if number is None or fd.target.startswith(_MEMFD):
                continue
            mount = known.get(int(number))
            now = link(f"{root}/{pid}/fd/{fd.fd}") if mount is None else None
            if now is not None and plain(now)[0] != fd.target:
                continue  # closed in the meantime: that was told of another file
            hidden = not fd.deleted and _hidden(
                fd.target, f"{root}/{pid}/fd/{fd.fd}", fd.device, fd.inode
            )
            if not hidden and _carried(fd.kind == "file", fd.deleted, fd.links, mount):
                continue
            bytes_ = _bytes(fd.bytes, fd.links, fd.deleted) if fd.kind == "file" else None
            yield from _odd(pid, fd.fd, fd.target, mount, "hidden" if hidden else "", bytes_)


def _mapped(
    root: Path,
    tree: Sequence[tuple[int, Sequence[Descriptor], Sequence[Mapped]]],
    known: Mapping[int, Mount],
) -> Iterator[OddFile]:
    seen: set[tuple[int, str]] = set()
    for pid, _, areas in tree:
        for area in sorted(areas, key=lambda one: not one.shared):
            if (area.inode, area.target) in seen or area.target.startswith(_NO_FILE):
                continue
            seen.add((area.inode, area.target))
            if area.inode and area.target.startswith(("/", "(")):
                yield from _behind(f"{root}/{pid}", pid, area, known)


def _behind(process: str, pid: int, area: Mapped, known: Mapping[int, Mount]) -> Iterator[OddFile]:
    """Look at a mapped file as CRIU will, but regular ones only: a device may act on it."""
    found = behind(process, area)
    if found is None or not found.regular:
        return
    path = area_link(process, area.area)
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        number = dict(fdinfo("/proc/self", fd)).get("mnt_id", "-1")
    finally:
        os.close(fd)
    mount = known.get(int(number))
    if mount is not None and mount.remote and _denied(path):
        yield from _odd(pid, None, area.target, mount, "denied")
        return
    hidden = not area.deleted and _hidden(area.target, path, found.device, found.inode)
    if hidden or not _carried(found.regular, area.deleted, found.links, mount):
        goes = area.shared or (area.deleted and found.links)
        bytes_ = _bytes(found.bytes, found.links, area.deleted) if goes else None
        yield from _odd(pid, None, area.target, mount, "hidden" if hidden else "", bytes_)


def _bytes(count: int, links: int, deleted: bool) -> int | None:
    """Return what a file adds to the image; one that has another name is counted with those."""
    return count if not deleted else 0 if links else None


def _denied(path: str) -> bool:
    """Whether a server refuses to open a file for root; on this host nobody refuses root."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _carried(regular: bool, deleted: bool, links: int, mount: Mount | None) -> bool:
    """Whether something in memory needs no file: a folder, or a deleted file, which goes along."""
    return mount is not None and mount.in_memory and (not regular or (deleted and not links))


def _odd(  # noqa: PLR0917 - what an OddFile has
    pid: int,
    fd: int | None,
    path: str,
    mount: Mount | None,
    problem: str,
    bytes_: int | None = None,
) -> Iterator[OddFile]:
    if mount is None:
        lost = problem if problem == "denied" else "mount"
        yield OddFile(pid, fd, path, "", lost, remote=False)
    elif mount.filesystem == "proc":  # CRIU has code of its own for these
        return
    elif problem or mount.remote or mount.in_memory:
        carried = bytes_ if mount.filesystem in KEPT and not problem else None
        yield OddFile(pid, fd, path, mount.filesystem, problem, mount.remote, carried)


def _hidden(path: str, told_by: str, device: int, inode: int) -> bool:
    """Whether another file, or none, has the name now: the kernel tells names as we would use them.

    Or as the process itself would, where it has a mount of its own. The kernel is asked again by
    the link that told the name: the file may have been removed meanwhile.
    Names that are no text, or have a line feed, are let through: they are not quite told.
    """
    if "\\" in path:
        return False
    try:
        if _is_at(path, device, inode):
            return False
        process = told_by.rsplit("/", 2)[0]
        return not _is_at(f"{process}/root{path}", device, inode) and link(told_by) == path
    except OSError:
        return False


def _is_at(path: str, device: int, inode: int) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (device, inode)


def above(path: str, known: Mapping[int, Mount]) -> Mount | None:
    """Return the mount that a path lies in, by its name alone."""
    holding = [one for one in known.values() if f"{path}/".startswith(f"{one.point.rstrip('/')}/")]
    return max(holding, key=lambda one: len(one.point), default=None)
