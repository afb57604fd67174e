"""The pages of processes that cooperate: read, asked, and told to go on.

What they agree on, and why all decide alike, stands in gpuckpt/cooperate.py. A page is the job's
own: it is never mapped here, for the job may cut it short, and opened only if it surely is one.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt import cooperate as page
from gpuckpt.errors import ProcessUnfit, QuiesceFailed
from gpuckpt.tools.descriptors import targets
from gpuckpt.tools.procfs import link, parse_status, read, text
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LINK: Final = f"/memfd:{page.NAME}"
_WORDS: Final = struct.Struct(f"<{page.W_ASKER + 1}Q")
# a process that waits looks for a moment whether the lock is still held
_LOCK_SECONDS: Final = 1.0
_POLL: Final = 0.005


class Rank(Value, frozen=True):
    """One process that cooperates, at one moment.

    Steps count from 1: `step` it has come to, `arrived` it waits at, `quiet` it has let go of
    everything at, `failed` a callback of its failed at, as `text` says; 0 is none. `target` and
    `confirmed` are what it was told. `asked`: some gpuckpt holds it.
    """

    pid: int
    step: int = 0
    arrived: int = 0
    quiet: int = 0
    failed: int = 0
    target: int = 0
    confirmed: int = 0
    text: str = ""
    asked: bool = False

    @property
    def waits(self) -> bool:
        """Whether it stands still, or has not got over it."""
        return bool(self.arrived or self.quiet or self.failed)


class _Page:
    """One page, open as long as this lives."""

    def __init__(self, root: Path, pid: int, number: int, fd: int) -> None:
        self.pid, self.number, self.fd = pid, number, fd
        self._path = f"{root}/{pid}/fd/{number}"
        found = os.fstat(fd)
        self._identity = found.st_dev, found.st_ino

    @property
    def there(self) -> bool:
        """Whether the process still has it."""
        try:
            found = os.stat(self._path)  # noqa: PTH116
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def words(self) -> tuple[int, ...]:
        data = os.pread(self.fd, _WORDS.size, 0)
        return _WORDS.unpack(data.ljust(_WORDS.size, b"\0"))

    def text(self) -> str:
        return text(os.pread(self.fd, page.TEXT_SIZE, page.TEXT).partition(b"\0")[0])

    def write(self, word: int, value: int) -> None:
        os.pwrite(self.fd, value.to_bytes(8, "little"), 8 * word)

    def lock(self) -> bool:
        return self._flock(fcntl.LOCK_EX)

    def held(self) -> bool:
        """Whether some gpuckpt holds the lock; a process that waits looks in the same way."""
        return not self._flock(fcntl.LOCK_SH)

    def close(self) -> None:
        os.close(self.fd)

    def _flock(self, kind: int) -> bool:
        try:
            fcntl.flock(self.fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def rank(self) -> Rank:
        # the step before `arrived` would be older than it: read again until both stand still
        words, again = self.words(), self.words()
        while words != again and words[page.W_ARRIVED] != again[page.W_ARRIVED]:
            words, again = again, self.words()
        return Rank(
            pid=self.pid,
            step=again[page.W_STEP],
            arrived=again[page.W_ARRIVED],
            quiet=again[page.W_QUIET],
            failed=again[page.W_FAILED],
            target=again[page.W_TARGET],
            confirmed=again[page.W_CONFIRMED],
            text=self.text() if again[page.W_FAILED] else "",
        )


class Ranks:
    """The processes that cooperate; from `ask` to `close` this program holds their pages."""

    def __init__(self, root: Path) -> None:
        """Look below `root`, the /proc of this host."""
        self._root = root
        self._held: dict[int, _Page] = {}

    def look(self, pids: Iterable[int]) -> tuple[Rank, ...]:
        """Return those of the processes that cooperate, as they stand now."""
        found = []
        for pid in pids:
            held = self._held.get(pid)
            one = held or self._open(pid, os.O_RDONLY)
            if one is None:
                continue
            if one.there:
                found.append(one.rank() if held else replace(one.rank(), asked=one.held()))
            if held is None:
                one.close()
        return tuple(found)

    def ask(self, pids: Iterable[int]) -> None:
        """Hold these processes' pages, and tell each where the decision will stand.

        Raises:
            ProcessUnfit: another gpuckpt holds one.
            QuiesceFailed: one does not cooperate any more, or in another way.
        """
        for pid in pids:
            one = self._open(pid, os.O_RDWR)
            if one is None:
                raise QuiesceFailed(f"process {pid} does not cooperate any more")
            self._held[pid] = one
            if (version := one.words()[page.W_VERSION]) != page.VERSION:
                raise QuiesceFailed(
                    f"process {pid} has another cooperate.py (version {version}) than this gpuckpt",
                    hint="Give the job the file that came with this gpuckpt.",
                )
            self._lock(one)
        leader = next(iter(self._held.values()))
        here, number = self._namespace(leader.pid), self._inner(leader.pid)
        for one in self._held.values():
            sees = here is not None and self._namespace(one.pid) == here
            one.write(page.W_LEADER_FD, leader.number)
            one.write(page.W_LEADER, number if sees else 0)
            one.write(page.W_ASKER, os.getpid())

    def target(self, step: int) -> None:
        """Let all stop at this step, and nobody at an earlier one."""
        for one in self._held.values():
            one.write(page.W_TARGET, step)

    def confirm(self, step: int) -> None:
        """Decide: all wait at this step, and shall let go. The leader's page is the first."""
        for one in self._held.values():
            one.write(page.W_CONFIRMED, step)

    def release(self, pids: Iterable[int]) -> None:
        """Let all go on: those that wait, and those that have let go, after taking all again.

        If it was decided that they let go, all do, also who has not seen it yet.
        """
        there = (self._held.get(pid) or self._open(pid, os.O_RDWR) for pid in pids)
        pages = [one for one in there if one is not None]
        seen = {one.pid: one.words() for one in pages}
        decided = {words[page.W_QUIET] for words in seen.values()}
        for words in seen.values():
            if words[page.W_CONFIRMED] == words[page.W_ARRIVED]:
                decided.add(words[page.W_ARRIVED])
        for one in pages:
            step = seen[one.pid][page.W_ARRIVED]
            if step and step in decided:
                one.write(page.W_CONFIRMED, step)
                one.write(page.W_GO, step)
            one.write(page.W_TARGET, 0)
            if one.pid not in self._held:
                one.close()

    def close(self) -> None:
        """Hold nobody any more; who has not let go by now goes on."""
        held, self._held = self._held, {}
        for one in held.values():
            one.close()

    def _lock(self, one: _Page) -> None:
        ends = time.monotonic() + _LOCK_SECONDS
        while not one.lock():
            if time.monotonic() >= ends:
                raise ProcessUnfit(
                    f"another gpuckpt holds process {one.pid} at a step",
                    hint="Wait until it has ended.",
                )
            time.sleep(_POLL)

    def _open(self, pid: int, flags: int) -> _Page | None:
        """Find the page of a process; a copy that a child was forked with is none."""
        try:
            numbers = [fd for fd, target in targets(f"{self._root}/{pid}") if _is_page(target)]
        except OSError:
            return None
        for number in numbers:
            fd = _opened(f"{self._root}/{pid}/fd/{number}", flags)
            if fd is None:
                continue
            one = _Page(self._root, pid, number, fd)
            words = one.words()
            if words[page.W_MAGIC] == page.MAGIC and words[page.W_OWNER] == self._inner(pid):
                return one
            os.close(fd)
        return None

    def _inner(self, pid: int) -> int:
        """Return the pid that a process has for itself."""
        status = parse_status(read(f"{self._root}/{pid}/status") or b"")
        return int((status.get("NSpid") or str(pid)).split()[-1])

    def _namespace(self, pid: int) -> str | None:
        return link(f"{self._root}/{pid}/ns/pid")


def _is_page(target: str) -> bool:
    return target == f"{LINK} (deleted)"


def _opened(path: str, flags: int) -> int | None:
    """Open a page, and nothing that the job has put in its place meanwhile."""
    with suppress(OSError):
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            found = os.fstat(handle)
            own = f"/proc/self/fd/{handle}"
            if found.st_nlink == 0 and _is_page(os.readlink(own)):  # noqa: PTH115
                return os.open(own, flags | os.O_CLOEXEC)
        finally:
            os.close(handle)
    return None
