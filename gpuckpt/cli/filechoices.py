"""What a restore is told about files: those that have changed, and those that lie elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final, Literal

from gpuckpt.cli import values
from gpuckpt.cli.options import option
from gpuckpt.cli.values import refuse

if TYPE_CHECKING:
    from collections.abc import Iterable

# --files has a meaning for what is dumped, and another one for what comes back
ALONG: Final = ("auto", "none", "all")
CHANGED: Final = ("refuse", "keep", "replace")


def pair(text: str) -> str:
    """Check one OLD=NEW; `pairs` makes the pairs."""
    old, equals, new = text.partition("=")
    hint = "Write it as OLD=NEW, both absolute paths: --map-path /data=/mnt/data."
    if not equals or "=" in new:
        raise refuse("--map-path", f"{text!r} is not OLD=NEW", hint)
    for one in (old, new):
        plain = "/" + "/".join(part for part in one.split("/") if part not in {"", "."})
        if not one.startswith("/") or "\0" in one or ".." in one.split("/") or plain == "/":
            raise refuse("--map-path", f"{one!r} is no absolute path below /", hint)
    return text


ChangedFiles = Annotated[
    Literal["refuse", "keep", "replace"],
    option(
        "--files",
        metavar="WHAT",
        help="The job's files that have changed since the dump: refuse, the default; keep today's; "
        "or replace them, today's are put aside.",
        parser=values.choice("--files", CHANGED, ALONG),
        twin="GPUCKPT_CHANGED_FILES",
    ),
]
MapPath = Annotated[
    list[str] | None,
    option(
        "--map-path",
        metavar="OLD=NEW",
        help="What was at OLD is at NEW on this host. May be given several times.",
        parser=pair,
    ),
]


def pairs(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of paths; one OLD given twice is refused."""
    found: dict[str, str] = {}
    for text in texts:
        old, _, new = (os.path.normpath(part) for part in text.partition("="))
        if old in found:
            raise refuse("--map-path", f"{old} is given twice", "Give every OLD once.")
        found[old] = new
    return tuple(found.items())
