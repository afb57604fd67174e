"""The plan of files: which step each of them gets, and what of it stops a restore."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuckpt.cli import filesteps, plain
from gpuckpt.cli.page import Page, Tone
from gpuckpt.errors import RestoreFailed, UsageError
from gpuckpt.flow.leftovers import placed as left
from gpuckpt.flow.leftovers.placed import clear, lasting, lasting_cuts
from gpuckpt.flow.returning.placing import Placing
from gpuckpt.flow.returning.relocating import mapped
from gpuckpt.flow.returning.target import carried as rules
from gpuckpt.flow.returning.target.fileplan import Act, file_plan, journals
from gpuckpt.flow.returning.target.files import files
from gpuckpt.flow.returning.target.standing import Standing, State
from gpuckpt.image.outside import FileRecord, FolderRecord, RemapRecord
from gpuckpt.image.relocate import Relocation
from gpuckpt.image.store import Image
from gpuckpt.model import Carriage, CarriedFile
from gpuckpt.tools import folders
from gpuckpt.tools.carried import Carried
from gpuckpt.tools.files import Files
from tests import image_samples
from tests.fakes.host import FakeHost
from tests.file_trees import Restoring, image_of, tree
from tests.unit.flow.test_target_rules import FACTS, PLAIN

if TYPE_CHECKING:
    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.flow.work.toolbox import Toolbox

LOG = CarriedFile(
    ("/job/log",), "", 1, 2, 100, 0o644, 0, 0, 7, extents=((0, 100),), why=Carriage.WRITTEN
)
APPENDED = FileRecord(
    path="/job/log", size=None, mode=None, build_id="", mtime_ns=7, flags=os.O_WRONLY | os.O_APPEND
)
HERE = Standing(
    LOG, State.GROWN, "/job/log", 1, 2, size=130, mtime_ns=9, names=("/job/log",), tag="1"
)
OTHER = replace(HERE, state=State.CHANGED, why="its bytes are others")
WRITTEN = {"pid": 7, "writes": True}
OUTSIDE = msgspec.structs.replace(PLAIN.outside, files=(APPENDED,))
JOB = msgspec.structs.replace(PLAIN, outside=OUTSIDE, carried=(LOG,))


@pytest.fixture
def tools(tmp_path: Path) -> Toolbox:
    """Give a fake host with the files of this one."""
    whole = FakeHost().toolbox(tmp_path / "state")
    return replace(whole, files=Files(), carried=Carried(Path("/proc")))


@pytest.mark.parametrize(
    ("here", "choice", "is_log", "act", "told"),
    [
        (replace(HERE, state=State.MISSING), "refuse", False, Act.MAKE, []),
        (replace(HERE, state=State.THERE), "replace", False, Act.LEAVE, []),
        (HERE, "refuse", False, Act.CUT, []),
        (HERE, "replace", True, Act.CUT, []),
        (HERE, "keep", True, Act.LEAVE, ["file-kept"]),
        (replace(HERE, pid=7), "refuse", True, Act.CUT, []),
        (replace(HERE, **WRITTEN), "refuse", True, Act.LEAVE, ["file-in-use"]),
        (replace(HERE, **WRITTEN), "replace", False, Act.REFUSE, ["file-in-use"]),
        (OTHER, "refuse", False, Act.REFUSE, ["file-changed"]),
        (OTHER, "keep", False, Act.LEAVE, ["file-kept"]),
        (OTHER, "replace", True, Act.REPLACE, []),
        (replace(OTHER, **WRITTEN), "replace", True, Act.REFUSE, ["file-in-use"]),
        (replace(OTHER, **WRITTEN), "refuse", True, Act.REFUSE, ["file-in-use"]),
        (replace(HERE, state=State.TAKEN), "replace", False, Act.REFUSE, ["file-taken"]),
    ],
)  # fmt: skip
def test_every_way_a_file_may_stand(
    here: Standing,
    choice: Any,
    is_log: bool,
    act: Act,
    told: list[str],
) -> None:
    manifest = JOB if is_log else msgspec.structs.replace(JOB, outside=PLAIN.outside)
    (step,) = file_plan(manifest, [here], {}, choice)
    assert step.act is act
    facts: TargetFacts = replace(FACTS, carried=(here,), steps=(step,), rooms={"/job": 100})
    found = [one for rule in rules.RULES for one in rule(manifest, facts)]
    assert [one.id for one in found] == told
    assert any(one.blocks for one in found) == (act is Act.REFUSE)
    aside = {Act.CUT: "/job/log.after-1", Act.REPLACE: "/job/log.replaced-1"}.get(act)
    assert step.aside == ((("/job/log", aside),) if aside else ())
    short: TargetFacts = replace(facts, rooms={"/job": step.bytes - 1})
    full = [one.id for rule in rules.RULES for one in rule(manifest, short)]
    assert ("carried-room" in full) == (step.bytes > 0)
    assert aside is None or aside in step.words


def test_a_journal_of_another_time_is_not_played_into_a_file_that_is_put_back() -> None:
    """SQLite keeps beside its file what a transaction overwrites, for the time after a crash."""
    told = {}
    beside = {"/job/log-journal": True, "/job/log-wal": False}
    for here in (replace(HERE, state=State.MISSING), HERE, OTHER, replace(HERE, state=State.THERE)):
        steps = file_plan(JOB, [here], {}, "replace")
        facts = replace(FACTS, steps=steps, names=beside)
        told[here.state] = [(one.id, one.object) for one in rules.journal(JOB, facts)]
    found = [("gate-file-journal", "/job/log-journal")]
    assert told == {State.MISSING: found, State.GROWN: found, State.CHANGED: found, State.THERE: []}
    journal = replace(LOG, names=("/job/log-journal",))
    both = msgspec.structs.replace(JOB, carried=(LOG, journal))
    steps = file_plan(both, [OTHER], {}, "replace")
    assert journals(both, steps) == ("/job/log-wal",)


@pytest.mark.parametrize("users", [{}, WRITTEN])
def test_what_cannot_work_is_not_proposed(users: dict[str, Any]) -> None:
    """CRIU 4.2.1 compares the sizes of files, but not of those that are only appended to."""
    here = replace(OTHER, **users)
    told = {}
    for size in (None, 130, 100):
        record = msgspec.structs.replace(APPENDED, size=size)
        outside = msgspec.structs.replace(OUTSIDE, files=(record,))
        manifest = msgspec.structs.replace(JOB, outside=outside)
        facts = replace(FACTS, steps=file_plan(manifest, [here], {}))
        (found,) = [one for rule in rules.RULES for one in rule(manifest, facts)]
        told[size] = "--files keep" in found.remedy
    assert told == {None: True, 130: True, 100: False}


def test_the_page_and_the_object_tell_each_step() -> None:
    folder = FolderRecord(path="/job", mode=0o755, uid=0, gid=0)
    manifest = msgspec.structs.replace(
        JOB, outside=msgspec.structs.replace(OUTSIDE, folders=(folder,))
    )
    many = [replace(OTHER, path=f"/job/{number}") for number in range(30)]
    steps = file_plan(manifest, [HERE, *many], {"/job": False}, "refuse")
    assert [one["act"] for one in filesteps.payload(steps)[:3]] == [
        "make-folder",
        "truncate",
        "refuse",
    ]
    lines = list(plain.lines(Page("", Tone.BAD, filesteps.table(steps))))
    assert "refuse" in lines[2]
    assert "and 12 more" in lines[-1]
    assert filesteps.table(file_plan(JOB, [replace(HERE, state=State.THERE)], {})) == ()


def test_what_is_made_or_cut_counts_as_it_was(tools: Toolbox, tmp_path: Path) -> None:
    """CRIU compares sizes, and sees the file only when that is done; what is kept it sees now."""
    log = tmp_path / "log"
    log.write_bytes(b"12345")
    record = FileRecord(path=str(log), size=3, mode=0o100644, build_id="", mtime_ns=1)
    outside = msgspec.structs.replace(OUTSIDE, files=(record,))
    manifest = msgspec.structs.replace(JOB, outside=outside)
    here = replace(HERE, file=replace(LOG, names=(str(log),)), path=str(log))
    for choice, seen in (("refuse", 3), ("keep", 5)):
        steps = file_plan(manifest, [here], {}, choice)  # type: ignore[arg-type]
        now = files(tools, manifest, steps, apart=False)[str(log)]
        assert now is not None
        assert now.size == seen
        assert choice == "refuse" or now.mtime_ns is None  # that it is another is told already


def test_who_writes_meanwhile_stops_it(tools: Toolbox, tmp_path: Path) -> None:
    """What was looked at is what is done: a byte more, and nothing is done at all."""
    place = tmp_path / "place"
    place.mkdir()
    log, other = place / "log", place / "other"
    for path in (log, other):
        path.write_bytes(b"12345")
    with image_of(tools, [log, other], tmp_path) as image:
        with log.open("ab") as writing:
            writing.write(b"6")
            writing.flush()
            assert Restoring(tools, image).acts()["log"] is Act.REFUSE
        other.write_bytes(b"today")
        for path in (log, other):
            job = Restoring(tools, image, "replace")
            with path.open("ab") as writing:
                writing.write(b"7")
            before = tree(place)
            with pytest.raises(RestoreFailed, match=f"{path} could not be put back: somebody has"):
                job.put()
            job.placing.take_back()
            assert tree(place) == before


def test_names_beside_a_file_are_never_taken_twice(tools: Toolbox, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    log = place / "log"
    log.write_bytes(b"12345")
    with image_of(tools, [log], tmp_path) as image:
        for number in range(1, 4):
            with log.open("ab") as writing:
                writing.write(b"%d" % number)
            Restoring(tools, image).put()
            assert log.read_bytes() == b"12345"
        kept = {path.name: path.read_bytes() for path in place.iterdir() if path != log}
        assert kept == {
            "log.after-3f0c7a52": b"1",
            "log.after-3f0c7a52-2": b"2",
            "log.after-3f0c7a52-3": b"3",
        }


def test_what_criu_was_killed_over_goes_with_the_rest(tools: Toolbox, tmp_path: Path) -> None:
    """For a deleted file it makes a name, and takes it away again when the job has it open."""
    ghosts = [
        RemapRecord(path=path, name=f"{path}.cr.1.ghost", linked=False)
        for path in (str(tmp_path / "gone"), "/dev/shm/gpuckpt-test-gone")
    ]
    linked = RemapRecord(path="/dev/shm/sem", name="/dev/shm/link_remap.7", linked=True)
    outside = msgspec.structs.replace(PLAIN.outside, remaps=(*ghosts, linked))
    image = Image.open(image_samples.write_image(tmp_path / "image", {}, outside=outside))
    noted: list[dict[str, Any]] = []
    apart = Placing(tools, image, (), lambda **known: noted.append(known), apart=True)
    assert [one.spare for one in apart.ghosts] == [ghosts[0].name]
    job = Placing(tools, image, (), lambda **known: noted.append(known))
    assert [one.spare for one in job.ghosts] == [one.name for one in ghosts]
    assert not job.needed
    Path(ghosts[0].name).write_bytes(b"deleted")
    told = left.told(tools, left.LeftFiles(placed=job.ghosts))
    assert [(one.id, one.object) for one in told] == [("left-file", ghosts[0].name)]
    job.take_back()
    assert not Path(ghosts[0].name).exists()


def test_what_cannot_be_cut_is_left_as_it_was(
    tools: Toolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that may only be appended to (chattr +a) can be read, and no more."""
    place, real = tmp_path / "place", os.open
    place.mkdir()
    log = place / "log"
    log.write_bytes(b"12345")

    def opened(path: Any, flags: int, *args: Any, **named: Any) -> int:
        if path == "log" and flags & os.O_ACCMODE != os.O_RDONLY:
            raise PermissionError(errno.EPERM, "Operation not permitted", path)
        return real(path, flags, *args, **named)

    with image_of(tools, [log], tmp_path) as image:
        log.write_bytes(b"12345 and more")
        before = tree(place)
        monkeypatch.setattr(os, "open", opened)
        job = Restoring(tools, image)
        with pytest.raises(RestoreFailed, match="not permitted"):
            job.put()
        job.placing.take_back()
        assert tree(place) == before


def test_what_a_job_only_reads_is_not_cut_without_a_word(tools: Toolbox, tmp_path: Path) -> None:
    """A script or a setting to which somebody has added a line: he did not do that for nothing."""
    place = tmp_path / "place"
    place.mkdir()
    script, listed = place / "script", place / "listed"
    for path in (script, listed):
        path.write_bytes(b"12345")
    with image_of(tools, [script], tmp_path, read=(script,)) as image:
        script.write_bytes(b"12345 and more")
        assert Restoring(tools, image).acts()["script"] is Act.REFUSE
        assert Restoring(tools, image, "keep").acts()["script"] is Act.LEAVE
        Restoring(tools, image, "replace").put()
        assert (script.read_bytes(), (place / "script.replaced-3f0c7a52").read_bytes()) == (
            b"12345",
            b"12345 and more",
        )
    # what a user has asked for is as it was: the job may write to it now and then
    other = tmp_path / "other"
    other.mkdir()
    with image_of(tools, [listed], other, read=(listed,), why=Carriage.INCLUDED) as image:
        listed.write_bytes(b"12345 and more")
        assert Restoring(tools, image).acts()["listed"] is Act.CUT


def test_the_longest_names_have_room_beside_them(tools: Toolbox, tmp_path: Path) -> None:
    """Names that are alike but for their ends get others beside them all the same."""
    place = tmp_path / "place"
    place.mkdir()
    paths = [place / f"{'é' * 126}{end}" for end in ("xyz", "xyw")] + [place / ("n" * 230)]
    for path in paths:
        path.write_bytes(b"12345")
    with image_of(tools, paths, tmp_path) as image:
        for path in paths[1:]:
            path.write_bytes(b"12345 and more")
        paths[0].write_bytes(b"today")
        before = tree(place)
        job = Restoring(tools, image, "replace")
        assert [step.act for step in job.steps] == [Act.REPLACE, Act.CUT, Act.CUT]
        job.put()
        kept = {Path(there).read_bytes() for _, there in job.placing.kept}
        assert kept == {b"today", b" and more"}
        assert len(list(place.iterdir())) == 6
        job.placing.take_back()
        assert tree(place) == before
        for path in paths[1:]:
            path.write_bytes(b"other")
        job = Restoring(tools, image, "replace")
        job.put()
        assert len(list(place.iterdir())) == 6


def test_files_that_must_have_a_name(
    tools: Toolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS none can be without; it has one of ours until it has its own, and is known by it."""
    place, real = tmp_path / "place", os.open
    place.mkdir()
    log, other = place / "log", place / "other"
    for path in (log, other):
        path.write_bytes(b"12345")

    def opened(path: Any, flags: int, *args: Any, **named: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *args, **named)

    with image_of(tools, [log, other], tmp_path) as image:
        log.write_bytes(b"12345 and more")
        other.unlink()
        before = tree(place)
        monkeypatch.setattr(os, "open", opened)
        job = Restoring(tools, image)
        job.put()
        assert {path.name for path in place.iterdir()} == {"log", "other", "log.after-3f0c7a52"}
        assert log.read_bytes() == other.read_bytes() == b"12345"
        job.repair()
        assert tree(place) == before


def test_after_a_boot_what_was_moved_or_cut_is_put_back(tools: Toolbox, tmp_path: Path) -> None:
    """By then its device may have another number; what was only made may stay."""
    place = tmp_path / "place"
    place.mkdir()
    paths = [place / name for name in ("log", "changed", "missing")]
    for path in paths:
        path.write_bytes(b"12345")
    with image_of(tools, paths, tmp_path) as image:
        (place / "log").write_bytes(b"12345 and more")
        (place / "changed").write_bytes(b"today")
        (place / "missing").unlink()
        before = tree(place)
        job = Restoring(tools, image, "replace")
        job.put()
        placed = [msgspec.structs.replace(one, device=99) for one in job.noted[0]]
        cuts = [replace(one, device=99) for one in job.noted[1]]
        clear(tools, lasting(tools, placed), lasting_cuts(tools, cuts), job_stands=False)
        assert (place / "missing").read_bytes() == b"12345"
        (place / "missing").unlink()
        assert tree(place) == before


def test_links_of_others_are_not_followed(tmp_path: Path) -> None:
    """Who may write to a folder above could lead a restore, with root's rights, elsewhere."""
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "relative").symlink_to("real/../real")
    (tmp_path / "absolute").symlink_to(tmp_path / "real")
    for name in ("real", "relative", "absolute"):
        fd = folders.opened(str(tmp_path / name / "inner"))
        assert os.path.samestat(os.fstat(fd), (tmp_path / "real" / "inner").stat())
        os.close(fd)
        if name != "real":
            with pytest.raises(OSError, match="inner"):
                folders.opened(str(tmp_path / name / "inner"), links=False)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="round"):
        folders.opened(str(tmp_path / "round"))
    if os.geteuid() == 0:
        os.lchown(tmp_path / "absolute", 7, 7)
        with pytest.raises(OSError, match="inner"):
            folders.opened(str(tmp_path / "absolute" / "inner"))


def test_paths_that_cannot_be_mapped() -> None:
    manifest = msgspec.structs.replace(
        JOB, outside=msgspec.structs.replace(OUTSIDE, sockets=("/run/job/socket",))
    )
    with pytest.raises(UsageError, match="no path of the image is /nowhere or below"):
        mapped(manifest, (("/nowhere", "/x"),))
    with pytest.raises(UsageError, match="would both be /same/place"):
        mapped(manifest, (("/job/log", "/same/place"), ("/run/job/socket", "/same/place")))
    assert mapped(manifest, ()) is manifest


def test_a_manifest_with_the_paths_of_here() -> None:
    above = tuple(
        FolderRecord(path=path, mode=0o755, uid=0, gid=0) for path in ("/job", "/run", "/run/job")
    )
    outside = msgspec.structs.replace(OUTSIDE, sockets=("/run/job/socket",), folders=above)
    manifest = msgspec.structs.replace(JOB, outside=outside)
    moves = Relocation((("/job", "/mnt/a b"), ("/run/job", "/run/other"), ("/home", "/users")))
    found = moves.manifest(manifest)
    assert found.outside.files[0].path == found.carried[0].path == "/mnt/a b/log"
    assert found.outside.sockets == ("/run/other/socket",)
    # those above what is elsewhere are not ours to be made
    assert [one.path for one in found.outside.folders] == ["/mnt/a b", "/run", "/run/other"]
    assert {one.cwd for one in found.tree} == {"/users/u"}
    assert found.tree[0].argv == manifest.tree[0].argv
    assert Relocation((("/run", "/a"), ("/run/job", "/b"))).path("/run/job/x") == "/b/x"
