"""The processes above a tree: who started it, and who waits for its end."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.procfs import text
from gpuckpt.tools.threads import waits_in
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "busybox"})
_LOOP: Final = re.compile(r"(^|[\s;&|(])(while|until)\s", re.MULTILINE)
_SCRIPT_BYTES: Final = 1 << 16


class Above(Value, frozen=True):
    """One process above the tree.

    `kind` is "shell" for one that somebody types into, "script" for one that runs a script, "" for
    anything else. `waits`: it does nothing but wait for a child, or that cannot be known;
    `loops`: its script has a loop.
    """

    pid: int
    comm: str
    argv: tuple[str, ...] = ()
    kind: str = ""
    waits: bool = False
    loops: bool = False

    @property
    def command(self) -> str:
        """The command line, shortened, or the kernel's name where there is none."""
        line = " ".join(self.argv) or self.comm
        return line if len(line) <= 60 else line[:57] + "..."  # noqa: PLR2004 - fits a line


def above(root: Path, pids: Iterable[int], names: Mapping[int, str]) -> tuple[Above, ...]:
    """Look at the processes above a tree, nearest first; what is gone by now is left out."""
    return tuple(_above(root, pid, names[pid]) for pid in pids if pid in names)


def _above(root: Path, pid: int, comm: str) -> Above:
    folder = f"{root}/{pid}"
    argv = tuple(text(part) for part in _soft(f"{folder}/cmdline").rstrip(b"\0").split(b"\0"))
    argv = argv if any(argv) else ()
    kind, script = _shell(comm, argv)
    if kind != "script":
        return Above(pid, comm, argv, kind)
    if not _is_text(argv):
        script = text(_soft(script if script.startswith("/") else f"{folder}/cwd/{script}"))
    waits = waits_in(folder, pid) in {"", "do_wait"}
    return Above(pid, comm, argv, kind, waits, loops=bool(_LOOP.search(script)))


def _shell(comm: str, argv: tuple[str, ...]) -> tuple[str, str]:
    """Tell what kind of shell this is, with the script's text or name."""
    name = (argv[0].rpartition("/")[2] if argv else comm).removeprefix("-")
    if name not in _SHELLS:
        return "", ""
    if _is_text(argv):
        at = next(index for index, word in enumerate(argv) if _is_c(word))
        return "script", " ".join(argv[at + 1 : at + 2])
    operands = [word for word in argv[1:] if not word.startswith(("-", "+"))]
    return ("script", operands[0]) if operands else ("shell", "")


def _is_text(argv: tuple[str, ...]) -> bool:
    """Whether the script stands on the command line itself: sh -c TEXT, bash -lc TEXT."""
    return any(_is_c(word) for word in argv[1:3])


def _is_c(word: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and word.endswith("c")


def _soft(path: str) -> bytes:
    """Read the start of a file that may be closed to us; what is no file would let us wait."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(fd, "rb", buffering=0) as file:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        with suppress(OSError):
            return (file.read(_SCRIPT_BYTES) or b"") if regular else b""
    return b""
