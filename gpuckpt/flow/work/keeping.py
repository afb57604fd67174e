"""What every operation leaves behind in the state directory: its receipt, however it ended."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import structs

from gpuckpt.errors import GpuckptError
from gpuckpt.flow.work.history import DONE, History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpuckpt.flow.work.history import Record
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.timing import Receipt


class Kept:
    """Where a record was put, once it was; None if it could not be."""

    path: Path | None = None


@contextmanager
def kept(operation: Operation, make: Callable[[Receipt], Record]) -> Iterator[Kept]:
    """Keep the record that `make` makes of the receipt when the operation has ended, or failed.

    Gives what will hold where it is. A dump that was refused before anything was touched is not
    worth a record.
    """
    history = History(operation.tools.state_dir)
    here = Kept()
    try:
        yield here
    except BaseException as why:
        outcome = why.name if isinstance(why, GpuckptError) else type(why).__name__
        record = make(operation.record.receipt(outcome))
        here.path = history.add(structs.replace(record, outcome=outcome))
        if isinstance(why, GpuckptError):
            why.receipt = here.path
        raise
    here.path = history.add(make(operation.record.receipt(DONE)))
