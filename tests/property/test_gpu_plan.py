"""Plans of GPUs: always a permutation, the same one every time, and nothing moves without need."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuckpt.image.gpupairs import Costs, cheapest
from gpuckpt.image.gpuplan import gpu_plan
from tests.gpu_samples import GIB, gpu, image, nvidia

if TYPE_CHECKING:
    from gpuckpt.model import Gpu

RELAXED = settings(deadline=None, max_examples=80)
MODELS = ("NVIDIA H200", "NVIDIA L4")


@st.composite
def hosts(draw: st.DrawFn, name: str, least: int = 1, most: int = 8) -> tuple[Gpu, ...]:
    """Return GPUs tied together in any way, some of it unknown."""
    count = draw(st.integers(least, most))
    links = st.sampled_from([0, 0, 4, 18])
    path = st.sampled_from(["", "PIX", "PHB", "NODE", "SYS"])
    rows = st.one_of(st.just(()), st.lists(links, min_size=count, max_size=count).map(tuple))
    ways = st.one_of(st.just(()), st.lists(path, min_size=count, max_size=count).map(tuple))
    return tuple(
        gpu(
            name,
            index,
            name=draw(st.sampled_from(MODELS)),
            memory_free=draw(st.sampled_from([GIB, 100 * GIB])),
            numa=draw(st.sampled_from([None, 0, 1])),
            nvlinks=draw(rows),
            paths=draw(ways),
        )
        for index in range(count)
    )


uses = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=8, unique=True)


@RELAXED
@given(
    was=hosts("a"),
    now=hosts("b"),
    used=uses,
    kept=st.sets(st.integers(0, 7)),
    asked=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=3),
)
def test_a_plan_is_a_permutation_and_always_the_same(
    was: tuple[Gpu, ...],
    now: tuple[Gpu, ...],
    used: list[tuple[int, int]],
    kept: set[int],
    asked: list[tuple[int, int]],
) -> None:
    """Some of the GPUs are those of before."""
    here = tuple(
        replace(one, uuid=was[one.index].uuid)
        if one.index in kept and one.index < len(was)
        else one
        for one in now
    )
    manifest = image(was, [one for one in used if one[1] < len(was)])
    need = {one.uuid: 10 * GIB for one in was}
    words = tuple((str(old), str(new)) for old, new in asked)
    plan = gpu_plan(manifest, nvidia(here), words, need)
    assert plan == gpu_plan(manifest, nvidia(here), words, need)
    assert [one.old for one in plan.places] == list(was)
    targets = [one.new.uuid for one in plan.places if one.new is not None]
    assert len(set(targets)) == len(targets) == min(len(was), len(here))
    assert sorted([*targets, *(one.uuid for one in plan.spare)]) == sorted(g.uuid for g in here)
    wanted = [(old, new) for old, new in asked if old < len(was) and new < len(here)]
    clear = [
        (old, new)
        for old, new in wanted
        if [one for one, _ in wanted].count(old) == [one for _, one in wanted].count(new) == 1
    ]
    for old, new in clear:
        placed = plan.places[old].new
        assert placed is not None
        assert placed.index == new
    taken = {new for _, new in clear}
    for one in plan.places:  # who is still here stays, unless asked otherwise
        if one.old.uuid in {g.uuid for g in here} and one.old.index not in dict(clear):
            stays = one.new is not None and one.new.uuid == one.old.uuid
            home = next(g.index for g in here if g.uuid == one.old.uuid)
            assert stays or home in taken
    if plan.map == {}:
        assert [one.uuid for one in was] == [one.uuid for one in here]


@RELAXED
@given(was=hosts("a", 2, 6), order=st.randoms(use_true_random=False), used=uses)
def test_models_are_never_mixed_if_they_need_not_be(
    was: tuple[Gpu, ...], order: object, used: list[tuple[int, int]]
) -> None:
    """The other host has the very same cards in any order."""
    shuffled = list(was)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    now = [
        replace(one, index=i, uuid=gpu("b", i).uuid, memory_free=100 * GIB, nvlinks=(), paths=())
        for i, one in enumerate(shuffled)
    ]
    plan = gpu_plan(image(was, [one for one in used if one[1] < len(was)]), nvidia(now))
    assert not [one for one in plan.places if one.trouble]


numbers = st.integers(0, 5)


@RELAXED
@given(
    alone=st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=4, max_size=4),
    near=st.lists(numbers, min_size=12, max_size=12),
    tied=st.lists(st.booleans(), min_size=6, max_size=6),
    fixed=st.sampled_from([{}, {0: 2}, {1: 0, 3: 3}]),
)
def test_the_search_never_does_worse_than_the_order_there_is(
    alone: list[list[int]], near: list[int], tied: list[bool], fixed: dict[int, int]
) -> None:
    """And what it finds cannot be bettered by exchanging two."""
    pairs = [(i, k) for i in range(4) for k in range(i)]
    old, new = [[0] * 4 for _ in range(4)], [[0] * 4 for _ in range(4)]
    ties: list[dict[int, int]] = [{} for _ in range(4)]
    for number, (i, k) in enumerate(pairs):
        old[i][k] = old[k][i] = near[number]
        new[i][k] = new[k][i] = near[number + 6]
        if tied[number]:
            ties[i][k] = ties[k][i] = 3
    costs = Costs(alone, ties, old, new)
    found = cheapest(costs, fixed)
    assert sorted(found) == [0, 1, 2, 3]
    assert all(found[row] == column for row, column in fixed.items())

    def cost(places: list[int]) -> int:
        torn = sum(costs.torn(i, k, places[i], places[k]) for i, k in pairs if k in ties[i])
        return sum(alone[row][places[row]] for row in range(4)) + torn

    free = [row for row in range(4) if row not in fixed]
    columns = [a for a in range(4) if a not in fixed.values()]
    straight = dict(zip(free, columns, strict=True)) | fixed
    assert cost(found) <= cost([straight[row] for row in range(4)])
    for i, k in permutations(free, 2):
        other = list(found)
        other[i], other[k] = other[k], other[i]
        assert cost(found) <= cost(other)
