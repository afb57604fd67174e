"""A job that allocates, writes and frees without a pause, and hashes what it keeps.

Usage: churner.py FOLDER. Each round fills fresh blocks, checks their hashes against what they
must be, and appends "ok N" to FOLDER/log; a wrong byte ends it with status 9.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from pathlib import Path


def main() -> None:
    """Churn."""
    kept: dict[int, tuple[bytearray, str]] = {}
    dice = random.Random(7)
    with (Path(sys.argv[1]) / "log").open("a", buffering=1) as log:
        for number in range(1 << 30):
            size = dice.randrange(1 << 12, 4 << 20)
            block = bytearray(dice.randbytes(64) * (size // 64 + 1))
            kept[number % 24] = (block, hashlib.sha1(block).hexdigest())  # noqa: S324 - a checksum
            for other, digest in kept.values():
                if dice.random() < 0.2 and hashlib.sha1(other).hexdigest() != digest:  # noqa: S324
                    os._exit(9)
            log.write(f"ok {number}\n")


main()
