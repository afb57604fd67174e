"""A job that does as it is told: prints a line, or closes its port, when a file says so.

Usage: speaker.py FOLDER. Appends its pid to FOLDER/pids once it listens.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

FOLDER = Path(sys.argv[1])
listener = socket.create_server(("127.0.0.1", 0))
with (FOLDER / "pids").open("a") as pids:
    pids.write(f"{os.getpid()}\n")
while True:
    time.sleep(0.02)
    if (FOLDER / "print").exists():
        print("a line", flush=True)
    if (FOLDER / "close").exists():
        listener.close()
