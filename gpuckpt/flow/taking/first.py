"""The look with which a dump and a rehearsal begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.flow.leftovers.recover import recover, tree_of
from gpuckpt.flow.sight.look import look

if TYPE_CHECKING:
    from gpuckpt.flow.request import DumpRequest
    from gpuckpt.flow.sight.look import Sight
    from gpuckpt.flow.work.operation import Operation


def first_look(operation: Operation, request: DumpRequest, *, image: bool = True) -> Sight:
    """Look at a tree before anything is touched, and stop here if anything stops the operation.

    Raises:
        Unfinished: an earlier run has left a process of it to be put back.
        HostUnfit, ProcessUnfit: refused.
    """
    recover(operation, tree_of(operation.tools, request.pid), str(request.output or ""))
    operation.tools.cuda.muster(1)  # for more, or none, it is as quick as without
    sight = look(operation.tools, request, image=image)
    sight.refuse()
    return sight
