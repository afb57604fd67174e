"""Rules about the GPU side: driver, modes, sharing, processes that hold a GPU without CUDA."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.rule import Rule, descriptor, size
from gpuckpt.model import CudaState, DeviceUse, blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices
    from gpuckpt.model import Finding, Gpu
    from gpuckpt.tools.held import DeviceNode
    from gpuckpt.tools.look import Task

# all that the driver makes, except the files of GPUDirect Storage, which no checkpoint covers
GPU_NODE: Final = re.compile(r"/dev/nvidia(?!-fs).*")
# by the name or the command line
_LOADER: Final = re.compile(r"\bpt_data_worker\b|DataLoader")
_COMPILER: Final = re.compile(r"compile_worker|triton.*compil|AsyncCompile")
_WATCHER: Final = re.compile(r"nvidia-smi|nvtop|gpustat|nvitop|dcgm|wandb|gpu_stats|nvml")
_MPS_NAME: Final = "CUDA_MPS_PIPE_DIRECTORY"


def mig(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """The driver answers `out of memory` to a checkpoint on a GPU in MIG mode."""
    for gpu in _gpus(facts):
        if gpu.mig:
            yield blocker(
                "mig",
                f"GPU {gpu.index} {gpu.uuid}",
                "The GPU is in MIG mode; the driver cannot checkpoint processes on it.",
                "Run the job on a GPU without MIG (nvidia-smi -i N -mig 0, when it is idle).",
            )


def persistence_off(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Without persistence mode a restore was seen to fail with `operation not permitted`."""
    for gpu in _gpus(facts):
        if gpu.persistence is False:
            yield warning(
                "persistence-off",
                f"GPU {gpu.index} {gpu.uuid}",
                "Persistence mode is off: driver calls are slow, and restores were seen to fail.",
                f"Switch it on: nvidia-smi -i {gpu.index} -pm 1",
            )


def mps(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Clients of MPS share one server process, which is not in the tree."""
    remedy = "Run the job without MPS (unset CUDA_MPS_PIPE_DIRECTORY, or stop the MPS daemon)."
    if any(_is_mps(one.comm) for one in facts.look.above):
        why = "The tree runs below an MPS control process."
        yield blocker("mps", "nvidia-cuda-mps", why, remedy, facts.tree.root.pid)
    cuda = set(facts.cuda_pids)
    peers = {
        peer.pid: f"fd {peer.fd}"
        for peer in facts.look.peers
        if peer.holder is not None and _is_mps(peer.holder.comm)
    }
    for task in facts.look.tasks:
        pid, named = task.process.pid, _MPS_NAME in task.environment
        pipe = peers.get(pid) or _mps_pipe(task)
        if _is_mps(task.process.comm):
            why = "This process belongs to MPS itself."
            yield blocker("mps", task.process.comm, why, remedy, pid)
        elif pid not in cuda:
            continue
        elif pipe or (named and facts.look.mps_running):
            why = "The process is an MPS client; the driver cannot checkpoint it."
            yield blocker("mps", pipe or _MPS_NAME, why, remedy, pid)
        elif named or facts.look.mps_running:
            why = "MPS is set up around this process; if it uses MPS, the driver cannot lock it."
            yield warning("mps", _MPS_NAME if named else "nvidia-cuda-mps", why, remedy, pid)


def _is_mps(comm: str) -> bool:
    # nvidia-cuda-mps-control and -server; the kernel keeps 15 bytes of a name
    return comm.startswith("nvidia-cuda-mps")


def _mps_pipe(task: Task) -> str:
    found = (fd for fd in task.descriptors if "/nvidia-mps/" in fd.target)
    return next((descriptor(fd.fd, fd.target) for fd in found), "")


def gpu_without_cuda(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """No driver call releases the GPU files of a process that the driver does not know."""
    told = {*facts.cuda_pids, *facts.unasked}
    tasks = {task.process.pid: task for task in facts.look.tasks}
    for node in facts.look.nodes:
        if node.pid in told or not GPU_NODE.fullmatch(node.path) or _inherited(facts, node):
            continue
        told.add(node.pid)
        what, remedy = _holder(tasks.get(node.pid), tasks)
        yield blocker(
            "gpu-without-cuda",
            descriptor(node.fd, node.path),
            f"{what} holds the GPU's device files, but the driver knows no CUDA state of it and "
            "will not release them.",
            remedy,
            node.pid,
        )


def gpu_inherited(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """What a fork has left in a child's hands is of no use to it: a stand-in will do."""
    cuda = {*facts.cuda_pids, *facts.unasked}
    found = [one for one in facts.look.nodes if one.pid not in cuda and _inherited(facts, one)]
    if found:
        pids = sorted({one.pid for one in found})
        who = f"Process {pids[0]}" + (f" and {len(pids) - 1} more" if len(pids) > 1 else "")
        hold = "have" if len(pids) > 1 else "has"
        yield warning(
            "gpu-inherited",
            descriptor(found[0].fd, found[0].path),
            f"{who} {hold} the GPU's device files from a process with CUDA by a fork, and cannot "
            "use CUDA by them; a restore gives /dev/zero instead.",
            "Nothing to do. Workers that are started by spawn or forkserver have none.",
            pids[0],
        )


def _inherited(facts: DumpFacts, node: DeviceNode) -> bool:
    """Whether it is an open file or mapping that a process with CUDA has made."""
    use = DeviceUse(node.pid, node.fd, node.path)
    known = GPU_NODE.fullmatch(node.path) and facts.cuda_pids
    return bool(known) and use in facts.look.inherited


def _holder(task: Task | None, tasks: dict[int, Task]) -> tuple[str, str]:
    """Say what holds a GPU without CUDA, and how a job does without it."""
    spawn = "Start workers by spawn or forkserver, or dump when they have ended"
    if task is None:
        return "The process", f"{spawn}."
    words = f"{task.process.comm} {task.process.command}"
    if _LOADER.search(words):
        return (
            "This DataLoader worker",
            f"{spawn} (DataLoader(multiprocessing_context='forkserver'), num_workers=0).",
        )
    if _COMPILER.search(words):
        return (
            "This compile worker",
            "Set TORCHINDUCTOR_WORKER_START=subprocess, or dump when compilation is over.",
        )
    if _WATCHER.search(words):
        return "This watcher of the GPU", "Stop it before the dump, or keep it out of the tree."
    parent = tasks.get(task.process.ppid)
    if parent is not None and parent.process.argv == task.process.argv:
        return (
            f"A child that process {task.process.ppid} forked after CUDA had started",
            f"{spawn}.",
        )
    return "The process", f"{spawn}; stop it if it only watches the GPU."


def gpu_failed(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """After a failed driver call a process may be in a state that nothing leads out of."""
    for pid, state in facts.states.items():
        if state is CudaState.FAILED:
            yield blocker(
                "gpu-failed",
                f"state {state}",
                "The driver says that an earlier checkpoint or restore of this process failed.",
                "It cannot be saved: restore it from an earlier image, or start it anew.",
                pid,
            )


def gpu_suspended(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """What another tool has locked or checkpointed is that tool's to bring back."""
    for pid, state in facts.states.items():
        if state in {CudaState.LOCKED, CudaState.CHECKPOINTED}:
            yield blocker(
                "gpu-suspended",
                f"state {state}",
                "Somebody has suspended this process's CUDA state: it would come back suspended.",
                f"Resume it with the tool that did, or by `gpuckpt repair {pid}`.",
                pid,
            )


def gpu_shared(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """GPU memory that the job gives up for a while may be taken by others on the same GPU.

    Only where the job goes on in place: a driver's restore without enough of it is fatal.
    """
    if not (choices.leave_running or choices.rehearsal):
        return
    finding = blocker if choices.rehearsal else warning
    for process, use in facts.others:
        index = next((g.index for g in _gpus(facts) if g.uuid == use.uuid), "")
        yield finding(
            "gpu-shared",
            f"GPU {index} {use.uuid}",
            f"{process.command} uses this GPU too, with {size(use.bytes)}: memory that it takes "
            "while the job's state is away is not there when the job needs it back.",
            "End it or wait for its end, or accept that the job may have to wait for it.",
            process.pid,
        )


def _gpus(facts: DumpFacts) -> Iterator[Gpu]:
    """Return the GPUs the tree uses; all of the host where NVML does not say which."""
    if facts.nvidia is None or not facts.cuda_pids:
        return
    used = {use.uuid for use in facts.uses}
    yield from (gpu for gpu in facts.nvidia.gpus if not used or gpu.uuid in used)


RULES: Final[tuple[Rule, ...]] = (
    mig,
    persistence_off,
    mps,
    gpu_without_cuda,
    gpu_inherited,
    gpu_failed,
    gpu_suspended,
    gpu_shared,
)
