"""The one run of a command: its tools, its reporter, its renderer, its signals.

Tools are made when first asked for, so that commands which need none start at once.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING

from gpuckpt.cli import failure, plain
from gpuckpt.cli.render import Renderer
from gpuckpt.cli.settings import Settings, state_dir
from gpuckpt.flow.work.interrupts import Interrupts

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from gpuckpt.cli.page import Outcome, Page
    from gpuckpt.cli.progress import Story
    from gpuckpt.errors import GpuckptError
    from gpuckpt.flow.work.toolbox import Toolbox


class Application:
    """What a command works with."""

    def __init__(self, command: str, settings: Settings) -> None:
        """Take up a command; nothing is looked at yet."""
        self.command = command
        self.settings = settings
        self.renderer = Renderer(settings)
        self.reporter: Story = self.renderer.story()
        self.interrupts = Interrupts()
        self.passing_on = False  # signals go to a restored job, not to this operation
        self.state_dir = state_dir()
        if settings.verbose:
            handler = logging.StreamHandler(self.renderer.err)
            handler.setFormatter(logging.Formatter("gpuckpt: %(name)s: %(message)s"))
            logging.basicConfig(level=logging.DEBUG, handlers=[handler], force=True)

    def __enter__(self) -> Self:
        """Nothing more to set up."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        self.reporter.close()

    @cached_property
    def tools(self) -> Toolbox:
        """The real tools of this host."""
        from gpuckpt.cli.tools import real

        return real(self.state_dir)

    def show(self, outcome: Outcome) -> int:
        """Write what the command came to and return its exit status."""
        self.reporter.close()
        self.renderer.outcome(self.command, outcome)
        if self.renderer.out.broken and self.renderer.err.broken:
            self._keep(outcome.page)
        return outcome.exit_code

    def fail(self, error: GpuckptError) -> int:
        """Write why the command failed and return its exit status."""
        self.reporter.close()
        self.renderer.error(self.command, error)
        told_a_program = self.settings.json and not self.renderer.out.broken
        if self.renderer.err.broken and not told_a_program:
            self._keep(failure.page(self.command, error))
        return error.exit_code

    def _keep(self, page: Page) -> None:
        """Put what nobody could be told, as the terminal went away, where it can be found."""
        text = "".join(f"{line}\n" for line in plain.lines(page))
        failure.keep(text, self.state_dir, f"report-{self.command}")
