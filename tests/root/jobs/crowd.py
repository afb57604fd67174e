"""A tree of all that people start. Usage: crowd.py FOLDER SHORT.

Pools of all kinds with work and results on their way, a manager, servers with workers that share
their sockets, children that end, lead groups and sessions, watch their parent or are killed with
it, and what an event loop holds. FOLDER/log gets a line each time that everything has been used
and was as it should be; FOLDER/go lets the parts be emptied that were full until then.
SHORT takes sockets that Python makes in folders of its own.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
GO = FOLDER / "go"
Check = Callable[[int], None]
LIBC = ctypes.CDLL(None)
PATIENCE = 30


def square(number: int) -> int:
    return number * number


def slow(number: int) -> int:
    while not GO.exists():
        time.sleep(0.05)
    return number + 1


def pools() -> Iterator[Check]:
    """Three kinds of workers, and results that are still to come."""
    for kind in ("fork", "forkserver", "spawn"):
        context = multiprocessing.get_context(kind)
        pool = context.Pool(2)
        pending = pool.map_async(slow, range(20), chunksize=1)

        def check(number: int, pool: Any = pool, pending: Any = pending) -> None:
            if GO.exists():
                assert pending.get(PATIENCE) == list(range(1, 21))
                assert pool.apply_async(square, (number,)).get(PATIENCE) == number * number

        yield check
    executor = concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork"))
    future = executor.submit(slow, 41)

    def later(number: int) -> None:
        if GO.exists():
            assert future.result(PATIENCE) == 42
        assert executor.submit(square, number).result(PATIENCE) == number * number

    yield later


def managed() -> Iterator[Check]:
    """A manager's process with its socket in /tmp, and connections to it."""
    manager = multiprocessing.get_context("spawn").Manager()
    shared, lock, queue = manager.dict(), manager.Lock(), manager.Queue()

    def check(number: int) -> None:
        with lock:
            shared[number % 5] = number
            assert shared[number % 5] == number
        queue.put(number)
        assert queue.get() == number
        fresh = threading.Thread(target=lambda: shared.update({"thread": number}))
        fresh.start()  # a new thread makes a connection of its own
        fresh.join(PATIENCE)
        assert shared["thread"] == number

    yield check


def full() -> Iterator[Check]:
    """Queues, pipes and sockets that nobody empties until told."""
    context = multiprocessing.get_context("fork")
    queue, simple = context.Queue(), context.SimpleQueue()
    ours, theirs = context.Pipe()
    for number in range(50):
        queue.put(os.urandom(1) * 8192 + bytes([number]))  # more than a pipe takes: a thread waits
    for number in range(20):
        simple.put(number)
        theirs.send(number)
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    datagrams = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    datagrams[0].bind(f"\0gpuckpt-{os.getpid()}-a")
    datagrams[1].connect(datagrams[0].getsockname())
    for number in range(5):
        one.send(b"%d" % number)
        datagrams[1].send(b"%d" % number)
    emptied: list[int] = []

    def check(_: int) -> None:
        if GO.exists() and not emptied:
            assert [queue.get(timeout=PATIENCE)[-1] for _ in range(50)] == list(range(50))
            assert [simple.get() for _ in range(20)] == list(range(20))
            assert [ours.recv() for _ in range(20)] == list(range(20))
            assert [int(other.recv(9)) for _ in range(5)] == list(range(5))
            assert [int(datagrams[0].recv(9)) for _ in range(5)] == list(range(5))
            emptied.append(1)

    yield check


def prefork() -> Iterator[Check]:
    """A server as gunicorn's: sockets that all workers accept at, and a pipe for each to live."""
    tcp = socket.create_server(("127.0.0.1", 0), backlog=64)
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(FOLDER / "front"))
    unix.listen(8)
    hidden = socket.socket(socket.AF_UNIX)
    hidden.bind(f"\0gpuckpt-{os.getpid()}")
    hidden.listen(8)
    alive, master = os.pipe()
    for _ in range(2):
        if os.fork() == 0:
            os.close(master)
            serve((tcp, unix, hidden), alive)

    def check(number: int) -> None:
        for family, address in (
            (socket.AF_INET, tcp.getsockname()),
            (socket.AF_UNIX, unix.getsockname()),
            (socket.AF_UNIX, hidden.getsockname()),
        ):
            with socket.socket(family) as client:
                client.settimeout(PATIENCE)
                client.connect(address)
                client.sendall(b"%d" % number)
                assert int(client.recv(99)) == number + 1
        (FOLDER / "port").write_text(str(tcp.getsockname()[1]))

    yield check


def serve(sockets: tuple[socket.socket, ...], alive: int) -> None:
    poll = select.epoll()
    for one in sockets:
        one.setblocking(False)
        poll.register(one, select.EPOLLIN | select.EPOLLEXCLUSIVE)
    poll.register(alive, select.EPOLLHUP)
    known = {one.fileno(): one for one in sockets}
    while True:
        for fd, _ in poll.poll():
            if fd == alive:
                os._exit(0)
            with contextlib.suppress(BlockingIOError):
                client, _ = known[fd].accept()
                with client:
                    client.setblocking(True)
                    client.sendall(b"%d" % (int(client.recv(99)) + 1))


def engine() -> Iterator[Check]:
    """A front, an engine and a tokenizer that talk by sockets in the file system."""
    listener = multiprocessing.connection.Listener(str(FOLDER / "engine"), authkey=b"key")
    if os.fork() == 0:
        with multiprocessing.connection.Client(str(FOLDER / "engine"), authkey=b"key") as front:
            command = [sys.executable, "-c", TOKENIZER]
            pipe = subprocess.PIPE
            tokenizer = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
            assert tokenizer.stdin
            assert tokenizer.stdout
            while True:
                tokenizer.stdin.write(front.recv_bytes() + b"\n")
                tokenizer.stdin.flush()
                front.send_bytes(tokenizer.stdout.readline())
    peer = listener.accept()

    def check(number: int) -> None:
        peer.send_bytes(b"%d words" % number)
        assert peer.poll(PATIENCE)
        assert peer.recv_bytes() == b"2 %d\n" % number

    yield check


TOKENIZER = """
import sys, threading, ctypes
ctypes.CDLL(None).prctl(1, 15, 0, 0, 0)  # PR_SET_PDEATHSIG
for line in sys.stdin:
    words = line.split()
    print(len(words), words[0], flush=True)
"""
# as torch.compile's pool: it watches its parent, and works for whoever writes to its stdin
WATCHER = """
import os, sys, threading, time
parent = os.getppid()
def watch():
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(5)
threading.Thread(target=watch, daemon=True).start()
while data := os.read(0, 8):
    os.write(1, data[::-1])
"""


def ended() -> Iterator[Check]:
    """Children that have ended and that nobody has waited for."""
    zombies = {}
    for status in (0, 7, -signal.SIGKILL):
        pid = os.fork()
        if pid == 0:
            if status < 0:
                os.kill(os.getpid(), -status)
            os._exit(status)
        zombies[pid] = status

    def check(_: int) -> None:
        while GO.exists() and zombies:
            pid, status = zombies.popitem()
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status

    yield check


def leaders() -> Iterator[Check]:
    """Children that lead a session or a group, each with a child of its own."""
    groups = {}
    for lead in (os.setsid, os.setpgrp):
        pid = os.fork()
        if pid == 0:
            lead()
            os.fork()
            parent = os.getppid()
            while os.getppid() == parent:  # nobody finds them by our group
                time.sleep(0.2)
            os._exit(0)
        groups[pid] = lead is os.setsid

    def check(_: int) -> None:
        for pid, session in groups.items():
            assert os.getpgid(pid) == pid
            assert (os.getsid(pid) == pid) is session

    yield check


def watcher() -> Iterator[Check]:
    """A worker by pipes that watches its parent, as torch.compile's."""
    told, tell = os.pipe()
    asked, ask = os.pipe()
    worker = subprocess.Popen([sys.executable, "-c", WATCHER], stdin=asked, stdout=tell)
    os.close(tell)
    os.close(asked)

    def check(number: int) -> None:
        os.write(ask, b"%08d" % number)
        assert os.read(told, 8)[::-1] == b"%08d" % number
        assert worker.poll() is None

    yield check


def loop() -> Iterator[Check]:
    """What an event loop holds: events, signals, timers, watches."""
    mask = (ctypes.c_ulong * 16)(1 << (signal.SIGUSR1 - 1))
    signals = LIBC.signalfd(-1, ctypes.byref(mask), os.O_CLOEXEC)
    event = os.eventfd(3)
    timer = LIBC.timerfd_create(time.CLOCK_MONOTONIC, 0)
    every = struct.pack("4q", 0, 50_000_000, 0, 50_000_000)
    LIBC.timerfd_settime(timer, 0, every, None)
    watched = FOLDER / "watched"
    watched.touch()
    notes = LIBC.inotify_init()
    LIBC.inotify_add_watch(notes, str(watched).encode(), 2)
    poll = select.epoll()
    for fd in (signals, event, timer, notes):
        poll.register(fd, select.EPOLLIN)
    os.kill(os.getpid(), signal.SIGUSR1)  # waits to be read

    def check(_: int) -> None:
        watched.write_text("x")
        seen: set[int] = set()
        ends = time.monotonic() + PATIENCE
        while seen != {signals, event, timer, notes} and time.monotonic() < ends:
            seen |= {fd for fd, _ in poll.poll(1)}
        assert seen == {signals, event, timer, notes}, seen
        os.read(timer, 8)
        os.read(notes, 4096)

    yield check


def main() -> None:
    os.environ["TMPDIR"] = sys.argv[2]
    multiprocessing.current_process()._config["semprefix"] = f"/gpuckpt-{FOLDER.parent.name}"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # in all threads to come
    makers = (ended, leaders, watcher, full, prefork, engine, loop, pools, managed)
    checks = [(make.__name__, check) for make in makers for check in make()]
    number = 0
    while True:
        for name, check in checks:
            try:
                check(number)
            except BaseException:
                print("failed:", name, flush=True)
                raise
        with (FOLDER / "log").open("a") as log:
            log.write(f"{number}{' emptied' if GO.exists() else ''}\n")
        number += 1
        time.sleep(0.05)


if __name__ == "__main__":
    main()
