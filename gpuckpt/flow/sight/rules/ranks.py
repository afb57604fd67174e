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
# without it ranks have segments, and memory of each other's GPUs beside them
_PEERS: Final = "NCCL_P2P_DISABLE"
# the shared-memory transport, which comes back
_SEGMENT: Final = re.compile(r"/dev/shm/nccl-\w+")  # noqa: S108
# a communicator's own socket, for memory handles: in NCCL 2.20 and newer as long as there is one,
# in 2.18 not yet (src/proxy.cc); the first byte is zero, or / with NCCL_IPC_USE_ABSTRACT_SOCKET=0.
# It has the rank's number: where there is none but 0, every communicator has one rank alone.
_SOCKET: Final = re.compile(r"[@/]tmp/nccl-socket-(\d+)-[0-9a-f]+")
# NCCL names its threads only if asked to (NCCL_SET_THREAD_NAME), PyTorch from 2.5 on those that
# watch over a process group of NCCL
_THREADS: Final = ("NCCL ", "pt_nccl")
_LIBRARY: Final = re.compile(r".*/libnccl\.so[.0-9]*")
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
    signs = communicators(facts)
    ranks = [task for task in _cuda(facts) if task.process.pid in signs or _of(task)[0] > 1]
    missing = sorted({name for task in ranks for name in _missing(task)})
    if len(ranks) < 2 or not missing:  # noqa: PLR2004 - one rank alone has nobody to map
        return
    if all(_alone(sign) for sign in signs.values()):
        yield warning("nccl", ", ".join(missing), _nothing_seen(ranks), _REMEDY, _first(ranks))
    elif all(map(_segment, ranks)) and _PEERS not in missing:
        # each of the other settings was left out: both ranks came back (driver 580.159, NCCL 2.28)
        why = (
            "NCCL uses its shared-memory transport, which comes back; whether it uses others too "
            "cannot be seen, for these variables were not set when the job started."
        )
        yield warning("nccl", ", ".join(missing), why, _REMEDY, _first(ranks))
    else:
        why = (
            f"Its {len(ranks)} ranks talk by NCCL ({next(iter(signs.values()))}) in a way that the "
            "driver can checkpoint but never restore, as far as the variables tell that the job "
            "was started with."
        )
        yield blocker("nccl", ", ".join(missing), why, _REMEDY, _first(ranks))


_REMEDY: Final = (
    "Start the job with `gpuckpt run --profile nccl`, or with "
    + " ".join(f"{name}={value}" for name, value in _NEEDED.items())
    + "."
)


def _nothing_seen(ranks: list[Task]) -> str:
    """Say what it means that ranks show no sign of a communicator."""
    count = len(ranks)
    if any(_LIBRARY.fullmatch(one.target) for task in ranks for one in task.mapped):
        return (
            f"Its {count} ranks have NCCL's library and show no communicator among them, as with "
            "gloo or MPI alone; one that NCCL older than 2.20 has made would not be seen."
        )
    return (
        f"Its {count} ranks show no trace of NCCL, as with gloo or MPI alone; one that is linked "
        "in and older than 2.20 would not be seen."
    )


def communicators(facts: DumpFacts) -> dict[int, str]:
    """Return by which sign each process shows that it has a communicator of NCCL."""
    sockets = {pid: name for pid, name in facts.look.bound if _SOCKET.match(name)}
    found: dict[int, str] = {}
    for task in _cuda(facts):
        pid = task.process.pid
        threads = sorted(one for one in task.thread_names if one.startswith(_THREADS))
        if pid in sockets:
            found[pid] = f"socket {sockets[pid]}"
        elif segment := _segment(task):
            found[pid] = segment
        elif threads:
            found[pid] = f"thread {threads[0]}"
    return found


def _alone(sign: str) -> bool:
    """Whether a sign is that of a communicator without other ranks, as far as this rank tells."""
    socket = _SOCKET.search(sign)
    return socket is not None and socket[1] == "0"


def _segment(task: Task) -> str:
    return next((one.target for one in task.mapped if _SEGMENT.fullmatch(one.target)), "")


def _cuda(facts: DumpFacts) -> list[Task]:
    known = set(facts.cuda_pids)
    return [task for task in facts.look.tasks if task.process.pid in known]


def _first(ranks: list[Task]) -> int:
    return ranks[0].process.pid


def _missing(task: Task) -> Iterator[str]:
    for name, value in _NEEDED.items():
        local = name == _PEERS and task.settings.get("NCCL_P2P_LEVEL") in {"LOC", "0"}
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
        part = facts.kin.job is not None  # then what is missing may be beside it
        yield blocker(
            "ranks-absent",
            f"{len(ranks)} of {size} ranks",
            f"The job has {size} ranks, and the others are {_where(first, ranks, part=part)}: "
            "they would wait for these in vain.",
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


def _where(task: Task, ranks: set[int], *, part: bool) -> str:
    local = task.settings.get("LOCAL_WORLD_SIZE") or task.settings.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    if part or (whole(local or "") or 0) > len(ranks):
        return "outside of this tree"
    master = task.settings.get("MASTER_ADDR", "")
    return f"on other hosts (MASTER_ADDR is {master})" if master else "on other hosts"


def heartbeat(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """PyTorch's monitor aborts a job whose ranks it has not heard for a while."""
    signs = communicators(facts)
    ranks = [task for task in _cuda(facts) if task.process.pid in signs]
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
