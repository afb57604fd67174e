"""Which memory the pages of an image are: CRIU's pagemap images.

A pages image is nothing but pages, one after the other; its pagemap says in the same order where
each belongs. Field numbers and flags are those of CRIU 4.2.1.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuckpt.errors import ImageDamaged
from gpuckpt.tools.wire import records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PAGE: Final = 4096

_PAGEMAP: Final = 0x56084025
_PRESENT: Final = 4  # the pages are in the pages image; others are in no image at all
_HIGHEST: Final = 1 << 63


class Run(NamedTuple):
    """Memory without a gap, and where its bytes lie in the pages image."""

    address: int
    length: int
    offset: int


class Runs:
    """The memory that a pages image is of, in the order of the image."""

    __slots__ = ("_addresses", "_offsets", "size")

    def __init__(self, stretches: Iterable[tuple[int, int]]) -> None:
        """Take (address, length) as the image has them; neighbours become one."""
        self._addresses = array("Q")
        self._offsets = array("Q")
        self.size = 0
        end = -1
        for address, length in stretches:
            if address != end:
                self._addresses.append(address)
                self._offsets.append(self.size)
            end = address + length
            self.size += length

    def __len__(self) -> int:
        """Return how many runs there are."""
        return len(self._addresses)

    def within(self, start: int, stop: int) -> Iterator[Run]:
        """Yield the runs whose bytes are those of the image from `start` to `stop`, cut there."""
        stop = min(stop, self.size)
        number = bisect_right(self._offsets, start) - 1
        while start < stop:
            inside = start - self._offsets[number]
            last = number + 1 == len(self._offsets)
            end = self.size if last else self._offsets[number + 1]
            length = min(stop, end) - start
            yield Run(self._addresses[number] + inside, length, start)
            start += length
            number += 1

    def stretches(self) -> list[tuple[int, int]]:
        """Return start and end of every run, in the order of addresses."""
        runs = self.within(0, self.size)
        return sorted((run.address, run.address + run.length) for run in runs)


class Pagemap(NamedTuple):
    """One pagemap: the number of its pages image, and what is in that."""

    number: int
    runs: Runs

    @property
    def pages(self) -> str:
        """CRIU's name of the pages image."""
        return f"pages-{self.number}.img"


def read_pagemap(raw: bytes, name: str) -> Pagemap:
    """Read a pagemap image.

    Raises:
        ImageDamaged: these bytes are no such image.
    """
    entries = records(raw, _PAGEMAP, name)
    head = next(entries, None)
    if head is None:
        raise ImageDamaged(f"{name} does not say where its pages are")
    stretches = []
    for one in entries:
        # until CRIU 4.1 the count was in field 2, which 4.2 fills with 0
        address, pages = one.number(1), one.number(5) or one.number(2)
        if address % PAGE or address + pages * PAGE > _HIGHEST:
            raise ImageDamaged(f"{name} tells of memory that cannot be")
        if one.number(4) & _PRESENT:
            stretches.append((address, pages * PAGE))
    return Pagemap(head.number(1), Runs(stretches))
