"""File plans, applied to random files and undone wherever they are cut short, leave no trace."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuckpt.errors import RestoreFailed
from gpuckpt.flow.returning.target.fileplan import Act
from gpuckpt.image.relocate import Relocation
from gpuckpt.tools.carried import Carried
from gpuckpt.tools.files import Files
from tests.fakes.host import FakeHost
from tests.file_trees import Killed, Restoring, failure, image_of, striking, tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.flow.work.toolbox import Toolbox

CONTENT = st.binary(max_size=40).flatmap(lambda one: st.sampled_from([one, one * 4000]))
OWNERS = [0, 7] if os.geteuid() == 0 else [os.geteuid()]
TODAY = ("same", "gone", "grown", "other", "shorter", "mode", "owner", "times", "unlinked")
FILES = st.lists(
    st.fixed_dictionaries(
        {
            "folder": st.sampled_from(["", "a", "a/b", "c\udcff"]),
            "content": CONTENT,
            "later": CONTENT,
            "mode": st.sampled_from([0o600, 0o644, 0o4755, 0o000]),
            "owner": st.sampled_from(OWNERS),
            "mtime": st.integers(0, 2**61),
            "names": st.integers(1, 2),
            "today": st.sampled_from(TODAY),
        }
    ),
    min_size=1,
    max_size=5,
)


def names(place: Path, number: int, file: dict[str, Any]) -> list[Path]:
    return [place / file["folder"] / f"{number}-{name}" for name in range(file["names"])]


def write(place: Path, files: list[dict[str, Any]]) -> list[Path]:
    """Write what the job had at its dump, and return a name of each file."""
    found = []
    for number, file in enumerate(files):
        first, *others = names(place, number, file)
        first.parent.mkdir(parents=True, exist_ok=True)
        first.write_bytes(file["content"])
        for other in others:
            os.link(first, other)
        os.chown(first, file["owner"], file["owner"])
        first.chmod(file["mode"])
        os.utime(first, ns=(1, file["mtime"]))
        found.append(first)
    return found


def append(path: Path, later: bytes) -> None:
    with path.open("ab") as file:
        file.write(later)


def happen(place: Path, files: list[dict[str, Any]]) -> None:
    """Let time pass: what becomes of each file, and of folders in which nothing is left."""
    for number, file in enumerate(files):
        one = names(place, number, file)
        later = file["later"] or b"x"
        group = 9 if os.geteuid() == 0 else -1
        becomes: dict[str, Callable[[], object]] = {
            "same": lambda: None,
            "gone": lambda one=one: [path.unlink() for path in one],
            "unlinked": one[0].unlink,
            "grown": lambda one=one, later=later: append(one[0], later),
            "other": lambda one=one, later=later: one[0].write_bytes(later),
            "shorter": lambda one=one, file=file: os.truncate(one[0], len(file["content"]) // 2),
            "mode": lambda one=one, file=file: one[0].chmod(file["mode"] ^ 0o070),
            "owner": lambda one=one, group=group: os.chown(one[0], OWNERS[-1], group),
            "times": lambda one=one: os.utime(one[0], ns=(2, 2)),
        }
        becomes[file["today"]]()
    for folder in ("a/b", "a", "c\udcff"):
        with suppress(OSError):
            (place / folder).rmdir()


def tools_of(folder: Path) -> Toolbox:
    (folder / "proc").mkdir()
    whole = FakeHost().toolbox(folder / "state")
    return replace(whole, files=Files(), carried=Carried(folder / "proc"))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@given(
    files=FILES,
    choice=st.sampled_from(["refuse", "keep", "replace"]),
    strikes=st.tuples(st.integers(0, 60), st.integers(0, 40)),
    when=st.sampled_from(["before", "after"]),
    what=st.sampled_from([Killed, failure]),
)
def test_plans_that_are_undone_leave_no_trace(
    files: list[dict[str, Any]],
    choice: str,
    strikes: tuple[int, int],
    when: str,
    what: Callable[[], BaseException],
) -> None:
    """Strikes come at the n-th call on the way there, and on the way back; at 0 they do not."""
    at, back = strikes
    folder = Path(tempfile.mkdtemp(prefix="gpuckpt-test-"))
    try:
        place = folder / "place"
        place.mkdir()
        tools = tools_of(folder)
        with image_of(tools, write(place, files), folder) as image:
            was = tree(place)
            happen(place, files)
            before = tree(place)
            job = Restoring(tools, image, choice)
            assert tree(place) == before, "a plan touches nothing"
            with striking(at, when, what), suppress(Killed, RestoreFailed):
                job.put()
                if at == 0:
                    as_it_was(job, was, tree(place), place)
            with striking(back, when, what), suppress(Killed, OSError):
                job.placing.take_back()
            job.repair()
            assert tree(place) == before
            job.repair()
            assert tree(place) == before
    finally:
        shutil.rmtree(folder)


def as_it_was(
    job: Restoring, was: dict[str, tuple[Any, ...]], now: dict[str, tuple[Any, ...]], place: Path
) -> None:
    """Each file of which the image's bytes were wanted has bytes, owner, mode and time of then."""
    for step in job.steps:
        if step.act in {Act.MAKE, Act.CUT, Act.REPLACE} and step.standing is not None:
            for path in step.standing.file.names:
                name = str(Path(path).relative_to(place))
                assert without_inode(was[name]) == without_inode(now[name]), (step.act, name)


def without_inode(seen: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*seen[:3], *seen[4:])


PATHS = st.lists(st.sampled_from(["a", "b", "a b", "\udcff"]), max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)


@given(old=PATHS, new=PATHS, path=PATHS)
def test_a_path_is_moved_with_all_that_is_below_it_and_nothing_else(
    old: str, new: str, path: str
) -> None:
    moves = Relocation(((old, new),))
    below = Path(path).is_relative_to(old)
    moved = moves.path(path)
    if below:
        assert Path(moved) == Path(new) / Path(path).relative_to(old)
    else:
        assert moved == path
    assert Relocation(((new, old),)).path(moved) == path or not below
