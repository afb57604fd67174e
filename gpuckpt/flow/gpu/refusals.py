"""What it means that the driver refused: why, what the process is now, what can be done.

The name of an error alone tells little: the same one means harmless things of one call and the
end of the process of another. What counts is which call it was and the state read back after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.errors import GpuStepFailed
from gpuckpt.model import CudaState, Tree
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuckpt.errors import CudaCallFailed
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import CudaOutcome

# how many processes a message tells of
MOST_TOLD: Final = 3
# errors that are a matter of privilege or visibility more often than of the driver
ACCESS: Final = frozenset({"NOT_PERMITTED", "NOT_INITIALIZED", "NO_DEVICE", "OPERATING_SYSTEM"})
NO_TRACING: Final = 3  # Yama's ptrace_scope that not even root gets past
_ANY: Final = ("state", "open", "lock", "checkpoint", "restore", "unlock")
_END: Final = "End it, and bring it back from its last image."


class _Meaning(Value, frozen=True):
    """What one error of some calls means; `lost`: nothing brings the process back."""

    errors: tuple[str, ...]
    actions: tuple[str, ...]
    sentence: str
    hint: str
    lost: bool = False


_MAP_REFUSED: Final = _Meaning(
    ("INVALID_VALUE",),
    ("restore",),
    "the driver refused the map of GPUs for process {pid}, and changed nothing",
    "The map must name every GPU that the driver shows the job, hidden ones too.",
)
_MEANINGS: Final = (
    _Meaning(
        ("NOT_READY",),
        ("lock",),
        "the driver could not hold process {pid} in time: it computes, or waits for a peer",
        "A long kernel may be running; try again with a larger --lock-timeout.",
    ),
    _Meaning(  # both seen with driver 580.159; neither leaves a trace that could be told before
        ("NOT_SUPPORTED",),
        ("lock",),
        "the driver cannot lock process {pid}: a profiler (CUPTI) was started in it, or it is a "
        "client of MPS",
        "Start the job without profiler or MPS; a profile that was taken once is enough.",
    ),
    _Meaning(
        ("NOT_SUPPORTED",),
        ("checkpoint",),
        "the driver cannot checkpoint something that process {pid} uses",
        "Managed (unified) memory, CUDA IPC or MIG, most often; some platforms cannot at all.",
    ),
    _Meaning(
        ("NOT_SUPPORTED", "INVALID_VALUE"),
        ("restore",),
        "process {pid} is lost: it shares GPU memory with another process (CUDA IPC, NCCL peers), "
        "and the driver cannot bring that back",
        f"{_END} Start such jobs with NCCL_P2P_DISABLE=1 NCCL_CUMEM_ENABLE=0 NCCL_NVLS_ENABLE=0.",
        lost=True,
    ),
    _Meaning(
        ("OUT_OF_MEMORY",),
        ("checkpoint",),
        "the host has no memory for the GPU bytes of process {pid}",
        "Free memory, or raise the limit of its memory cgroup. On a GPU in MIG mode the driver "
        "says this of every job.",
    ),
    _Meaning(
        ("OUT_OF_MEMORY",),
        ("restore",),
        "process {pid} is lost: GPU memory ran out while the driver brought it back, and it takes "
        "no second try",
        _END,
        lost=True,
    ),
    _Meaning(
        ("OPERATING_SYSTEM",),
        ("restore",),
        "process {pid} is lost: an earlier restore of it failed, and the driver takes no second "
        "try",
        _END,
        lost=True,
    ),
    _Meaning(
        ("ILLEGAL_STATE",),
        _ANY,
        "process {pid} is not in the state that {action} needs: another tool has changed it",
        "`gpuckpt status` shows the state; end the other tool, then `gpuckpt repair`.",
    ),
    _Meaning(
        ("NO_ANSWER",),
        _ANY,
        "the driver has not come back from {action} of process {pid} for {seconds:.0f} s",
        "It goes on by itself, and so does the way back; see whether nvidia-smi answers.",
    ),
    _Meaning(
        ("CALLER_LOST",),
        _ANY,
        "the process that makes the driver's calls for process {pid} ended in the middle of it",
        "Somebody killed it, or the driver's library crashed: look at the kernel's log.",
    ),
    _Meaning(
        ("BUSY",),
        _ANY,
        "another gpuckpt is at work on process {pid}",
        "Wait until it has ended; `gpuckpt status` shows it.",
    ),
    _Meaning(
        ("STOPPED", "NOT_STOPPED"),
        _ANY,
        "process {pid} could not be brought to rest for {action}: {detail}",
        "End the debugger or tracer, thaw its control group, or continue it (SIGCONT).",
    ),
    _Meaning(
        ("NOT_PERMITTED", "NOT_INITIALIZED", "NO_DEVICE", "OPERATING_SYSTEM"),
        _ANY,
        "the driver would not {action} process {pid}: {detail}",
        "Privileges, ptrace and GPU nodes look right from here; see nvidia-smi and dmesg.",
    ),
)
_OTHER: Final = _Meaning(
    (), (), "the driver's {action} of process {pid} failed: {detail} ({error})", ""
)
_NOW: Final = {
    CudaState.RUNNING: "it is unharmed",
    CudaState.LOCKED: "it is locked and unharmed",
    CudaState.CHECKPOINTED: "its GPU memory is in host memory",
}


def translated(
    why: CudaCallFailed,
    access: Callable[[Iterable[int]], tuple[str, ...]] = lambda _: (),
    *,
    mapped: bool = False,
) -> GpuStepFailed:
    """Return the error that says what refused driver calls mean.

    `access` tells, for processes, what is missing to reach them. `mapped`: the calls had a map of
    GPUs.
    """
    told = [_told(one, why.action, mapped=mapped) for one in why.failed]
    more = len(told) - MOST_TOLD
    message = "; ".join(sentence for sentence, _ in told[:MOST_TOLD])
    hint = next((hint for _, hint in told if hint), "")
    refused = [one.pid for one in why.failed if one.error in ACCESS and not _ended(one)]
    if refused and why.action != "restore" and (reasons := access(refused)):
        hint = f"{'; '.join(reasons)}. That comes before anything the driver says."
        hint = hint[:1].upper() + hint[1:]
    return GpuStepFailed(
        message + (f"; and {more} more" if more > 0 else ""), hint=hint, excerpt=why.excerpt
    )


def hopeless(why: CudaCallFailed) -> set[int]:
    """Return those processes that take no second try of what was refused."""
    return {
        one.pid
        for one in why.failed
        if one.after is CudaState.FAILED or _meaning(one, why.action, mapped=False).lost
    }


def lost(pids: Iterable[int]) -> GpuStepFailed:
    """Return the error for processes of which the driver says that they failed."""
    names = ", ".join(map(str, pids))
    return GpuStepFailed(
        f"process {names} is lost: the driver says that its GPU state cannot be used any more",
        hint=_END,
    )


def missing_access(tools: Toolbox, pids: Iterable[int]) -> tuple[str, ...]:
    """Say what this gpuckpt lacks to reach the processes through the driver."""
    facts = tools.host.facts()
    found: list[str] = []
    if facts.missing_capabilities:
        found.append(f"gpuckpt lacks {', '.join(facts.missing_capabilities)}")
    if facts.ptrace_scope >= NO_TRACING:
        found.append("this host lets nobody trace processes (kernel.yama.ptrace_scope is 3)")
    processes = [one for pid in pids if (one := tools.proc.process(pid)) is not None]
    look = tools.proc.look(Tree(tuple(processes))) if processes else None
    for task in look.tasks if look else ():
        ours = look.own_namespaces.get("pid") if look else None
        if ours and task.namespaces.get("pid", ours) != ours:
            found.append(f"process {task.process.pid} is in another pid namespace than gpuckpt")
    if tools.nvidia.facts() is None:
        found.append("no GPU can be seen from here (device nodes, or the driver's library)")
    return tuple(found)


def _told(one: CudaOutcome, action: str, *, mapped: bool) -> tuple[str, str]:
    """Return sentence and hint for one process."""
    if _ended(one):
        return _end_of(one, action)
    if one.after is CudaState.FAILED:
        return f"process {one.pid} is lost: its {action} failed ({one.error})", _END
    meaning = _meaning(one, action, mapped=mapped)
    said = one.detail or one.error
    sentence = meaning.sentence.format(
        pid=one.pid, action=action, detail=said, error=one.error, seconds=one.seconds
    )
    if meaning.lost:
        return sentence, meaning.hint
    now = _NOW.get(one.after) if one.after else "its state could not be read"
    return f"{sentence}; {now}" if now else sentence, meaning.hint


def _meaning(one: CudaOutcome, action: str, *, mapped: bool) -> _Meaning:
    if mapped and one.error in _MAP_REFUSED.errors and action in _MAP_REFUSED.actions:
        return _MAP_REFUSED
    fits = (each for each in _MEANINGS if one.error in each.errors and action in each.actions)
    return next(fits, _OTHER)


def _ended(one: CudaOutcome) -> bool:
    return one.gone or one.error == "GONE"


def _end_of(one: CudaOutcome, action: str) -> tuple[str, str]:
    if one.before is None:
        return f"process {one.pid} has ended", "Its own log tells why, or the kernel's."
    hint = "Bring it back from its last image; the kernel's log tells how it died."
    if action == "lock":
        hint = (
            "A process that unloaded NVML without shutting it down dies of the lock: start it "
            "without that, from its last image."
        )
    who = "the driver killed it, or somebody else did"
    return f"process {one.pid} died during {action}: {who}", hint
