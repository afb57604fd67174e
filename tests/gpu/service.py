"""A generation server under test, and what is asked of it."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tests.gpu.tree import PATIENCE, script

if TYPE_CHECKING:
    from tests.gpu.stage import Stage

# by the likeliest token, and by seeded draws
SESSIONS = {"greedy": 0.0, "drawn": 0.9}
BEFORE, AFTER = 40, 60


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Service:
    """One server."""

    def __init__(self, stage: Stage, ranks: int, *options: str) -> None:
        """Start it."""
        self.port = free_port()
        self.tree = stage.tree(script("server.py", stage.place(), self.port, ranks), *options)

    def ready(self) -> None:
        """Wait until it answers."""
        log = "server.log"
        self.tree.wait_for(lambda: "ready" in self.tree.lines().get(log, []), "the server is ready")
        self.tree.members()

    def _get(self, what: str, **words: object) -> dict[str, str]:
        client = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            client.request("GET", f"/{what}?{urlencode(words)}")
            answer: dict[str, str] = json.load(client.getresponse())
        except OSError as why:
            raise AssertionError(f"{why} from {what}\n{self.tree.tail()}") from why
        finally:
            client.close()
        return answer

    def begin(self) -> dict[str, str]:
        """Begin all sessions, and return what each says first."""
        for name, warmth in SESSIONS.items():
            self._get("begin", session=name, text=f"once upon a {name} time", warmth=warmth)
        return self.more(BEFORE)

    def more(self, count: int) -> dict[str, str]:
        """Return what each session says next."""
        return {name: self._get("more", session=name, count=count)["text"] for name in SESSIONS}


def check_generation(stage: Stage, ranks: int, *options: str) -> None:
    """A dumped server says what an undisturbed one says, on the port it had."""
    calm, service = Service(stage, ranks, *options), Service(stage, ranks, *options)
    calm.ready()
    service.ready()
    first = calm.begin()
    assert len(set(first.values())) == len(SESSIONS)
    assert service.begin() == first
    calm_more = calm.more(AFTER)
    calm.tree.end()
    stage.dump(service.tree)
    with socket.create_server(("127.0.0.1", service.port)):
        answer = stage.operator.gpuckpt("restore", stage.image)
        assert answer.code == 8, answer.stdout
        assert "port-taken" in {one["id"] for one in answer.json["error"]["findings"]}
    stage.restore(service.tree)
    assert service.more(AFTER) == calm_more
    assert service.begin() == first, "it takes new sessions too"
