"""Two processes that talk over TCP: one connection counts, others hold bytes nobody has read yet.

Arguments: a folder. Every line of its log is a number that went to the other process and back.
When the file `read` is there, all that was on its way is read and judged into `read-0`, `read-1`.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

FOLDER = Path(sys.argv[1])
HOST = "192.0.2.1"  # of no interface: nothing is sent there, it only tells our own address


def own_address() -> str:
    """Return the address of this host's way out, or loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((HOST, 9))
        except OSError:
            return "127.0.0.2"
        return str(asking.getsockname()[0])


def listen(family: int, host: str) -> socket.socket:
    """Listen without SO_REUSEADDR: closed connections then keep the port taken."""
    server = socket.socket(family)
    server.bind((host, 0))
    server.listen()
    return server


def fill(one: socket.socket) -> int:
    """Write until both ends have all they can take."""
    one.setblocking(False)
    count = 0
    try:
        while True:
            count += one.send(b"".join(b"%07d\n" % n for n in range(count // 8, count // 8 + 512)))
    except BlockingIOError:
        one.setblocking(True)
    return count


def drain(one: socket.socket, count: int) -> bool:
    """Whether exactly this comes out of it."""
    one.settimeout(30)
    got = b""
    while len(got) < count:
        got += one.recv(count - len(got))
    return got == b"".join(b"%07d\n" % n for n in range(count // 8 + 1))[:count]


def judge(
    side: int,
    full: list[socket.socket],
    counts: list[int],
    half: socket.socket,
    gone: socket.socket,
) -> None:
    """Read all that was on its way, and the last words of connections that were closed."""
    told = [str(drain(one, count)) for one, count in zip(full, counts, strict=True)]
    half.settimeout(30)
    last = half.recv(100)
    told.append(str(last == b"last words" and half.recv(1) == b"") if side == 0 else str(last))
    if side == 0:
        told.append(str(gone.recv(100) == b"left behind" and gone.recv(1) == b""))
    (FOLDER / f"read-{side}").write_text(" ".join(told))


def main() -> None:
    """Connect a child to its parent five times, and begin."""
    ours = [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::", "127.0.0.1"),
        (socket.AF_INET, own_address(), own_address()),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
    ]
    servers = [listen(family, host) for family, host, _ in ours]
    targets = [(to, one.getsockname()[1]) for (*_, to), one in zip(ours, servers, strict=True)]
    child = os.fork() == 0
    side = int(child)
    if child:
        ends = [socket.create_connection(target) for target in targets]
    else:
        ends = [one.accept()[0] for one in servers]
    talk, *full, half = ends
    gone = socket.create_connection(targets[0]) if child else servers[0].accept()[0]
    if child:
        gone.sendall(b"left behind")
        gone.close()
    counts = [fill(one) for one in full]
    (FOLDER / f"sent-{side}").write_text(" ".join(map(str, counts)))
    if child:
        half.sendall(b"last words")
        half.shutdown(socket.SHUT_WR)
    while not all((FOLDER / f"sent-{one}").exists() for one in (0, 1)):
        time.sleep(0.02)
    time.sleep(0.2)
    theirs = [int(one) for one in (FOLDER / f"sent-{1 - side}").read_text().split()]
    if not child:
        half.sendall(b"answer")
        (FOLDER / "ready").touch()
    number = 0
    read = False
    while True:
        if not read and (FOLDER / "read").exists():
            read = True
            judge(side, full, theirs, half, gone)
        if child:
            talk.sendall(talk.recv(8))
            continue
        talk.sendall(b"%08d" % number)
        with (FOLDER / "log").open("a") as log:
            log.write(f"{int(talk.recv(8))}\n")
        number += 1
        time.sleep(0.02)


main()
