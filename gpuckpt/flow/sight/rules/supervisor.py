"""Rules about who waits for the tree's end: a dump takes the job away, as SIGKILL would."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from gpuckpt.model import blocker, warning
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding
    from gpuckpt.tools.above import Above

ID: Final = "supervised"


class _Kind(Value, frozen=True):
    """One kind of supervisor: how it is known by its command line, and what it will do."""

    pattern: re.Pattern[str]
    name: str
    does: str
    remedy: str
    blocks: bool = True


def _kind(pattern: str, name: str, does: str, remedy: str, *, blocks: bool = True) -> _Kind:
    return _Kind(re.compile(pattern), name, does, remedy, blocks)


_WHOLE: Final = "Dump process {pid} itself, with all that it has started."
_OFF: Final = "Switch its automatic restart off first."
# matched against the command line with the program's folder left out
_KINDS: Final = (
    _kind(
        r"torchrun\b|.*\btorch\.distributed\.(run|launch)\b|.*/torchrun\b"
        r"|.*\b(accelerate|deepspeed|horovodrun)(\.launcher\S*)? ",
        "launcher of ranks",
        "ends the other ranks and may start all of them anew",
        _WHOLE,
    ),
    _kind(
        r"(mpirun|mpiexec|orterun|prterun|orted|prted|prte|hydra_\w+|pmi_proxy)\b",
        "MPI launcher",
        "ends the other ranks",
        _WHOLE,
    ),
    _kind(
        r"slurmstepd\b|.*/slurm_script\b|.*/slurmd/job\d+",
        "Slurm step",
        "ends the step and frees its GPUs for others",
        "Dump from inside the job, and restore in a new one by gpuckpt restore --wait; then use "
        "--ignore supervised.",
    ),
    _kind(
        r"(runsv|s6-supervise|supervise|perpd|monit|nodemon|watchexec|entr|god)\b"
        r"|(\S*python\S* )?\S*\b(supervisord|circusd)\b|PM2\b",
        "supervisor",
        "starts another copy",
        _OFF,
    ),
    _kind(
        r"(\S*python\S* )?\S*\b(wandb agent|raylet|dask[- ]worker)\b|raylet\b",
        "scheduler",
        "counts the job as failed and may start another",
        _OFF,
    ),
    _kind(
        r"(containerd-shim\S*|conmon|docker-init|tini|dumb-init|catatonit)\b",
        "container runtime",
        "ends the container",
        "Use the container runtime's own checkpoint, or run the job outside a container.",
    ),
    _kind(
        r"(tmux|screen|SCREEN)\b",
        "terminal multiplexer",
        "closes the job's window",
        "Nothing to do if the window may close; otherwise start the job from a shell in it.",
        blocks=False,
    ),
)
_LOOP: Final = _kind(
    "",
    "shell script",
    "goes on in its loop, which may start another copy",
    "Dump process {pid}, the script itself, or end it first: kill -9 {pid} leaves the job running.",
)
_SCRIPT: Final = _kind(
    "",
    "shell script",
    "goes on with its next line",
    "Dump process {pid}, the script itself, if its next lines must wait for the job's real end.",
    blocks=False,
)
_MANAGERS: Final = frozenset({"systemd", "init"})
# they wait for their one child and end as it does
_WRAPPERS: Final = frozenset(
    {"sudo", "su", "timeout", "time", "env", "nice", "uv", "conda", "poetry", "srun", "unshare"}
)
# of systemd's Restart=, what means a new start after SIGKILL
_RESTARTS: Final = frozenset({"always", "on-failure", "on-abnormal", "on-abort"})


def supervised(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """Name the nearest one above that will act when the job is gone, if it will be gone."""
    if choices.leave_running or choices.rehearsal:
        return
    seen = [(one, kind) for one in _watchers(facts) if (kind := _known(one)) is not None]
    root = facts.tree.root
    if root.sid == root.pid:  # setsid, nohup and `&` in a script: it does not wait for this job
        seen = [one for one in seen if one[1] not in {_SCRIPT, _LOOP}]
    seen.sort(key=lambda one: not one[1].blocks)
    for one, kind in seen[:1]:
        yield (blocker if kind.blocks else warning)(
            ID,
            f"process {one.pid} {one.command}",
            f"The dump takes the job away, and this {kind.name} above it then {kind.does}.",
            kind.remedy.format(pid=one.pid),
            root.pid,
        )


def _watchers(facts: DumpFacts) -> Iterator[Above]:
    """Go up as far as the end of one is the end of the next.

    An interactive shell, a manager of services and pid 1 do not care, and of a program that is
    not known nobody can say what it does.
    """
    for one in facts.look.above:
        if one.pid == 1 or one.kind == "shell" or one.comm in _MANAGERS:
            return
        yield one
        if not (one.kind or one.comm in _WRAPPERS or _runs(one) or _known(one)):
            return


def _runs(one: Above) -> bool:
    """Whether it is `gpuckpt run`: it waits for the job alone, and names its launcher in vain."""
    ours = list(takewhile(lambda word: word != "--", one.argv))
    program = next((at for at, word in enumerate(ours) if PurePath(word).name == "gpuckpt"), None)
    return program is not None and "run" in ours[program + 1 :]


def _known(one: Above) -> _Kind | None:
    if _runs(one):
        return None
    first, *rest = one.argv or (one.comm,)
    line = " ".join((first.rpartition("/")[2], *rest))
    found = next((kind for kind in _KINDS if kind.pattern.match(line)), None)
    if found is not None or one.kind != "script" or not one.waits:
        return found
    return _LOOP if one.loops else _SCRIPT


def service(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """Tell what systemd does when the main process of a unit is gone."""
    unit = facts.unit
    if unit is None or choices.leave_running or choices.rehearsal:
        return
    if unit.main_pid and unit.main_pid not in facts.tree.pids:
        return  # cron's and sshd's units hold jobs that systemd does not watch
    if unit.restart in _RESTARTS:
        yield blocker(
            ID,
            unit.name,
            f"The dump takes the job away, and systemd then starts the unit anew "
            f"(Restart={unit.restart}).",
            f"Set Restart=no for now: systemctl edit --runtime {unit.name}",
            facts.tree.root.pid,
        )
    else:
        said = f"Restart={unit.restart}" if unit.restart else "whether it restarts is not known"
        yield warning(
            ID,
            unit.name,
            f"The job is a unit of systemd ({said}), which ends with the dump; a restored job is "
            "outside of it.",
            "Restore it in a unit of its own: systemd-run gpuckpt restore --wait IMAGE",
            facts.tree.root.pid,
        )


RULES: Final[tuple[Rule, ...]] = (supervised, service)
