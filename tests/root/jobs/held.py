"""The real gpuckpt with a disk that takes nothing large before FOLDER/go is there.

Usage: held.py FOLDER ARGUMENTS...
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.cli.main import main
from gpuckpt.image.sink import FileSink

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGE = 256 << 10
PATIENCE = 120.0

go = Path(sys.argv.pop(1)) / "go"
take = FileSink.append


def held(sink: FileSink, parts: Sequence[bytes | memoryview]) -> object:
    """Take what is small; wait before anything else."""
    ends = time.monotonic() + PATIENCE
    while sum(map(len, parts)) >= LARGE and not go.exists():
        if time.monotonic() > ends:
            raise OSError(5, "held for too long")
        time.sleep(0.02)
    return take(sink, parts)


FileSink.append = held  # type: ignore[method-assign,assignment]
main()
