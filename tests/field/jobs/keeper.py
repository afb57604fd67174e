"""A job that holds what an image cannot carry. Usage: keeper.py FOLDER ADDRESS.

A deleted file, one with another name left, one in a folder that is gone, a Unix socket at a path,
a port of one address; and 96 MiB.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

FOLDER, ADDRESS = Path(sys.argv[1]), sys.argv[2]
held = []
for name in ("ghost", "linked/name", "gone/deep"):
    (FOLDER / name).parent.mkdir(exist_ok=True)
    held.append((FOLDER / name).open("w"))
    held[-1].write("bytes")
    held[-1].flush()
os.link(FOLDER / "linked/name", FOLDER / "linked/other")
for name in ("ghost", "linked/name", "gone/deep"):
    (FOLDER / name).unlink()
(FOLDER / "gone").rmdir()
(FOLDER / "sockets").mkdir()
local = socket.socket(socket.AF_UNIX)
local.bind(str(FOLDER / "sockets" / "own"))
local.listen()
listener = socket.create_server((ADDRESS, 0))
memory = os.urandom(96 << 20)
(FOLDER / "ready.new").write_text(str(listener.getsockname()[1]))
(FOLDER / "ready.new").rename(FOLDER / "ready")
while True:
    time.sleep(0.02)
