"""What earlier operations took on this host, those on the most similar jobs first.

A number is learned from the nearest group that has it at all: the same command line, then jobs of
the same kind and of about the same size, then all. Of a group the newest count, by their median.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.flow.work.history import DONE, proving
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpuckpt.flow.work.history import Record
    from gpuckpt.timing import Phase

    Numbers = Callable[[Record], Iterable[float]]

NEWEST: Final = 8
# forecasts are judged by more: their error is small and goes both ways
JUDGED: Final = 20
# of about the same size: at most so many times larger or smaller
_ALIKE: Final = 4
# phases that moved less say more about starting than about rates
WORTH: Final = 64 << 20
ASSUMED: Final = "assumed"


class Estimate(Value, frozen=True):
    """A number of bytes, seconds or bytes a second, and what it rests on."""

    value: float
    basis: str


class Lately(Value, frozen=True):
    """How far forecasts have been off: the `median` of what it took by what was expected, less one.

    Of the `count` newest; None if there are none.
    """

    median: float | None = None
    count: int = 0


class Experience:
    """The records that say something about one job; `mine` are those of the same command."""

    def __init__(
        self,
        records: Iterable[Record],
        operations: Iterable[str],
        command: str,
        *,
        size: float,
        cuda: bool,
    ) -> None:
        """Take what went well of these operations, oldest first."""
        kinds = frozenset(operations)
        self.all = tuple(one for one in records if one.operation in kinds and one.outcome == DONE)
        self.mine = tuple(one for one in self.all if one.command == command)
        alike = tuple(one for one in self.all if _alike(one, size, cuda=cuda))
        self._groups = (
            (self.mine, " of this command"),
            (alike, " of jobs like it"),
            (self.all, ""),
        )

    def learn(self, numbers: Numbers, *, only_mine: bool = False) -> Estimate | None:
        """Return the median of the newest numbers of the nearest group that has any."""
        for records, whose in self._groups[:1] if only_mine else self._groups:
            found = [number for one in records for number in numbers(one)][-NEWEST:]
            if found:
                count = len(found)
                return Estimate(median(found), f"from {count} receipt{'s' * (count != 1)}{whose}")
        return None

    def rate(self, name: str) -> Estimate | None:
        """Return the bytes a second that a phase moves."""
        return self.learn(lambda record: _rates(name, record))

    def streaming(self, *, parted: bool) -> Estimate | None:
        """Return the bytes a second that CRIU hands over; `parted`: the job waited for no disk."""
        return self.learn(
            lambda record: (
                _rates("stream", record) if any(phases("write", record)) == parted else ()
            )
        )

    def seconds(self, name: str, *, only_mine: bool = False) -> Estimate | None:
        """Return the seconds that a phase takes, whatever it moves."""
        return self.learn(
            lambda record: (one.seconds for one in phases(name, record)), only_mine=only_mine
        )


def _rates(name: str, record: Record) -> Iterator[float]:
    return (
        one.bytes / one.seconds
        for one in phases(name, record)
        if one.bytes >= WORTH and one.seconds
    )


def phases(name: str, record: Record) -> Iterator[Phase]:
    """Go through the phases of this name, without what a proof took within them."""
    more = proving(record.receipt, name)
    found = (one for one in record.receipt.phases if one.name == name)
    return (replace(one, seconds=one.seconds - more) if more else one for one in found)


def lately(records: Iterable[Record], operation: str) -> Lately:
    """Return how far the forecasts for an operation were off."""
    errors = [
        one.took / one.expected - 1
        for one in records
        if one.operation == operation and one.outcome == DONE and one.expected and one.took
    ][-JUDGED:]
    return Lately(round(median(errors), 4), len(errors)) if errors else Lately()


def _alike(record: Record, size: float, *, cuda: bool) -> bool:
    its = max(record.raw, record.gpu_bytes)
    return bool(record.cuda) == cuda and size / _ALIKE <= its <= size * _ALIKE


def or_assumed(found: Estimate | None, assumed: float) -> Estimate:
    """Return what was learned, or what is assumed without."""
    return Estimate(assumed, ASSUMED) if found is None else found


def moving(amount: float, found: Estimate | None, assumed: float) -> Estimate:
    """Return the seconds that so many bytes take, at the rate that was learned or is assumed."""
    rate, basis = (assumed, ASSUMED) if found is None else (found.value, found.basis)
    return Estimate(amount / rate, f"{basis}, {rate / 1e9:.1f} GB/s")
