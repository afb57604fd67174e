"""A job that counts in a file in memory, with a child and a zombie: `apart.py FOLDER NAME [open]`.

/dev/shm/NAME has the count, 20 a second; SIGUSR1 adds a million, SIGTERM ends it with status 7. It
asks to be killed at its parent's end, holds a second name of a deleted file in /dev/shm, and a log.
It listens where the CUDA driver does; with `open` also at a path and at a name that is none.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path

COUNT = struct.Struct("=Q")
folder, name = Path(sys.argv[1]), sys.argv[2]
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG


def listen(kind: socket.SocketKind, where: bytes) -> socket.socket:
    """Listen at a Unix socket."""
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(where)
    listener.listen(1)
    return listener


space = Path("/proc/self/ns/pid").stat().st_ino
drivers = f"\0cuda-uvmfd-{space}-{os.getpid()}".encode().ljust(108, b"\0")
listeners = [listen(socket.SOCK_SEQPACKET, drivers)]
if sys.argv[3:] == ["open"]:
    listeners.append(listen(socket.SOCK_STREAM, b"\0" + name.encode()))
    listeners.append(listen(socket.SOCK_STREAM, os.fsencode(folder / "socket")))
if os.fork() == 0:
    ctypes.CDLL(None).prctl(1, 9)
    while True:
        time.sleep(60)
if os.fork() == 0:
    os._exit(3)  # a zombie, which nobody waits for
path = Path("/dev/shm", name)
path.write_bytes(bytes(mmap.PAGESIZE))
with path.open("r+b") as file:
    shared = mmap.mmap(file.fileno(), mmap.PAGESIZE)
hidden = Path("/dev/shm", f"{name}-hidden").open("w+b")  # noqa: SIM115
hidden.write(b"kept")
hidden.flush()
Path(hidden.name).unlink()


def add(count: int) -> None:
    """Count."""
    COUNT.pack_into(shared, 0, COUNT.unpack_from(shared, 0)[0] + count)


signal.signal(signal.SIGUSR1, lambda *_: add(1_000_000))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7 if os.pread(hidden.fileno(), 4, 0) else 8))
with (folder / "log").open("a", buffering=1) as log:
    log.write(f"{os.getpid()}\n")
    while True:
        add(1)
        time.sleep(0.05)
