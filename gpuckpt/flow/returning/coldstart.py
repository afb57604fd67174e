"""What to start in place of a restore: the command that was recorded, or another.

Rather nothing than something else: where the record does not say what was started, it is refused.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from msgspec import field
from msgspec.structs import replace

from gpuckpt.errors import ColdStartFailed
from gpuckpt.image.manifest import StartRecord
from gpuckpt.tools.starting import Start, User
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest, ProcessRecord

# what a text has in place of bytes that are none (tools.procfs.text)
_NO_TEXT: Final = re.compile(r"\\x[89a-f][0-9a-f]")
OTHER: Final = "Name the command: --else CMD..."


class Else(Value, frozen=True):
    """What was asked for: the recorded command, or `argv` if it is not empty.

    `environment` is the caller's, `added` comes from the user's files. With `inherits` the job gets
    our streams.
    """

    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)
    inherits: bool = False


def start_of(tools: Toolbox, asked: Else, manifest: Manifest | None, log: Path) -> Start:
    """Return what is to be started; output goes where it went, or to `log`.

    Raises:
        ColdStartFailed: it is not known what, or this user may not.
    """
    if asked.argv:
        start = Start(asked.argv, {**asked.environment, **asked.added})
    else:
        start = _recorded(tools, asked, manifest)
    if asked.inherits:
        return replace(start, inherits=True)
    known = (manifest.start if manifest else None) or StartRecord()
    out, err = (_there(tools, path) for path in (known.stdout, known.stderr))
    return replace(start, stdout=out, stderr=err, log=None if out and err else log)


def _recorded(tools: Toolbox, asked: Else, manifest: Manifest | None) -> Start:
    if manifest is None:
        raise ColdStartFailed("no image tells the command that was recorded", hint=OTHER)
    root = manifest.tree[0]
    words = (*root.argv, root.cwd)
    if not root.argv or any(map(_NO_TEXT.search, words)):
        raise ColdStartFailed("the recorded command or its folder is no text", hint=OTHER)
    if root.root != "/":
        raise ColdStartFailed(f"the job had {root.root} as its root folder", hint=OTHER)
    known = manifest.start or StartRecord()
    user, own = _user(tools, root, manifest.start)
    return Start(
        root.argv,
        {**asked.environment, **own, **asked.added},
        program=_program(root, known),
        user=user,
        umask=known.umask,
        cwd=root.cwd,
    )


def _program(root: ProcessRecord, known: StartRecord) -> str:
    """Return the path to execute, "" for what has to be looked for in PATH.

    What was executed says most: `python` is the one of the environment that PATH had then. A script
    is started by its interpreter, which is the first word then. A first word that is neither is a
    title that the job has given itself.
    """
    called = root.argv[0]
    if known.program.startswith("/") and _name(known.program) == _name(called):
        return known.program
    if "/" in called or not known.program:
        return called if "/" in called else ""
    raise ColdStartFailed(
        f"the job calls itself {called[:80]!r}, which is not how {known.program} was started",
        hint=OTHER,
    )


def _name(path: str) -> str:
    """Return the name of a program; a login shell has a dash before it."""
    return path.rpartition("/")[2].removeprefix("-")


def _user(
    tools: Toolbox, root: ProcessRecord, known: StartRecord | None
) -> tuple[User | None, Mapping[str, str]]:
    """Return whom it runs as, None for ourselves, and what that makes of the environment."""
    euid = tools.host.facts().euid
    if euid not in {0, root.uid}:
        raise ColdStartFailed(
            f"the job ran as user {root.uid}, and user {euid} may start it only as himself",
            hint="Run it as root (sudo gpuckpt ...).",
        )
    if euid != 0:
        return None, {}
    account = tools.starter.account(root.uid, root.gid)
    groups = known.groups if known else account.groups
    return User(root.uid, root.gid, groups), account.environment if root.uid != euid else {}


def _there(tools: Toolbox, path: str) -> str:
    """Return a file's path if it can be made where it was, else ""."""
    folder = os.path.dirname(path)  # noqa: PTH120 - a text of the manifest
    there = folder.startswith("/") and tools.files.look(folder, build_id=False) is not None
    return path if there else ""
