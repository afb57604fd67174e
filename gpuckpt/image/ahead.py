"""Reading objects of a store ahead of whoever needs them: in large blocks, many side by side.

A request costs a store tens of milliseconds whatever its size, and one at a time gives a few tens
of MB/s. Frames are small, some of a few bytes; so they are cut from blocks, and the next blocks of
an object are asked for while the first are used.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import ImageError, StoreFailed
from gpuckpt.image.crew import Crew

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK: Final = 8 << 20
AT_ONCE: Final = 16
_TURN: Final = 0.2  # seconds; how soon a signal is heard
_MOST: Final = 32 * BLOCK  # of all blocks that are asked for or kept

_Key = tuple[str, int]


class Ahead:
    """The blocks of all objects of one image. Every method may be called from any thread.

    A store that has failed once is asked no more: each try takes minutes where it is silent, and
    whoever reads asks for the next block all the same.
    """

    def __init__(
        self,
        read: Callable[[str, int, int], bytes],
        block: int,
        most: int = _MOST,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Fetch by `read(name, start, length)`, whose errors are raised where a block is used.

        `check` is called by who waits, and may raise.
        """
        self._read = read
        self._check = check
        self._block = block
        self._most = most
        self._crew = Crew("fetch", AT_ONCE)
        self._lock = threading.Lock()
        self._blocks: OrderedDict[_Key, Future[bytes]] = OrderedDict()
        self._lengths: dict[_Key, int] = {}
        self._unused: dict[_Key, int] = {}
        self._closed = False
        self._gone: StoreFailed | None = None

    def expect(self, name: str, size: int) -> None:
        """Ask for an object that is going to be needed, if it is small, or else for its end."""
        with self._lock:
            self._ask((name, (size - 1) // self._block), size, needed=False)

    def get(self, name: str, size: int, start: int, length: int) -> list[memoryview]:
        """Return a range of an object of this size, in pieces, less if the store has less.

        Raises:
            StoreFailed: the store did not give it.
            FileNotFoundError: it is not there any more.
            ImageError: `close` was called.
        """
        end = min(start + length, size)
        pieces = []
        for number in range(start // self._block, -(-end // self._block)):
            first = number * self._block
            with self._lock:
                asked = self._ask((name, number), size, needed=True)
                self._ask_ahead(name, number, size)
            data = self._waited(asked)
            pieces.append(memoryview(data)[max(start - first, 0) : end - first])
        return pieces

    def close(self) -> None:
        """Let nobody wait any more; a store that hangs is not waited for."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for asked in self._blocks.values():
                asked.cancel()
            self._blocks.clear()
        threading.Thread(target=self._crew.dismiss, name="fetch-release", daemon=True).start()

    def _waited(self, asked: Future[bytes]) -> bytes:
        while not wait([asked], _TURN).done:
            self._check()
            if self._gone is not None:
                raise self._gone
        try:
            return asked.result()
        except CancelledError as why:
            raise ImageError("reading the image was stopped") from why

    def _ask_ahead(self, name: str, number: int, size: int) -> None:
        last = (size - 1) // self._block
        for further in range(number + 1, min(number + AT_ONCE, last) + 1):
            if sum(self._unused.values()) >= self._most // 2:
                return
            self._ask((name, further), size, needed=False)

    def _ask(self, key: _Key, size: int, *, needed: bool) -> Future[bytes]:
        if self._closed:
            raise ImageError("reading the image was stopped")
        asked = self._blocks.get(key)
        if asked is None or (asked.done() and asked.exception() is not None):
            name, number = key
            start = number * self._block
            length = self._lengths[key] = self._unused[key] = min(self._block, size - start)
            asked = self._blocks[key] = Future()
            self._crew.do(partial(self._fetch, name, start, length, asked))
        if needed:
            self._unused.pop(key, None)
            self._blocks.move_to_end(key)
            self._forget()
        return asked

    def _forget(self) -> None:
        """Let go of what was used longest ago, if there is too much."""
        held = sum(self._lengths.values())
        for key in [key for key, one in self._blocks.items() if one.done()]:
            if held <= self._most:
                return
            held -= self._lengths.pop(key)
            self._unused.pop(key, None)
            del self._blocks[key]

    def _fetch(self, name: str, start: int, length: int, asked: Future[bytes]) -> None:
        if not asked.set_running_or_notify_cancel():
            return
        if self._gone is not None:
            asked.set_exception(self._gone)
            return
        try:
            asked.set_result(self._read(name, start, length))
        except BaseException as why:  # noqa: BLE001 - raised again where the block is used
            if isinstance(why, StoreFailed):
                self._gone = why
            asked.set_exception(why)
