"""Rules about jobs of several ranks: whether NCCL can come back, and whether all ranks are here.

Environments are read as they were when the programs started: what a job sets for itself later
is not seen, so each of these blockers can be overridden.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.profiles import PROFILES
from gpuckpt.flow.sight.rules.rule import whole
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding
    from gpuckpt.tools.look import Task

_NEEDED: Final = PROFILES["nccl"].environment
# the shared-memory transport, which comes back
_SEGMENT: Final = re.compile(r"/dev/shm/nccl-\w+")  # noqa: S108
# NCCL names its threads if asked to, PyTorch those that watch over NCCL always
_THREADS: Final = ("pt_nccl", "NCCL ")
_SIZES: Final = (
    ("WORLD_SIZE", "RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
)
_HEARTBEAT: Final = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
_MONITORING: Final = "TORCH_NCCL_ENABLE_MONITORING"
_DEFAULT_HEARTBEAT: Final = 480
# a slow estimate of how fast GPU memory leaves and comes back, in bytes per second
_SPEED: Final = 1 << 30


def nccl(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """With most settings NCCL maps memory of other ranks' GPUs, which no restore brings back."""
    ranks = _nccl_ranks(facts)
    missing = sorted({name for task in ranks for name in _missing(task)})
    if len(ranks) < 2 or not missing:  # noqa: PLR2004 - one rank alone has nobody to map
        return
    if all(any(_SEGMENT.fullmatch(one.target) for one in task.mapped) for task in ranks):
        why = (
            "NCCL uses its shared-memory transport, which comes back; whether it uses others too "
            "cannot be seen, for these variables were not set when the job started."
        )
        finding = warning
    else:
        why = (
            f"Its {len(ranks)} ranks talk by NCCL in a way that the driver can checkpoint but "
            "never restore, as far as the variables tell that the job was started with."
        )
        finding = blocker
    yield finding(
        "nccl",
        ", ".join(missing),
        why,
        "Start the job with `gpuckpt run --profile nccl`, or with "
        + " ".join(f"{name}={value}" for name, value in _NEEDED.items())
        + ".",
        ranks[0].process.pid,
    )


def _nccl_ranks(facts: DumpFacts) -> list[Task]:
    known = set(facts.cuda_pids)
    return [task for task in facts.look.tasks if task.process.pid in known and _uses_nccl(task)]


def _uses_nccl(task: Task) -> bool:
    return (
        any(name.startswith(_THREADS) for name in task.thread_names)
        or any(_SEGMENT.fullmatch(one.target) for one in task.mapped)
        or _of(task)[0] > 1
    )


def _missing(task: Task) -> Iterator[str]:
    for name, value in _NEEDED.items():
        local = name == "NCCL_P2P_DISABLE" and task.settings.get("NCCL_P2P_LEVEL") in {"LOC", "0"}
        if task.settings.get(name) != value and not local:
            yield name


def absent_ranks(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """The other ranks wait for this one, and give up or wait for ever."""
    seen: dict[int, set[int]] = {}
    for task in facts.look.tasks:
        size, rank = _of(task)
        if size > 1:
            seen.setdefault(size, set()).add(rank)
    for size, ranks in seen.items():
        if len(ranks) >= size:
            continue
        first = next(task for task in facts.look.tasks if _of(task)[0] == size)
        yield blocker(
            "ranks-absent",
            f"{len(ranks)} of {size} ranks",
            f"The job has {size} ranks, and the others are {_where(first, ranks)}: they would wait "
            "for these in vain.",
            "Dump the process that started all ranks; a job on several hosts can only be stopped "
            "and started by its own checkpoints.",
            first.process.pid,
        )


def _of(task: Task) -> tuple[int, int]:
    """Return of how many ranks this process is which; (0, 0) if it says nothing."""
    for size, rank in _SIZES:
        count, mine = whole(task.settings.get(size, "")), whole(task.settings.get(rank, ""))
        if count is not None and mine is not None:
            return count, mine
    return 0, 0


def _where(task: Task, ranks: set[int]) -> str:
    local = task.settings.get("LOCAL_WORLD_SIZE") or task.settings.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    if (whole(local or "") or 0) > len(ranks):
        return "outside of this tree"
    master = task.settings.get("MASTER_ADDR", "")
    return f"on other hosts (MASTER_ADDR is {master})" if master else "on other hosts"


def heartbeat(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """PyTorch's monitor aborts a job whose ranks it has not heard for a while."""
    ranks = _nccl_ranks(facts)
    pause = facts.gpu_bytes / _SPEED + facts.image_bytes / _SPEED
    for task in ranks if len(ranks) > 1 else ():
        limit = whole(task.settings.get(_HEARTBEAT, str(_DEFAULT_HEARTBEAT)))
        if task.settings.get(_MONITORING) == "0" or limit is None or limit >= pause:
            continue
        yield warning(
            "heartbeat",
            f"{_HEARTBEAT}={limit}",
            f"The pause may take {pause:.0f} s, and PyTorch ends a job that is silent for "
            f"{limit} s.",
            f"Start the job with {_HEARTBEAT}={2 * max(int(pause), _DEFAULT_HEARTBEAT)}.",
            task.process.pid,
        )
        return


RULES: Final[tuple[Rule, ...]] = (nccl, absent_ranks, heartbeat)
