"""CUDA_VISIBLE_DEVICES as CUDA reads it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpuckpt.flow.gpu.visible import visible
from gpuckpt.image.manifest import ProcessRecord
from gpuckpt.tools.environment import environment
from tests import plan_samples
from tests.gpu_samples import gpu, switched, uuid

FOUR = switched("a", 4)


@pytest.mark.parametrize(
    ("said", "indexes"),
    [
        ("2", (2,)),
        ("3,1", (3, 1)),
        (" 3 , 1", (3, 1)),
        ("", ()),
        ("-1", ()),
        ("1,-1,2", (1,)),
        ("1,9,2", (1,)),
        ("0,1,0", ()),
        ("NoDevFiles", ()),
        ("1st,2nd", (1, 2)),
        (f"{uuid('a', 2)},{uuid('a', 0)}", (2, 0)),
        ("GPU-00aa0003,GPU-00aa0001", (3, 1)),
        ("GPU-00aa,GPU-00aa0001", ()),
        ("GPU-00aa0001,GPU-ffff,GPU-00aa0002", (1,)),
        ("GPU-00aa0001,GPU-00aa0001", ()),
        ("GPU-00aa0001,2", (1,)),
        ("2,GPU-00aa0001", (2,)),
    ],
)
def test_lists_as_cuda_reads_them(said: str, indexes: tuple[int, ...]) -> None:
    found = visible({"CUDA_VISIBLE_DEVICES": said}, FOUR)
    assert found == tuple(uuid("a", index) for index in indexes)


def test_what_cannot_be_told_is_not_guessed() -> None:
    mixed = (gpu("a", 0, name="NVIDIA L4"), gpu("a", 1))
    assert visible({}, FOUR) is None
    assert visible({"CUDA_VISIBLE_DEVICES": "MIG-1c2d"}, FOUR) is None
    # which is the fastest, and so number 0, only CUDA knows
    assert visible({"CUDA_VISIBLE_DEVICES": "0"}, mixed) is None
    by_bus = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible(by_bus, mixed) == (uuid("a", 0),)
    assert visible({"CUDA_VISIBLE_DEVICES": uuid("a", 1)}, mixed) == (uuid("a", 1),)


def test_the_order_is_that_of_the_bus() -> None:
    turned = (replace(FOUR[1], index=0), replace(FOUR[0], index=1))
    assert visible({"CUDA_VISIBLE_DEVICES": "0"}, turned) == (uuid("a", 0),)


def test_of_a_tree_only_cuda_processes_are_told() -> None:
    known = plan_samples.cuda_facts()
    raw = b"HOME=/root\0CUDA_VISIBLE_DEVICES=1\0CUDA_VISIBLE_DEVICES=0\0SECRET=1\0"
    around = environment(raw)
    assert dict(around.settings) == {"CUDA_VISIBLE_DEVICES": "1"}
    tasks = tuple(replace(one, settings=around.settings) for one in known.look.tasks)
    seen = replace(known, look=replace(known.look, tasks=tasks))
    assert seen.visible == {110: ("GPU-1",)}
    assert "visible" in ProcessRecord.__struct_fields__
