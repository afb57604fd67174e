"""Where the GPUs of an image go: on hosts as they are built, and what is refused in which words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.image.gpuplan import GpuPlan, gpu_plan
from gpuckpt.image.gpus import gpu_gates
from tests.gpu_samples import (
    GIB,
    bridged,
    gpu,
    halves,
    image,
    nvidia,
    ranks,
    switched,
    uuid,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding, Gpu


def indexes(plan: GpuPlan) -> list[int | None]:
    """Return the index of the GPU here for each of the image's."""
    return [one.new.index if one.new is not None else None for one in plan.places]


def gates(
    manifest: Manifest, here: Sequence[Gpu], *asked: tuple[str, str], driver: str = "580.159.04"
) -> dict[str, Finding]:
    facts = nvidia(here, driver)
    record = manifest.nvidia
    assert record is not None
    need = {use.uuid: use.bytes for use in record.uses}
    plan = gpu_plan(manifest, facts, asked, need)
    found = list(gpu_gates(manifest, facts, plan))
    assert all(one.reason and one.remedy for one in found)
    return {one.id: one for one in found if one.id not in {"gate-driver", "gate-gpu-bus"}}


def test_the_same_gpus_need_no_map_however_they_are_linked() -> None:
    for here in (switched(), halves(), bridged("c", [(0, 1), (2, 3)])):
        plan = gpu_plan(image(here, ranks(len(here))), nvidia(here))
        assert plan.map == {}
        assert {one.how for one in plan.places} == {"same"}


def test_the_same_gpus_in_another_order_are_named_to_the_driver() -> None:
    """Without a map it goes by their order."""
    first, second = switched(count=2)
    moved = (replace(second, index=0), replace(first, index=1))
    plan = gpu_plan(image((first, second), ranks(2)), nvidia(moved))
    assert plan.map == {first.uuid: first.uuid, second.uuid: second.uuid}


def test_another_host_of_the_same_kind_is_taken_in_order() -> None:
    plan = gpu_plan(image(switched("a"), ranks(8)), nvidia(switched("b")))
    assert plan.map == {uuid("a", i): uuid("b", i) for i in range(8)}
    assert {one.how for one in plan.places} == {"planned"}
    assert gpu_plan(image(switched("a", 16), ranks(16)), nvidia(switched("b", 16))).map


def test_ranks_of_one_socket_stay_on_one_socket() -> None:
    """The job had all of node 0; there node 0 has the even numbers."""
    plan = gpu_plan(image(halves("a"), ranks(4)), nvidia(halves("b", left=(0, 2, 4, 6))))
    assert set(indexes(plan)[:4]) == {0, 2, 4, 6}
    # the node with the same number, for the CPUs that the job is bound to
    plan = gpu_plan(image(halves("a"), ranks(4)), nvidia(halves("b", left=(4, 5, 6, 7))))
    assert indexes(plan)[:4] == [4, 5, 6, 7]


def test_what_is_bridged_stays_bridged() -> None:
    was = bridged("a", [(0, 1), (2, 3), (4, 5), (6, 7)])
    now = bridged("b", [(0, 4), (1, 5), (2, 6), (3, 7)])
    plan = gpu_plan(image(was, ranks(8)), nvidia(now))
    for one in (0, 2, 4, 6):
        a, b = indexes(plan)[one], indexes(plan)[one + 1]
        assert a is not None
        assert b is not None
        assert now[a].nvlinks[b] == 12
    # a job on one bridge of four gets a bridge, and its second GPU is no other card
    plan = gpu_plan(image(was, [(0, 2), (0, 3)]), nvidia(now))
    a, b = indexes(plan)[2], indexes(plan)[3]
    assert (a, b) in {(0, 4), (4, 0), (1, 5), (5, 1), (2, 6), (6, 2), (3, 7), (7, 3)}


def test_gpus_of_one_process_matter_more_than_those_of_one_job() -> None:
    """Four GPUs, two bridges: processes hold 0+2 and 1+3, and those were the bridges."""
    was = bridged("a", [(0, 2), (1, 3)])
    now = bridged("b", [(0, 1), (2, 3)])
    places = indexes(gpu_plan(image(was, [(0, 0), (0, 2), (1, 1), (1, 3)]), nvidia(now)))
    assert {frozenset((places[0], places[2])), frozenset((places[1], places[3]))} == {
        frozenset({0, 1}),
        frozenset({2, 3}),
    }


def test_gpus_that_are_here_stay_and_the_rest_is_planned() -> None:
    was = switched("a", 4)
    here = (was[0], replace(gpu("b", 1), numa=0), was[2], replace(was[3], index=3))
    plan = gpu_plan(image(was, ranks(4)), nvidia(here))
    assert plan.map[was[1].uuid] == uuid("b", 1)
    assert [one.how for one in plan.places] == ["same", "planned", "same", "same"]


def test_models_find_each_other() -> None:
    small = gpu("a", 0, name="NVIDIA L4", compute_capability="8.9", memory_total=24 * GIB)
    was = (small, *switched("a", 4)[1:])
    now = (*switched("b", 4)[:3], replace(small, index=3, uuid=uuid("b", 3)))
    plan = gpu_plan(image(was, [(0, 1), (0, 2)]), nvidia(now))
    assert indexes(plan)[0] == 3
    assert not [one for one in plan.places if one.trouble]


def test_memory_that_is_free_is_preferred_and_other_ways_named() -> None:
    now = list(switched("b", 4))
    now[0] = replace(now[0], memory_free=GIB)
    manifest = image(switched("a", 4), [(0, 0)])
    need = {uuid("a", 0): 10 * GIB}
    plan = gpu_plan(manifest, nvidia(now), (), need)
    assert indexes(plan)[0] == 1
    asked = gpu_plan(manifest, nvidia(now), (("0", "0"),), need)
    assert (asked.places[0].trouble, asked.places[0].how) == ("too little of it is free", "asked")
    free = replace(now[0], memory_free=100 * GIB)
    again = asked.renewed(nvidia((free, *now[1:])))
    assert (again.places[0].trouble, again.map) == ("", asked.map)


@pytest.mark.parametrize(
    "asked",
    [
        (("0", "1"), ("1", "0")),
        (("0", "1"),),
        ((uuid("a", 0), uuid("a", 1)),),
        (("gpu-00AA0000", "00aa0001"),),
    ],
)
def test_two_gpus_are_swapped_on_their_own_host(asked: tuple[tuple[str, str], ...]) -> None:
    here = switched("a", 2)
    plan = gpu_plan(image(here, ranks(2)), nvidia(here), asked)
    assert plan.map == {uuid("a", 0): uuid("a", 1), uuid("a", 1): uuid("a", 0)}
    assert gates(image(here, ranks(2)), here, *asked) == {}


def test_naming_a_part_leaves_the_others_where_they_are() -> None:
    here = switched("a", 8)
    places = indexes(gpu_plan(image(here, ranks(8)), nvidia(here), (("2", "5"),)))
    assert places == [0, 1, 5, 3, 4, 2, 6, 7]


def test_names_that_make_no_sense() -> None:
    here = switched("a", 4)
    manifest = image(here, ranks(4))
    unknown = gates(manifest, here, ("9", "0"))["gpu-map-unknown"]
    assert "no GPU 9 in the image" in unknown.reason
    assert uuid("a", 3) in unknown.reason
    other = gates(manifest, here, ("0", "GPU-ffff"))["gpu-map-unknown"]
    assert "in this host" in other.reason
    assert "4 GPUs" not in other.reason
    bare = gates(manifest, (), ("0", "1"))["gpu-map-unknown"]
    assert (bare.object, bare.reason) == ("--gpu-map 1", "This host has no GPU.")
    none = gates(image((), {}), here, ("0", "1"))["gpu-map-unknown"]
    assert (none.object, none.reason) == ("--gpu-map 0", "The image has no GPU.")
    assert set(gates(manifest, here, ("GPU-00aa", "0"))) == {"gpu-map-unclear"}
    twice = gates(manifest, here, ("0", "2"), ("1", uuid("a", 2)))["gpu-map-twice"]
    assert "GPU 2 is to take two GPUs" in twice.reason
    both = gates(manifest, here, ("0", "1"), (uuid("a", 0), "2"))["gpu-map-twice"]
    assert "GPU 0 goes to two GPUs" in both.reason
    assert all("--force-gate" not in one.remedy for one in (unknown, other, twice, both))


def test_fewer_gpus_than_the_job_used() -> None:
    found = gates(image(switched("a", 4), ranks(4)), switched("b", 2))
    assert set(found) == {"gate-gpu-missing"}
    assert "which the job used" in found["gate-gpu-missing"].reason
    assert "--force-gate" not in found["gate-gpu-missing"].remedy


def test_a_job_that_saw_one_of_eight_may_be_tried_on_one() -> None:
    """Whether the driver does it is not known; the map then names what the job saw first."""
    manifest = image(switched("a", 8), [(0, 5)], visible={0: (5,)})
    here = switched("b", 1)
    found = gates(manifest, here)
    assert set(found) == {"gate-gpu-count", "gpu-visible"}
    assert not found["gpu-visible"].blocks
    assert "saw only 1 of them" in found["gate-gpu-count"].reason
    assert "--force-gate gate-gpu-count" in found["gate-gpu-count"].remedy
    assert gpu_plan(manifest, nvidia(here)).map == {uuid("a", 5): uuid("b", 0)}
    unlimited = gates(image(switched("a", 8), [(0, 5)]), here)["gate-gpu-count"]
    assert "saw all of them, though it used fewer" in unlimited.reason


def test_a_job_may_see_more_than_it_uses() -> None:
    manifest = image(switched("a", 8), [(0, 5)], visible={0: (5, 6)})
    plan = gpu_plan(manifest, nvidia(switched("b", 2)))
    assert set(plan.map) == {uuid("a", 5), uuid("a", 6)}


def test_more_gpus_than_there_were() -> None:
    manifest = image(switched("a", 2), ranks(2))
    here = (*switched("a", 2), gpu("a", 2))
    found = gates(manifest, here)
    assert set(found) == {"gate-gpu-count"}
    assert "only some of the GPUs here is not known" in found["gate-gpu-count"].reason
    assert gpu_plan(manifest, nvidia(here)).map == {uuid("a", 0): uuid("a", 0)} | {
        uuid("a", 1): uuid("a", 1)
    }


def test_a_driver_that_takes_no_map() -> None:
    here, other = switched("a", 2), switched("b", 2)
    manifest = image(here, ranks(2))
    assert gates(manifest, here, driver="570.86") == {}
    assert set(gates(manifest, other, driver="570.86")) == {"gate-gpu-remap"}
    assert set(gates(manifest, here, ("0", "1"), driver="570.86")) == {"gate-gpu-remap"}
    assert gates(manifest, other, driver="580.65") == {}


def test_a_gpu_that_fell_off_the_bus_is_none() -> None:
    was = switched("a", 2)
    lost = (was[0], replace(was[1], uuid="", name=""))
    assert indexes(gpu_plan(image(was, ranks(2)), nvidia(lost))) == [0, None]
    assert set(gates(image(was, ranks(2)), lost)) == {"gate-gpu-missing"}
