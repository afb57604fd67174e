"""How numbers are written for people and read from them: sizes, durations, rates, moments.

Sizes use binary units (1 KiB is 1024 bytes), durations are seconds, moments UTC ISO 8601.
"""

from __future__ import annotations

import re

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024
_FINE = 10
_LARGEST = 1 << 63
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size(amount: float) -> str:
    """Return bytes in the largest unit that keeps the number above one: `1.5 GiB`."""
    value, unit = float(amount), 0
    while value >= _STEP and unit < len(_UNITS) - 1:
        value /= _STEP
        unit += 1
    if unit == 0:
        return f"{int(value)} B"
    return f"{value:.1f} {_UNITS[unit]}"


def seconds(amount: float) -> str:
    """Return a duration in seconds with as many digits as matter: `0.004 s`, `83.2 s`."""
    digits = 3 if amount < 1 else 2 if amount < _FINE else 1
    return f"{amount:.{digits}f} s"


def rate(amount: int, duration: float) -> str:
    """Return bytes per second, empty where there is nothing to divide."""
    if amount <= 0 or duration <= 0:
        return ""
    return f"{size(amount / duration)}/s"


def ratio(raw: int, stored: int) -> str:
    """Return how many times smaller `stored` is than `raw`: `3.1`."""
    return f"{raw / stored:.1f}" if stored > 0 else ""


def percent(share: float) -> str:
    """Return a difference in whole percent, with its sign: `+10 %`."""
    return f"{round(share * 100):+d} %"


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 process`, `3 processes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def parse_size(text: str) -> int:
    """Read `4096`, `10M`, `1.5GiB` into bytes.

    Raises:
        ValueError: it is no size.

    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    amount = float(found[1]) * _FACTORS[found[2]] if found else _LARGEST
    if amount >= _LARGEST:
        raise ValueError(text)
    return int(amount)


def printable(text: str) -> str:
    r"""Return `text` on one line, with everything a terminal would obey made visible.

    Command lines and paths come from other people's processes: an escape sequence in one must
    not move the operator's cursor, and a newline must not look like a line of ours.
    """
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte that is no UTF-8, as os.fsdecode gives it
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")
