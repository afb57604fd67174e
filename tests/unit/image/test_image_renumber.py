"""A manifest with the numbers of another pid namespace: there and back nothing is lost."""

from __future__ import annotations

import msgspec
import pytest

from gpuckpt.errors import Bug
from gpuckpt.image import manifest as m
from gpuckpt.image.outside import PipeRecord
from gpuckpt.image.renumber import renumbered
from tests import image_samples as samples


def whole() -> m.Manifest:
    first, *rest = samples.manifest().tree
    bound = m.BindingRecord(cpus=(0,), threads=first.threads[:1])
    first = msgspec.structs.replace(first, restore_thread=first.threads[-1], bound=(bound,))
    plain = samples.manifest(tree=(first, *rest))
    pipes = (PipeRecord(pid=first.pid, fd=1, writes=True, holder="cat"),)
    outside = msgspec.structs.replace(plain.outside, pipes=pipes)
    return msgspec.structs.replace(plain, outside=outside)


def numbers(manifest: m.Manifest) -> set[int]:
    found: set[int] = set()
    for one in manifest.tree:
        found |= {one.pid, one.ppid, one.pgid, one.sid, one.restore_thread, *one.threads}
        found |= {tid for bound in one.bound for tid in bound.threads}
    found |= {use.pid for use in manifest.nvidia.uses} if manifest.nvidia else set()
    return found | {one.pid for one in manifest.outside.pipes} | {manifest.root_pid}


def test_there_and_back() -> None:
    inside = whole()
    there = {number: number + 50_000 for number in numbers(inside) - {0}}
    outside = renumbered(inside, there)
    assert numbers(outside) == {*there.values(), *(numbers(inside) & {0})}
    assert set(outside.cuda) == {there[pid] for pid in inside.cuda}
    assert outside.ids == inside.ids, "what CRIU wrote down itself"
    assert renumbered(outside, {new: old for old, new in there.items()}) == inside


def test_what_lies_outside_of_the_job_has_no_number() -> None:
    inside = whole()
    own = {tid: tid for one in inside.tree for tid in (one.pid, *one.threads)}
    assert renumbered(inside, own).tree[0].ppid == 0


def test_a_task_without_a_number_is_a_bug() -> None:
    with pytest.raises(Bug, match="not known"):
        renumbered(whole(), {})
