"""Keeps tests on fakes from starting the programs of this machine by accident.

Python itself is allowed, mounting for a small or read-only disk, and what a test wrote into its
temporary folder: that is what fake programs are made of. So is
a start that cannot succeed: no such program, no such folder.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_STARTS = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"}
_GROUND = {"mount", "umount"}
_allowed: Path | None = None  # None: not on guard


class RealProgram(BaseException):
    """Not an Exception, so that the code under test cannot swallow it."""


@contextmanager
def no_programs(but: Path) -> Iterator[None]:
    """Raise RealProgram at every start of a program outside of `but` while the context lasts."""
    global _allowed  # noqa: PLW0603 - an audit hook cannot be taken back, only told to look away
    _allowed = but.resolve()
    try:
        yield
    finally:
        _allowed = None


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if _allowed is None or event not in _STARTS:
        return
    doomed = event == "subprocess.Popen" and args[2] is not None and not Path(args[2]).is_dir()
    if not doomed and not _harmless(args[0], _allowed):
        message = f"this test must not start {args[0]!r}; if it has to, mark it `programs`"
        raise RealProgram(message)


def _harmless(program: Any, allowed: Path) -> bool:
    found = shutil.which(os.fsdecode(program))
    if found is None:
        return True
    path = Path(found).absolute()
    if path.name in _GROUND or path.resolve() == Path(sys.executable).resolve():
        return True
    return allowed in path.parents


sys.addaudithook(_watch)
