"""The way back: complete, in reverse order, and honest about what it could not do."""

from __future__ import annotations

import pytest

from gpuckpt.errors import DumpFailed, UndoIncomplete
from gpuckpt.flow.work.undo import AGAIN, Undo


def test_steps_run_in_reverse_order() -> None:
    """What was done last is undone first."""
    undo, done = Undo(), []
    for name in "abc":
        undo.add(name, lambda name=name: done.append(name))
    undo.run(DumpFailed("why"))
    assert done == ["c", "b", "a"]


def test_a_failing_step_stops_no_other_and_is_the_headline() -> None:
    """All steps are tried; the failed ones are named, the first cause is kept."""
    undo, done = Undo(), []
    undo.add("first", lambda: done.append("first"))
    undo.add("pid 7 is locked", lambda: 1 / 0)
    undo.add("last", lambda: done.append("last"))
    cause = DumpFailed("disk full")
    with pytest.raises(UndoIncomplete, match="pid 7 is locked") as caught:
        undo.run(cause)
    assert done == ["last", "first"]
    assert caught.value.__cause__ is cause
    assert "disk full" in caught.value.message


def test_after_keep_there_is_no_way_back() -> None:
    """Past the commit nothing may be undone."""
    undo, done = Undo(), []
    undo.add("a", lambda: done.append("a"))
    undo.keep()
    undo.run(DumpFailed("why"))
    assert done == []


def test_what_is_left_is_known_while_a_step_is_at_work() -> None:
    """The step in hand is among it, until it is done."""
    undo, seen = Undo(), []
    undo.add("a", lambda: seen.append(undo.left()))
    undo.add("b", lambda: seen.append(undo.left()))
    undo.run(DumpFailed("why"))
    assert seen == [("b", "a"), ("a",)]
    assert undo.left() == ()


def test_the_hint_is_that_of_the_step_that_failed_first() -> None:
    """It leads out of where the job is now; the cause's own hint would not."""
    undo = Undo()

    def fail() -> None:
        raise DumpFailed("no memory", hint="free it")

    undo.add("pid 7 is suspended", fail)
    undo.add("pid 8 is suspended", fail)
    with pytest.raises(UndoIncomplete) as caught:
        undo.run(DumpFailed("no memory", hint="try another disk"))
    assert caught.value.hint == f"free it {AGAIN}"
    assert caught.value.message.endswith("pid 8 is suspended; pid 7 is suspended")
