"""A job with everything that another host may have otherwise: a log, an input, a library, a port.

Usage: mover.py FOLDER LIBRARY INPUT PORT. Counts for ever; writes each number to FOLDER/log, and
FOLDER/pid when all is in place.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
library = ctypes.CDLL(sys.argv[2])
source = os.open(sys.argv[3], os.O_RDONLY)
data = mmap.mmap(source, 0, prot=mmap.PROT_READ)
listener = socket.create_server(("127.0.0.1", int(sys.argv[4])))
log = (folder / "log").open("a")
number = 0
while True:
    number += 1
    log.write(f"{number} {data[number % len(data)]}\n")
    log.flush()
    if number == 2:
        (folder / "pid.new").write_text(str(os.getpid()))
        (folder / "pid.new").rename(folder / "pid")
    time.sleep(0.01)
