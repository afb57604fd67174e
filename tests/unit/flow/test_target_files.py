"""The files outside an image, as a host has them: which of them are read, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

from msgspec.structs import replace

from gpuckpt.flow.returning.target.files import files
from gpuckpt.image.outside import FileRecord
from gpuckpt.tools.digest import Digest
from tests import image_samples
from tests.fakes.host import FakeHost

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def record(path: str, **more: Any) -> FileRecord:
    plain = FileRecord(path=path, size=3, mode=0o100644, build_id="", mtime_ns=1)
    return replace(plain, digest="aa", **more)


def test_what_was_hashed_is_hashed_again_in_the_same_way(tmp_path: Path) -> None:
    """What is of another size, gone, or was never read needs no reading."""
    asked: list[tuple[tuple[str, ...], bool]] = []

    def digests(paths: Iterable[str], *, full: bool) -> dict[str, Digest | None]:
        asked.append((tuple(paths), full))
        return {path: Digest("bb", not full, 3, 1) for path in asked[-1][0] if path != "/unread"}

    plain = image_samples.manifest()
    records = (
        record("/sampled", sampled=True),
        record("/whole"),
        record("/unread"),
        record("/larger"),
        record("/gone"),
        replace(record("/never"), digest=""),
    )
    manifest = replace(plain, outside=replace(plain.outside, files=records))
    seen = {one.path: mock.Mock(size=3, mode=one.mode, build_id="", mtime_ns=1) for one in records}
    seen["/larger"].size = 4
    seen["/gone"] = None
    tools = replace(
        FakeHost().toolbox(tmp_path),
        files=mock.Mock(look=lambda path, **_: seen[path]),
        software=mock.Mock(digests=digests),
    )
    found = files(tools, manifest, (), apart=False)
    assert asked == [(("/sampled",), False), (("/whole", "/unread"), True)]
    assert {path: one.digest for path, one in found.items() if one} == {
        "/sampled": "bb",
        "/whole": "bb",
        "/unread": "",
        "/larger": "",
        "/never": "",
    }
    assert found["/gone"] is None
