"""Digests of trees: what counts, what does not, and which paths are told."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from gpuckpt.tools import tracked
from gpuckpt.tools.software import Software

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuckpt.tools.tracked import Walk


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "deep" / "er").mkdir(parents=True)
    (top / "deep" / "er" / "file").write_bytes(b"content")
    (top / "deep" / os.fsdecode(b"\xff\n")).write_bytes(b"a name of any bytes")
    (top / "link").symlink_to("deep")
    os.mkfifo(top / "fifo")
    return top


def walked(path: Path, software: Software | None = None) -> Walk:
    found = (software or Software(path)).walk(str(path), full=False)
    assert found is not None
    return found


def test_a_copy_is_the_same_tree(tree: Path, tmp_path: Path) -> None:
    before = walked(tree)
    assert (before.kind, before.entries) == ("folder", 7)
    assert before.size == len(b"content") + len(b"a name of any bytes")
    shutil.copytree(tree, tmp_path / "copy", symlinks=True, ignore=lambda *_: ["fifo"])
    os.mkfifo(tmp_path / "copy" / "fifo")
    os.utime(tmp_path / "copy" / "deep", (1, 1))
    copy = walked(tmp_path / "copy")
    assert (copy.digest, copy.listing) == (before.digest, before.listing)
    (tmp_path / "name").symlink_to(tree)
    assert walked(tmp_path / "name").digest == before.digest


CHANGES: dict[str, tuple[Callable[[Path], object], list[tuple[str, str]]]] = {
    "bytes": (lambda top: (top / "deep/er/file").write_bytes(b"CONTENT"),
              [("deep/er/file", "changed")]),
    "mode": (lambda top: (top / "deep").chmod(0o700), [("deep", "changed")]),
    "gone": (lambda top: shutil.rmtree(top / "deep/er"),
             [("deep/er", "missing"), ("deep/er/file", "missing")]),
    "new": (lambda top: (top / "a").touch(), [("a", "new")]),
    "renamed": (lambda top: (top / "fifo").rename(top / "ofif"),
                [("fifo", "missing"), ("ofif", "new")]),
    "link": (lambda top: ((top / "link").unlink(), (top / "link").symlink_to("deep/er")),
             [("link", "changed")]),
    "kind": (lambda top: ((top / "fifo").unlink(), (top / "fifo").mkdir()),
             [("fifo", "changed")]),
    "top": (lambda top: top.chmod(0o711), [("", "changed")]),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_each_change_is_found_and_named(tree: Path, case: str) -> None:
    change, expected = CHANGES[case]
    tree.chmod(0o755)
    (tree / "deep").chmod(0o755)
    software = Software(tree)  # what it has read before must not hide anything
    before = walked(tree, software)
    assert walked(tree, software) is before
    change(tree)
    after = walked(tree, software)
    assert after.digest != before.digest
    assert tracked.differences(before.listing, after.listing) == expected
    assert walked(tree).digest == after.digest


def test_a_single_file_and_nothing(tree: Path) -> None:
    found = walked(tree / "deep" / "er" / "file")
    assert (found.kind, found.entries, found.size) == ("file", 1, 7)
    assert Software(tree).walk(str(tree / "none"), full=False) is None


def test_a_listing_that_is_none_names_nothing(tree: Path) -> None:
    listing = walked(tree).listing
    for bad in (b"no zstd", listing[:-5], b"\x28\xb5\x2f\xfd\x00\x00\x01\x00\x00"):
        assert tracked.differences(bad, listing) in ([], tracked.differences(b"", listing))


def test_too_long_a_listing_is_left_out(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = walked(tree)
    monkeypatch.setattr(tracked, "LARGEST_LISTING", 10)
    after = walked(tree)
    assert (after.digest, after.listing) == (before.digest, b"")
