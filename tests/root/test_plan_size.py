"""A plan of a large tree stays cheap: what it costs is counted in calls, not in seconds."""

from __future__ import annotations

import builtins
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt.flow.sight.plan import judge_dump
from gpuckpt.flow.sight.rules.rule import DumpChoices
from tests.root.harness import Field, wait_for
from tests.targets import facts, target

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.root

PROCESSES, EACH = 200, 100
TREE = f"""
import os, socket
kept = [one for _ in range(40) for one in socket.socketpair()]
kept += [os.pipe() for _ in range(5)]
for number in range({PROCESSES - 1}):
    if os.fork() == 0: break
else:
    number = 'root'
kept += [open(f'{{number}}-{{one}}', 'w') for one in range({EACH - 90})]
"""
CALLS = ((builtins, "open"), *((os, name) for name in ("stat", "lstat", "readlink", "getxattr")))


def test_two_hundred_processes_with_twenty_thousand_descriptors(
    place: Field, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with target(tmp_path, TREE) as pid:
        out = next(tmp_path.glob("out-*"))
        wait_for("all are there", lambda: out.read_text().count("ready") == PROCESSES)
        made = count(monkeypatch)
        known = facts(pid)
        monkeypatch.undo()
        descriptors = sum(len(one.descriptors) for one in known.look.tasks)
        assert len(known.look.tasks) == PROCESSES
        assert descriptors >= PROCESSES * EACH
        # each descriptor costs its link and one look, a file its fdinfo and its name besides
        assert sum(made.values()) < 3 * descriptors + 60 * PROCESSES, made
        findings = judge_dump(known, DumpChoices(ghost_limit=1 << 30))
        assert [one for one in findings if one.blocks] == []
        assert place.gpuckpt("plan", pid).result["can_dump"]


def count(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls that look at files from now on."""
    made: Counter[str] = Counter()
    for module, name in CALLS:
        plain = getattr(module, name)

        def counted(*args: Any, _plain: Any = plain, _name: str = name, **more: Any) -> Any:
            made[_name] += 1
            return _plain(*args, **more)

        monkeypatch.setattr(module, name, counted)
    return made
