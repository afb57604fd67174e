"""--thp: the host's setting changed for an operation, and put back by whoever ends last."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.cli import plan
from gpuckpt.cli import preview as page
from gpuckpt.errors import UndoIncomplete, VerificationFailed
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.gpu import sameness
from gpuckpt.flow.outlook import outlook
from gpuckpt.flow.preview import preview
from gpuckpt.flow.rehearse import rehearse
from gpuckpt.flow.repair import RepairRequest, repair
from gpuckpt.flow.request import DumpRequest, DumpResult, RehearseRequest, RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.returning.proof import Proof
from gpuckpt.flow.status import status
from gpuckpt.flow.work import hugepages
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Entry, Journal
from gpuckpt.model import CudaState, ProcessRef, blocker
from tests.fakes.host import GIB, ROOT_PID, FakeHost, Fault, process

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Finding


@dataclass
class Listener(Silent):
    """Keeps what it is told."""

    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def run(host: FakeHost, folder: Path, told: Listener | None = None) -> DumpResult:
    request = DumpRequest(ROOT_PID, folder / "image", thp=True)
    return dump(host.toolbox(folder / "state"), request, told or Listener(), Interrupts())


def sets(host: FakeHost, folder: Path) -> list[int]:
    """Return the numbers of the calls of a good dump that set it."""
    run(host, folder)
    return [n for n, name in enumerate(host.calls, 1) if name == "host.set_huge_pages"]


def test_it_is_always_while_the_driver_copies_and_as_before_afterwards(tmp_path: Path) -> None:
    host, told, seen = FakeHost.with_job(), Listener(), []
    (first, _) = sets(FakeHost.with_job(), tmp_path / "good")
    good = FakeHost.with_job()
    run(good, tmp_path / "good2")
    copied = good.calls.index("cuda.checkpoint") + 1
    assert first < copied
    host.fault = Fault(copied, lambda host: seen.append(host.huge_pages), "after")
    run(host, tmp_path, told)
    assert (seen, host.huge_pages) == (["always"], "madvise")
    notes = [one for one in told.notes if "huge pages" in one]
    assert notes == ["transparent huge pages are set to always meanwhile, they were madvise"]


@pytest.mark.parametrize("found", ["never", "madvise"])
def test_whatever_was_found_is_put_back(tmp_path: Path, found: str) -> None:
    host = FakeHost.with_job()
    host.huge_pages = found
    run(host, tmp_path)
    assert host.huge_pages == found


@pytest.mark.parametrize(
    ("mode", "fixed", "cuda", "says", "warned"),
    [
        ("", False, 1, "this kernel has no transparent huge pages: --thp does nothing", True),
        ("always", False, 1, "transparent huge pages are always set here", False),
        ("madvise", False, 0, "no process of the job uses CUDA: --thp does nothing", False),
        ("madvise", True, 1, "cannot be set (Read-only file system): it goes on without", True),
    ],
)
def test_where_it_does_nothing_it_says_so_and_goes_on(  # noqa: PLR0917 - the columns
    tmp_path: Path, mode: str, fixed: bool, cuda: int, says: str, warned: bool
) -> None:
    host, told = FakeHost.with_job(cuda=cuda), Listener()
    host.huge_pages, host.huge_pages_fixed = mode, fixed
    result = run(host, tmp_path, told)
    assert any(says in text for text in (told.warnings if warned else told.notes))
    assert host.huge_pages == mode
    assert not result.findings
    assert not Journal(tmp_path / "state").entries()


def gone(host: FakeHost) -> None:
    """Make the gpuckpt that worked here so far a dead one."""
    me = os.getpid()
    host.processes[me] = replace(process(me), ref=ProcessRef(me, 1))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_set_that_failed_may_have_had_its_effect(tmp_path: Path, when: str) -> None:
    """The dump goes on, and in the end it is looked at what really is set."""
    host = FakeHost.with_job()
    host.fault = Fault(sets(FakeHost.with_job(), tmp_path / "good")[0], "error", when)
    run(host, tmp_path)
    assert host.huge_pages == "madvise"


def test_what_cannot_be_put_back_is_told_and_left_to_a_repair(tmp_path: Path) -> None:
    """The dump is done, and its result says that this is left, and how to get rid of it."""
    host = FakeHost.with_job()
    host.fault = Fault(sets(FakeHost.with_job(), tmp_path / "good")[1], "error", "before")
    assert not run(host, tmp_path).findings, "the second try went well"
    assert host.huge_pages == "madvise"
    host = FakeHost.with_job()
    jobs = {pid: one for pid, one in host.processes.items() if pid >= ROOT_PID}
    numbers = sets(FakeHost.with_job(), tmp_path / "good2")

    def fix(host: FakeHost) -> None:
        host.huge_pages_fixed = True

    host.fault = Fault(numbers[1], fix, "before")
    (finding,) = run(host, tmp_path / "fixed").findings
    assert finding.id == "huge-pages-left"
    assert f"echo madvise > {hugepages.FILE}" in finding.remedy
    assert host.huge_pages == "always"
    gone(host)
    tools = host.toolbox(tmp_path / "fixed" / "state")
    (unfinished,) = status(tools).unfinished
    assert [one.id for one in unfinished.left] == ["left-huge-pages"]
    assert (
        "put back"
        in repair(tools, RepairRequest(dry_run=True), Silent(), Interrupts()).done[0].text
    )
    # a new dump of the job does not have to wait for that
    again = DumpRequest(ROOT_PID, tmp_path / "fixed" / "again", leave_running=True)
    host.processes |= jobs
    host.cuda |= dict.fromkeys(list(jobs)[1:3], CudaState.RUNNING)
    dump(tools, again, Silent(), Interrupts())
    assert [one.entry.id for one in status(tools).unfinished] == [unfinished.entry.id]
    stuck = repair(tools, RepairRequest(), Silent(), Interrupts())
    assert "left at always" in stuck.left[0].reason
    host.huge_pages_fixed = False
    done = repair(tools, RepairRequest(), Silent(), Interrupts())
    assert done.done[0].text == f"{hugepages.FILE} is madvise again"
    assert host.huge_pages == "madvise"
    assert not status(tools).needs_repair


def test_an_undo_that_cannot_put_it_back_is_the_headline(tmp_path: Path) -> None:
    good = FakeHost.with_job()
    run(good, tmp_path / "good")
    host = FakeHost.with_job()

    def fail(host: FakeHost) -> None:
        host.huge_pages_fixed = True
        raise OSError(5, "disk gone")

    host.fault = Fault(good.calls.index("criu.dump") + 1, fail, "before")
    with pytest.raises(UndoIncomplete, match="transparent huge pages are left at always"):
        run(host, tmp_path)
    assert Journal(tmp_path / "state").entries()


def test_a_restore_and_a_rehearsal_do_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sameness, "WATCH_SECONDS", 0.0)
    host = FakeHost.with_job()
    jobs = {pid: one for pid, one in host.processes.items() if pid >= ROOT_PID}
    tools = host.toolbox(tmp_path / "state")
    what = DumpRequest(ROOT_PID, tmp_path / "image", thp=True)
    rehearse(tools, RehearseRequest(what, settle=0.0), Silent(), Interrupts())
    assert host.calls.count("host.set_huge_pages") == 2
    dump(tools, replace(what, thp=False), Silent(), Interrupts())
    assert host.calls.count("host.set_huge_pages") == 2
    host.restored = jobs
    restore(tools, RestoreRequest(tmp_path / "image", settle=0.0, thp=True), Silent(), Interrupts())
    assert host.calls.count("host.set_huge_pages") == 4
    assert host.huge_pages == "madvise"


@pytest.mark.parametrize("fixed", [False, True])
def test_a_restored_job_that_is_kept_though_it_failed_its_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fixed: bool
) -> None:
    """There is no result to tell that the setting could not be put back."""
    host = FakeHost.with_job()
    host.restored = {pid: one for pid, one in host.processes.items() if pid >= ROOT_PID}
    tools, told = host.toolbox(tmp_path / "state"), Listener()
    dump(tools, DumpRequest(ROOT_PID, tmp_path / "image"), Silent(), Interrupts())

    def probe(self: Proof, *_: object) -> list[Finding]:
        del self
        host.huge_pages_fixed = fixed
        return [blocker("probe", "x", "It failed.", "Look.")]

    monkeypatch.setattr(Proof, "probe", probe)
    request = RestoreRequest(tmp_path / "image", settle=0.0, thp=True, probe="x")
    with pytest.raises(VerificationFailed):
        restore(tools, request, told, Interrupts())
    assert host.huge_pages == ("always" if fixed else "madvise")
    assert bool(Journal(tmp_path / "state").entries()) is fixed
    assert any("could not be put back" in text for text in told.warnings) is fixed


@dataclass
class Holder:
    """Who has an entry."""

    entry: Entry


@dataclass
class Operations:
    """Several operations of one host, each with an entry in the journal and a pid of its own."""

    host: FakeHost
    tools: Toolbox
    journal: Journal

    def start(self, pid: int) -> Entry:
        self.host.processes[pid] = process(pid)
        owner = self.host.processes[pid].ref
        entry = Entry(
            id=f"entry-{pid}",
            operation="dump",
            started="2026-01-01T00:00:00Z",
            boot_id=self.host.boot_id,
            owner=owner,
            image="",
            processes=(),
            first={},
        )
        self.journal.open(entry, lambda _: True)
        holder = Holder(entry)
        hugepages._take(self.tools, self.journal, holder)
        return holder.entry

    def end(self, entry: Entry) -> None:
        self.journal.close(hugepages.give_back(self.tools, self.journal, entry))

    def kill(self, entry: Entry) -> None:
        del self.host.processes[entry.owner.pid]


@pytest.fixture
def operations(tmp_path: Path) -> Operations:
    host = FakeHost()
    return Operations(host, host.toolbox(tmp_path), Journal(tmp_path))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_last_of_several_puts_it_back(
    operations: Operations, order: tuple[int, int, int]
) -> None:
    entries = [operations.start(pid) for pid in (101, 102, 103)]
    assert [one.huge_pages for one in entries] == ["madvise"] * 3
    for number in order[:2]:
        operations.end(entries[number])
        assert operations.host.huge_pages == "always"
    operations.end(entries[order[2]])
    assert operations.host.huge_pages == "madvise"


def test_of_two_that_were_killed_the_first_repair_puts_it_back(operations: Operations) -> None:
    one, two = operations.start(101), operations.start(102)
    operations.kill(one)
    assert not list(hugepages.left(operations.tools, operations.journal, one))
    operations.kill(two)
    left = [list(hugepages.left(operations.tools, operations.journal, e)) for e in (one, two)]
    assert [len(found) for found in left] == [1, 1]
    operations.end(one)
    assert operations.host.huge_pages == "madvise"
    # somebody else's choice, made later: the other entry must not undo it
    operations.host.huge_pages = "always"
    (other,) = operations.journal.entries()
    operations.end(other)
    assert operations.host.huge_pages == "always"


def test_one_that_comes_after_a_killed_one_knows_the_first_value(operations: Operations) -> None:
    operations.kill(operations.start(101))
    entry = operations.start(102)
    assert entry.huge_pages == "madvise"
    operations.end(entry)
    assert operations.host.huge_pages == "madvise"


def test_what_somebody_else_has_set_meanwhile_stays(operations: Operations) -> None:
    entry = operations.start(101)
    operations.host.huge_pages = "never"
    operations.end(entry)
    assert operations.host.huge_pages == "never"


def test_a_boot_has_put_it_back_already(operations: Operations) -> None:
    dead = operations.start(101)
    operations.kill(dead)
    operations.host.boot_id = "next"
    operations.host.huge_pages = "always"  # by the host's own settings
    assert not list(hugepages.left(operations.tools, operations.journal, dead))
    assert operations.start(102).huge_pages == ""


@pytest.mark.parametrize(("size", "helps"), [(3 * GIB, False), (16 * GIB, True)])
def test_a_plan_offers_it_for_a_job_with_much_gpu_memory(
    tmp_path: Path, size: int, helps: bool
) -> None:
    host = FakeHost.with_job(cuda=1)
    host.gpu_bytes = dict.fromkeys(host.gpu_bytes, size)
    tools = host.toolbox(tmp_path / "state")
    seen = plan.outcome(outlook(tools, DumpRequest(ROOT_PID, tmp_path / "image"), Silent()))
    assert seen.payload["thp_helps"] is helps
    assert str(seen.payload["next"]).count("--thp") == helps
    run(host, tmp_path)
    there = preview(tools, tmp_path / "image")
    assert page.outcome(there).payload["thp_helps"] is helps
    host.huge_pages = "always"
    assert not preview(tools, tmp_path / "image").thp
