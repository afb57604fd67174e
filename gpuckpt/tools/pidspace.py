"""Pid namespaces that gpuckpt has made for jobs: told apart, entered, and their numbers known.

Everything but CRIU works from outside, by the pids of this host. What a job shares with nobody in
there is its /proc and its /dev/shm; all other paths mean the same as here.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.model import ProcessRef
from gpuckpt.tools import pidspace_init
from gpuckpt.tools.procfs import link, numbers, parse_stat, parse_status, read
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from gpuckpt.tools.run import Child, Command, Runner

NAME: Final = pidspace_init.NAME
# how many numbers CRIU and its helpers take at most, and where numbers end on small hosts
_NEEDED: Final = 300
_LOWEST_MAXIMUM: Final = 32_000
_SHM: Final = f"{pidspace_init.SHM}/"


class NotMade(Exception):
    """A namespace could not be made."""


class Space(Value, frozen=True):
    """One of them, by its process 1 as seen from here."""

    init: ProcessRef

    def reach(self, path: str) -> str:
        """Return the path by which this process finds what `path` means in there."""
        return f"/proc/{self.init.pid}/root{path}" if path.startswith(_SHM) else path

    def named(self, path: str) -> str:
        """Return what a path made by `reach` means in there."""
        return path.removeprefix(f"/proc/{self.init.pid}/root")


class NewSpace(Value, frozen=True):
    """One that is to be made: `root` is the pid of the job's root in it, `ids` all its numbers.

    `ready` is given it before CRIU is started; if that fails, it goes again.
    """

    root: int
    ids: tuple[int, ...]
    ready: Callable[[Space], None]

    @property
    def free(self) -> int:
        """A number, with many that follow it, that the job does not have: CRIU needs a few."""
        starts = (range(one, one + _NEEDED) for one in range(_NEEDED, _LOWEST_MAXIMUM, _NEEDED))
        taken = set(self.ids)
        return next((one.start for one in starts if taken.isdisjoint(one)), _NEEDED)


class Spaces:
    """All of them, under the /proc at `root`."""

    def __init__(self, root: Path) -> None:
        """Look at nothing yet."""
        self.root = root

    def of(self, pid: int) -> Space | None:
        """Return the one that a process lives in, None if it is in no other than we are."""
        return space_of(self.root, pid)

    def numbers(self, space: Space) -> dict[int, int]:
        """Return what each number of this host is in there: pids, threads, groups, sessions."""
        return _numbers(self.root, space)

    def number(self, space: Space) -> int:
        """Return the number of the namespace itself, 0 if it is gone."""
        found = link(f"{self.root}/{space.init.pid}/ns/pid") or ""
        return int("0" + found.removeprefix("pid:[").removesuffix("]"))


def door(place: Space | NewSpace | None) -> str:
    """Return the folder, for a shell, in which CRIU's hook finds our descriptors; "": where we are.

    In a namespace it cannot see gpuckpt, but the process that has started CRIU.
    """
    return f'"${pidspace_init.DOOR}"' if place is not None else ""


def own_memory(path: str) -> bool:
    """Whether a path lies where each namespace has files of its own."""
    return path.startswith(_SHM)


def space_of(root: Path, pid: int) -> Space | None:
    """Return the namespace of ours that a process lives in, None if it is in our very own."""
    theirs = link(f"{root}/{pid}/ns/pid")
    if theirs is None or theirs == link(f"{root}/self/ns/pid"):
        return None
    for above in (pid, *_upwards(root, pid)):
        raw = read(f"{root}/{above}/stat")
        if raw and link(f"{root}/{above}/ns/pid") == theirs:
            found = parse_stat(raw)
            status = parse_status(read(f"{root}/{above}/status") or b"")
            if found.comm == NAME and _last(status.get("NSpid", "")) == 1:
                return Space(ProcessRef(above, found.start_time))
    return None


def _numbers(root: Path, space: Space) -> dict[int, int]:
    theirs = link(f"{root}/{space.init.pid}/ns/pid")
    found: dict[int, int] = {}
    for pid in numbers(root):
        if theirs is None or link(f"{root}/{pid}/ns/pid") != theirs:
            continue
        for tid in numbers(f"{root}/{pid}/task"):
            status = parse_status(read(f"{root}/{pid}/task/{tid}/status") or b"")
            for name in ("NSpid", "NSpgid", "NSsid"):
                seen = status.get(name, "").split()
                if len(seen) > 1 and seen[-1] != "0":
                    found[int(seen[0])] = int(seen[-1])
    return found


def descends(root: Path, pid: int, above: int) -> bool:
    """Whether a process is another one or below it."""
    return pid == above or above in _upwards(root, pid)


def start(runner: Runner, command: Command, place: Space | NewSpace) -> Child:
    """Start a program in a namespace; the child that is returned ends as the program does.

    Raises:
        NotMade: the namespace could not be made; why, the program's output says.
    """
    with _pipe() as (orders, order):
        if isinstance(place, Space):
            child = runner.start(_wrapped(command, "enter", orders.fileno(), place.init.pid))
            pids = ("0", "0")
        else:
            child = _made(runner, command, place, orders.fileno())
            pids = (str(place.root), str(place.free))
        order.write(b"\0".join(os.fsencode(word) for word in (*pids, *command.argv)))
    return child


def _made(runner: Runner, command: Command, place: NewSpace, orders: int) -> Child:
    """Start process 1, and have all made ready before it gets its orders."""
    with _pipe() as (told, tell):
        child = runner.start(_wrapped(command, "make", orders, tell.fileno()))
        tell.close()
        init = told.read()
    try:
        place.ready(_by_its_init(init))
    except BaseException:
        child.kill()  # process 1 goes with it
        child.wait()
        child.close()
        raise
    return child


def _by_its_init(told: bytes) -> Space:
    raw = read(f"/proc/{int(told)}/stat") if told else None
    if raw is None:
        raise NotMade
    return Space(ProcessRef(int(told), parse_stat(raw).start_time))


def _wrapped(command: Command, how: str, orders: int, where: int) -> Command:
    """Return the command that starts our program; what `where` is depends on `how`."""
    # -I, -S: nothing of the caller's Python set-up may change what it does
    argv = (sys.executable, "-I", "-S", pidspace_init.__file__, how, str(orders), str(where))
    passed = (orders, where) if how == "make" else (orders,)
    return replace(command, argv=argv, pass_fds=(*command.pass_fds, *passed))


@contextmanager
def _pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Give both ends of a pipe; either may be closed earlier."""
    read_end, write_end = os.pipe()
    with (
        open(read_end, "rb", buffering=0) as out,  # noqa: PTH123 - a descriptor
        open(write_end, "wb", buffering=0) as into,  # noqa: PTH123
    ):
        yield out, into


def _upwards(root: Path, pid: int) -> Iterator[int]:
    """Go up from a process, itself left out; a parent that is not seen from here ends the way."""
    seen: set[int] = set()
    while (raw := read(f"{root}/{pid}/stat")) and pid not in seen:
        seen.add(pid)
        pid = parse_stat(raw).ppid
        if pid:
            yield pid


def _last(told: str) -> int:
    """Return the innermost of the numbers that a process has in namespaces within each other."""
    return int(told.rsplit(maxsplit=1)[-1]) if told else 0
