"""A job of several processes, each of them a job of this folder: `crew.py FOLDER COUNT JOB ARG...`.

Process N is started with the log FOLDER/rank-N.log and finds its number, how many they are, a port
to meet on and a memory that all share in CREW_RANK, CREW_SIZE, CREW_PORT and CREW_MEMORY. The root
uses no GPU, outlives any of them, says in FOLDER/crew.log how each ended, and passes SIGTERM on.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from kit import Log

HERE = Path(__file__).parent
PAGE = 4096


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    folder, count, job, *more = sys.argv[1:]
    log = Log(f"{folder}/crew.log", alone=False)
    memory = os.memfd_create("crew")
    os.ftruncate(memory, PAGE)
    environment = {**os.environ, "CREW_SIZE": count, "CREW_PORT": str(free_port())}
    children = {}
    for rank in range(int(count)):
        argv = [sys.executable, str(HERE / job), f"{folder}/rank-{rank}.log", *more]
        known = environment | {"CREW_RANK": str(rank), "CREW_MEMORY": str(memory)}
        child = subprocess.Popen(argv, env=known, pass_fds=(memory,), stdin=subprocess.DEVNULL)
        children[child.pid] = rank

    def pass_on(*_: object) -> None:
        for pid in children:
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, pass_on)
    log.say("began " + " ".join(map(str, children)))
    while children:
        pid, status = os.wait()
        if pid in children:
            log.say(f"rank {children.pop(pid)} ended {os.waitstatus_to_exitcode(status)}")
    log.say("end")


if __name__ == "__main__":
    main()
