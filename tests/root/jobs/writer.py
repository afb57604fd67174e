"""A job that works with files: some it writes, some it was given, and one that it only reads.

Usage: writer.py FOLDER GIVEN; what is in GIVEN, and some where it works, is made beforehand.
"""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
log = (folder / "steps.log").open("a")
state = (folder / "state.bin").open("r+b")
area = mmap.mmap(state.fileno(), 0)
given = Path(sys.argv[2])
weights = (given / "weights.bin").open("rb")
held = mmap.mmap(weights.fileno(), 4096, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
settings = (folder / "settings").open()
settings.read(3)
scratch = (folder / "sparse").open("wb")
scratch.seek(8 << 20)
scratch.write(b"end")
scratch.flush()
data = (given / "input").open()
gone = (folder / "gone").open("w+")
gone.write("CRIU's")
gone.flush()
(folder / "gone").unlink()

step = 0
while True:
    step += 1
    area[:8] = step.to_bytes(8, "little")
    print("step", step, file=log, flush=True)
    time.sleep(0.01)
