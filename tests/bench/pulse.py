"""How a measured job tells from inside what happened to it: its beats, and a proof of its memory.

A beat is a sign of life every few milliseconds. Two beats that lie further apart than they should
are remembered, so that a job knows to a few milliseconds since when and until when it stood still,
whoever stopped it, and how. They are read off the wall clock: the monotonic one is set back by
CRIU to where it stood at the dump (4.2.1, by a time namespace). Asked by SIGUSR1 it reads in
FOLDER/ask what is wanted, and answers in a file of its own; it holds no file open.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

BEAT: Final = 0.005  # seconds
PAUSE: Final = 0.02  # a beat this late was kept from coming
KEPT: Final = 1000


class Pulse:
    """The beats of one process of a job."""

    def __init__(self, folder: str, rank: int, digest: Callable[[], str]) -> None:
        """Listen to signals from now on; `digest` is of all memory that must come back."""
        self._folder = Path(folder)
        self._rank = rank
        self._digest = digest
        self._gaps: list[tuple[float, float]] = []
        self._asked = self._stopping = False
        signal.signal(signal.SIGUSR1, self._ask)
        signal.signal(signal.SIGTERM, self._stop)

    def _ask(self, *_: object) -> None:
        self._asked = True

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def ready(self) -> None:
        """Tell that this process is as it shall be dumped."""
        self._write(f"ready-{self._rank}", str(os.getpid()))

    def beat(self, step: Callable[[], object] = lambda: None) -> None:
        """Beat until SIGTERM, with a step of work each time."""
        last = time.time()
        while not self._stopping:
            step()
            time.sleep(BEAT)
            now = time.time()
            if now - last > PAUSE:
                self._gaps = [*self._gaps[-KEPT:], (last, now)]
            if self._asked:
                self._asked = False
                self._answer()
                now = time.time()
            last = now

    def _answer(self) -> None:
        number, wanted = (self._folder / "ask").read_text().split()
        told: object = self._gaps if wanted == "gaps" else self._digest()
        self._write(f"answer-{number}-{self._rank}", json.dumps(told))

    def _write(self, name: str, text: str) -> None:
        new = self._folder / f".{name}.new"
        new.write_text(text)
        new.rename(self._folder / name)
