"""A process to be measured with: MEBIBYTES of memory, each MiB half zeros, half random.

Usage: job.py MEBIBYTES READY. Makes the file READY when the memory is filled, then sleeps.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from pathlib import Path

MIB = 1 << 20

memory = mmap.mmap(-1, int(sys.argv[1]) * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(memory), MIB):
    memory[at : at + MIB // 2] = os.urandom(MIB // 2)
    memory[at + MIB // 2 : at + MIB] = bytes(MIB // 2)
Path(sys.argv[2]).touch()
while True:
    time.sleep(0.05)
