"""What operations leave behind of themselves: sums, named ends, and records of failed ones too."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuckpt.errors import GpuckptError, UsageError, VerificationFailed, WriteFailed
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.rehearse import rehearse
from gpuckpt.flow.request import DumpRequest, RehearseRequest, RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.show import receipt, show
from gpuckpt.flow.work.history import DONE, History, Record
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.spans import NO_PROBE, NOT_YET
from gpuckpt.image.store import Image
from gpuckpt.timing import Interval, Receipt
from tests.fakes.host import ROOT_PID, FakeHost, Fault

if TYPE_CHECKING:
    from pathlib import Path


def whole(found: Receipt) -> Receipt:
    """Return a receipt that adds up, digit by digit."""
    told = json.loads(msgspec.json.encode(found), parse_float=Decimal, parse_int=Decimal)
    parts = sum((one["seconds"] for one in told["phases"] if not one["inside"]), Decimal(0))
    assert parts + told["unaccounted"] == told["seconds"]
    assert set(told["clocks"]) >= {"started"}
    return found


def intervals(found: Receipt) -> dict[str, Interval]:
    return {one.name: one for one in found.intervals}


class Growing(dict[int, int]):
    """The CPU times of processes that run all the time."""

    def get(self, pid: int, default: Any = None) -> Any:
        """Return a little more each time."""
        del default
        self[pid] = self.setdefault(pid, 0) + 1
        return self[pid]


def failing(_: FakeHost) -> None:
    raise WriteFailed("the disk is full")


class Place:
    """A state directory, an image, and a host."""

    def __init__(self, folder: Path, host: FakeHost | None = None) -> None:
        self.host = host or FakeHost.with_job()
        self.state = folder / "state"
        self.state.mkdir(parents=True)
        self.image = folder / "image"
        self.tools = self.host.toolbox(self.state)

    def dump(self, **changes: Any) -> Receipt:
        request = replace(DumpRequest(ROOT_PID, self.image), **changes)
        return dump(self.tools, request, Silent(), Interrupts()).receipt

    def away(self) -> None:
        """Dump the job; a restore makes it again as it was."""
        before = FakeHost.with_job().processes
        self.dump()
        self.host.restored = {pid: one for pid, one in before.items() if pid >= ROOT_PID}

    def restore(self, **changes: Any) -> Receipt:
        request = replace(RestoreRequest(self.image, settle=0.0), **changes)
        return restore(self.tools, request, Silent(), Interrupts()).receipt

    @property
    def records(self) -> tuple[Record, ...]:
        return History(self.state).records()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_dump_that_ends_the_job(place: Place) -> None:
    found = whole(place.dump())
    names = [one.name for one in found.phases if not one.inside]
    order = ("look", "inputs", "prepare", "lock", "gpu-out", "freeze", "stream", "commit")
    assert tuple(names) == (*order, "end", "gone")
    assert {one.name: one.inside for one in found.phases if one.inside} == {
        "facts": "commit",
        "drain": "commit",
    }
    told = intervals(found)
    assert [(one.begin, one.end) for one in found.intervals] == [
        ("lock", "committed"),
        ("frozen", "committed"),
        ("begun", "committed"),
        ("lock", "gone"),
    ]
    assert all(one.seconds is not None for one in found.intervals)
    assert told["off"].seconds >= told["pause"].seconds >= told["frozen"].seconds  # type: ignore[operator]
    stream, drain = (
        next(one for one in found.phases if one.name == name) for name in ("stream", "drain")
    )
    for one in (stream, drain):
        assert {"CRIU", "gpuckpt"} == {wait.who for wait in one.waits}
        assert {"CRIU", "packers", "storage", "sync"} == {wait.on for wait in one.waits}
        assert set(one.work) == {"packing", "writing"}
    assert stream.rate == pytest.approx(stream.bytes / stream.seconds, rel=0.01)
    (kept,) = place.records
    assert (kept.outcome, kept.image, kept.pause) == (DONE, str(place.image), told["pause"].seconds)
    assert kept.image_id
    assert kept.expected is not None


def test_the_image_tells_how_far_its_dump_was(place: Place) -> None:
    """What was still to come when the manifest was written is null, and never another figure."""
    place.dump()
    with Image.open(place.image) as image:
        found = whole(image.manifest.receipt)
    assert [one.name for one in found.phases if one.running] == ["commit"]
    assert {one.seconds for one in found.intervals} == {None}
    assert intervals(found)["pause"].reason == NOT_YET


def test_a_dump_that_leaves_the_job_running(place: Place) -> None:
    """The pause ends when the job goes on, whatever is done for the image before or after it."""
    found = whole(place.dump(leave_running=True))
    told = intervals(found)
    assert (told["pause"].begin, told["pause"].end) == ("lock", "unlocked")
    assert told["pause"].seconds is not None
    assert told["image"].seconds is not None
    assert "off" not in told


def test_a_job_without_a_gpu_is_let_go_by_criu(tmp_path: Path) -> None:
    place = Place(tmp_path, FakeHost.with_job(cuda=0))
    found = whole(place.dump(leave_running=True))
    assert intervals(found)["pause"].end == "let-go"
    assert intervals(found)["pause"].seconds is not None


def test_a_failed_dump_leaves_a_receipt_with_its_outcome(place: Place) -> None:
    (number,) = [
        index + 1 for index, name in enumerate(calls(place)) if name == "criu.image.inventory.img"
    ]
    place.host.fault = Fault(number, failing, "before")
    place.host.calls.clear()
    with pytest.raises(GpuckptError) as caught:
        place.dump()
    (kept,) = place.records
    assert kept.outcome == caught.value.name
    told = intervals(whole(kept.receipt))
    assert told["pause"].seconds is None
    assert caught.value.name in told["pause"].reason
    assert kept.took is None
    assert (kept.image_id, kept.raw) == ("", 0)


def calls(place: Place) -> list[str]:
    """Return the calls of a dump like the one to come, on a host of its own."""
    other = place.state.parent / "other"
    other.mkdir()
    twin = Place(other)
    twin.dump()
    return twin.host.calls


def test_what_was_refused_leaves_none(place: Place) -> None:
    with pytest.raises(GpuckptError):
        place.dump(pid=1)
    assert not place.records


def test_a_restore_tells_running_from_moving_and_from_serving(place: Place) -> None:
    place.away()
    found = whole(place.restore())
    names = [one.name for one in found.phases if not one.inside]
    assert names == ["open", "gates", "room", "criu", "gpu-in", "verify"]
    assert ("approve", "criu") in [(one.name, one.inside) for one in found.phases]
    assert ("unlock", "gpu-in") in [(one.name, one.inside) for one in found.phases]
    told = intervals(found)
    assert (told["runs"].begin, told["runs"].end) == ("begun", "unlocked")
    assert told["runs"].seconds is not None
    assert told["first-progress"].seconds is None
    assert "no process of it used CPU time" in told["first-progress"].reason
    assert (told["probe-ready"].seconds, told["probe-ready"].reason) == (None, NO_PROBE)
    kept = place.records[-1]
    assert (kept.operation, kept.outcome, kept.image) == ("restore", DONE, str(place.image))
    assert kept.took == told["runs"].seconds
    assert kept.expected is not None


def test_a_job_that_moves_and_answers(place: Place) -> None:
    place.away()
    place.host.ran = Growing()
    told = intervals(whole(place.restore(probe="true")))
    runs, moves, serves = (told[name].seconds for name in ("runs", "first-progress", "probe-ready"))
    assert runs is not None
    assert moves is not None
    assert serves is not None
    assert runs <= moves <= serves


def test_a_probe_that_fails_is_not_ready(place: Place) -> None:
    place.away()
    place.host.probe_answer = "it said no"
    with pytest.raises(VerificationFailed):
        place.restore(probe="false", probe_timeout=0.01)
    kept = place.records[-1]
    assert kept.outcome == "verification_failed"
    told = intervals(whole(kept.receipt))
    assert told["runs"].seconds is not None
    assert told["probe-ready"].seconds is None
    assert "verification_failed" in told["probe-ready"].reason


def test_a_rehearsal_tells_the_pause(place: Place) -> None:
    what = DumpRequest(ROOT_PID)
    request = RehearseRequest(what, settle=0.0, stay=0.02)
    result = rehearse(place.tools, request, Silent(), Interrupts())
    told = intervals(whole(result.receipt))
    assert (told["pause"].begin, told["pause"].end) == ("lock", "unlocked")
    assert result.pause == told["pause"].seconds
    (kept,) = place.records
    assert kept.pause == pytest.approx(result.pause - 0.02)


def test_an_image_is_shown_with_what_this_host_knows_of_it(place: Place) -> None:
    place.away()
    place.restore()
    alone, known = show(place.image), show(place.image, place.state)
    assert [(one.operation, one.receipt) for one in alone.records] == [
        ("dump", alone.manifest.receipt)
    ]
    assert [(one.operation, one.outcome) for one in known.records] == [
        ("dump", DONE),
        ("restore", DONE),
    ]
    assert known.records == place.records


def test_a_receipt_is_read_from_wherever_it_stands(place: Place, tmp_path: Path) -> None:
    found = place.dump()
    kept = next((place.state / "receipts").glob("*.json"))
    assert receipt(kept) == place.records[0]
    file = tmp_path / "receipt.json"
    for shape in (found, {"receipt": found}, {"schema": "gpuckpt/1", "result": {"receipt": found}}):
        file.write_bytes(msgspec.json.encode(shape))
        assert receipt(file).receipt == found
    file.write_text('{"operation": "dump", "started": "then", "seconds": 1, "phases": []}')
    assert receipt(file).receipt == Receipt("dump", "then", 1.0, ())  # as old ones are
    for text in ("{", "[]", '{"receipt": 7}', '{"result": []}', "[" * 100_000):
        file.write_text(text)
        with pytest.raises(UsageError, match="holds no receipt") as caught:
            receipt(file)
        assert "receipts/" in caught.value.hint
    file.write_text('{"operation": "dump", "started": "x", "seconds": -1, "phases": []}')
    with pytest.raises(UsageError, match="out of range"):
        receipt(file)
    with pytest.raises(UsageError, match="cannot be read"):
        receipt(tmp_path / "nothing")
