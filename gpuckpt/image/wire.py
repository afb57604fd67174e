"""What may stand in a manifest whatever its fields are called: numbers in reason, honest text.

Paths and arguments on Linux are bytes, JSON is Unicode. A byte that is not UTF-8 travels as
the character U+10FF00 plus that byte; a real character of that range travels as its own UTF-8
bytes written the same way, so nothing is ambiguous and nothing is lost.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Plain: TypeAlias = (
    "dict[str, Plain] | list[Plain] | tuple[Plain, ...] | str | int | float | bool | None"
)

_T = TypeVar("_T", bound=msgspec.Struct)

LARGEST_NUMBER = (1 << 63) - 1
_ESCAPE = 0x10FF00
_ESCAPED = re.compile("[\U0010ff80-\U0010ffff]+")
_TO_ESCAPE = re.compile("[\udc80-\udcff\U0010ff80-\U0010ffff]+")
_MAY_BE_NEGATIVE = frozenset({"mtime_ns"})


def to_json(what: msgspec.Struct) -> bytes:
    """Return a small record as JSON, whatever bytes its paths are."""
    return msgspec.json.encode(escape(cast("Plain", msgspec.to_builtins(what, str_keys=True))))


def from_json(raw: bytes, kind: type[_T]) -> _T:
    """Return the record that `to_json` has written.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    return msgspec.convert(unescape(msgspec.json.decode(raw)), kind, str_keys=True)


def escape(value: Plain) -> Plain:
    """Return `value` with every text in it fit for JSON."""
    return _texts(value, _escape_text)


def unescape(value: Plain) -> Plain:
    """Return `value` as it was before `escape`."""
    return _texts(value, _unescape_text)


def escaped(value: Plain) -> bool:
    """Whether any text in `value` was escaped."""
    return any(_ESCAPED.search(text) for _, text in _leaves(value, "") if isinstance(text, str))


def flaws(value: Plain) -> Iterator[str]:
    """Yield what no manifest may hold: negative or absurd numbers, NUL in a text."""
    for where, leaf in _leaves(value, ""):
        field = where.rpartition(".")[2]
        if isinstance(leaf, str):
            if "\0" in leaf:
                yield f"{where} holds a NUL character"
        elif isinstance(leaf, float) and not math.isfinite(leaf):
            yield f"{where} is no finite number"
        elif isinstance(leaf, int | float):
            lowest = -LARGEST_NUMBER if field in _MAY_BE_NEGATIVE else 0
            if not lowest <= leaf <= LARGEST_NUMBER:
                yield f"{where} is out of range"


def _leaves(value: Plain, where: str) -> Iterator[tuple[str, Plain]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"a key of {where}", key
            yield from _leaves(item, f"{where}.{key}" if where else key)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{where}[{index}]")
    else:
        yield where, value


def _texts(value: Plain, change: Callable[[str], str]) -> Plain:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(item, change) for item in value]
    return value


def _escape_text(text: str) -> str:
    return _TO_ESCAPE.sub(lambda found: _spell(found.group()), text)


def _spell(text: str) -> str:
    return "".join(chr(_ESCAPE + byte) for byte in text.encode("utf-8", "surrogateescape"))


def _unescape_text(text: str) -> str:
    return _ESCAPED.sub(lambda found: _read(found.group()), text)


def _read(text: str) -> str:
    return bytes(ord(char) - _ESCAPE for char in text).decode("utf-8", "surrogateescape")
