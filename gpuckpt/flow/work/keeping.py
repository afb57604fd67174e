"""What every operation leaves behind in the state directory: its receipt, however it ended."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import structs

from gpuckpt.errors import GpuckptError
from gpuckpt.flow.work.history import DONE, History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuckpt.flow.work.history import Record
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.timing import Receipt


@contextmanager
def kept(operation: Operation, make: Callable[[Receipt], Record]) -> Iterator[None]:
    """Keep the record that `make` makes of the receipt when the operation has ended, or failed.

    What was refused before anything was touched is not worth a record.
    """
    history = History(operation.tools.state_dir)
    try:
        yield
    except BaseException as why:
        outcome = why.name if isinstance(why, GpuckptError) else type(why).__name__
        record = make(operation.record.receipt(outcome))
        history.add(structs.replace(record, outcome=outcome))
        raise
    history.add(make(operation.record.receipt(DONE)))
