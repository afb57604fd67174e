"""The software and data that jobs compute with, as the flow sees them: a part of the toolbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from gpuckpt.model import Process
    from gpuckpt.tools.digest import Digest
    from gpuckpt.tools.distributions import Installed
    from gpuckpt.tools.software import Survey
    from gpuckpt.tools.tracked import Walk


class SoftwareTool(Protocol):
    """Engines, models and trees of files; see gpuckpt.tools.software."""

    def survey(
        self,
        processes: Collection[Process],
        *,
        full: bool,
        before: Survey | None = ...,
        advance: Callable[[int], None] = ...,
    ) -> Survey:
        """Return what a tree computes with; with `before` only what has changed is looked at."""

    def python(self, program: str) -> str:
        """Return the version of the Python in a file, "" if it is not there."""

    def installed(self, folder: str, names: Collection[str]) -> Mapping[str, Installed]:
        """Return those of the distributions that are in a folder."""

    def beside(self, path: str) -> tuple[str, ...]:
        """Return the versions of a library that are in its folder."""

    def digests(self, paths: Iterable[str], *, full: bool) -> Mapping[str, Digest | None]:
        """Return the digest of each file, None for what cannot be read."""

    def walk(self, path: str, *, full: bool, advance: Callable[[int], None] = ...) -> Walk | None:
        """Go through a tree, None if there is nothing; OSError if a part cannot be read."""

    def differences(self, old: bytes, new: bytes) -> list[tuple[str, str]]:
        """Return which paths of two listings are missing, new or changed."""
