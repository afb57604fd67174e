"""Folders that went with a boot: written down, made again, and gone if it comes to nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuckpt.errors import RestoreFailed
from gpuckpt.flow.leftovers.placed import remaining
from gpuckpt.flow.returning.placing import Placing
from gpuckpt.flow.returning.target.fileplan import file_plan
from gpuckpt.flow.returning.target.ground import made_in
from gpuckpt.flow.taking.folders import folders
from gpuckpt.image import flaws
from gpuckpt.image.outside import FolderRecord
from gpuckpt.tools.carried import Carried
from gpuckpt.tools.files import Files
from tests.fakes.host import FakeHost
from tests.image_samples import manifest as sample

if TYPE_CHECKING:
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.flow.work.traces import Placed


@pytest.fixture
def tools(tmp_path: Path) -> Toolbox:
    """Give a fake host with the files of this one."""
    whole = FakeHost().toolbox(tmp_path / "state")
    return replace(whole, files=Files(), carried=Carried(Path("/proc")))


class Made:
    """The folders of a manager's socket, and a restore that makes them."""

    def __init__(self, tools: Toolbox, folder: Path) -> None:
        self.outer, self.inner = folder / "outer", folder / "outer" / "inner"
        self.outer.mkdir(mode=0o711)
        self.inner.mkdir(mode=0o700)
        self.found = folders(tools, (str(self.inner / "socket"), str(self.outer / "x"), "@name"))
        self.inner.rmdir()
        self.outer.rmdir()
        outside = msgspec.structs.replace(sample().outside, folders=self.found)
        self.manifest = msgspec.structs.replace(sample(), outside=outside)
        image: Any = type("Image", (), {"manifest": self.manifest})
        self.noted: list[tuple[Placed, ...]] = []
        steps = file_plan(self.manifest, (), {one.path: False for one in self.found})
        self.placing = Placing(
            tools, image, steps, lambda **known: self.noted.append(known["placed"])
        )


def test_made_and_taken_back(tools: Toolbox, tmp_path: Path) -> None:
    made = Made(tools, tmp_path)
    assert [(one.path, one.mode) for one in made.found][-2:] == [
        (str(made.outer), 0o711),
        (str(made.inner), 0o700),
    ]
    assert made_in(tools, made.manifest, str(made.inner)) == str(tmp_path)
    assert made.placing.needed
    made.placing.put(lambda _: None)
    assert [path.stat().st_mode & 0o777 for path in (made.outer, made.inner)] == [0o711, 0o700]
    assert not made.placing.needed
    assert [len(one) for one in made.noted] == [2, 2]
    assert remaining(tools, made.noted[-1], job_stands=False) == (str(made.inner), str(made.outer))
    assert remaining(tools, made.noted[-1], job_stands=True) == ()
    made.placing.settle()
    assert made.inner.exists()
    made.placing.take_back()
    assert not made.outer.exists()


def test_what_lies_in_them_stays(tools: Toolbox, tmp_path: Path) -> None:
    made = Made(tools, tmp_path)
    made.placing.put(lambda _: None)
    (made.inner / "of somebody").touch()
    made.placing.take_back()
    assert (made.inner / "of somebody").exists()


def test_no_link_is_followed(tools: Toolbox, tmp_path: Path) -> None:
    made = Made(tools, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    made.outer.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RestoreFailed, match="outer/inner could not be put back"):
        made.placing.put(lambda _: None)
    assert not list((tmp_path / "elsewhere").iterdir())
    # nor is what was behind one written down
    assert folders(tools, (str(made.outer / "inner" / "socket"),)) == ()


def test_a_folder_that_cannot_be_given_to_its_owner_goes_again(
    tools: Toolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    made = Made(tools, tmp_path)
    monkeypatch.setattr("os.fchown", refused)
    with pytest.raises(RestoreFailed, match="could not be put back"):
        made.placing.put(lambda _: None)
    assert not made.outer.exists()
    assert [one.inode for one in made.noted[-1]] == [0, 0]


@pytest.mark.parametrize(
    "folder",
    [
        {"path": "/a/../b"},
        {"path": "relative"},
        {"mode": 0o17777},
        {"uid": 1 << 32},
    ],
)
def test_folders_that_no_manifest_may_name(folder: dict[str, Any]) -> None:
    known = {"path": "/a", "mode": 0o700, "uid": 0, "gid": 0} | folder
    outside = msgspec.structs.replace(sample().outside, folders=(FolderRecord(**known),))
    bad = msgspec.structs.replace(sample(), outside=outside)
    assert next(flaws.flaws(bad), None)
