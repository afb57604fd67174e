"""What every part of gpuckpt hands to the others: values, a few named things that never change.

msgspec makes such a class in a fiftieth of the 0.7 ms that a frozen dataclass takes, and there are
150 of them to be made when the program starts; it makes the values faster, too. Two in model.py
are dataclasses all the same: they have a field that is not compared, or is made of another.
"""

from __future__ import annotations

from msgspec import Struct


class Value(Struct, frozen=True):
    """The base of all of them: `class Port(Value, frozen=True)`."""
