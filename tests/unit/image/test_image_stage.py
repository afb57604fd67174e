"""The stage: made, filled, committed, taken back, discarded, and swept after a crash."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import time
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import (
    Bug,
    GpuckptError,
    ImageExists,
    NoSpace,
    NotAnImage,
    NotWritable,
    UsageError,
    WriteFailed,
)
from gpuckpt.image import names
from gpuckpt.image.stage import Stage, sweep
from gpuckpt.image.store import Image
from tests import image_places as places
from tests import image_samples as samples

if TYPE_CHECKING:
    from pathlib import Path


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_an_image_is_for_its_owner_only_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        samples.write_image(tmp_path / "job", {"inventory.img": b"x"})
    finally:
        os.umask(before)
    assert modes(tmp_path / "job") == {0o700, 0o600}


def test_no_image_is_there_before_the_commit(tmp_path: Path) -> None:
    stage = Stage.create(tmp_path / "job")
    assert names.is_stage(stage.folder.name)
    assert stage.folder.parent == tmp_path
    assert stage.criu.is_dir()
    assert stage.logs.is_dir()
    with pytest.raises(NotAnImage):
        Image.open(stage.folder)
    assert stage.commit(samples.manifest()) == tmp_path / "job"
    assert stage.folder == tmp_path / "job"
    assert everything(tmp_path) == ["job", "job/criu", "job/logs", "job/manifest.json"]
    with Image.open(tmp_path / "job") as image:
        assert image.manifest == samples.manifest()
    stage.close()


def test_a_commit_can_be_taken_back_and_made_again(tmp_path: Path) -> None:
    stage = Stage.create(tmp_path / "job", "me")
    stage.commit(samples.manifest())
    stage.uncommit()
    stage.uncommit()
    assert not (tmp_path / "job").exists()
    assert (stage.folder / names.OWNER).read_text() == "me"
    assert not (stage.folder / names.MANIFEST).exists()
    stage.commit(samples.manifest())
    stage.uncommit()
    stage.discard()
    assert everything(tmp_path) == []


def test_discard_leaves_nothing_but_never_removes_an_image(tmp_path: Path) -> None:
    stage = Stage.create(tmp_path / "job")
    (stage.criu / "x.zst").write_bytes(b"x")
    stage.discard()
    stage.discard()
    assert everything(tmp_path) == []
    stage = Stage.create(tmp_path / "job")
    stage.commit(samples.manifest())
    stage.discard()
    assert (tmp_path / "job" / names.MANIFEST).exists()


def test_a_manifest_nobody_could_read_stops_the_commit(tmp_path: Path) -> None:
    stage = Stage.create(tmp_path / "job")
    with pytest.raises(Bug):
        stage.commit(samples.manifest(root_pid=3))
    assert not (tmp_path / "job").exists()
    stage.discard()


@pytest.mark.parametrize("kind", ["folder", "empty", "file", "link"])
def test_what_is_there_already_is_never_touched(tmp_path: Path, kind: str) -> None:
    final = tmp_path / "job"
    stage = Stage.create(final)
    if kind == "link":
        final.symlink_to("nowhere")
    elif kind == "file":
        final.write_text("mine")
    else:
        final.mkdir()
    if kind == "folder":
        (final / "mine").write_text("mine")
    before = everything(tmp_path)
    with pytest.raises(ImageExists):
        Stage.create(final)
    assert everything(tmp_path) == before
    with pytest.raises(ImageExists):
        stage.commit(samples.manifest())
    stage.discard()
    assert [name for name in before if ".stage-" not in name] == everything(tmp_path)


def test_a_filesystem_that_cannot_rename_safely_does_not_overwrite_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1

    monkeypatch.setattr("gpuckpt.image.disk._libc.renameat2", refuses)
    stage = Stage.create(tmp_path / "job")
    (tmp_path / "job").mkdir()
    with pytest.raises(ImageExists):
        stage.commit(samples.manifest())
    (tmp_path / "job").rmdir()
    stage.commit(samples.manifest())
    assert (tmp_path / "job" / names.MANIFEST).exists()
    stage.close()


@pytest.mark.parametrize("broken", range(5))
def test_a_sync_that_fails_leaves_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    """Manifest, criu, logs, stage and, after the rename, the parent: each of them may fail."""
    real, calls = os.fsync, list[int]()

    def fsync(fd: int) -> None:
        calls.append(fd)
        if len(calls) == broken + 1:
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    stage = Stage.create(tmp_path / "job")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(WriteFailed, match="Input/output error"):
        stage.commit(samples.manifest())
    assert len(calls) >= broken + 1
    assert not (tmp_path / "job").exists()
    assert not stage.committed
    stage.commit(samples.manifest())
    with Image.open(tmp_path / "job") as image:
        assert image.manifest == samples.manifest()
    stage.close()


def test_a_rename_that_fails_leaves_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    stage = Stage.create(tmp_path / "job")
    with monkeypatch.context() as patch:
        patch.setattr("gpuckpt.image.disk._libc.renameat2", refuses)
        with pytest.raises(WriteFailed, match="could not be written"):
            stage.commit(samples.manifest())
    stage.discard()
    assert everything(tmp_path) == []


@pytest.mark.parametrize("length", [86, 109, 400, 3700, 4080])
def test_long_paths_work(tmp_path: Path, length: int) -> None:
    folder = tmp_path
    while (room := length - len(str(folder))) > 2:
        folder /= "d" * min(room - 2, 200)
        folder.mkdir()
    final = folder / "i"
    stage = Stage.create(final)
    (stage.criu / f"{'n' * 128}.zst").write_bytes(b"x")
    (stage.logs / "criu.log").write_bytes(b"x")
    stage.commit(samples.manifest())
    stage.close()
    with Image.open(final) as image:
        assert list(image.strays()) == [f"criu/{'n' * 128}.zst"]


def test_an_image_name_may_be_as_long_as_a_name_can_be(tmp_path: Path) -> None:
    samples.write_image(tmp_path / ("n" * 255), {"a.img": b"x"})
    with pytest.raises(UsageError):
        Stage.create(tmp_path / ("n" * 256))


@pytest.mark.parametrize("name", ["..", "/", "x/..", ".job.stage-01234567"])
def test_a_name_that_is_none_is_a_usage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        Stage.create(tmp_path / name)


def test_each_bad_parent_has_its_own_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotWritable, match="does not exist"):
        Stage.create(tmp_path / "missing" / "job")
    with pytest.raises(NotWritable, match="is not a folder"):
        Stage.create(tmp_path / "file" / "job")


def test_a_parent_of_another_user(tmp_path: Path) -> None:
    del tmp_path
    with places.other_user() as folder, pytest.raises(NotWritable, match="this user"):
        Stage.create(folder / "job")


def test_a_read_only_filesystem(tmp_path: Path) -> None:
    with (
        places.tmpfs(tmp_path / "ro", "ro") as folder,
        pytest.raises(NotWritable, match="read-only"),
    ):
        Stage.create(folder / "job")


def test_a_full_filesystem_leaves_nothing(tmp_path: Path) -> None:
    with places.tmpfs(tmp_path / "full", "size=64k,nr_inodes=3") as folder:
        with pytest.raises(NoSpace, match="MiB are free"):
            Stage.create(folder / "job")
        assert everything(folder) == []


def test_a_disk_that_fills_up_before_the_manifest(tmp_path: Path) -> None:
    with places.tmpfs(tmp_path / "full", "size=1m") as folder:
        stage = Stage.create(folder / "job", "me")
        with (stage.criu / "fill").open("wb", buffering=0) as file:
            while file.write(bytes(1 << 20)) == 1 << 20:
                pass
        with pytest.raises(GpuckptError, match=r"is full: 0\.0 MiB are free"):
            stage.commit(samples.manifest())
        assert not (folder / "job").exists()
        stage.discard()
        assert everything(folder) == []


def test_a_stage_of_a_killed_process_is_swept(tmp_path: Path) -> None:
    ready, done = os.pipe()
    pid = os.fork()
    if pid == 0:  # the child makes a stage and is killed in the middle of it
        Stage.create(tmp_path / "job", "writer 7")
        os.write(done, b"x")
        time.sleep(60)
        os._exit(1)
    os.read(ready, 1)
    asked: list[str] = []

    def dead(owner: str) -> bool:
        asked.append(owner)
        return False

    assert sweep(tmp_path, dead) == ()
    assert asked == []
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert sweep(tmp_path, lambda _: True) == ()
    (found,) = sweep(tmp_path, dead)
    assert asked == ["writer 7"]
    assert names.is_stage(found.name)
    assert everything(tmp_path) == []
    os.close(ready)
    os.close(done)


def test_sweep_leaves_everything_else_alone(tmp_path: Path) -> None:
    samples.write_image(tmp_path / "job", {"a.img": b"x"})
    target = tmp_path / "precious"
    target.mkdir()
    (target / "file").write_text("x")
    (tmp_path / ".job.stage-00000000").symlink_to(target)
    (tmp_path / ".job.stage-00000001").write_text("a file")
    (tmp_path / ".job.stage-00000002").mkdir()  # no owner yet: it is being made this moment
    before = everything(tmp_path)
    assert sweep(tmp_path, lambda _: False) == ()
    assert everything(tmp_path) == before
    os.utime(tmp_path / ".job.stage-00000002", (0, 0))
    assert sweep(tmp_path, lambda _: False) == (tmp_path / ".job.stage-00000002",)
    assert sweep(tmp_path / "missing", lambda _: False) == ()


def test_sweep_leaves_the_stages_of_others(tmp_path: Path) -> None:
    places.need_root("to make a stage of another user")
    stage = Stage.create(tmp_path / "job")
    stage.close()
    os.chown(stage.folder, places.NOBODY, places.NOBODY)
    assert sweep(tmp_path, lambda _: False) == ()
    assert stage.folder.exists()
