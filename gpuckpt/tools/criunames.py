"""Names for what CRIU calls by numbers: processes, descriptors, sockets, mappings, file ids.

They come from what was seen before a dump, or from the image before a restore. A number nobody
has a name for stays a number.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import field

from gpuckpt.tools.criuimage import read_file_ids
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuckpt.tools.look import Look
    from gpuckpt.tools.outside import OutsidePeer


class Names(Value, frozen=True):
    """What is known: by pid, by (pid, descriptor), by socket inode, by (pid, address), by file id.

    `locks` lists, in words, who holds which file lock, `peers` whose sockets lead outside.
    `here` gives the pids of this host for those of a namespace in which CRIU was at work.
    """

    processes: Mapping[int, str] = field(default_factory=dict)
    descriptors: Mapping[tuple[int, int], str] = field(default_factory=dict)
    sockets: Mapping[int, str] = field(default_factory=dict)
    mappings: Mapping[tuple[int, int], str] = field(default_factory=dict)
    files: Mapping[int, str] = field(default_factory=dict)
    locks: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    here: Mapping[int, int] = field(default_factory=dict)

    def process(self, pid: int | None) -> str:
        """Return the process in words."""
        if pid is None:
            return "the job"
        pid = self.here.get(pid, pid)
        comm = self.processes.get(pid)
        return f"process {pid} ({comm})" if comm else f"process {pid}"

    def descriptor(self, pid: int | None, fd: int | None) -> str:
        """Return what a process has open, in words."""
        if pid is None or fd is None:
            return "a descriptor"
        pid = self.here.get(pid, pid)
        if self.processes and pid not in self.processes:
            # CRIU looks at those in a helper process, under that one's numbers
            return "a descriptor that was sent over a unix socket and not received yet"
        what = self.descriptors.get((pid, fd))
        return f"descriptor {fd} ({what})" if what else f"descriptor {fd}"

    def having(self, pid: int | None, *marks: str) -> str:
        """Return what a process has open or mapped that bears one of the marks, "" if nothing."""
        pid = self.here.get(pid, pid) if pid is not None else None
        opened = [
            f"descriptor {fd} ({what})"
            for (owner, fd), what in self.descriptors.items()
            if pid in {None, owner} and any(mark in what for mark in marks)
        ]
        mapped = [
            what
            for (owner, _), what in self.mappings.items()
            if pid in {None, owner} and any(mark in what for mark in marks)
        ]
        return ", ".join((opened or mapped)[:4])

    def mapping(self, pid: int | None, address: int) -> str:
        """Return what a process has mapped at an address, in words."""
        what = self.mappings.get((self.here.get(pid, pid), address)) if pid is not None else None
        return f"the mapping of {what}" if what else f"the memory at {address:#x}"

    def socket(self, inode: int) -> str:
        """Return a socket in words."""
        return self.sockets.get(inode, f"socket {inode}")

    def file(self, number: int) -> str:
        """Return what CRIU's file id stands for."""
        return self.files.get(number, f"file {number} of the image")


def seen(look: Look, inside: Mapping[int, int] = MappingProxyType({})) -> Names:
    """Return the names for a tree that was looked at; `inside` has CRIU's numbers for ours."""
    sockets = {
        one.inode: f"{one.local}:{one.local_port} connected to {one.remote}:{one.remote_port}"
        if one.connected
        else f"{one.local}:{one.local_port}"
        for one in look.tcp
    }
    peers = {one.inode: _peer(one) for one in look.peers}
    sockets |= peers
    return Names(
        here={number: ours for ours, number in inside.items()},
        processes={task.process.pid: task.process.comm for task in look.tasks},
        descriptors={
            (task.process.pid, fd.fd): sockets.get(fd.inode, fd.target)
            if fd.kind == "socket"
            else fd.target
            for task in look.tasks
            for fd in task.descriptors
        },
        sockets=sockets,
        mappings={
            (task.process.pid, int(one.area.partition("-")[0], 16)): one.target
            for task in look.tasks
            for one in task.mapped
        },
        locks=tuple(
            f"{one.kind} on {one.path} (process {one.pid}, descriptor {one.fd})"
            for one in look.locks
        ),
        peers=tuple(
            f"descriptor {one.fd} of process {one.pid} is a {peers[one.inode]}"
            for one in look.peers
        ),
    )


def recorded(processes: Mapping[int, str], files: bytes) -> Names:
    """Return the names for a restore: commands by pid, and what files.img says.

    Raises:
        ImageDamaged: these bytes are no files.img.
    """
    return Names(processes=processes, files=read_file_ids(files))


def _peer(one: OutsidePeer) -> str:
    who = f"process {one.holder.pid} ({one.holder.comm})" if one.holder else "a process not found"
    return f"{one.kind} socket connected to {who}" + (f" at {one.name}" if one.name else "")
