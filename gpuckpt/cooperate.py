"""For the job: stop at a step boundary, let go of what cannot be dumped, go on after the restore.

Import it, or copy this one file into your project: it needs Python 3.8 and nothing else (PyTorch
only for `torch_ranks`), and does nothing until `gpuckpt dump --quiesce` asks.

    point = cooperate.torch_ranks()        # after init_process_group, once in every rank
    for batch in batches:
        train(batch)
        if point.here():                   # the group was away and is back
            model = DistributedDataParallel(net)

Every process that cooperates calls `here` equally often. While nobody asks that costs a fraction of
a microsecond, with no signal, no collective and no file.

How all stop at the same step. Each process has a page of shared memory, a memfd that gpuckpt
finds in /proc and CRIU carries along. Every word has one writer. gpuckpt locks all pages (flock)
and sets a target above every step it sees. Who comes to its target waits there and says so; if one
had passed already the target is raised, and who waits for the old one goes on. When all wait at
the same step gpuckpt writes that step as confirmed into the page of one of them, the leader. That
one write is the decision: everybody looks there. From it on all call `down` and stay until told to
go, however gpuckpt ends, for a dump may be under way; `gpuckpt repair` tells them.

If gpuckpt dies the kernel drops its locks. Who waits sees that, looks at the leader's page once
more (nobody can write there now) and goes on unless the step is confirmed: so all decide alike.
Who cannot open that page (another user's, another pid namespace's) stays until a repair.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import time
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "gpuckpt-cooperate"
MAGIC = int.from_bytes(b"gpuckpt\0", "little")
VERSION = 1
SIZE = 4096
# the words of the page, 64 bits each, little-endian; steps count from 1, 0 is none. Of the process:
# how far it is, where it waits, where it is quiet, where a callback of its failed (TEXT says how)
W_MAGIC, W_VERSION, W_OWNER, W_STEP, W_ARRIVED, W_QUIET, W_FAILED = range(7)
# of gpuckpt: where to stop, where all stop (valid in the leader's page), where to go on again,
# the leader as the process sees it (0: not at all), and gpuckpt's own pid for curious people
W_TARGET, W_CONFIRMED, W_GO, W_LEADER, W_LEADER_FD, W_ASKER = range(8, 14)
TEXT, TEXT_SIZE = 1024, 1024  # bytes; UTF-8, ended by a zero

_POLL_SECONDS = 0.003
_points: list[Point] = []  # of this process: one, or none


class Point:
    """A place in the job's loop where it may stand still."""

    def __init__(self, down: Callable[[], object], up: Callable[[], object]) -> None:
        """Make the page; `down` lets go of what cannot be dumped, `up` takes it again.

        `up` is called also after a `down` that failed: the other processes were down.
        """
        if _points:
            raise RuntimeError("this process has a cooperate.Point already")
        self._down, self._up = down, up
        self._step = 0
        self._fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
        os.ftruncate(self._fd, SIZE)
        self._map = mmap.mmap(self._fd, SIZE)
        self._words: Any = memoryview(self._map).cast("Q")
        self._words[W_OWNER] = os.getpid()
        self._words[W_VERSION] = VERSION
        self._words[W_MAGIC] = MAGIC  # last: from here on it counts
        _points.append(self)
        os.register_at_fork(after_in_child=_closer(weakref.ref(self)))

    def here(self) -> bool:
        """Stand still if gpuckpt asks for it; whether `down` and `up` were called meanwhile."""
        self._step = step = self._step + 1
        words = self._words
        words[W_STEP] = step
        if not words[W_TARGET]:
            return False
        return words[W_TARGET] == step and self._stop(step)

    def close(self) -> None:
        """Cooperate no more: this process has no more steps to come."""
        if self not in _points:
            return
        _points.remove(self)
        self._words.release()
        self._words = [0] * (W_ASKER + 1)
        self._map.close()
        os.close(self._fd)

    def _stop(self, step: int) -> bool:
        words = self._words
        words[W_ARRIVED] = step
        try:
            if not self._agreed(step):
                return False
            self._stand(step)
        finally:
            words[W_QUIET] = 0
            words[W_ARRIVED] = 0
        return True

    def _agreed(self, step: int) -> bool:
        """Wait until all have arrived at this step, or until it is not to be this one."""
        words = self._words
        leader = _Leader(words)
        try:
            while True:
                # in this order: what is read after the asker's end is final, and a target that
                # was taken away after the decision does not hide it
                alone = self._asker_is_gone()
                target = words[W_TARGET]
                if leader.confirmed() == step:
                    return True
                if target != step or (alone and leader.known):
                    return False
                time.sleep(_POLL_SECONDS)
        finally:
            leader.close()

    def _asker_is_gone(self) -> bool:
        """Whether nobody holds the lock on this page."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def _stand(self, step: int) -> None:
        """Let go, stay, take again. A failed `down` waits too: `up` concerns all."""
        words = self._words
        try:
            self._down()
            words[W_QUIET] = step
        except Exception as why:  # noqa: BLE001 - told to gpuckpt, which then lets all go on
            self._tell(step, "down", why)
        while words[W_GO] != step:
            time.sleep(_POLL_SECONDS)
        words[W_FAILED] = 0
        try:
            self._up()
        except BaseException as why:
            self._tell(step, "up", why)
            raise

    def _tell(self, step: int, callback: str, why: BaseException) -> None:
        text = f"{callback}: {type(why).__name__}: {why}".encode("utf-8", "replace")
        text = text[: TEXT_SIZE - 1]
        self._map[TEXT : TEXT + len(text) + 1] = text + b"\0"
        self._words[W_FAILED] = step


class _Leader:
    """The page with the decision, as one process sees it; `known`: it does."""

    def __init__(self, words: Any) -> None:  # noqa: ANN401 - a memoryview, or a test's
        self._words = words
        self._fd = -1
        self.known = bool(words[W_LEADER] == os.getpid())
        if self.known or not words[W_LEADER]:
            return
        path = f"/proc/{words[W_LEADER]}/fd/{words[W_LEADER_FD]}"
        try:
            if os.readlink(path).startswith("/memfd:" + NAME):  # noqa: PTH115
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        # the /proc of another pid namespace shows another process by this number
        self.known = self._fd >= 0 and self._read(W_OWNER) == words[W_LEADER]

    def confirmed(self) -> int:
        """Return the step that is confirmed; who cannot look there is told in its own page."""
        if self.known and self._fd >= 0:
            return self._read(W_CONFIRMED)
        return int(self._words[W_CONFIRMED])

    def close(self) -> None:
        """Hold it no longer: it is not to be dumped twice."""
        if self._fd >= 0:
            os.close(self._fd)

    def _read(self, word: int) -> int:
        return int.from_bytes(os.pread(self._fd, 8, 8 * word), "little")


def _closer(point: weakref.ref[Point]) -> Callable[[], None]:
    """Return what a forked child does: it has a loop of its own, or none."""

    def close() -> None:
        found = point()
        if found is not None:
            found.close()

    return close


def torch_ranks(**init: Any) -> Point:  # noqa: ANN401 - what init_process_group takes
    """Return the point of a rank whose PyTorch process group goes away and comes back.

    To be made once, after `init_process_group`. All groups go: make others than the default one
    again after `here` has said True, and what was made with them (DistributedDataParallel, FSDP).
    `init` is handed to `init_process_group` beside store, rank, size and backend.
    """
    import torch  # noqa: PLC0415 - a job without it needs none
    import torch.distributed as dist  # noqa: PLC0415

    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no other way
    known: dict[str, Any] = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    known["backend"] = dist.get_backend()
    count = itertools.count(1)

    def down() -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        dist.destroy_process_group()

    def up() -> None:
        if dist.is_initialized():  # `down` has failed
            dist.destroy_process_group()
        # the store still has what the old group wrote, NCCL's identity among it
        fresh = dist.PrefixStore(f"gpuckpt-{next(count)}", store)
        dist.init_process_group(**{**known, **init, "store": fresh})

    return Point(down, up)
