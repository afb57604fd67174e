"""The way back, learned before each step forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.errors import GpuckptError, UndoIncomplete

if TYPE_CHECKING:
    from collections.abc import Callable


AGAIN: Final = "`gpuckpt repair` tries again to put it back."


class Undo:
    """Steps that put things back, run in reverse order when an operation fails.

    A step is added before what it undoes is tried: a call that failed does not say whether it had
    its effect. So every step must be right whether or not there is something to put back.
    """

    def __init__(self) -> None:
        """Start with nothing to put back."""
        self._steps: list[tuple[str, Callable[[], None]]] = []

    def __bool__(self) -> bool:
        """Whether there is anything to put back."""
        return bool(self._steps)

    def add(self, what: str, step: Callable[[], None]) -> None:
        """Remember `step`; `what` is said to the user if it fails: "pid 7 is locked"."""
        self._steps.append((what, step))

    def left(self) -> tuple[str, ...]:
        """What is still to be put back, in words, next step first."""
        return tuple(what for what, _ in reversed(tuple(self._steps)))

    def keep(self) -> None:
        """From here on backward is forbidden: what was done stays."""
        self._steps.clear()

    def run(self, cause: BaseException) -> None:
        """Put everything back because of `cause`; signals have to wait until it is done.

        Raises:
            UndoIncomplete: something could not be put back; names all that is left.
        """
        left: list[str] = []
        hints = [cause.hint] if isinstance(cause, UndoIncomplete) else []
        while self._steps:
            what, step = self._steps[-1]  # until it is done it is among what is left
            try:
                step()
            except Exception as why:  # noqa: BLE001 - every other step must still be run
                left.append(what if str(why) == str(cause) else f"{what}: {why}")
                hints += [why.hint] if isinstance(why, GpuckptError) else []
            self._steps.pop()
        if left:
            raise UndoIncomplete(
                f"{cause}; and it could not all be put back: " + "; ".join(left),
                hint=" ".join(filter(None, [next(filter(None, reversed(hints)), ""), AGAIN])),
                log=cause.log if isinstance(cause, GpuckptError) else None,
                excerpt=left,
            ) from cause


def raising(why: Exception) -> Callable[[], None]:
    """Return a step that fails with `why`: what could not be put back is known already."""

    def step() -> None:
        raise why

    return step
