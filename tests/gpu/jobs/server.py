"""A generation server: `server.py FOLDER PORT RANKS`.

The root answers HTTP, a tokenizer and RANKS engines are processes of their own. One engine uses
the first GPU; two or more are ranks over NCCL, with a share of the model each.

    GET /begin?session=a&text=hello&warmth=0.8      begins a session
    GET /more?session=a&count=10                    says more: {"text": ...}

FOLDER/server.log says "ready" once the engines are.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from crew import free_port
from kit import Log

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

PATIENCE = 60.0  # seconds


def tokenize(asked: Queue, told: Queue) -> None:
    """Turn texts into tokens and tokens into texts."""
    while (one := asked.get()) is not None:
        told.put(
            list(one.encode("latin-1")) if isinstance(one, str) else bytes(one).decode("latin-1")
        )


def run_engine(rank: int, size: int, meeting: dict[str, str], asked: Queue, told: Queue) -> None:
    """Do what is asked; the first rank answers for all."""
    os.environ |= meeting | {"RANK": str(rank), "WORLD_SIZE": str(size)}
    import torch.distributed as dist  # noqa: PLC0415 - in the engines only
    from engine import Engine  # noqa: PLC0415
    from torchkit import device  # noqa: PLC0415

    mine = device(rank)
    if size > 1:
        backend = "gloo" if mine.type == "cpu" else "nccl"
        bound = None if mine.type == "cpu" else mine
        dist.init_process_group(backend, rank=rank, world_size=size, device_id=bound)
    engine = Engine(rank, size, mine)
    engine.begin("warm", [1], 0.5)
    told.put("ready")
    while (one := asked.get()) is not None:
        answer = getattr(engine, one[0])(*one[1:])
        if rank == 0:
            told.put(answer)
    if size > 1:
        dist.destroy_process_group()


class Works:
    """The processes behind the front, and the queues to them."""

    def __init__(self, size: int) -> None:
        spawn = mp.get_context("spawn")
        self._lock = threading.Lock()
        self._text: tuple[Queue, Queue] = (spawn.Queue(), spawn.Queue())
        self._asked: list[Queue] = [spawn.Queue() for _ in range(size)]
        self._told: Queue = spawn.Queue()
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self._all = [spawn.Process(target=tokenize, args=self._text)]
        for rank, asked in enumerate(self._asked):
            known = (rank, size, meeting, asked, self._told)
            self._all.append(spawn.Process(target=run_engine, args=known))
        for one in self._all:
            one.start()
        for _ in self._asked:
            self._told.get(timeout=PATIENCE)

    def _ask(self, *words: Any) -> Any:
        for asked in self._asked:
            asked.put(words)
        return self._told.get(timeout=PATIENCE)

    def _turn(self, what: str | list[int]) -> Any:
        self._text[0].put(what)
        return self._text[1].get(timeout=PATIENCE)

    def begin(self, session: str, text: str, warmth: str) -> dict[str, Any]:
        with self._lock:
            self._ask("begin", session, self._turn(text), float(warmth))
        return {"session": session}

    def more(self, session: str, count: str) -> dict[str, Any]:
        with self._lock:
            return {"text": self._turn(self._ask("go_on", session, int(count)))}

    def end(self) -> None:
        for queue in (self._text[0], *self._asked):
            queue.put(None)
        for one in self._all:
            one.join(PATIENCE)


class Front(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"  # the client closes first: its port is left waiting, not ours
    works: Works

    def do_GET(self) -> None:
        """See BaseHTTPRequestHandler."""
        asked = urlsplit(self.path)
        answer = getattr(self.works, asked.path[1:])(**dict(parse_qsl(asked.query)))
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingTCPServer):
    """Listens on a port that may have been in use a moment ago."""

    allow_reuse_address = True
    daemon_threads = True


def main() -> None:
    folder, port, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    log = Log(str(folder / "server.log"), alone=False)
    Front.works = Works(size)
    with Server(("127.0.0.1", port), Front) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        log.say("ready")
        log.count(lambda: None)
        server.shutdown()
    Front.works.end()
    log.say("end")


if __name__ == "__main__":
    main()
