"""Whose the job is: numbers come along, names are compared, and what has none is only told of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.account import Verdict
from gpuckpt.errors import HostMismatch
from gpuckpt.flow.returning.target.facts import gather
from gpuckpt.flow.returning.target.owners import owners
from gpuckpt.image.store import Image
from gpuckpt.model import Owner
from gpuckpt.tools import owners as tool
from tests.flow.test_receipts import Place

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a place whose job, of user and group 1000, is off."""
    found = Place(tmp_path)
    for pid, one in found.host.processes.items():
        found.host.processes[pid] = replace(one, uid=1000, gid=1000)
    found.dump()
    return found


def test_the_names_of_its_users_are_in_the_image(place: Place) -> None:
    with Image.open(place.image) as image:
        assert image.manifest.owners == (
            Owner("user", 1000, "trainer"),
            Owner("group", 1000, "trainer"),
        )
        assert list(owners(image.manifest, gather(place.tools, image.manifest))) == []


def test_a_number_that_is_somebody_elses_closes_a_gate(place: Place) -> None:
    place.host.names[1000] = "alice"
    with pytest.raises(HostMismatch) as caught:
        place.restore()
    found = {one.id: one for one in caught.value.findings}
    assert {"gate-user", "gate-group"} <= set(found)
    assert "which was trainer; here that is alice" in found["gate-user"].reason
    account = place.records[-1].account
    assert account is not None
    (gate,) = [one for one in account.gates if one.gate == "gate-user"]
    told = (gate.object, gate.image, gate.host, gate.verdict)
    assert told == ("user 1000", "trainer", "alice", Verdict.CLOSED)


def test_a_number_without_a_name_is_told_of(place: Place) -> None:
    del place.host.names[1000]
    with Image.open(place.image) as image:
        found = list(owners(image.manifest, gather(place.tools, image.manifest)))
    assert [(one.id, one.blocks) for one in found] == [
        ("user-unknown", False),
        ("group-unknown", False),
    ]


def test_what_had_no_name_is_not_compared(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.host.names = {}
    place.dump()
    place.host.names = {0: "root", 1000: "alice"}
    with Image.open(place.image) as image:
        assert image.manifest.owners == ()
        assert list(owners(image.manifest, gather(place.tools, image.manifest))) == []


def test_this_host_names_its_own() -> None:
    assert Owner("user", 0, "root") in tool.owners([0, 0], [])
    assert tool.owners([], [2**31 - 7]) == (Owner("group", 2**31 - 7, ""),)
