"""Names of an image: what is accepted, what a stage is called."""

from __future__ import annotations

import os

import pytest

from gpuckpt.errors import ImageDamaged
from gpuckpt.image.names import check_name, is_stage, stage_name, stored_name

HOSTILE = [
    "",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    "-rf",
    ".hidden",
    "a b",
    "a\n",
    "pages-1.img\n",
    "näme",
    "٣",
    "a" * 129,
    "\udc80",
]


@pytest.mark.parametrize("name", ["pages-1.img", "core-1234.img", "a", "A_b.C-9", "x" * 128])
def test_criu_names_are_accepted(name: str) -> None:
    assert check_name(name) == name
    assert stored_name(name) == f"{name}.zst"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(ImageDamaged) as caught:
        stored_name(name)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isascii()


def test_a_stage_is_hidden_beside_the_image_and_never_twice_the_same() -> None:
    first, second = stage_name("job"), stage_name("job")
    assert first != second
    assert first.startswith(".job.stage-")
    assert is_stage(first)


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127, os.fsdecode(b"\xff" * 255)])
def test_a_stage_name_fits_where_the_image_name_fits(name: str) -> None:
    assert len(os.fsencode(stage_name(name))) <= 255
    assert is_stage(stage_name(name))


@pytest.mark.parametrize(
    "name", ["job", ".job", "job.stage-12345678", ".job.stage-1234567", ".job.stage-1234567G", ""]
)
def test_other_names_are_no_stages(name: str) -> None:
    assert not is_stage(name)
