"""systemd's units: which one a process belongs to, and whether it will be started again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import ToolFailed, ToolMissing, ToolTimeout
from gpuckpt.tools.run import Command
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.tools.run import Runner

_USER: Final = re.compile(r"user@(\d+)\.service")
_PATIENCE: Final = 5.0


class Unit(Value, frozen=True):
    """A service; `restart` is its Restart= and `main_pid` its main process, "" and 0 if unknown."""

    name: str
    restart: str = ""
    main_pid: int = 0


def unit(runner: Runner, paths: Iterable[str]) -> Unit | None:
    """Return the service that a process with these control groups is in, None without one."""
    for path in paths:
        services = [part for part in path.split("/") if part.endswith(".service")]
        if not services or _USER.fullmatch(services[-1]):
            continue
        owner = next((found[1] for part in services if (found := _USER.fullmatch(part))), "")
        return _ask(runner, services[-1], owner)
    return None


def _ask(runner: Runner, name: str, owner: str) -> Unit:
    whose = ("--user", f"--machine={owner}@") if owner else ()
    argv = ("systemctl", *whose, "show", "--property=Restart,MainPID", "--", name)
    try:
        said = runner.run(Command(argv, timeout=_PATIENCE)).stdout
    except (ToolMissing, ToolFailed, ToolTimeout):
        return Unit(name)
    values = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    pid = values.get("MainPID", "")
    return Unit(name, values.get("Restart", ""), int(pid) if pid.isdigit() else 0)
