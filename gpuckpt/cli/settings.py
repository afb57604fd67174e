"""The switches every command knows, however they were given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.cli.values import TRUE
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

STATE_DIR = Path("/var/lib/gpuckpt")


class Settings(Value, frozen=True):
    """How to talk: `progress` is auto, plain, json or none."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    progress: str = "auto"

    def over(self, other: Settings) -> Settings:
        """Return both together; a switch given in either place is given."""
        return Settings(
            json=self.json or other.json,
            quiet=self.quiet or other.quiet,
            verbose=self.verbose or other.verbose,
            progress=self.progress if self.progress != "auto" else other.progress,
        )


def guess(argv: Sequence[str]) -> Settings:
    """Read the switches roughly, for errors that come before the command line is understood."""
    words = list(argv[: argv.index("--")] if "--" in argv else argv)
    flags = {word for word in words if word.startswith("-") and not word.startswith("--")}
    progress = _after(words, "--progress") or os.environ.get("GPUCKPT_PROGRESS", "")
    return Settings(
        json="--json" in words or _set("GPUCKPT_JSON"),
        quiet="--quiet" in words or any("q" in flag for flag in flags) or _set("GPUCKPT_QUIET"),
        progress="json" if progress == "json" else "auto",
    )


def state_dir() -> Path:
    """Return the folder for journals and logs; CRIU runs in another one than we, so absolute."""
    return Path(os.environ.get("GPUCKPT_STATE_DIR") or STATE_DIR).absolute()


def _set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in TRUE


def _after(words: list[str], option: str) -> str:
    for number, word in enumerate(words):
        if word == option:
            return words[number + 1] if number + 1 < len(words) else ""
        if word.startswith(option + "="):
            return word.partition("=")[2]
    return ""
