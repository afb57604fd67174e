"""What a restore tells of itself beside its times, and the evidence that is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuckpt.account import Verdict
from gpuckpt.errors import HostMismatch, ImageDamaged, UsageError, VerificationFailed
from gpuckpt.events import Silent
from gpuckpt.flow.evidence import statements
from gpuckpt.flow.evidence.check import check, judge
from gpuckpt.flow.evidence.document import Evidence, Sealed, schema
from gpuckpt.flow.evidence.make import EvidenceRequest, encode, write
from gpuckpt.flow.request import RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.work.history import History, record_of
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.image.store import Image
from gpuckpt.model import Lost
from gpuckpt.timing import Receipt
from tests.fakes.host import ROOT_PID
from tests.flow.test_receipts import Growing, Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.flow.work.history import Record

SCHEMA = Path(__file__).parents[2] / "gpuckpt" / "evidence.schema.json"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a place whose job is off, with its image."""
    found = Place(tmp_path)
    found.away()
    return found


def refused(place: Place) -> Record:
    """Let a restore be refused: by another driver."""
    known, place.host.driver = place.host.driver, "999.1"
    with pytest.raises(HostMismatch) as caught:
        place.restore()
    place.host.driver = known
    assert caught.value.receipt is not None
    assert caught.value.receipt.parent == place.state / "receipts"
    return place.records[-1]


def evidence(place: Place, *receipts: Path, **more: Any) -> Sealed:
    path, data = write(
        EvidenceRequest(place.image, receipts, output=place.state.parent / "e.json", **more),
        place.state,
        place.state,
    )
    path.unlink()
    found, findings = judge(data)
    assert found is not None
    assert not [one for one in findings if one.id != "evidence-coverage"]
    return found


def test_a_refused_restore_is_recorded_with_what_was_compared(place: Place) -> None:
    kept = refused(place)
    assert (kept.operation, kept.outcome) == ("restore", "host_mismatch")
    account = kept.account
    assert account is not None
    assert account.place is not None
    assert account.place.driver == "999.1"
    gates = {one.gate: one for one in account.gates}
    assert gates["gate-driver"].verdict is Verdict.CLOSED
    assert (gates["gate-driver"].image, gates["gate-driver"].host) == ("580.159.04", "999.1")
    assert gates["gate-driver"].reason
    assert gates["gate-arch"].verdict is Verdict.SAME
    assert gates["files"].image == gates["files"].host
    assert "gate-driver" in {one.id for one in account.findings}
    assert "driver" in account.error


def test_a_forced_gate_is_told_as_one(place: Place) -> None:
    place.host.driver = "999.1"
    place.restore(force_gates=frozenset({"gate-driver"}))
    found = evidence(place)
    (one,) = [one for one in found.attempts if one.operation == "restore"]
    assert one.forced == ("gate-driver",)
    assert [gate.gate for gate in one.gates if gate.verdict is Verdict.FORCED] == ["gate-driver"]
    assert ("driver", "999.1") in {(each.what, each.after) for each in one.changes}
    said = [each.text for each in found.not_proved if each.what == "gates"]
    assert len(said) == 1
    assert "forced" in said[0]
    assert not [each for each in found.proved if each.what == "gates"]


def test_all_that_was_tried_stands_in_it(place: Place) -> None:
    refused(place)
    place.host.ran = Growing()
    request = RestoreRequest(place.image, settle=0.0, probe="true")
    result = restore(place.tools, request, Silent(), Interrupts())
    assert result.kept is not None
    found = evidence(place, result.kept, planned=2, targets=(("runs", 1e6), ("pause", 0.0)))
    assert [(one.id, one.outcome, one.planned) for one in found.attempts] == [
        ("dump", "done", True),
        ("restore-1", "host_mismatch", False),
        ("restore-2", "done", True),
        ("restore-3", "missing", True),
    ]
    assert found.plan.restores == 2
    assert [(one.attempt, one.interval, one.met) for one in found.targets] == [
        ("restore-2", "runs", True),
        ("restore-3", "runs", None),
        ("dump", "pause", False),
    ]
    shown = {(one.about, one.what) for one in found.proved}
    assert {("restore-2", what) for what in ("bytes", "gates", "progress", "probe")} <= shown
    left = {(one.about, one.what) for one in found.not_proved}
    assert {("restore-1", "all"), ("restore-3", "all"), ("restore-2", "memory")} <= left
    assert ("restore-2", "gpu-memory") in left
    assert not shown & left
    last = found.attempts[2]
    assert last.after is not None
    assert (last.after.hostname, last.pids) == (found.before.hostname, result.pids)
    assert {one.name: one.begin for one in last.timing.intervals} == {  # type: ignore[union-attr]
        "runs": "begun",
        "first-progress": "begun",
        "probe-ready": "begun",
    }


def test_a_cold_start_is_told_as_what_it_is(place: Place) -> None:
    refused(place)
    with Image.open(place.image) as image:
        restored = record_of(image.manifest, Receipt("cold-start", "2030-01-01T00:00:00Z", 1.0, ()))
    History(place.state).add(replace(restored, lost=Lost(since_image=12.3)))
    found = evidence(place)
    assert [(one.id, one.outcome, one.planned) for one in found.attempts] == [
        ("dump", "done", True),
        ("restore-1", "host_mismatch", True),
        ("cold-start-1", "done", False),
    ]
    assert not [one for one in found.proved if one.about == "cold-start-1"]
    (said,) = [one.text for one in found.not_proved if one.about == "cold-start-1"]
    assert "12 s of work since it are lost" in said


def test_a_job_that_did_not_pass_proves_nothing(place: Place) -> None:
    place.host.probe_answer = "it said no"
    with pytest.raises(VerificationFailed):
        place.restore(probe="false", probe_timeout=0.01)
    found = evidence(place)
    assert found.attempts[-1].outcome == "verification_failed"
    assert "it said no" in found.attempts[-1].error
    assert not [one for one in found.proved if one.about == "restore-1"]


def test_what_a_command_printed_is_a_receipt(place: Place, tmp_path: Path) -> None:
    """On another host, which has no record of it."""
    request = RestoreRequest(place.image, settle=0.0)
    result = restore(place.tools, request, Silent(), Interrupts())
    printed = tmp_path / "printed.json"
    payload = {
        "receipt": result.receipt,
        "image_id": result.image_id,
        "account": result.account,
    }
    printed.write_bytes(msgspec.json.encode({"schema": "gpuckpt/1", "result": payload}))
    here = evidence(place, printed)
    assert [one.id for one in here.attempts] == ["dump", "restore-1"]  # it is the one recorded
    place.state = tmp_path / "elsewhere"
    found = evidence(place, printed)
    assert [(one.id, one.source) for one in found.attempts] == [
        ("dump", "manifest"),
        ("restore-1", str(printed)),
    ]
    assert found.attempts[1].gates == here.attempts[1].gates != ()
    printed.write_bytes(msgspec.json.encode(payload | {"image_id": "another"}))
    with pytest.raises(UsageError, match="of image another, not of"):
        evidence(place, printed)
    printed.write_bytes(msgspec.json.encode(result.receipt))
    with pytest.raises(UsageError, match="of no image that it names"):
        evidence(place, printed)


def test_it_is_checked_against_the_image(place: Place, tmp_path: Path) -> None:
    path, _ = write(EvidenceRequest(place.image), place.state, tmp_path)
    assert path == tmp_path / "image.evidence.json"
    with pytest.raises(UsageError, match="is there already"):
        write(EvidenceRequest(place.image), place.state, tmp_path)
    assert sorted(tmp_path.glob(".*")) == []
    with pytest.raises(UsageError, match="would damage it"):
        write(EvidenceRequest(place.image), place.state, place.image)
    sound = check(path, place.image, place.state, Silent(), Interrupts())
    assert (sound.findings, sound.bytes) == ((), sound.evidence.image.stored)  # type: ignore[union-attr]
    other = Place(tmp_path / "other")
    other.away()
    ids = {
        one.object for one in check(path, other.image, place.state, Silent(), Interrupts()).findings
    }
    assert {"image.image_id", "image.seal"} <= ids
    stored = next((place.image / "criu").iterdir())
    data = bytearray(stored.read_bytes())
    data[0] ^= 1
    stored.write_bytes(data)
    assert check(path, place.image, place.state, Silent(), Interrupts()).findings
    data[-1] ^= 1
    stored.write_bytes(data)
    with pytest.raises(ImageDamaged):
        write(EvidenceRequest(place.image), place.state, tmp_path / "none")


def altered(path: Path, how: Callable[[Any], None], place: Place) -> set[str]:
    """Return what is found of evidence that somebody has altered, and made to follow again."""
    plain = json.loads(path.read_text())
    plain.pop("blake3")
    how(plain)
    made = msgspec.convert(plain, Evidence)
    facts = (made.image, made.job, made.attempts)
    made = replace(made, proved=statements.proved(*facts))
    path.with_name("altered").write_bytes(
        encode(replace(made, not_proved=statements.not_proved(*facts)))
    )
    told = check(path.with_name("altered"), place.image, place.state, Silent(), Interrupts())
    return {f"{one.id} {one.object}" for one in told.findings}


def test_what_was_recorded_cannot_be_told_otherwise(place: Place, tmp_path: Path) -> None:
    refused(place)
    place.restore()
    made = evidence(place)
    path = tmp_path / "later.json"
    whole = msgspec.to_builtins(made) | {"written": "2099-01-01T00:00:00Z"}
    del whole["blake3"]
    # whatever was recorded within the last second may have come later
    path.write_bytes(encode(msgspec.convert(whole, Evidence)))
    assert altered(path, lambda _: None, place) == set()

    def leave_out(plain: Any) -> None:
        del plain["attempts"][1]
        plain["attempts"][1]["id"] = "restore-1"
        plain["plan"] = {"restores": 1, "attempts": ["dump", "restore-1"]}

    def claim(plain: Any) -> None:
        one = plain["attempts"][1]
        one.update(outcome="done", error="", findings=[], after=None, changes=[])

    def hasten(plain: Any) -> None:
        timing = plain["attempts"][0]["timing"]
        phase = next(one for one in timing["phases"] if one["name"] == "prepare")
        timing["unaccounted"] = round(timing["unaccounted"] + phase["seconds"], 6)
        phase.update(seconds=0.0, rate=0.0)

    assert altered(path, leave_out, place) == {"evidence-coverage attempts"}
    assert "evidence-record attempts.restore-1.outcome" in altered(path, claim, place)
    assert altered(path, hasten, place) == {"evidence-record attempts.dump.timing"}
    # where nothing is recorded, what was left out is not known: that is said
    place.state = tmp_path / "elsewhere"
    assert altered(path, leave_out, place) == set()
    assert "elsewhere" in {one.what for one in made.not_proved}


def test_a_receipt_that_tells_otherwise_is_refused(place: Place, tmp_path: Path) -> None:
    refused(place)
    (kept,) = (one for one in (place.state / "receipts").iterdir() if "failed" in one.name)
    copied = tmp_path / "copy.json"
    copied.write_bytes(kept.read_bytes())
    assert len(evidence(place, copied).attempts) == 2
    copied.write_text(copied.read_text().replace('"host_mismatch"', '"done"'))
    with pytest.raises(UsageError, match="what this host has recorded"):
        evidence(place, copied)


def test_the_published_schema_is_that_of_the_types() -> None:
    assert SCHEMA.read_bytes() == schema(), "make schema"
    assert json.loads(schema())["$id"] == "urn:gpuckpt:evidence:1"


def test_a_command_that_is_no_text(tmp_path: Path) -> None:
    """Paths and arguments are bytes: they come out of the file, and of records, as they were."""
    place = Place(tmp_path)
    odd = ("train", b"/data/\xff\xfe".decode("utf-8", "surrogateescape"), "\U0010ff80")
    before = {pid: replace(one, argv=odd) for pid, one in place.host.processes.items()}
    place.host.processes = dict(before)
    place.dump()
    place.host.restored = {pid: one for pid, one in before.items() if pid >= ROOT_PID}
    place.restore(probe=f"test {odd[1]} || true")
    found = evidence(place)
    assert found.job.command == " ".join(odd)
    assert odd[1] in found.attempts[1].probe
    path, data = write(EvidenceRequest(place.image), place.state, tmp_path)
    assert data.decode()
    assert check(path, place.image, place.state, Silent(), Interrupts()).findings == ()
