"""Reading --map-path: which paths of an image are others here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuckpt.cli.values import refuse

if TYPE_CHECKING:
    from collections.abc import Iterable


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


def pairs(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of paths; one OLD given twice is refused."""
    found: dict[str, str] = {}
    for text in texts:
        old, _, new = (os.path.normpath(part) for part in text.partition("="))
        if old in found:
            raise refuse("--map-path", f"{old} is given twice", "Give every OLD once.")
        found[old] = new
    return tuple(found.items())
