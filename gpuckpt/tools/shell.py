"""The user's own commands, run by a shell."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from gpuckpt.errors import ToolFailed
from gpuckpt.tools.run import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuckpt.tools.run import Runner


class Shell:
    """Runs a command line as a user would have typed it."""

    def __init__(self, runner: Runner) -> None:
        """Use this runner."""
        self._runner = runner

    def run(
        self,
        line: str,
        timeout: float,
        stop_fd: int,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Run `line` for at most `timeout` seconds; empty if it succeeded, else why not.

        `environment` is added to the short one that it gets.

        Raises:
            Stopped: `stop_fd` became readable.
        """
        try:
            command = Command(("/bin/sh", "-c", line), timeout=timeout, env=environment)
            self._runner.run(command, stop_fd=stop_fd)
        except ToolFailed as why:
            last = why.excerpt[-1:] or ("",)
            return f"{why}: {last[0]}" if last[0] else str(why)
        return ""
