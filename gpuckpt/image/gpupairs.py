"""Which GPU goes to which: the search for the pairing that costs least.

Numbers in, numbers out. Pairing up with costs between pairs is hard in general (quadratic
assignment), so the search is bounded: from several beginnings it exchanges two GPUs for as
long as that helps. For the shapes machines have, all linked to all, halves, pairs, that ends at
the best; and the same numbers always give the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# one for every GPU of the largest hosts
_MOST_STARTS: Final = 16


class Costs(Value, frozen=True):
    """What pairings cost. All tables are square: rows are old GPUs, columns new ones, both padded.

    `alone[i][a]` is the cost of putting i on a, whatever the others do. `ties[i]` has those that i
    works together with, and how closely; `near_old` and `near_new` how near two GPUs are. These are
    symmetric, or exchanges could go round for ever. What comes to stand further apart than it was
    costs the difference.
    """

    alone: Sequence[Sequence[int]]
    ties: Sequence[Mapping[int, int]]
    near_old: Sequence[Sequence[int]]
    near_new: Sequence[Sequence[int]]

    def torn(self, one: int, other: int, here: int, there: int) -> int:
        """Return what it costs that two old GPUs are on these two new ones."""
        lost = self.near_old[one][other] - self.near_new[here][there]
        return self.ties[one][other] * lost if lost > 0 else 0

    def of_row(self, row: int, places: Sequence[int]) -> int:
        """Return all that one GPU's place costs."""
        here = places[row]
        torn = (self.torn(row, other, here, places[other]) for other in self.ties[row])
        return self.alone[row][here] + sum(torn)

    def whole(self, places: Sequence[int]) -> int:
        """Return what a pairing costs."""
        alone = sum(self.alone[row][here] for row, here in enumerate(places))
        # each torn tie is seen from both its ends
        return alone + (sum(self.of_row(row, places) for row in range(len(places))) - alone) // 2


def cheapest(costs: Costs, fixed: Mapping[int, int]) -> list[int]:
    """Return the column of every row; `fixed` are not to be moved."""
    size = len(costs.alone)
    rows = sorted((i for i in range(size) if i not in fixed), key=lambda i: (-_weight(costs, i), i))
    columns = [a for a in range(size) if a not in fixed.values()]
    if not rows:
        return [fixed[row] for row in range(size)]
    found = [_improved(costs, _straight(rows, columns, fixed), rows)]
    found += [
        _improved(costs, _grown(costs, rows, first, columns, fixed), rows)
        for first in columns[:_MOST_STARTS]
    ]
    return min(found, key=lambda places: (costs.whole(places), places))


def _weight(costs: Costs, row: int) -> int:
    return sum(costs.ties[row].values())


def _straight(rows: list[int], columns: list[int], fixed: Mapping[int, int]) -> list[int]:
    """Begin with the order there is."""
    places = dict(zip(sorted(rows), columns, strict=True)) | dict(fixed)
    return [places[row] for row in range(len(places))]


def _grown(
    costs: Costs, rows: list[int], first: int, columns: list[int], fixed: Mapping[int, int]
) -> list[int]:
    """Begin with one GPU on a given place, and put each next one where it costs least."""
    placed = dict(fixed)
    placed[rows[0]] = first
    free = [a for a in columns if a != first]
    for row in rows[1:]:
        near = [other for other in costs.ties[row] if other in placed]

        def cost(a: int, row: int = row, near: list[int] = near) -> int:
            return costs.alone[row][a] + sum(costs.torn(row, k, a, placed[k]) for k in near)

        best = min(free, key=cost)
        free.remove(best)
        placed[row] = best
    return [placed[row] for row in range(len(placed))]


def _improved(costs: Costs, places: list[int], rows: list[int]) -> list[int]:
    """Exchange two GPUs for as long as that helps; each exchange costs less, so it ends."""
    helped = True
    while helped:
        helped = False
        for number, one in enumerate(rows):
            for other in rows[number + 1 :]:
                before = costs.of_row(one, places) + costs.of_row(other, places)
                places[one], places[other] = places[other], places[one]
                if costs.of_row(one, places) + costs.of_row(other, places) < before:
                    helped = True
                else:
                    places[one], places[other] = places[other], places[one]
    return places
