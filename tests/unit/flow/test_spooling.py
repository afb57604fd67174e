"""How much of a job may wait in memory: what is there, what comes first, and what is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.flow.sight.rules.room import memory_image
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.flow.sight.spooling import buffers, spool
from gpuckpt.tools.destination import Place
from tests.plan_samples import GIB, cuda_facts, facts

if TYPE_CHECKING:
    from gpuckpt.flow.sight.facts import DumpFacts


def with_memory(known: DumpFacts, available: int) -> DumpFacts:
    return replace(known, host=replace(known.host, memory_available=available))


def test_all_of_it_waits_where_there_is_room() -> None:
    known = with_memory(facts(), 100 * GIB)
    found = spool(known)
    assert found.whole
    assert found.bytes == found.needed == known.image_bytes
    assert "goes on when CRIU has read them" in found.story


def test_the_gpus_bytes_come_first() -> None:
    """They go to host memory before a byte is read of it."""
    known = cuda_facts()
    first = known.gpu_bytes + known.gpu_bytes // 20
    assert spool(with_memory(known, first)).bytes == 0
    assert 0 < spool(with_memory(known, first + 4 * GIB)).bytes < 4 * GIB


@pytest.mark.parametrize("available", [0, 1 << 20, 512 << 20])
def test_a_part_is_always_left_to_others(available: int) -> None:
    found = spool(with_memory(facts(), available))
    assert found.bytes == 0
    assert "none of" in found.story
    assert "stands still until the rest is written" in found.story


def test_a_part_of_it_is_told_as_such() -> None:
    known = with_memory(cuda_facts(), 12 * GIB)
    found = spool(known)
    assert 0 < found.bytes < found.needed
    assert "only" in found.story


def test_an_image_in_memory_needs_its_own_place_there() -> None:
    known = with_memory(facts(), 4 * GIB)
    disk = replace(known, place=Place("ext4", "/ckpt"))
    memory = replace(known, place=Place("tmpfs", "/dev/shm"))
    assert spool(disk).whole
    assert spool(memory).available == spool(disk).available
    less = with_memory(memory, memory.image_bytes + (512 << 20))
    assert spool(less).bytes == 0


@pytest.mark.parametrize("available", [100, 140, 180])
def test_buffers_leave_the_rest_of_a_small_cgroup_to_everything_else(available: int) -> None:
    known = with_memory(facts(), available << 20)
    assert 0 < buffers(known) <= (available - 64) << 20
    on_disk = replace(known, place=Place("ext4", "/ckpt"))
    in_memory = replace(known, place=Place("tmpfs", "/dev/shm"))
    assert buffers(in_memory) <= buffers(on_disk)


def test_there_are_always_buffers_to_work_with() -> None:
    assert buffers(with_memory(facts(), 0)) > 16 << 20


@pytest.mark.parametrize(("filesystem", "ids"), [("tmpfs", ["memory-image"]), ("ext4", [])])
def test_an_image_in_memory_that_may_not_fit_is_told(filesystem: str, ids: list[str]) -> None:
    known = replace(facts(), place=Place(filesystem, "/ckpt"))
    less = with_memory(known, known.image_bytes - 1)
    assert [one.id for one in memory_image(less, DumpChoices())] == ids
    assert not list(memory_image(with_memory(known, known.image_bytes), DumpChoices()))
