"""Rules that know GPU state by the traces it leaves in /proc, before any driver call.

All traces were taken from real jobs with driver 580.159 on H200s. What is only counted is
certain there; with another driver it warns, for the counts may be others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.rule import descriptor
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding
    from gpuckpt.tools.look import Task

_COUNTED_WITH: Final = "580."
_NVML: Final = re.compile(r".*/libnvidia-ml\.so[.0-9]*")
_CAPS: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap\d+")
_CARD: Final = re.compile(r"/dev/nvidia\d+")
_CONTROL: Final = "/dev/nvidiactl"
_UVM: Final = "/dev/nvidia-uvm"
_IPC: Final = re.compile(r"/dev/shm/cuda\.shm\.[0-9a-f]+\.([0-9a-f]+)\.[0-9a-f]+")  # noqa: S108


def nvml_unloaded(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """NVML has left a callback in the driver that points into an unmapped library.

    The first lock calls it and kills the process. Seen in four of four such jobs and in none of
    eleven others: NVML's capability files are open and its library is not mapped.
    """
    for task in _cuda(facts):
        left = next((fd for fd in task.descriptors if _CAPS.fullmatch(fd.target)), None)
        if left is not None and not any(_NVML.fullmatch(one.target) for one in task.mapped):
            yield blocker(
                "nvml-unloaded",
                descriptor(left.fd, left.target),
                "The process has unloaded NVML without shutting it down: the driver's lock would "
                "kill it.",
                "Let the job keep NVML loaded, or call nvmlShutdown before it unloads it.",
                task.process.pid,
            )


def managed_memory(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Each GPU in use maps the file once, each arena of managed memory once more."""
    finding = _counted(facts)
    for task in _cuda(facts):
        cards = sum(bool(one.pieces) and bool(_CARD.fullmatch(one.target)) for one in task.mapped)
        pieces = sum(one.pieces for one in task.mapped if one.target == _UVM)
        if cards and pieces > cards:
            yield finding(
                "managed-memory",
                f"{pieces} mappings of {_UVM}",
                "The process probably has managed (unified) memory, which the driver refuses to "
                "checkpoint; the job would then go on.",
                "Let the job do without it: no cudaMallocManaged, no managed RMM pool, no paged "
                "optimizer, TF_FORCE_UNIFIED_MEMORY unset.",
                task.process.pid,
            )


def gpu_memory_exported(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A handle to GPU memory is a descriptor of the control file, and no checkpoint closes it."""
    finding = _counted(facts)
    for task in _cuda(facts):
        control = [fd for fd in task.descriptors if fd.target == _CONTROL]
        nvml = any(_CAPS.fullmatch(fd.target) for fd in task.descriptors)
        if len(control) > 1 + nvml:
            yield finding(
                "gpu-memory-exported",
                descriptor(control[-1].fd, _CONTROL),
                "The process holds a handle by which GPU memory is shared with other processes; "
                "it stays open after a checkpoint, and CRIU cannot dump it.",
                "Let the job close such handles (cuMemExportToShareableHandle), for NCCL: "
                "NCCL_CUMEM_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0.",
                task.process.pid,
            )


def cuda_ipc(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A checkpoint destroys an IPC importer: on driver 580 it can never be restored.

    The exporter comes back; it has the file also for an event that nobody uses.
    """
    for task in facts.look.tasks:
        names = {one.target for one in task.mapped} | {one.target for one in task.descriptors}
        for name in sorted(name for name in names if _IPC.fullmatch(name)):
            exporter = _IPC.fullmatch(name)
            owner, me = int(exporter[1], 16) if exporter else 0, task.process.pid
            users = sorted(set(facts.look.shared_by.get(name, ())) - {owner})
            role = f"shares it with process {', '.join(map(str, users))}"
            if me != owner:
                role = f"uses process {owner}'s"
            elif not users:
                yield warning(
                    "cuda-ipc",
                    name,
                    "The process offers GPU memory or events by CUDA IPC; nobody uses them now.",
                    "Do not start what uses them before the dump is over.",
                    me,
                )
                continue
            yield blocker(
                "cuda-ipc",
                name,
                f"GPU memory is shared by CUDA IPC, which does not survive: the process {role}.",
                "Share tensors through the CPU, or let the job drop them before the dump.",
                me,
            )


def _cuda(facts: DumpFacts) -> Iterator[Task]:
    known = set(facts.cuda_pids)
    yield from (task for task in facts.look.tasks if task.process.pid in known)


def _counted(facts: DumpFacts) -> Callable[..., Finding]:
    driver = facts.nvidia.driver if facts.nvidia is not None else ""
    return blocker if driver.startswith(_COUNTED_WITH) else warning


RULES: Final[tuple[Rule, ...]] = (nvml_unloaded, managed_memory, gpu_memory_exported, cuda_ipc)
