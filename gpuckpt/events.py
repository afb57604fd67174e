"""What an operation may announce while it runs, and the reporter that says nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Step(Protocol):
    """A running step: may be told from any thread how far it has come."""

    def advance(self, amount: int) -> None:
        """Add `amount` bytes to what is done."""

    def say(self, detail: str) -> None:
        """Replace the words that stand behind the step's name."""


class Reporter(Protocol):
    """Where an operation announces what it does; it never prints by itself."""

    def step(
        self, name: str, detail: str = "", total: int | None = None
    ) -> AbstractContextManager[Step]:
        """Announce a step for as long as the context lasts; `total` in bytes, if known."""

    def note(self, text: str) -> None:
        """Tell something worth knowing."""

    def warn(self, text: str) -> None:
        """Tell something that endangers the operation or its result."""


class SilentStep:
    """A step nobody watches."""

    def advance(self, amount: int) -> None:
        """Ignore it."""

    def say(self, detail: str) -> None:
        """Ignore it."""


class Silent:
    """The reporter for tests and for callers that want only the result."""

    @contextmanager
    def step(self, name: str, detail: str = "", total: int | None = None) -> Iterator[Step]:
        """Announce nothing."""
        del name, detail, total
        yield SilentStep()

    def note(self, text: str) -> None:
        """Ignore it."""

    def warn(self, text: str) -> None:
        """Ignore it."""
