"""Whatever bytes claim to be a CRIU image: a value or ImageDamaged, and never anything else."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuckpt.errors import ImageDamaged
from gpuckpt.tools.criuimage import (
    ids,
    read_files,
    read_pstree,
    relocated,
)

if TYPE_CHECKING:
    from collections.abc import Callable

REAL = Path(__file__).parents[1] / "unit" / "tools" / "data" / "criu-4.2.1"
READERS: dict[str, Callable[[bytes], Any]] = {
    "pstree.img": lambda raw: ids(read_pstree(raw)),
    "files.img": read_files,
    "remap-fpath.img": lambda raw: read_files((REAL / "files.img").read_bytes(), raw),
}


@pytest.mark.parametrize("name", READERS)
@given(tail=st.binary(max_size=200))
def test_any_bytes_after_a_true_beginning(name: str, tail: bytes) -> None:
    with suppress(ImageDamaged):
        READERS[name]((REAL / name).read_bytes()[:8] + tail)


@pytest.mark.parametrize("name", READERS)
@given(body=st.binary(max_size=200))
def test_any_bytes_as_the_first_record(name: str, body: bytes) -> None:
    raw = (REAL / name).read_bytes()[:8] + len(body).to_bytes(4, "little") + body
    with suppress(ImageDamaged):
        READERS[name](raw)


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_real_images_with_damaged_bytes(name: str, data: st.DataObject) -> None:
    raw = bytearray((REAL / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    with suppress(ImageDamaged):
        READERS[name](bytes(raw))


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_real_images_cut_short(name: str, data: st.DataObject) -> None:
    raw = (REAL / name).read_bytes()
    at = data.draw(st.integers(0, len(raw) - 1))
    with suppress(ImageDamaged):
        READERS[name](raw[:at])


@settings(deadline=None)
@given(data=st.data())
def test_paths_of_damaged_images_are_rewritten_or_refused(data: st.DataObject) -> None:
    """What is read afterwards is what was read before, by other names."""
    raw = bytearray((REAL / "files.img").read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    below = data.draw(st.sampled_from(["", "/new", "/\udcff" * 99]))
    with suppress(ImageDamaged):
        before = read_files(bytes(raw))
        after = read_files(
            relocated(bytes(raw), lambda path: path if path.startswith("/proc/") else below + path)
        )
        assert {one.path for one in after.files} <= {
            name for one in before.files for name in (one.path, below + one.path)
        } | {below + "/"}
        assert after.listeners == before.listeners
