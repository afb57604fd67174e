"""What the jobs' memory is filled with: made from small seeds, fast, and the same in every job.

The seeds are blocks of 64 MiB, made once in a run of the bench. Memory is filled with the block
over and over, each time turned by a few MiB more: nothing repeats within 50 MiB, which is more
than any compressor here looks back, and no two blocks or pages are the same.

`contents.py SEED FILE` makes a seed.
"""

from __future__ import annotations

import math
import random
import struct
import sys
from array import array
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB: Final = 1 << 20
BLOCK: Final = 64 * MIB
TURN: Final = 7 * MIB + 4  # a whole number of floats, not of pages
RANK_TURN: Final = 3 * MIB + 52
STEPS: Final = 1 << 16  # quantiles of a distribution that are told apart

_NORMAL: Final = NormalDist()


def _weight(share: float) -> float:
    return 0.02 * _NORMAL.inv_cdf(share)


def _first_moment(share: float) -> float:
    return 1e-4 * _NORMAL.inv_cdf(share)


def _second_moment(share: float) -> float:
    """Squares of gradients, averaged: positive, tiny, over a few powers of ten."""
    return 1e-8 * math.exp(1.5 * _NORMAL.inv_cdf(share))


# what each kind of memory needs made first, in order
SEEDS: Final[dict[str, tuple[str, ...]]] = {
    "bf16": ("bf16",),
    "fp32": ("weights", "first", "second"),
    "half": ("random",),
    "zero": (),
}
KINDS: Final = {
    "bf16": "weights in bf16",
    "fp32": "fp32 weights and both moments of Adam",
    "half": "half random, half zeros",
    "zero": "all zeros",
}


def make_seed(name: str, path: Path) -> None:
    """Write one seed."""
    chance = random.Random(name)
    if name == "random":
        path.write_bytes(chance.randbytes(BLOCK))
    elif name == "bf16":
        path.write_bytes(_drawn(chance, _weight, BLOCK // 2))
    else:
        of = {"weights": _weight, "first": _first_moment, "second": _second_moment}[name]
        floats = array("H", bytes(BLOCK))
        floats[0::2] = array("H", chance.randbytes(BLOCK // 2))  # the low bits are noise
        floats[1::2] = _drawn(chance, of, BLOCK // 4)
        path.write_bytes(floats)


def _drawn(chance: random.Random, of: Callable[[float], float], count: int) -> array[int]:
    """Draw the upper halves of `count` floats."""
    table = upper_halves(of)
    return array("H", map(table.__getitem__, array("H", chance.randbytes(2 * count))))


def upper_halves(of: Callable[[float], float]) -> list[int]:
    """Return sign, exponent and first seven bits of the values at equal shares: bf16 numbers."""
    values = (of((step + 0.5) / STEPS) for step in range(STEPS))
    return [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in values]


def fill(kind: str, memory: memoryview, seeds: list[memoryview], rank: int) -> None:
    """Fill a rank's memory; every page of it is written."""
    if not seeds:
        for at in range(0, len(memory), MIB):
            memory[at : at + MIB] = bytes(len(memory[at : at + MIB]))
        return
    share = len(memory) // len(seeds) // 4 * 4
    for number, seed in enumerate(seeds):
        begin = number * share
        end = len(memory) if number + 1 == len(seeds) else begin + share
        pour(memory[begin:end], seed, rank)
    if kind == "half":
        for at in range(MIB // 2, len(memory), MIB):
            part = memory[at : at + MIB // 2]
            part[:] = bytes(len(part))


def pour(memory: memoryview, seed: memoryview, rank: int) -> None:
    """Fill memory with a block, turned anew each time."""
    at = 0
    for piece in _pieces(seed, rank):
        part = memory[at : at + len(piece)]
        part[:] = piece[: len(part)]
        at += len(part)
        if at == len(memory):
            return


def _pieces(seed: memoryview, rank: int) -> Iterator[memoryview]:
    turn = rank * RANK_TURN
    while True:
        at = turn % len(seed)
        yield seed[at:]
        yield seed[:at]
        turn += TURN


if __name__ == "__main__":
    make_seed(sys.argv[1], Path(sys.argv[2]))
