"""Recorded facts about a small tree, to be changed one at a time."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gpuckpt.flow.sight.facts import DumpFacts
from gpuckpt.model import (
    CudaState,
    Gpu,
    GpuUse,
    HostFacts,
    NvidiaFacts,
    Process,
    ProcessRef,
    Tree,
)
from gpuckpt.tools.descriptors import Descriptor
from gpuckpt.tools.look import NAMESPACES, Look, Task
from gpuckpt.tools.mappings import Mapped

GIB = 1 << 30
HERE = {kind: f"{kind}:[1]" for kind in NAMESPACES}


def process(pid: int, ppid: int = 1, **changes: Any) -> Process:
    """Return a sleeping process in the session of process 100."""
    plain = Process(
        ref=ProcessRef(pid, pid * 10),
        ppid=ppid,
        pgid=100,
        sid=100,
        state="S",
        threads=(pid, pid + 1),
        comm="python3",
        argv=("python3", "train.py"),
        exe="/usr/bin/python3",
        cwd="/work",
        uid=0,
        gid=0,
        rss=GIB,
    )
    return replace(plain, **changes)


def task(of: Process, **changes: Any) -> Task:
    """Return a process that has only /dev/null and a log open."""
    opened = (
        Descriptor(0, "/dev/null", "chr", rdev=(1, 3)),
        Descriptor(1, "/work/log", "file", inode=7, device=1),
    )
    return replace(Task(of, HERE, descriptors=opened, memory=GIB), **changes)


def gpu(index: int = 0, **changes: Any) -> Gpu:
    """Return an H200 of which 40 GiB are in use."""
    plain = Gpu(index, f"GPU-{index}", "NVIDIA H200", 140 * GIB, 100 * GIB, f"0000:0{index}:00.0")
    return replace(plain, **({"mig": False, "persistence": True} | changes))


HOST = HostFacts("h", "6.18", "b", "x86_64", "glibc 2.41", "X", (), 8, 64 * GIB, 48 * GIB, "", 0)


def facts(*processes: Process, **changes: Any) -> DumpFacts:
    """Return a tree without a GPU; `look` may be given as changes of its own."""
    listed = processes or (process(100), process(110, 100))
    looked = Look(tasks=tuple(task(one) for one in listed), own_namespaces=HERE)
    looked = replace(looked, **changes.pop("look", {}))
    plain = DumpFacts(Tree(listed), looked, HOST, memory_available=48 * GIB, free_bytes=1000 * GIB)
    return replace(plain, **changes)


def cuda_facts(**changes: Any) -> DumpFacts:
    """Return the same tree with 8 GiB of GPU memory in its child process."""
    given = {
        "states": {100: CudaState.NONE, 110: CudaState.RUNNING},
        "nvidia": NvidiaFacts("580.159.04", "13.0", (gpu(0), gpu(1))),
        "uses": (GpuUse(110, "GPU-0", 8 * GIB),),
    }
    return facts(**(given | changes))


def mapped(target: str, **changes: Any) -> Mapped:
    """Return a mapping of something with a name."""
    return replace(Mapped(target, "7f00-7f01", 9, shared=True, deleted=False), **changes)
