"""Asking a store that may never answer: libraries try for minutes, and a job may stand still."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

from gpuckpt.errors import GpuckptError, WriteFailed

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# how long a store may take for a step of a commit, or of its undo, before it counts as gone
PATIENCE: Final = 60.0


class Asking:
    """A store that is asked in threads, so that no silence of its holds us up for ever."""

    def __init__(self, where: str, patience: float = PATIENCE) -> None:
        """Wait for each answer so many seconds; `where` names the store."""
        self._where = where
        self._patience = patience
        self._late: list[threading.Thread] = []

    def __call__(self, call: Callable[[], T]) -> T:
        """Return what `call` does.

        Raises:
            WriteFailed: there was no answer in time.
            GpuckptError: the store refused.
        """
        done: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                done.append(call())
            except BaseException as why:  # noqa: BLE001 - raised again below
                failed.append(why)

        thread = threading.Thread(target=work, name="store", daemon=True)
        thread.start()
        thread.join(self._patience)
        if failed:
            why = failed[0]
            raise why if isinstance(why, GpuckptError) else WriteFailed(f"{self._where}: {why}")
        if not done:
            self._late.append(thread)
            raise WriteFailed(f"{self._where} gave no answer within {self._patience:g} s")
        return done[0]

    def quiet(self) -> bool:
        """Wait for calls that were given up; say whether all have come to an end."""
        ends = time.monotonic() + self._patience
        for thread in self._late:
            thread.join(max(0.0, ends - time.monotonic()))
        return not any(thread.is_alive() for thread in self._late)
