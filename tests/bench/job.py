"""A job to be measured with: `job FOLDER KIND MEBIBYTES PROCESSES [SEED ...]`.

Its processes share the memory among them, fill it as contents.py says, and beat as pulse.py does.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.contents import MIB, fill
from tests.bench.pulse import Pulse

if TYPE_CHECKING:
    from collections.abc import Iterator


def fork(processes: int) -> int:
    """Become so many processes; return which one this is, 0 for the parent of all others."""
    for rank in range(1, processes):
        if os.fork() == 0:
            return rank
    return 0


def filled(kind: str, size: int, rank: int, paths: list[str]) -> mmap.mmap:
    """Return memory of its own, filled; nothing of the seeds stays mapped."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with ExitStack() as stack:
        views = [stack.enter_context(mapped(path)) for path in paths]
        with memoryview(memory) as view:
            fill(kind, view, views, rank)
    return memory


@contextmanager
def mapped(path: str) -> Iterator[memoryview]:
    """Give the bytes of a file."""
    with (
        Path(path).open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view,
        memoryview(view) as found,
    ):
        yield found


def main() -> None:
    folder, kind, mebibytes, processes, *paths = sys.argv[1:]
    rank = fork(int(processes))
    memory = filled(kind, int(mebibytes) * MIB // int(processes), rank, paths)
    pulse = Pulse(folder, rank, lambda: hashlib.sha256(memory).hexdigest())
    pulse.ready()
    pulse.beat()


if __name__ == "__main__":
    main()
