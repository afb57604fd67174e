"""The way back: complete, in reverse order, and honest about what it could not do."""

from __future__ import annotations

import pytest

from gpuckpt.errors import DumpFailed, UndoIncomplete
from gpuckpt.flow.undo import Undo


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
