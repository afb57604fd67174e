"""A tree of three: a parent and two children that count and tell the parent through pipes.

Usage: family.py FOLDER. The parent appends "A B" to FOLDER/log whenever both children have
reported their next numbers, so the log shows that all three go on.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def child(write: int) -> None:
    """Report one number after the other."""
    number = 0
    while True:
        os.write(write, b"%08d" % number)
        number += 1
        time.sleep(0.02)


def main() -> None:
    """Start the children and log what they report."""
    pipes = []
    for _ in range(2):
        read, write = os.pipe()
        if os.fork() == 0:
            child(write)
        os.close(write)
        pipes.append(read)
    with (Path(sys.argv[1]) / "log").open("a", buffering=1) as log:
        while True:
            log.write(" ".join(str(int(os.read(pipe, 8))) for pipe in pipes) + "\n")


main()
