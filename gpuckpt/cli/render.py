"""Results and errors on their way out: as a page for people or as one JSON object.

stdout gets the result, stderr the story; each is drawn for what it is connected to.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.cli import failure, plain
from gpuckpt.cli.progress import JsonLines, Plain, Quiet
from gpuckpt.cli.streams import Tolerant
from gpuckpt.location import Url

if TYPE_CHECKING:
    from gpuckpt.cli.page import Outcome, Page
    from gpuckpt.cli.progress import Story
    from gpuckpt.cli.settings import Settings
    from gpuckpt.errors import GpuckptError

SCHEMA = "gpuckpt/1"


class Renderer:
    """Both streams of one run, and how they are written."""

    def __init__(self, settings: Settings) -> None:
        """Look at what stdout and stderr are."""
        self._settings = settings
        self.out = Tolerant(sys.stdout)
        self.err = Tolerant(sys.stderr)

    def story(self) -> Story:
        """Return the reporter that fits stderr and the options."""
        how = self._settings.progress
        if how == "json":
            return JsonLines(self.err)
        if self._settings.quiet or how == "none":
            return Quiet(self.err)
        # what -v tells would run into lines that move
        if how == "auto" and not self._settings.verbose and _drawable(self.err):
            from gpuckpt.cli import live, terminal

            return live.Terminal(terminal.console(self.err))
        return Plain(self.err)

    def outcome(self, command: str, outcome: Outcome) -> None:
        """Write what a command came to."""
        page = not (self._settings.json or self._settings.quiet)
        if page:
            self._page(self.out, outcome.page)
        elif self._settings.json:
            self._envelope(command, outcome.exit_code, {"result": outcome.payload}, outcome.error)
        elif outcome.quiet:
            self.out.write(outcome.quiet + "\n")
        self.out.flush()
        if outcome.error is not None and not page:
            self._tell(command, outcome.error)

    def error(self, command: str, error: GpuckptError) -> None:
        """Write why a command failed."""
        if self._settings.json:
            self._envelope(command, error.exit_code, {}, error)
            self.out.flush()
        self._tell(command, error)

    def _tell(self, command: str, error: GpuckptError) -> None:
        if self._settings.progress == "json":
            JsonLines(self.err).event("error", **_builtins(failure.payload(error)))
        else:
            self._page(self.err, failure.page(command, error))
        self.err.flush()

    def _envelope(
        self, command: str, code: int, body: dict[str, object], error: GpuckptError | None
    ) -> None:
        envelope: dict[str, object] = {
            "schema": SCHEMA,
            "command": command or None,
            "ok": error is None,
            "exit_code": code,
            **body,
        }
        if error is not None:
            envelope["error"] = failure.payload(error)
        self.out.write(json.dumps(_builtins(envelope)) + "\n")

    @staticmethod
    def _page(stream: Tolerant, page: Page) -> None:
        if _drawable(stream):
            from gpuckpt.cli import terminal

            terminal.show(terminal.console(stream), page)
        else:
            stream.write("".join(line + "\n" for line in plain.lines(page)))


def _drawable(stream: Tolerant) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") not in {"", "dumb", "unknown"}


def _builtins(value: dict[str, object]) -> dict[str, object]:
    import msgspec

    def other(thing: object) -> object:
        if isinstance(thing, Path | Url):
            return str(thing)
        raise NotImplementedError

    found: dict[str, object] = msgspec.to_builtins(value, enc_hook=other)
    return found
