"""Two processes that talk over a connection which cannot be dumped: `pair.py FOLDER [HOW]`.

The root starts the other one. In every step they exchange their sums over a Unix socket and
over TCP, and each writes to itself through a pipe that keeps packets apart, which CRIU cannot dump.
All are closed in `down` and made again in `up`. Each writes a line a step into FOLDER/log.0 and
FOLDER/log.1. With `late` the second one never comes to an end of a step once FOLDER/late is there;
with `broken` its `down` fails.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))
from gpuckpt import cooperate

PAUSE = 0.005

folder, how = Path(sys.argv[1]), sys.argv[2]
if second := os.fork() == 0:
    os.setpgid(0, 0)
mine = int(second)
ends: list[socket.socket] = []
pipes: list[int] = []


def local() -> socket.socket:
    """Return an end of the socket that both open anew each time."""
    path = f"{folder}/pair"
    end = socket.socket(socket.AF_UNIX)
    if not second:
        Path(path).unlink(missing_ok=True)
        end.bind(path)
        end.listen(1)
        with end:
            return end.accept()[0]
    return dial(end, path)


def dial(end: socket.socket, where: str | tuple[str, int]) -> socket.socket:
    while True:
        try:
            end.connect(where)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(PAUSE)
        else:
            return end


def stream() -> socket.socket:
    place = folder / "port"
    if not second:
        with socket.create_server(("127.0.0.1", 0)) as server:
            place.with_suffix(".new").write_text(str(server.getsockname()[1]))
            place.with_suffix(".new").rename(place)
            return server.accept()[0]
    while not place.exists():
        time.sleep(PAUSE)
    port = int(place.read_text())
    place.unlink()
    return dial(socket.socket(), ("127.0.0.1", port))


def up() -> None:
    let_go()  # of what a failed `down` has left
    ends.extend((local(), stream()))
    pipes.extend(os.pipe2(os.O_DIRECT))


def down() -> None:
    if second and how == "broken":
        raise RuntimeError("the well is dry")
    let_go()


def let_go() -> None:
    while ends:
        ends.pop().close()
    while pipes:
        os.close(pipes.pop())


up()
point = cooperate.Point(down, up)
total, step = mine + 1, 0
with (folder / f"log.{mine}").open("a", buffering=1) as log:
    while True:
        for end in ends:
            end.send(total.to_bytes(8, "little"))
            total = (31 * total + int.from_bytes(end.recv(8), "little") + mine) % ((1 << 61) - 1)
        os.write(pipes[1], b"1")
        step += len(os.read(pipes[0], 2))
        log.write(f"{step} {total}\n")
        while second and how == "late" and (folder / "late").exists():
            time.sleep(PAUSE)
        time.sleep(PAUSE)
        point.here()
