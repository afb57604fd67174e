"""Whether an image may be restored here: what is waited for, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuckpt.errors import HostMismatch
from gpuckpt.flow import target
from gpuckpt.flow.interrupts import Interrupts
from gpuckpt.image.manifest import ListenerRecord, Outside
from gpuckpt.tools.net import PortState
from tests.cli import samples
from tests.fakes.host import FakeHost

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.image.manifest import Manifest


class _Ports:
    """A port that is in one state after the other, the last one for good."""

    def __init__(self, *states: PortState) -> None:
        self._states = list(states)

    def port(self, protocol: str, address: str, port: int) -> PortState:
        del protocol, address, port
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]


def listening() -> Manifest:
    one = ListenerRecord(protocol="tcp", address="127.0.0.1", port=6379)
    outside = Outside(files=(), listeners=(one,), terminals=())
    return msgspec.structs.replace(samples.MANIFEST, ids=(), nvidia=None, outside=outside)


def make_room(folder: Path, *states: PortState) -> list[str]:
    """Return what was noted."""
    notes: list[str] = []
    tools: Any = replace(FakeHost().toolbox(folder), net=_Ports(*states))
    target.make_room(tools, listening(), frozenset(), Interrupts(), notes.append)
    return notes


def test_closed_connections_are_waited_for_and_that_is_said_once(tmp_path: Path) -> None:
    """A silent minute looks like a hang."""
    notes = make_room(tmp_path, PortState.LINGERING, PortState.LINGERING, PortState.FREE)
    assert len(notes) == 1
    assert "6379" in notes[0]


def test_a_taken_port_is_refused_at_once_and_nothing_can_force_it(tmp_path: Path) -> None:
    with pytest.raises(HostMismatch) as caught:
        make_room(tmp_path, PortState.TAKEN)
    assert [finding.id for finding in caught.value.findings] == ["port-taken"]
    assert "--force-gate" not in caught.value.hint
