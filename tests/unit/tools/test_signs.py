"""What is read of a process beside its image, on ourselves and on recorded files."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from gpuckpt.tools.proc import Proc
from gpuckpt.tools.procfs import below
from gpuckpt.tools.surroundings import packages

if TYPE_CHECKING:
    from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def test_our_own_signs_and_copies() -> None:
    proc, me = Proc(), os.getpid()
    signs = proc.signs(me)
    assert signs is not None
    assert me in signs.states
    assert not signs.stuck
    own = proc.process(me)
    assert own is not None
    assert me in proc.copies(own.argv, own.cwd, 0.0)
    begun = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + own.ref.start_time / TICKS
    assert me in proc.copies(own.argv, own.cwd, begun), "to the hundredth of a second"
    assert me not in proc.copies(own.argv, own.cwd, begun + 0.1)
    assert me not in proc.copies(own.argv, own.cwd, time.time() + 60)
    assert me not in proc.copies(own.argv, "/elsewhere", 0.0)
    assert proc.signs(1 << 22) is None


def test_who_was_started_since_a_tree_was_listed() -> None:
    me, parent = os.getpid(), os.getppid()
    assert below("/proc", me, {me})
    assert below("/proc", me, {parent})
    assert not below("/proc", parent, {me})
    assert not below("/proc", me, ())
    assert below("/proc", 1 << 22, {me}), "it has ended, and holds nothing"


def test_our_own_surroundings() -> None:
    found = Proc().surroundings(os.getpid())
    assert found.root == "/"
    assert any(found.layout), "it lies somewhere"
    assert found.bounding | found.permitted == found.bounding
    assert found.python == sys.prefix
    assert abs(found.clock - time.monotonic()) < 60
    installed = packages(found.python)
    assert installed is not None
    assert any(name.startswith("msgspec-") for name in installed)
    assert packages("/no/such/prefix") is None


def test_what_a_stat_file_says(tmp_path: Path) -> None:
    """Nothing is made up where the kernel says nothing."""
    assert Proc(tmp_path).surroundings(7).layout == ()
    folder = tmp_path / "7"
    folder.mkdir()
    numbers = " ".join(str(number) for number in range(4, 53))
    (folder / "stat").write_text(f"7 (a ) b) S {numbers}\n")
    (folder / "timens_offsets").write_text("monotonic 100 500000000\nboottime 0 0\n")
    found = Proc(tmp_path).surroundings(7)
    assert found.layout == (26, 28, 45, 47, 48, 50)
    assert found.clock - time.monotonic() > 99
