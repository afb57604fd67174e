"""Falling back: from the newest image to older ones to a cold start, and where that stops."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from msgspec.structs import replace

from gpuckpt import errors
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.fallback import Back, FallbackRequest, bring_back, passed_over
from gpuckpt.flow.request import DumpRequest, RestoreRequest, RestoreResult
from gpuckpt.flow.restore import restore
from gpuckpt.flow.returning.candidates import images_in
from gpuckpt.flow.returning.coldstart import Else
from gpuckpt.flow.returning.ledger import Ledger
from gpuckpt.flow.returning.target.judge import PATIENCE
from gpuckpt.flow.work.history import History
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Journal
from gpuckpt.location import Url
from gpuckpt.model import ProcessRef, blocker
from gpuckpt.tools.origin import Origin
from gpuckpt.tools.starting import User
from gpuckpt.tools.surroundings import Surroundings
from tests.fakes.host import COLD_PID, INIT_PID, ROOT_PID, FakeHost, process
from tests.image_samples import seal

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.flow.work.history import Record

COLD = Else(environment={"HOME": "/root", "A": "1"}, added={"B": "2"})
OTHER = Else(argv=("other", "--lr", "3"), environment={"A": "1"})


class Place:
    """A host from which a job was taken three times; the newest image is `images[0]`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder / "images", folder / "state"
        self.state.mkdir()
        self.folder.mkdir()
        self.host = FakeHost.with_job()
        root = replace(self.host.processes[ROOT_PID], uid=1000, gid=100, cwd=str(folder))
        self.host.processes[ROOT_PID] = root
        self.host.around_of[ROOT_PID] = Surroundings(
            origin=Origin("/venv/bin/python", 0o027, (100, 44), str(folder / "out.log"), "/x/y/err")
        )
        self.host.missing.add("/x/y")
        self.job = {pid: one for pid, one in self.host.processes.items() if pid >= ROOT_PID}
        self.tools = self.host.toolbox(self.state)
        self.images = [self.folder / name for name in ("new", "old", "oldest")]
        for image in reversed(self.images):
            request = DumpRequest(ROOT_PID, image, leave_running=image.name != "new")
            dump(self.tools, request, Silent(), Interrupts())
        for number, image in enumerate(self.images):
            self.change(image, created=f"2026-03-0{3 - number}T10:00:00Z")
        self.host.restored = self.job

    def change(self, image: Path, **changes: Any) -> None:
        plain = json.loads((image / "manifest.json").read_text()) | changes
        (image / "manifest.json").write_bytes(seal(plain))

    def damage(self, *images: Path) -> None:
        """Change a byte of each: what it holds shows when it is read."""
        for image in images:
            stored = next((image / "criu").glob("pages-*"))
            raw = bytearray(stored.read_bytes())
            raw[40] ^= 1
            stored.write_bytes(raw)

    def run(self, *places: Path, cold: Else | None = None, **changes: Any) -> Back:
        several = changes.pop("several", len(places) != 1)
        what = replace(RestoreRequest(self.images[0], settle=0.0), **changes)
        request = FallbackRequest(what, places or (self.folder,), several, cold)
        self.host.interrupts = Interrupts()
        return bring_back(self.tools, request, Silent(), self.host.interrupts)

    def records(self, operation: str, outcome: str) -> list[Record]:
        found = History(self.state).records()
        return [one for one in found if (one.operation, one.outcome) == (operation, outcome)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def outcomes(back: Back | errors.GpuckptError) -> list[tuple[str, str]]:
    return [(one.image.rpartition("/")[2], one.outcome) for one in back.attempts]


def test_the_newest_is_restored_and_nothing_is_started(place: Place) -> None:
    back = place.run(cold=COLD)
    assert back.started is None
    assert back.job.image == place.images[0]
    assert outcomes(back) == [("new", "restored")]
    assert back.lost.since_image
    assert not place.host.started


def test_images_that_cannot_be_read_are_told_and_passed_over(place: Place) -> None:
    """The newest but one is damaged where only reading it shows: the oldest comes back."""
    (place.images[0] / "manifest.json").write_text("{}")
    place.damage(place.images[1])
    back = place.run(cold=COLD)
    assert back.started is None
    assert back.job.image == place.images[2]
    assert outcomes(back) == [
        ("new", "image_damaged"),
        ("old", "image_damaged"),
        ("oldest", "restored"),
    ]
    (record,) = place.records("restore", "done")
    assert record.attempts == back.attempts[:2]
    assert record.lost
    assert record.lost.since_image == pytest.approx(back.lost.since_image, abs=60)
    assert not Journal(place.state).entries()


def test_when_none_can_be_restored_the_recorded_command_is_started(place: Place) -> None:
    """As the user it had, with what it was executed by, where its output went."""
    place.damage(*place.images)
    back = place.run(cold=COLD)
    assert back.started
    assert back.started.root_pid == COLD_PID
    assert place.host.processes[COLD_PID].argv == ("python", f"job{ROOT_PID}.py")
    (start,) = place.host.started
    assert start.program == "/venv/bin/python"
    assert start.user == User(1000, 100, (100, 44))
    assert (start.umask, start.cwd) == (0o027, str(place.state.parent))
    assert start.environment == {"HOME": "/home/1000", "A": "1", "B": "2"}
    assert (start.stdout, start.stderr) == (str(place.state.parent / "out.log"), "")
    assert start.log
    assert start.log.parent == place.state / "cold"
    assert outcomes(back)[-1] == ("", "started")
    assert isinstance(back.started.why, errors.ImageDamaged)
    (record,) = place.records("cold-start", "done")
    assert record.attempts == back.attempts[:3]
    assert record.lost
    assert record.lost.since_image
    assert record.image == str(place.images[0])


def test_an_older_image_may_not_be_another_jobs(place: Place) -> None:
    plain = json.loads((place.images[1] / "manifest.json").read_text())
    plain["tree"][0]["argv"] = ["python", "other.py"]
    place.change(place.images[1], tree=plain["tree"])
    with pytest.raises(errors.UsageError, match=r"several jobs.*in old, python other\.py"):
        place.run(cold=COLD)
    place.damage(place.images[0])
    back = place.run(*place.images[:2])  # named one by one they are what the user means
    assert back.started is None
    assert back.job.image == place.images[1]


@pytest.mark.parametrize("named", [False, True], ids=["folder", "named"])
def test_jobs_that_ran_beside_each_other_are_several(place: Place, named: bool) -> None:
    """The same command in the same folder, as ranks and workers are: their pids tell them apart."""
    plain = json.loads((place.images[1] / "manifest.json").read_text())
    old = plain["tree"][0] | {"clock": 1000.0, "start_time": 5000}
    place.change(place.images[0], tree=[old, *plain["tree"][1:]])
    places = place.images[:2] if named else []
    for start, several in ((7000, True), (100_001, False)):
        pid = ROOT_PID + 70
        root = old | {"pid": pid, "clock": 2000.0, "start_time": start}
        place.change(place.images[1], root_pid=pid, tree=[root, *plain["tree"][1:]])
        if several:
            with pytest.raises(errors.UsageError, match=f"several jobs.*pid {pid}"):
                place.run(*places)
        else:  # started when the other had been dumped
            assert place.run(*places).job.image == place.images[0]


def test_a_place_is_known_by_every_path_that_leads_to_it(place: Place, tmp_path: Path) -> None:
    """An image that cannot be read is known by where it is: no second job is started for it."""
    (place.images[0] / "manifest.json").write_text("{}")
    (tmp_path / "link").symlink_to(place.folder)
    assert place.run(place.images[0], cold=OTHER).started
    for path in (place.images[0], tmp_path / "link" / "new"):
        with pytest.raises(errors.ImageDamaged) as caught:
            place.run(path, cold=OTHER)
        assert "runs here already" in caught.value.hint
    assert len(place.host.started) == 1


def test_a_job_that_was_kept_runs_for_whoever_asks(place: Place) -> None:
    """Be it in a pid namespace, whose numbers are not those of the image."""
    place.host.probe_answer = "no"
    with pytest.raises(errors.VerificationFailed):
        place.run(place.images[0], probe="ask", probe_timeout=0.0, pid_namespace=True)
    with pytest.raises(errors.HostMismatch) as caught:
        place.run(place.images[0], cold=COLD)
    assert "job-runs" in {one.id for one in caught.value.findings}
    assert not place.host.started


def test_a_job_in_a_pid_namespace_is_no_reason_to_start_another(place: Place) -> None:
    """It may come from an image that nobody has named."""
    (root, *_) = place.job.values()
    copy = process(777, argv=root.argv, cwd=root.cwd)
    place.host.processes |= {777: copy, INIT_PID: process(INIT_PID)}
    place.host.inside[777] = root.pid
    place.damage(*place.images)
    with pytest.raises(errors.ImageDamaged) as caught:
        place.run(cold=COLD)
    assert "777 runs the same command" in caught.value.hint
    assert not place.host.started


@pytest.mark.parametrize("readable", [True, False])
def test_what_a_job_has_left_behind_is_the_job(place: Place, readable: bool) -> None:
    """Its root was killed, and a worker goes on: nobody has written down that one."""
    if readable:
        place.damage(*place.images)
    else:
        (place.images[0] / "manifest.json").write_text("{}")
    assert place.run(place.images[0], cold=OTHER).started
    worker = process(COLD_PID + 1, pgid=COLD_PID, sid=COLD_PID)
    del place.host.processes[COLD_PID]
    place.host.processes[worker.pid] = worker
    with pytest.raises(errors.ImageDamaged) as caught:
        place.run(place.images[0], cold=OTHER)
    assert f"runs here already: process {worker.pid}" in caught.value.hint
    del place.host.processes[worker.pid]
    assert place.run(place.images[0], cold=OTHER).started


def test_a_worker_that_is_back_is_no_copy_of_another(place: Place) -> None:
    """All run one command in one folder; each is known by its image, and when it ran."""
    plain = json.loads((place.images[1] / "manifest.json").read_text())
    root = plain["tree"][0] | {"clock": 1000.0, "start_time": 5000}
    place.change(place.images[1], tree=[root, *plain["tree"][1:]])
    root |= {"pid": ROOT_PID + 70, "start_time": 7000}
    others = [one | {"start_time": 7001} for one in plain["tree"][1:]]
    place.change(place.images[0], root_pid=root["pid"], tree=[root, *others])
    assert place.run(place.images[1]).job.image == place.images[1]
    place.damage(place.images[0])
    assert place.run(place.images[0], cold=COLD).started
    del place.host.processes[COLD_PID]
    (place.images[1] / "manifest.json").write_text("{}")  # nobody could say so any more
    with pytest.raises(errors.GpuckptError) as caught:
        place.run(place.images[0], cold=COLD)
    assert f"{ROOT_PID} runs the same command" in caught.value.hint
    assert len(place.host.started) == 1


def test_a_folder_without_images_and_a_place_without_anything(place: Place, tmp_path: Path) -> None:
    with pytest.raises(errors.NotAnImage):
        place.run(place.state, several=True)
    with pytest.raises(errors.NotAnImage, match="nothing at") as caught:
        place.run(tmp_path / "none", cold=COLD)
    assert "Not started from its beginning: no image tells the command" in caught.value.hint
    assert outcomes(caught.value) == [("none", "not_an_image"), ("", "cold_start_failed")]
    with pytest.raises(errors.NotAnImage) as caught:
        place.run(place.folder)
    assert "--try" in caught.value.hint
    assert caught.value.attempts == ()


def test_another_command_needs_no_image(place: Place, tmp_path: Path) -> None:
    back = place.run(tmp_path / "none", cold=OTHER)
    (start,) = place.host.started
    assert (start.argv, start.program, start.user, start.cwd) == (OTHER.argv, "", None, None)
    assert back.lost.since_image is None
    with pytest.raises(errors.NotAnImage) as caught:  # it runs since
        place.run(tmp_path / "none", cold=OTHER)
    assert [one.id for one in caught.value.attempts[-1].findings] == ["job-runs"]
    assert len(place.host.started) == 1


@pytest.mark.parametrize("kind", ["restored", "started"])
def test_no_second_copy(place: Place, kind: str) -> None:
    """Neither of a job that was restored nor of one that was started, from whatever image."""
    if kind == "restored":
        request = RestoreRequest(place.images[0], settle=0.0)
        restore(place.tools, request, Silent(), Interrupts())
        (place.images[0] / "manifest.json").write_text("{}")
    else:
        manifest = place.images[0] / "manifest.json"
        text = manifest.read_text()
        manifest.write_text("{}")
        assert place.run(place.images[0], cold=OTHER).started
        manifest.write_text(text)
    with pytest.raises(errors.GpuckptError) as caught:
        place.run(cold=COLD)
    told = [finding.id for one in caught.value.attempts for finding in one.findings]
    assert "job-runs" in told
    assert len(place.host.started) == (kind == "started")
    with pytest.raises(errors.GpuckptError):
        place.run(place.images[0], cold=COLD)
    assert len(place.host.started) == (kind == "started")


def test_a_supervisors_copy_is_one(place: Place) -> None:
    place.damage(*place.images)
    copy = process(77, argv=("python", f"job{ROOT_PID}.py"), cwd=str(place.state.parent))
    place.host.processes[77] = copy
    with pytest.raises(errors.ImageDamaged) as caught:
        place.run(cold=COLD)
    assert [one.id for one in caught.value.attempts[-1].findings] == ["second-copy"]
    assert not place.host.started


def test_pids_of_somebody_else_keep_no_job_from_a_start(place: Place) -> None:
    place.host.processes[ROOT_PID] = process(ROOT_PID, ref=ProcessRef(ROOT_PID, 7))
    back = place.run(place.images[0], cold=COLD)
    assert back.started
    assert isinstance(back.started.why, errors.HostMismatch)


def test_what_may_be_passed_over() -> None:
    runs = blocker("job-runs", "x", "It runs.", "End it.")
    port = blocker("port-taken", "x", "It is taken.", "End it.")
    yes = [
        errors.NotAnImage("x"),
        errors.ImageUntrusted("x"),
        errors.ImageDamaged("x"),
        errors.HostMismatch("x", findings=[port]),
        errors.RestoreFailed("x"),
        errors.CriuMissing("x"),
        errors.DriverUnfit("x"),
    ]
    no = [
        errors.HostMismatch("x", findings=[port, runs]),
        errors.UndoIncomplete("x"),
        errors.Unfinished("x"),
        errors.ProcessUnfit("x"),
        errors.NotPrivileged("x"),
        errors.NotWritable("x"),
        errors.HostUnfit("x"),
        errors.UsageError("x"),
        errors.Interrupted(2),
        errors.Bug("x"),
    ]
    assert all(passed_over(one, kill=False) for one in yes)
    assert not any(passed_over(one, kill=True) for one in no)
    failed = errors.VerificationFailed("x")
    assert passed_over(failed, kill=True)
    assert not passed_over(failed, kill=False)


@pytest.mark.parametrize("on_verify_fail", ["keep", "kill"])
def test_a_job_that_runs_and_fails_its_probe(place: Place, on_verify_fail: str) -> None:
    """Kept it is the job; ended, the next is tried, and in the end the cold one is asked too."""
    place.host.probe_answer = "no"
    changes = {"probe": "ask", "probe_timeout": 0.0, "on_verify_fail": on_verify_fail}
    with pytest.raises(errors.VerificationFailed) as caught:
        place.run(*place.images[:2], cold=COLD, **changes)
    last = outcomes(caught.value)[-1]
    if on_verify_fail == "keep":
        assert last == ("new", "verification_failed")
        assert ROOT_PID in place.host.processes
        assert not place.host.started
    else:
        assert len(caught.value.attempts) == 3
        assert last == ("", "verification_failed")
        assert set(place.host.processes) == {os.getpid()}


def test_a_cold_job_that_ends_at_once_is_told_with_what_kept_it_from_a_restore(
    place: Place,
) -> None:
    place.damage(*place.images)
    place.host.ends_with = 3
    with pytest.raises(errors.ImageDamaged) as caught:
        place.run(cold=COLD)
    assert "ended with status 3 at once; its output is in" in caught.value.hint
    assert outcomes(caught.value)[-1] == ("", "cold_start_failed")
    assert len(place.records("cold-start", "cold_start_failed")) == 1
    place.host.ends_with, place.host.unstartable = None, "/venv/bin/python: No such file"
    with pytest.raises(errors.ImageDamaged) as caught:
        place.run(cold=COLD)
    assert "could not be started: /venv/bin/python: No such file" in caught.value.hint
    place.host.unstartable = ""
    assert place.run(cold=COLD).started


def test_a_command_that_has_others_start_the_job_ends_well(place: Place) -> None:
    """To call it a failure would have a script start the job once more."""
    place.damage(*place.images)
    place.host.ends_with = 0
    back = place.run(cold=OTHER)
    assert back.started
    assert back.started.ended
    place.host.probe_answer = "no"
    with pytest.raises(errors.VerificationFailed):
        place.run(cold=OTHER, probe="ask", probe_timeout=0.0)


def test_a_job_that_is_waited_for_tells_its_end_by_itself(place: Place) -> None:
    place.damage(*place.images)
    place.host.ends_with = 3
    back = place.run(cold=replace(COLD, inherits=True))
    assert back.started
    assert (back.started.start.inherits, back.started.start.log) == (True, None)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"argv": ["worker: idle"]}, "calls itself"),
        ({"argv": ["python", "a\\xff.py"]}, "is no text"),
        ({"argv": []}, "is no text"),
        ({"root": "/srv/jail"}, "its root folder"),
    ],
    ids=str,
)
def test_rather_nothing_than_something_else(
    place: Place, change: dict[str, Any], told: str
) -> None:
    plain = json.loads((place.images[0] / "manifest.json").read_text())
    plain["tree"][0].update(change)
    place.change(place.images[0], tree=plain["tree"])
    place.damage(place.images[0])
    with pytest.raises(errors.ImageDamaged) as caught:
        place.run(place.images[0], cold=COLD)
    assert told in caught.value.attempts[-1].message
    assert "--else" in caught.value.hint
    assert not place.host.started


@pytest.mark.parametrize(
    ("argv", "program", "found"),
    [
        (["-bash", "-l"], "/bin/bash", "/bin/bash"),
        (["/bin/sh", "./go.sh"], "./go.sh", "/bin/sh"),
        (["/opt/a/python", "x"], "/usr/bin/go", "/opt/a/python"),
        (["python", "x"], "", ""),
    ],
)
def test_the_program_is_the_one_that_was_executed(
    place: Place, argv: list[str], program: str, found: str
) -> None:
    plain = json.loads((place.images[0] / "manifest.json").read_text())
    plain["tree"][0]["argv"] = argv
    plain["start"]["program"] = program
    place.change(place.images[0], tree=plain["tree"], start=plain["start"])
    place.damage(place.images[0])
    place.run(place.images[0], cold=COLD)
    assert place.host.started[0].program == found


def test_an_image_that_did_not_record_it(place: Place) -> None:
    """Older ones have neither groups nor umask nor files."""
    place.change(place.images[0], start=None)
    place.damage(place.images[0])
    place.run(place.images[0], cold=COLD)
    (start,) = place.host.started
    assert start.user == User(1000, 100, (100,))
    assert (start.program, start.umask, start.stdout, start.stderr) == ("", None, "", "")


def test_a_restore_after_a_cold_start_meets_the_job(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.host.gpu_free = 1 << 20
    monkeypatch.setitem(PATIENCE, "gpu-memory", 0.0)
    assert place.run(place.images[0], cold=COLD).started
    place.host.gpu_free = 100 << 30
    with pytest.raises(errors.HostMismatch, match="was started from its beginning here") as caught:
        place.run(place.images[0], cold=COLD)
    assert [one.id for one in caught.value.findings] == ["job-runs"]
    assert len(place.host.started) == 1
    del place.host.processes[COLD_PID]
    back = place.run(place.images[0], cold=COLD)
    assert isinstance(back.job, RestoreResult)
    assert back.job.findings == ()


def test_a_start_that_cannot_be_written_down_is_none(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever came next would start a second one."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    place.damage(*place.images)
    monkeypatch.setattr(Ledger, "write", full)
    with pytest.raises(errors.ImageDamaged) as caught:
        place.run(cold=COLD)
    assert "No space left" in caught.value.hint
    assert COLD_PID not in place.host.processes


def test_what_has_moved_is_started_where_it_is_now(place: Place, tmp_path: Path) -> None:
    place.damage(place.images[0])
    moved = ((str(tmp_path), "/data"),)
    place.run(place.images[0], cold=COLD, map_path=moved)
    (start,) = place.host.started
    assert start.cwd == "/data"
    assert start.stdout == "/data/out.log"


def test_a_manifest_alone_tells_what_to_start(place: Place) -> None:
    shutil.rmtree(place.images[0] / "criu")
    back = place.run(place.images[0], cold=COLD)
    assert back.started
    assert isinstance(back.started.why, errors.ImageDamaged)
    assert back.lost.since_image


def test_images_of_a_store_are_found_by_the_names_of_its_objects() -> None:
    url = Url("s3://bucket/job")
    objects = ("b/manifest.json", "a/manifest.json", "a/criu/x", "c/d/manifest.json", "e/other")
    stores = mock.Mock()
    stores.folder.return_value.names.return_value = dict.fromkeys(objects, 1)
    assert images_in(stores, url) == (url / "a", url / "b")
    stores.folder.return_value.names.return_value = {"manifest.json": 1, "a/manifest.json": 1}
    assert images_in(stores, url) == ()
    stores.folder.side_effect = errors.StoreFailed("it does not answer")
    assert images_in(stores, url) == ()
