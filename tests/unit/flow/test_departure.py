"""What somebody who waits for a restored job is told when it went into an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.flow.work.departure import Departure
from gpuckpt.flow.work.journal import Entry, Journal
from gpuckpt.location import Url
from tests.fakes.host import FakeHost, process

if TYPE_CHECKING:
    from pathlib import Path

JOB = process(7000)


def seen(tmp_path: Path, image: str = "") -> tuple[FakeHost, Departure, Journal, Entry]:
    """Return a job that is watched, with a dump of it at work."""
    host = FakeHost(processes={7000: JOB})
    leaving = Departure(host.toolbox(tmp_path), 7000)
    leaving.look()
    journal = Journal(tmp_path)
    entry = Entry(
        id="1-77", operation="dump", started="2026-01-01T00:00:00Z", boot_id="boot",
        owner=process(77).ref, image=image or str(tmp_path / "image"), processes=(JOB.ref,),
        first={},
    )  # fmt: skip
    journal.open(entry, lambda _: True)
    leaving.look()
    return host, leaving, journal, entry


def test_a_job_that_went_into_an_image(tmp_path: Path) -> None:
    """The dump is over when whoever waited looks again, and the job is gone."""
    host, leaving, journal, entry = seen(tmp_path)
    assert leaving.image == "", "there is no image yet"
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "manifest.json").touch()
    journal.close(entry)
    del host.processes[7000]
    leaving.look()
    assert leaving.image == str(tmp_path / "image")


def test_a_job_that_went_on_after_its_dump(tmp_path: Path) -> None:
    _, leaving, journal, entry = seen(tmp_path)
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "manifest.json").touch()
    journal.close(entry)
    leaving.look()
    assert leaving.image == ""


def test_a_job_that_went_into_an_image_in_a_store(tmp_path: Path) -> None:
    url = Url("s3://bucket/image")
    host, leaving, journal, entry = seen(tmp_path, str(url))
    assert leaving.image == "", "there is no image yet"
    host.stores.folder(url).put("manifest.json", b"")
    journal.close(entry)
    del host.processes[7000]
    leaving.look()
    assert leaving.image == str(url)
    host.stores.away = "gone"
    assert leaving.image == ""
