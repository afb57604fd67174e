"""Which files go along: what the job writes, what is its own, what is asked for; never software."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt.errors import DumpFailed
from gpuckpt.flow.request import FileChoice
from gpuckpt.flow.sight.along import LARGE, Along, Missed, Owner, Taken, along, excluded, reason
from gpuckpt.flow.sight.forecast import FILE, forecast
from gpuckpt.flow.sight.rules import carrying
from gpuckpt.flow.sight.rules.room import space
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.flow.taking.carry import find
from gpuckpt.flow.taking.references import Print, References
from gpuckpt.model import Carriage, ProcessRef
from gpuckpt.tools.digest import Digest
from gpuckpt.tools.proc import Proc
from gpuckpt.tools.usedfiles import UsedFile, began
from tests.fakes.host import ROOT_PID, FakeHost, process
from tests.plan_samples import facts

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.flow.work.toolbox import Toolbox

START = 1000
WHOSE = Owner(frozenset({500}), ("/tmp", "/work"), START)
INPUT = UsedFile("/data/in", 1, 7, ("/data/in",), size=10, bytes=10, uid=500, opened=True)
AUTO, NONE, ALL = (FileChoice(mode=mode) for mode in ("auto", "none", "all"))


def why(choice: FileChoice = AUTO, **changes: Any) -> Carriage | None:
    one = replace(INPUT, **changes)
    if one.names:
        one = replace(one, names=(one.path,))
    return reason(one, choice, WHOSE, lambda path: path.endswith(".so"))


def test_what_is_written_goes_along_wherever_it_is() -> None:
    assert why(written=True, uid=0) is Carriage.WRITTEN
    assert why(NONE, written=True) is None
    assert why(ALL, written=True) is Carriage.WRITTEN
    assert why(replace(AUTO, exclude=("/data",)), written=True) is None
    assert why(names=(), written=True) is Carriage.WRITTEN  # and is told of: nobody can read it


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({"path": "/data/in"}, False),
        ({"path": "/work/in"}, True),
        ({"path": "/tmp/in"}, True),
        ({"path": "/workshop/in"}, False),
        ({"path": "/work/in", "uid": 0}, False),
        # large data that was there before the job was given to it; what is in /tmp goes with a boot
        ({"path": "/work/in", "size": LARGE + 1}, False),
        ({"path": "/work/in", "size": LARGE + 1, "mtime_ns": START}, True),
        ({"path": "/tmp/in", "size": LARGE + 1}, True),
        # software, unless the job has made it
        ({"path": "/work/venv/x.so", "mapped": True}, False),
        ({"path": "/tmp/x.so", "mapped": True}, False),
        ({"path": "/tmp/x.so", "mapped": True, "mtime_ns": START}, True),
        ({"path": "/work/x.so", "mapped": False}, True),
    ],
)
def test_what_is_only_read(changes: dict[str, Any], own: bool) -> None:
    assert why(**changes) is (Carriage.WRITTEN if own else None)
    assert why(NONE, **changes) is None
    assert why(ALL, **changes) is (Carriage.WRITTEN if own else Carriage.INCLUDED)


def test_memory_of_the_job_goes_along_whatever_is_asked_for() -> None:
    without = FileChoice(mode="none", exclude=("*",))
    for one in ({"path": "/dev/shm/sem"}, {"path": "/run/x", "shared": True, "opened": False}):
        assert why(without, memory=True, **one) is Carriage.NEEDED
    # what is only open somewhere else in memory is not shared memory
    assert why(NONE, memory=True, path="/run/x") is Carriage.NEEDED
    assert why(without, memory=True, path="/run/x") is None
    assert why(memory=True, path="/run/x", written=True) is Carriage.WRITTEN
    assert why(memory=True, path="/run/x", opened=False) is None


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.tmp", True),
        ("b", True),
        ("a/b", True),
        ("/a/b", False),
        ("/x/a", True),
        ("/x/a/", True),
        ("/x/*.tmp", True),
        ("*/b/*", True),
        ("x/b", False),
        ("*.TMP", False),
        ("c", False),
    ],
)
def test_patterns(pattern: str, found: bool) -> None:
    assert excluded("/x/a/b/c.tmp", (pattern,)) is found


def test_a_job_in_the_root_of_all_works_nowhere() -> None:
    host = FakeHost({ROOT_PID: process(ROOT_PID, uid=500, cwd="/")})
    taken = sorted_by(host, UsedFile("/usr/x", 1, 8, ("/usr/x",), uid=500, opened=True)).taken
    assert not taken


def sorted_by(host: FakeHost, *used: UsedFile, **choice: Any) -> Along:
    tools = host.toolbox(None)  # type: ignore[arg-type]
    return along(tools, used, tools.proc.tree(ROOT_PID), FileChoice(**choice))


def test_what_is_included_joins_what_is_used() -> None:
    """A file has one place in the image, however many names and reasons it has."""
    log = replace(INPUT, inode=70, path="/work/log", names=("/work/log",), written=True)
    other = replace(log, path="/work/link", names=("/work/link",), written=False)
    more = UsedFile("/work/more", 1, 9, ("/work/more",), size=5, bytes=5)
    dull = UsedFile("/work/x.tmp", 1, 10, ("/work/x.tmp",))
    host = FakeHost({ROOT_PID: process(ROOT_PID)})
    host.included = {"/work": (other, more, dull)}
    host.missing = {"/gone"}
    seen = sorted_by(host, log, include=("/work", "/gone"), exclude=("*.tmp",))
    assert seen.taken == (
        Taken(replace(log, names=("/work/log", "/work/link")), Carriage.WRITTEN),
        Taken(more, Carriage.INCLUDED),
    )
    assert (seen.bytes, seen.largest) == (15, seen.taken[0].file)
    assert seen.missed == (Missed("/gone", "missing"),)
    none = sorted_by(host, INPUT, log, mode="none", include=("/work",))
    assert [one.why for one in none.taken] == [Carriage.INCLUDED] * 3
    assert none.kept == (INPUT,)


def test_what_cannot_go_along_is_told() -> None:
    seen = Along(
        missed=(Missed("/gone", "missing"), Missed("/all", "many"), Missed("/x", "Input/output")),
        unread=(Missed("/nfs/log", "Permission denied"),),
        lost=("/work/\\xff",),
        others=2,
    )
    found = [
        (one.id, one.object, one.blocks)
        for rule in carrying.RULES
        for one in rule(facts(along=seen), DumpChoices())
    ]
    assert found == [
        ("include-unfit", "/gone", True),
        ("include-unfit", "/all", True),
        ("include-unfit", "/x", True),
        ("include-left-out", "2 in all", False),
        ("file-unreadable", "/nfs/log", True),
        ("file-not-carried", "/work/\\xff", False),
    ]


def test_files_that_are_too_large_for_the_disk_are_named() -> None:
    big = replace(INPUT, path="/work/big", bytes=900 << 30)
    seen = facts(along=Along(taken=(Taken(big, Carriage.WRITTEN),)), free_bytes=100 << 30)
    (found,) = space(seen, DumpChoices())
    assert found.blocks
    assert "900.0 GiB of it files" in found.reason
    assert found.remedy.endswith("--exclude /work/big.")
    (found,) = space(facts(free_bytes=1 << 30), DumpChoices())
    assert "exclude" not in found.remedy


def test_many_small_files_take_their_time_too() -> None:
    many = tuple(Taken(replace(INPUT, inode=n), Carriage.WRITTEN) for n in range(5000))
    known = forecast(facts(along=Along(taken=many)), ())
    assert known.files.value > 5000 * FILE
    assert known.files.basis.endswith("5000 files")


@pytest.fixture
def tools(tmp_path: Path) -> Toolbox:
    return FakeHost.with_job().toolbox(tmp_path)


def test_an_input_is_read_before_the_freeze_and_once(tools: Toolbox) -> None:
    host: FakeHost = tools.files._host  # type: ignore[attr-defined]
    known, log = References(tools, full=False), replace(INPUT, written=True, inode=8)
    weights = replace(INPUT, path="/w", names=("/w",), inode=20, mtime_ns=3)
    told = {"/w": Digest("e" * 64, sampled=True, size=10, mtime_ns=3)}
    known.read((INPUT, log, weights), told, lambda _: None)
    assert host.calls.count("files.digest") == 1
    assert known.of(weights) == Print("", "e" * 64, sampled=True)
    same = replace(INPUT, path="/other", mapped=True)
    assert known.of(same) == Print("", "d" * 64, sampled=True)
    assert known.of(log) == Print()
    assert host.calls.count("files.digest") == 1
    # what has changed since, or has come since, is read again
    for change in ({"ctime_ns": 5}, {"size": 11}, {"inode": 9}):
        assert known.of(replace(INPUT, **change)).digest
    assert host.calls.count("files.digest") == 4


def test_what_was_included_and_has_gone_is_no_image(tools: Toolbox) -> None:
    host: FakeHost = tools.files._host  # type: ignore[attr-defined]
    host.missing = {"/gone"}
    with pytest.raises(DumpFailed, match="/gone cannot be included any more"):
        find(tools, tools.proc.tree(ROOT_PID), (), FileChoice(include=("/gone",)))


def test_a_process_began_before_what_it_has_written(tmp_path: Path) -> None:
    me = Proc().process(os.getpid())
    assert me is not None
    (tmp_path / "file").touch()
    assert 0 < began(me.ref) < (tmp_path / "file").stat().st_mtime_ns
    assert began(ProcessRef(1, me.ref.start_time + 10**9)) > (tmp_path / "file").stat().st_mtime_ns
