"""A job with everything a plain process may hold: threads, memory, a log, pipes and sockets.

Usage: worker.py FOLDER MEBIBYTES. Writes FOLDER/port once it listens. Answers each line sent to
that port with one JSON line; "exit N" ends it with status N. Memory is checked by its hash, so a
single wrong byte after a restore would be told.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import sys
import threading
import time
from pathlib import Path

FOLDER, MEBIBYTES = Path(sys.argv[1]), int(sys.argv[2])
counts = [0, 0]
passed = {"pipe": 0, "pair": 0}


def count(which: int) -> None:
    """Count for ever in a thread of its own."""
    while True:
        counts[which] += 1
        time.sleep(0.005)


def echo_through_pipe() -> None:
    """Send numbers through a pipe to ourselves; each must come back."""
    read, write = os.pipe()
    while True:
        os.write(write, b"%08d" % passed["pipe"])
        assert int(os.read(read, 8)) == passed["pipe"]
        passed["pipe"] += 1
        time.sleep(0.01)


def echo_through_pair() -> None:
    """The same through a pair of connected unix sockets."""
    left, right = socket.socketpair()
    while True:
        left.sendall(b"%08d" % passed["pair"])
        assert int(right.recv(8)) == passed["pair"]
        passed["pair"] += 1
        time.sleep(0.01)


def write_log() -> None:
    """Append one numbered line after the other."""
    with (FOLDER / "log").open("a", buffering=1) as log:
        number = 0
        while True:
            log.write(f"line {number}\n")
            number += 1
            time.sleep(0.02)


def answer(line: str, memory: bytearray) -> str:
    """Say how things stand."""
    return json.dumps(
        {
            "asked": line,
            "pid": os.getpid(),
            "sha256": hashlib.sha256(memory).hexdigest(),
            "counts": counts,
            "passed": passed,
            "threads": threading.active_count(),
        }
    )


def serve(memory: bytearray) -> None:
    """Answer clients, one at a time, until told to exit."""
    listener = socket.create_server(("127.0.0.1", 0))
    fresh = FOLDER / "port.new"
    fresh.write_text(str(listener.getsockname()[1]))
    fresh.rename(FOLDER / "port")
    while True:
        client, _ = listener.accept()
        with client, client.makefile("rw") as stream:
            for line in stream:
                if line.startswith("exit "):
                    os._exit(int(line.split()[1]))
                stream.write(answer(line.strip(), memory) + "\n")
                stream.flush()


def main() -> None:
    """Fill the memory, start the threads, serve."""
    memory = bytearray(random.Random(42).randbytes(1 << 20) * MEBIBYTES)
    for at in range(0, len(memory), 4096):
        memory[at : at + 8] = at.to_bytes(8, "little")
    for work in (echo_through_pipe, echo_through_pair, write_log):
        threading.Thread(target=work, daemon=True).start()
    for which in range(len(counts)):
        threading.Thread(target=count, args=(which,), daemon=True).start()
    serve(memory)


main()
