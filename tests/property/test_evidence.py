"""Evidence adds up for whatever was recorded, and whatever is altered or left out is found."""

from __future__ import annotations

import copy
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest import mock

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuckpt.account import Account, Compared, Memory, Verdict
from gpuckpt.events import Silent
from gpuckpt.flow.evidence.check import judge
from gpuckpt.flow.evidence.document import schema
from gpuckpt.flow.evidence.make import EvidenceRequest, compose, encode
from gpuckpt.flow.returning.compared import old_place
from gpuckpt.flow.work import receipt as rooms
from gpuckpt.flow.work import spans
from gpuckpt.flow.work.history import History, record_of
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.receipt import Recorder
from gpuckpt.image.store import Image
from tests.image_samples import seal, write_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.timing import Receipt

VALIDATOR = jsonschema.Draft202012Validator(json.loads(schema()))
# phases and events in whatever order, and so many nanoseconds between them
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("begin", "part", "beside", "end", *sorted(spans.MEANS.keys() - {"begun"}))
        ),
        st.integers(0, 10**9),
    ),
    max_size=15,
)
ATTEMPTS = st.lists(
    st.tuples(STEPS, st.sampled_from(("done", "host_mismatch", "restore_failed"))), max_size=3
)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Return an open image of a job on two GPUs."""
    path = tmp_path_factory.mktemp("evidence") / "image"
    write_image(path, {"pages-1.img": b"page" * 5000, "core-1.img": b"core"})
    with Image.open(path) as opened:
        yield opened


def timed(steps: list[tuple[str, int]], outcome: str) -> Receipt:
    now = [0]
    with mock.patch.object(rooms.time, "monotonic_ns", side_effect=lambda: now[0]):
        record = Recorder("restore", Silent(), Interrupts())
        record.spans = spans.of_restore(cuda=True, quiesced=False, probe=True)
        open_: list[ExitStack] = []
        for what, later in steps:
            now[0] += later
            if what in {"begin", "part", "beside"}:
                stack = ExitStack()
                step = (
                    record.part("p")
                    if what == "part"
                    else record.phase("q", beside=what != "begin")
                )
                stack.enter_context(step).advance(later)
                open_.append(stack)
            elif what == "end":
                if open_:
                    open_.pop().close()
            else:
                record.event(what)
        while open_:
            open_.pop().close()
        if outcome == "done" and spans.UNLOCKED not in dict(steps):
            record.event(spans.UNLOCKED)  # it would not have been done otherwise
        return record.receipt(outcome)


def write(
    image: Image, folder: Any, attempts: list[tuple[list[tuple[str, int]], str]], **more: Any
) -> bytes:
    """Return the evidence of these attempts, as this host would have recorded them."""
    state = folder.mktemp("state")
    before = old_place(image.manifest)
    for number, (steps, outcome) in enumerate(attempts):
        record = record_of(image.manifest, timed(steps, outcome))
        account = Account(
            gpuckpt="0.1.0",
            place=replace(before, hostname=f"node{number}"),
            gates=(Compared("gate-arch", "host", "x86_64", "x86_64", Verdict.SAME),),
            memory=Memory(4096 * number, number) if number else None,
            progress="ran" if number else "",
            settle=1.0,
            probe="curl here",
        )
        started = f"2026-01-01T00:00:{number:02d}Z"
        History(state).add(
            replace(
                record,
                started=started,
                receipt=replace(record.receipt, started=started),
                outcome=outcome,
                account=account,
            )
        )
    request = EvidenceRequest(image.path, targets=(("runs", 0.5), ("pause", 2.0)), **more)
    return encode(compose(image, request, state))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(attempts=ATTEMPTS, lacking=st.integers(0, 2))
def test_what_is_written_holds(
    image: Image,
    tmp_path_factory: pytest.TempPathFactory,
    attempts: list[tuple[list[tuple[str, int]], str]],
    lacking: int,
) -> None:
    data = write(image, tmp_path_factory, attempts, planned=len(attempts) + lacking)
    found, findings = judge(data)
    assert found is not None
    assert [one.id for one in findings] == ["evidence-coverage"] * lacking
    VALIDATOR.validate(json.loads(data))
    assert [one.outcome for one in found.attempts] == [
        "done",
        *(outcome for _, outcome in attempts),
        *["missing"] * lacking,
    ]
    told = [(one.about, one.what) for one in found.proved + found.not_proved]
    for one in found.attempts:  # none is passed over in silence
        assert any(about == one.id for about, _ in told)


def bound(document: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Return every number that follows from others: where it stands, and its key."""
    found: list[tuple[Any, Any]] = []
    image, job = document["image"], document["job"]
    found += [(image, key) for key in ("raw", "stored", "ratio")]
    found += [(one, key) for one in image["files"] for key in ("raw", "stored")]
    found += [(job, "gpu_bytes"), *((one, "bytes") for one in job["uses"])]
    found += [(document["plan"], "restores")]
    for attempt in document["attempts"]:
        timing = attempt["timing"]
        found += [(timing, "seconds"), (timing, "unaccounted")]
        found += [(one, "seconds") for one in timing["phases"] if not one["inside"]]
        found += [(one, "rate") for one in timing["phases"] if one["rate"]]
        found += [(one, "seconds") for one in timing["intervals"] if one["seconds"] is not None]
        ends = {
            one[end]
            for one in timing["intervals"]
            if one["seconds"] is not None
            for end in ("begin", "end")
        }
        found += [(one, "at") for one in timing["events"] if one["name"] in ends]
    found += [(one, "measured") for one in document["targets"] if one["measured"] is not None]
    return found


BLOCKER = {
    "id": "x",
    "severity": "blocker",
    "object": "x",
    "reason": "x",
    "remedy": "x",
    "pid": None,
}
RUN = [("begin", 10**6), ("unlocked", 10**9), ("part", 3), ("end", 10**7), ("end", 10**7)]
TRIED = [(RUN, "done"), ([("begin", 10**5), ("end", 10**5)], "host_mismatch"), (RUN, "done")]


@pytest.fixture(scope="module")
def document(image: Image, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return sound evidence of three attempts."""
    data = write(image, tmp_path_factory, TRIED)
    assert judge(data)[1] == []
    found: dict[str, Any] = json.loads(data)
    return found


@given(which=st.integers(0, 10**6), by=st.sampled_from([1, 2, 1000, 10**6]))
def test_a_number_that_is_altered_is_found(document: dict[str, Any], which: int, by: int) -> None:
    """Even by somebody who seals it anew."""
    altered = copy.deepcopy(document)
    places = bound(altered)
    where, key = places[which % len(places)]
    where[key] = (
        round(where[key] + by / 1000, 6) if isinstance(where[key], float) else where[key] + by
    )
    assert judge(seal(altered))[1]


@given(where=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255))
def test_a_byte_that_is_altered_is_found(document: dict[str, Any], where: float, byte: int) -> None:
    data = bytearray(seal(copy.deepcopy(document)))
    data[int(where * len(data))] ^= byte
    assert judge(bytes(data))[1]


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("plan_too", [False, True])
def test_an_attempt_that_is_left_out_is_found(
    document: dict[str, Any], which: int, plan_too: bool
) -> None:
    altered = copy.deepcopy(document)
    gone = altered["attempts"].pop(which)["id"]
    if plan_too:
        altered["plan"]["attempts"].remove(gone)
        for name in ("targets", "proved", "not_proved"):
            key = "attempt" if name == "targets" else "about"
            altered[name] = [one for one in altered[name] if one[key] != gone]
    ids = {one.id for one in judge(seal(altered))[1]}
    assert "evidence-coverage" in ids


@pytest.mark.parametrize(
    ("path", "value", "kind"),
    [
        (("attempts", 1, "outcome"), "restore_failed", "statement"),
        (("attempts", 2, "outcome"), "done", "statement"),
        (("attempts", 1, "path_map"), {"/old": "/new"}, "statement"),
        (("attempts", 1, "planned"), False, "coverage"),
        (("attempts", 1, "after", "hostname"), "elsewhere", "statement"),
        (("attempts", 1, "timing", "intervals", 0, "end"), "released", "timing"),
        (("attempts", 1, "timing", "intervals", 0, "clock"), "sundial", "timing"),
        (("attempts", 1, "timing", "intervals", 0, "name"), "probe-ready", "timing"),
        (("attempts", 1, "timing", "intervals", 0, "definition"), "the restore", "timing"),
        (("attempts", 1, "timing", "intervals", 1, "reason"), "", "timing"),
        (("attempts", 1, "error"), "It was not.", "outcome"),
        (("attempts", 1, "gates"), [], "outcome"),
        (("attempts", 1, "gates", 0, "verdict"), "closed", "outcome"),
        (("attempts", 1, "gates", 0, "verdict"), "forced", "outcome"),
        (("attempts", 1, "gates", 0, "host"), "arm64", "outcome"),
        (("attempts", 1, "findings"), [BLOCKER], "outcome"),
        (("targets", 0, "met"), True, "target"),
        (("targets", 0, "interval"), "total", "target"),
        (("targets", 0, "attempt"), "restore-9", "target"),
        (("image", "tables"), "0" * 64, "arithmetic"),
        (("not_proved",), [], "statement"),
        (("proved", 0, "text"), "All of it.", "statement"),
        (("schema",), "urn:gpuckpt:evidence:2", "schema"),
        (("notes",), "none", "schema"),
    ],
    ids=str,
)
def test_what_is_bound_cannot_be_said_otherwise(
    document: dict[str, Any], path: tuple[Any, ...], value: Any, kind: str
) -> None:
    altered = copy.deepcopy(document)
    place: Any = altered
    for step in path[:-1]:
        place = place[step]
    assert place.get(path[-1]) != value if isinstance(place, dict) else True
    place[path[-1]] = value
    assert f"evidence-{kind}" in {one.id for one in judge(seal(altered))[1]}
    if kind == "schema":
        assert not VALIDATOR.is_valid(altered)


@given(data=st.one_of(st.binary(max_size=200), st.just(b"[" * 100_000)))
def test_nothing_hostile_is_believed(data: bytes) -> None:
    found, findings = judge(data)
    assert found is None
    assert findings
