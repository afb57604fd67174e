"""Folders of stores, on fsspec's store in memory: what each kind must do."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from gpuckpt.errors import StoreFailed, UsageError
from gpuckpt.location import Url
from gpuckpt.tools.remote import RemoteFolder
from gpuckpt.tools.remote_s3 import part_size

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder() -> Iterator[RemoteFolder]:
    made = RemoteFolder(Url(f"memory://{uuid4().hex}/image"))
    yield made
    made.remove_all()
    made.close()


def test_objects_are_written_listed_read_and_removed(folder: RemoteFolder) -> None:
    assert folder.names() == {}
    folder.put("criu/a", b"12345")
    upload = folder.upload("criu/b", 6)
    assert (upload.part, upload.there) == (0, frozenset())
    upload.write(0, b"abc")
    upload.write(3, memoryview(b"def"))
    upload.close()
    folder.put("manifest.json", b"")
    assert folder.names() == {"criu/a": 5, "criu/b": 6, "manifest.json": 0}
    assert folder.read("criu/b", 2, 3) == b"cde"
    assert folder.read("criu/b", 4, 100) == b"ef"
    assert folder.read("criu/b", 0, 0) == b""
    folder.remove("criu/a")
    folder.remove("criu/a")
    with pytest.raises(FileNotFoundError):
        folder.read("criu/a", 0, 1)
    folder.remove_all()
    folder.remove_all()
    assert folder.names() == {}


@pytest.mark.parametrize("name", ["run[12]", "run?", "run*"])
def test_what_lies_beside_a_folder_stays(folder: RemoteFolder, name: str) -> None:
    inner = RemoteFolder(folder.url / name)
    folder.put("run1/a", b"x")
    folder.put("run2/a", b"x")
    inner.put("criu/a", b"x")
    inner.remove_all()
    assert (inner.names(), sorted(folder.names())) == ({}, ["run1/a", "run2/a"])


def test_what_is_taken_back_is_not_there(folder: RemoteFolder) -> None:
    upload = folder.upload("criu/a", 0)
    upload.write(0, b"abc")
    upload.abort()
    upload.abort()
    assert folder.names() == {}


def test_a_failure_names_the_object(folder: RemoteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no\nway \x1b[31m")

    monkeypatch.setattr(folder._drive.fs, "cat_file", fails)  # type: ignore[attr-defined]
    with pytest.raises(StoreFailed) as failed:
        folder.read("criu/a", 0, 1)
    assert str(failed.value) == f"{folder.url}/criu/a: no way ?[31m"


@pytest.mark.parametrize("url", ["gpuckpt-nowhere://host/image", "gs://bucket/image"])
def test_a_store_nobody_can_talk_to_says_what_is_missing(url: str) -> None:
    with pytest.raises(UsageError, match="can talk to"):
        RemoteFolder(Url(url))


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gpuckpt.tools.remote_s3", None)
    with pytest.raises(UsageError) as failed:
        RemoteFolder(Url("s3://bucket/image"))
    assert failed.value.hint == "pip install 'gpuckpt[s3]'"


def test_libraries_do_not_tell_how_requests_are_signed(folder: RemoteFolder) -> None:
    for name in ("botocore.auth", "aiobotocore", "paramiko.transport", "s3fs", "fsspec.sftp"):
        assert not logging.getLogger(name).isEnabledFor(logging.DEBUG), folder.url


def test_an_object_of_any_size_fits_into_the_parts_there_may_be() -> None:
    for size in (1, 1 << 30, 160_000 << 20, (160_000 << 20) + 1, 5 << 40):
        part = part_size(size)
        assert part % (1 << 20) == 0
        assert 5 << 20 <= part <= 5 << 30
        assert -(-size // part) <= 10_000
