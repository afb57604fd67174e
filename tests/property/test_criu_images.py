"""Whatever bytes claim to be a CRIU image: a value or ImageDamaged, and never anything else."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuckpt.errors import ImageDamaged
from gpuckpt.tools.criuimage import (
    ids,
    read_files,
    read_pstree,
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
