"""The journal: on disk before anything is done, exclusive among the living."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import DumpFailed, NotPrivileged, NotWritable, ProcessUnfit
from gpuckpt.flow.returning.ledger import Ledger, Restored
from gpuckpt.flow.work import journal as journal_room
from gpuckpt.flow.work.journal import Entry, Journal
from gpuckpt.flow.work.workspace import check_readable, workspace
from gpuckpt.model import CudaState, ProcessRef

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def entry(name: str, pid: int = 7, owner: int = 100, image: str = "/image") -> Entry:
    return Entry(
        id=name,
        operation="dump",
        started="2026-01-01T00:00:00Z",
        boot_id="boot",
        owner=ProcessRef(owner, 1),
        image=image,
        processes=(ProcessRef(pid, 1),),
        first={pid: CudaState.RUNNING},
    )


def test_entries_come_back_as_they_were(tmp_path: Path) -> None:
    """Another gpuckpt must be able to read what this one left, private to its owner."""
    journal = Journal(tmp_path)
    one = journal.step(_opened(journal, entry("a")), "lock", stage="/stage")
    assert Journal(tmp_path).entries() == (one,)
    assert (one.step, one.stage) == ("lock", "/stage")
    for path in (tmp_path / "journal").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    journal.close(one)
    assert Journal(tmp_path).entries() == ()


def test_a_path_may_hold_any_bytes(tmp_path: Path) -> None:
    journal, image = Journal(tmp_path), os.fsdecode(b"/ckpt/\xff\xc3\xa9")
    one = _opened(journal, entry("a", image=image))
    assert Journal(tmp_path).entries() == (one,)
    restored = Restored(image_id="1", image=image, at="", boot_id="boot", processes=())
    Ledger(tmp_path).add(restored)
    assert Ledger(tmp_path).last("1") == restored


def test_a_gpuckpt_that_was_stopped_with_the_lock_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_room, "LOCK_SECONDS", 0.1)
    journal = Journal(tmp_path)
    journal.open(entry("a"), lambda _ref: True)
    with (tmp_path / "journal" / "lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ProcessUnfit, match="has locked the journal"):
            journal.open(entry("b", pid=8), lambda _ref: True)


def test_what_may_not_be_seen_is_not_called_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(folder))

    check_readable(tmp_path / "never made")
    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(NotPrivileged, match="cannot be read by this user"):
        check_readable(tmp_path)


def test_a_log_that_cannot_be_kept_hides_no_error(tmp_path: Path) -> None:
    def fail() -> None:
        with workspace(tmp_path, "1") as work:
            log = work / "dump.log"
            log.write_text("Error\n")
            raise DumpFailed("CRIU failed", log=log)

    (tmp_path / "logs").write_text("no folder")
    with pytest.raises(DumpFailed) as caught:
        fail()
    assert caught.value.log is None


def _opened(journal: Journal, one: Entry) -> Entry:
    journal.open(one, lambda _ref: True)
    return one


def test_two_operations_on_one_process_exclude_each_other(tmp_path: Path) -> None:
    """A living owner keeps its processes and its image to itself; a dead one does not."""
    journal = Journal(tmp_path)
    journal.open(entry("a"), lambda _ref: True)
    with pytest.raises(ProcessUnfit, match="pid 100"):
        journal.open(entry("b", owner=200, image="/other"), lambda _ref: True)
    with pytest.raises(ProcessUnfit, match="/image"):
        journal.open(entry("b", pid=8, owner=200), lambda _ref: True)
    journal.open(entry("c", pid=9, image="/third"), lambda _ref: True)
    journal.open(entry("d", owner=300), lambda _ref: False)
    assert [one.id for one in journal.entries()] == ["a", "c", "d"]


def test_a_tree_inside_of_another_is_excluded(tmp_path: Path) -> None:
    """A child that was forked since the other tree was listed still belongs to it."""
    journal = Journal(tmp_path)
    journal.open(entry("a", pid=7), lambda _ref: True)
    with pytest.raises(ProcessUnfit, match="process 7"):
        journal.open(entry("b", pid=8, image="/b"), lambda _ref: True, [ProcessRef(7, 1)])


def test_what_cannot_be_acted_on_is_told_and_left_alone(tmp_path: Path) -> None:
    """Damaged, half-written, or of a newer gpuckpt: never skipped in silence, never removed."""
    journal = Journal(tmp_path)
    known = _opened(journal, entry("a"))
    folder = tmp_path / "journal"
    whole = (folder / "a.json").read_bytes()
    (folder / "b.json").write_bytes(whole[: len(whole) // 2])
    (folder / "c.json").write_bytes(b"")
    (folder / "d.json").write_bytes(whole.replace(b'"format":1', b'"format":2,"new":[]'))
    (folder / "e.new").write_bytes(whole[:9])
    (folder / "copy of a.json").write_bytes(whole)
    os.utime(folder / "e.new", (0, 0))
    assert journal.entries() == (known,)
    told = {one.path.name: one.why for one in journal.strange()}
    assert set(told) == {"b.json", "c.json", "copy of a.json", "d.json", "e.new"}
    assert "newer gpuckpt" in told["d.json"]
    assert "damaged" in told["b.json"]
    assert len(list(folder.iterdir())) == 7
    assert journal.ids() == {"a", "b", "c", "copy of a", "d"}


def test_what_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    """A file of another version is neither judged nor removed."""
    journal = Journal(tmp_path)
    strange = tmp_path / "journal" / "x.json"
    strange.parent.mkdir()
    strange.write_text("{}")
    assert journal.entries() == ()
    assert strange.exists()


def test_a_state_folder_that_went_away(tmp_path: Path) -> None:
    """What must be written down cannot be; what is done is done, and needs not be forgotten."""
    journal = Journal(tmp_path / "state")
    one = _opened(journal, entry("a"))
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(DumpFailed, match="cannot be written"):
        journal.step(one, "lock")
    journal.close(one)
    assert journal.entries() == ()


def test_no_place_for_the_journal_is_said_plainly(tmp_path: Path) -> None:
    """Without a journal nothing is begun."""
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match="state directory"):
        Journal(tmp_path / "file" / "state").open(entry("a"), lambda _ref: True)


@contextmanager
def _room_for(size: int) -> Iterator[None]:
    """Let files grow to `size` bytes: the write that would pass it is cut, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_said_plainly(tmp_path: Path) -> None:
    """What was written before stays whole, and nothing half-written is left beside it."""
    journal = Journal(tmp_path)
    with _room_for(50), pytest.raises(NotWritable, match="cannot be written: File too large"):
        journal.open(entry("a"), lambda _ref: True)
    one = _opened(journal, entry("a"))
    with _room_for(50), pytest.raises(DumpFailed, match="cannot be written"):
        journal.step(one, "lock", stage="/stage")
    assert journal.entries() == (one,)
    assert {path.name for path in (tmp_path / "journal").iterdir()} == {"a.json", "lock"}
