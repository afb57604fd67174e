"""CRIU asks for a verdict, and gets one whatever happens meanwhile."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import DumpFailed, RestoreFailed, WriteFailed
from gpuckpt.tools.criuend import Watch
from gpuckpt.tools.criuwatch import Hook, Talk, _decide, _ends_within, _too_large
from gpuckpt.tools.run import Command, Runner
from gpuckpt.tools.streamer import Capture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE = 20.0


def ask(folder: Path, verdict: Callable[[], None], abort: Callable[[], None], stop: int) -> object:
    """Have CRIU ask once; return what was decided against, None for a yes."""
    with closing(Capture(folder, lambda _name, _fd: None)) as server, Hook(folder, "x") as hook:
        os.write(hook._asked, b"ask\n")
        watch = Watch(folder / "dump.log", stop, PATIENCE, DumpFailed)
        found = _decide(Talk(server, hook, verdict, abort, watch))
        assert os.read(hook._verdict, 8) == (b"0\n" if found is None else b"1\n")
        return found


@pytest.fixture
def stop() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC)


def test_a_verdict_that_returns_is_a_yes(tmp_path: Path, stop: int) -> None:
    assert ask(tmp_path, lambda: None, lambda: None, stop) is None


def test_a_verdict_that_raises_is_a_no(tmp_path: Path, stop: int) -> None:
    def verdict() -> None:
        raise WriteFailed("disk full")

    assert isinstance(ask(tmp_path, verdict, lambda: None, stop), WriteFailed)


def test_a_signal_ends_a_verdict_that_waits_for_the_disk(tmp_path: Path, stop: int) -> None:
    """Otherwise a disk that hangs would keep the job frozen, and Ctrl-C would do nothing."""
    aborted = threading.Event()

    def verdict() -> None:
        os.eventfd_write(stop, 1)
        assert aborted.wait(PATIENCE), "nobody ended the wait"
        raise WriteFailed("writing the image was stopped")

    assert isinstance(ask(tmp_path, verdict, aborted.set, stop), WriteFailed)


@pytest.mark.programs
def test_a_log_is_cut_while_its_criu_is_ended(tmp_path: Path, stop: int) -> None:
    """Three gigabytes a minute were seen, and an end that takes half a minute."""
    log = tmp_path / "restore.log"
    watch = Watch(log, stop, PATIENCE, RestoreFailed, largest_log=2 << 20)
    flood = f"while sleep 0.01; do head -c 500000 /dev/zero >>{log}; done"
    with Runner().start(Command(("/bin/sh", "-c", flood))) as child:
        assert not _ends_within(child, watch, 1.0)
        child.kill()
        child.wait()
    assert log.stat().st_size < 30 << 20
    assert _too_large(watch) == (log.stat().st_size > 2 << 20)
