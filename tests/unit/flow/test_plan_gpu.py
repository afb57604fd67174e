"""Rules about drivers, GPU state known by its traces, and ranks, on facts recorded from real jobs.

The counts of descriptors and mappings are those of jobs on H200s with driver 580.159.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt.flow.sight.plan import judge_dump
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.flow.work.kin import Kin
from gpuckpt.model import CudaState, DeviceUse, GpuUse, NvidiaFacts, Tree
from gpuckpt.tools.above import Above
from gpuckpt.tools.descriptors import Descriptor
from gpuckpt.tools.held import DeviceNode
from gpuckpt.tools.mappings import parse_maps
from tests.plan_samples import GIB, HOST, cuda_facts, facts, gpu, mapped, process, task

if TYPE_CHECKING:
    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.model import Finding
    from gpuckpt.tools.look import Task

DRIVER = NvidiaFacts("580.159.04", "13.0", (gpu(0),), "580.159.04", "open", "580.159.04")
NVML = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04"


def judge(known: DumpFacts, **choices: Any) -> list[Finding]:
    found = list(judge_dump(known, DumpChoices(**choices)))
    for one in found:
        assert one.object
        assert one.reason.endswith(".")
        assert one.reason[0].isupper()
        assert one.remedy.endswith((".", "1", "0")) or "=" in one.remedy
    return found


def told(known: DumpFacts, **choices: Any) -> list[tuple[str, bool]]:
    return [(one.id, one.blocks) for one in judge(known, **choices)]


def holder(
    control: int = 1, caps: int = 0, uvm: int = 1, cards: int = 1, nvml: bool = False
) -> tuple[Task, tuple[DeviceNode, ...]]:
    """Return process 110 as CUDA leaves it, with NVML if told so."""
    names = ["/dev/nvidiactl"] * control + ["/dev/nvidia-uvm"] * 2
    names += [f"/dev/nvidia{number}" for number in range(cards)] * 20
    names += [f"/dev/nvidia-caps/nvidia-cap{number + 1}" for number in range(caps)]
    opened = tuple(Descriptor(20 + n, name, "chr", writes=True) for n, name in enumerate(names))
    lines = ["rw-s nvidia-uvm"] * uvm + ["rw-s nvidiactl"] * 26 + ["r--s nvidiactl"]
    lines += [f"{how} nvidia{n}" for n in range(cards) for how in ("rw-s", "-w-s", "-w-s")]
    text = "".join(
        f"{n}000-{n}001 {one[:4]} 0 00:05 9 /dev/{one[5:]}\n" for n, one in enumerate(lines)
    )
    maps = parse_maps(text.encode()) + ((mapped(NVML),) if nvml else ())
    nodes = tuple(DeviceNode(110, fd.fd, fd.target, False, 195, 0) for fd in opened)
    return task(process(110, 100), descriptors=opened, mapped=maps), nodes


def job(*held: Any, **more: Any) -> DumpFacts:
    one, nodes = held or holder(**more.pop("holder", {}))
    look = {"tasks": (task(process(100)), one), "nodes": nodes}
    return cuda_facts(**({"nvidia": DRIVER, "look": look} | more))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({}, []),
        ({"cards": 2, "uvm": 2}, []),
        ({"control": 2, "caps": 2, "nvml": True}, []),
        ({"nvml": True}, []),
        ({"control": 2, "caps": 2}, ["nvml-unloaded"]),
        ({"uvm": 2}, ["managed-memory"]),
        ({"cards": 2, "uvm": 3}, ["managed-memory"]),
        ({"control": 2}, ["gpu-memory-exported"]),
        ({"control": 3, "caps": 2, "nvml": True}, ["gpu-memory-exported"]),
    ],
)
def test_traces_of_gpu_state(shape: dict[str, Any], expected: list[str]) -> None:
    known = job(holder=shape)
    assert told(known) == [(name, True) for name in expected]
    assert all(one.pid == 110 for one in judge(known))
    # with a driver that nobody has counted with, the counts only warn
    other = replace(DRIVER, driver="610.57", module="610.57", library="610.57")
    certain = {"nvml-unloaded"}
    assert told(replace(known, nvidia=other)) == [(name, name in certain) for name in expected]
    ignored = frozenset({"managed-memory", "gpu-memory-exported"})
    assert told(known, ignore=ignored) == [(name, name in certain) for name in expected]
    # the same files without CUDA in the process are another matter
    forked = replace(known, states={100: CudaState.RUNNING})
    assert told(forked) == [("gpu-without-cuda", True)]
    # nothing is said of those that the driver could not be asked about
    assert told(replace(forked, unasked=frozenset({110}))) == []


def test_cuda_ipc_that_somebody_uses() -> None:
    name = "/dev/shm/cuda.shm.0.6e.1"  # 0x6e is 110
    owner = (task(process(100)), task(process(110, 100), mapped=(mapped(name),)))
    alone = {"tasks": owner, "shared_by": {name: (110,)}}
    assert told(cuda_facts(look=alone)) == [("cuda-ipc", False)]
    (found,) = judge(cuda_facts(look=alone | {"shared_by": {name: (110, 900)}}))
    assert found.blocks
    assert "process 900" in found.reason


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"driver": "565.57.01"}, [("driver-too-old", True)]),
        ({"library": "580.200.01"}, [("driver-upgrade", True)]),
        ({"driver": "580.159.04", "library": "", "module": "580.1"}, []),
        ({"driver": "595.71"}, [("driver-hazard", False)]),
        ({"driver": "595.71.05"}, [("driver-hazard", False)]),
        ({"driver": "595.71", "flavour": "proprietary"}, []),
        ({"driver": "595.710"}, []),
    ],
)
def test_drivers(changes: dict[str, str], expected: list[tuple[str, bool]]) -> None:
    nvidia = replace(DRIVER, **changes)
    assert told(job(nvidia=nvidia)) == expected
    assert told(facts(nvidia=nvidia)) == []


def test_other_processors() -> None:
    arm = replace(HOST, arch="aarch64")
    assert told(job(host=arm)) == [("platform", True)]
    assert told(facts(host=arm)) == []


@pytest.mark.parametrize(
    ("comm", "argv", "words"),
    [
        ("pt_data_worker", "python train.py", "DataLoader"),
        ("python3", "python -m torch._inductor.compile_worker --pickler=x", "compile worker"),
        ("nvtop", "nvtop -d 1", "watcher"),
        ("python3", "python3 train.py", "forked"),
        ("helper", "helper --gpu", "The process"),
    ],
)
def test_who_holds_a_gpu_without_cuda(comm: str, argv: str, words: str) -> None:
    child = process(120, 110, comm=comm, argv=tuple(argv.split()))
    listed = (process(100), process(110, 100), child)
    node = DeviceNode(120, 4, "/dev/nvidia0", False, 195, 0)
    known = cuda_facts(look={"tasks": tuple(map(task, listed)), "nodes": (node,)})
    (found,) = judge(known)
    assert (found.id, found.pid) == ("gpu-without-cuda", 120)
    assert words in found.reason


def test_what_a_fork_has_left_with_children() -> None:
    listed = (process(100), process(110, 100), process(120, 110), process(130, 110))
    nodes = tuple(DeviceNode(pid, 4, "/dev/nvidia0", False, 195, 0) for pid in (110, 120, 130))
    shared = frozenset(DeviceUse(node.pid, 4, "/dev/nvidia0") for node in nodes)
    seen = {"tasks": tuple(map(task, listed)), "nodes": nodes, "inherited": shared}
    (found,) = judge(cuda_facts(look=seen))
    assert (found.id, found.blocks, found.pid) == ("gpu-inherited", False, 120)
    assert "Process 120 and 1 more have" in found.reason
    # one that a child has opened for itself besides
    own = DeviceNode(130, 9, "/dev/nvidiactl", False, 195, 255)
    known = cuda_facts(look=seen | {"nodes": (*nodes, own)})
    assert told(known) == [("gpu-without-cuda", True), ("gpu-inherited", False)]
    # nobody here has CUDA: whose they are cannot be told
    assert told(cuda_facts(look=seen, states={}))[0] == ("gpu-without-cuda", True)


RIGHT = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
}


NO_PEERS = {"NCCL_P2P_DISABLE": "1"}


def ranks(
    *settings: dict[str, str], segments: int = 0, threads: int = 0, sockets: int = 0, **more: Any
) -> DumpFacts:
    """Return a launcher without CUDA and one rank for each of the settings, each with NCCL."""
    pids = range(110, 110 + 10 * len(settings), 10)
    tasks = [task(process(100))]
    for number, (pid, one) in enumerate(zip(pids, settings, strict=True)):
        maps = (mapped("/x/nvidia/nccl/lib/libnccl.so.2", shared=False),)
        if number < segments:
            maps = (*maps, mapped(f"/dev/shm/nccl-a{pid}", deleted=True))
        names = frozenset({"python3", "pt_nccl_watchdg"} if number < threads else {"python3"})
        tasks.append(task(process(pid, 100), settings=one, mapped=maps, thread_names=names))
    states = dict.fromkeys(pids, CudaState.RUNNING)
    listed = {
        "tree": Tree(tuple(one.process for one in tasks)),
        "states": states,
        "uses": tuple(GpuUse(pid, "GPU-0", 8 * GIB) for pid in pids),
        "look": {
            "tasks": tuple(tasks),
            "bound": tuple(
                (pid, f"@tmp/nccl-socket-{number}-{pid}ab")
                for number, pid in enumerate(pids[:sockets])
            ),
        },
    }
    return cuda_facts(**(listed | more))


def rank(number: int, of: int = 2, **more: str) -> dict[str, str]:
    return {"RANK": str(number), "WORLD_SIZE": str(of), **more}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (ranks(rank(0), rank(1), sockets=2), [("nccl", True)]),
        # gloo or MPI: NCCL's library alone proves nothing
        (ranks(rank(0), rank(1)), [("nccl", False)]),
        # rank 0 of one rank alone
        (ranks(rank(0), rank(1), sockets=1), [("nccl", False)]),
        (ranks(rank(0), rank(1), sockets=1, threads=2), [("nccl", True)]),
        (ranks(rank(0, **RIGHT), rank(1, **RIGHT), sockets=2), []),
        (ranks(rank(0, **RIGHT), rank(1, **RIGHT)), []),
        (ranks(rank(0, **RIGHT), rank(1), sockets=2), [("nccl", True)]),
        (ranks({}, {}, sockets=2), [("nccl", True)]),
        # segments are no proof as long as peers may map each other's memory
        (ranks({}, {}, sockets=2, segments=2), [("nccl", True)]),
        (ranks(NO_PEERS, NO_PEERS, sockets=2, segments=2), [("nccl", False)]),
        (ranks({"WORLD_SIZE": "²", "RANK": "9" * 5000}, {"WORLD_SIZE": "9" * 5000}), []),
        (ranks(rank(0), rank(1), segments=1, sockets=2), [("nccl", True)]),
        (ranks(rank(0), rank(1), segments=2), [("nccl", True)]),
        (ranks(rank(0, **NO_PEERS), rank(1, **NO_PEERS), segments=2), [("nccl", False)]),
        # a server that starts its workers itself; what PyTorch calls its threads tells
        (ranks({}, {}, threads=2), [("nccl", True)]),
        (ranks(RIGHT, RIGHT, threads=2), []),
        # independent processes, one rank, a group of one
        (ranks({}, {}), []),
        (ranks({}, threads=1), []),
        (ranks(rank(0, 1), rank(0, 1)), []),
        (ranks(rank(0, **RIGHT)), [("ranks-absent", True)]),
        (ranks(*(rank(n, 4, **RIGHT) for n in range(2))), [("ranks-absent", True)]),
        (
            ranks({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}),
            [("ranks-absent", True)],
        ),
        (ranks({"WORLD_SIZE": "auto", "RANK": "0"}), []),
    ],
)
def test_ranks(known: DumpFacts, expected: list[tuple[str, bool]]) -> None:
    assert told(known) == expected
    assert told(known, ignore=frozenset({"nccl", "ranks-absent"})) == [
        (name, False) for name, _ in expected
    ]


def test_what_is_said_of_ranks() -> None:
    alone = ranks(rank(0, **RIGHT))
    (found,) = judge(alone)
    assert "the others are on other hosts" in found.reason
    launcher = Kin(process(50))
    found = next(one for one in judge(replace(alone, kin=launcher)) if one.id == "ranks-absent")
    assert "the others are outside of this tree" in found.reason
    local = {"NCCL_P2P_LEVEL": "LOC", "NCCL_NVLS_ENABLE": "0"}
    (found,) = judge(ranks(rank(0, **local), rank(1, **local), sockets=2))
    assert found.object == "NCCL_CUMEM_ENABLE, NCCL_CUMEM_HOST_ENABLE"
    assert "(socket @tmp/nccl-socket-0-110ab)" in found.reason
    assert "NCCL_P2P_DISABLE=1 NCCL_CUMEM_ENABLE=0" in found.remedy
    (found,) = judge(ranks(rank(0, 8, LOCAL_WORLD_SIZE="8")))
    assert "outside of this tree" in found.reason
    (found,) = judge(ranks(rank(0, 8, LOCAL_WORLD_SIZE="1", MASTER_ADDR="node1")))
    assert "node1" in found.reason


def test_heartbeats_against_the_pause() -> None:
    def limit(seconds: str, **more: str) -> DumpFacts:
        wanted = rank(0, **RIGHT, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=seconds, **more)
        return ranks(wanted, wanted | {"RANK": "1"}, sockets=2)

    assert told(limit("600")) == []
    assert told(limit("10")) == [("heartbeat", False)]
    assert told(limit("10", TORCH_NCCL_ENABLE_MONITORING="0")) == []


@pytest.mark.parametrize(
    ("special", "above", "expected"),
    [
        ({}, (), []),
        ({"mapped": (mapped("/usr/local/cuda/lib64/libcupti.so.13"),)}, (), []),
        ({"settings": {"CUDA_INJECTION64_PATH": "/x/libTool.so"}}, (), ["profiler"]),
        ({"settings": {"NVTX_INJECTION64_PATH": "/x/libTool.so"}}, (), ["profiler"]),
        ({"settings": {"CUDA_INJECTION64_PATH": ""}}, (), []),
        ({"mapped": (mapped("/opt/nsys/target/libToolsInjection64.so"),)}, (), ["profiler"]),
        ({"mapped": (mapped("/opt/cs/libsanitizer-collection.so"),)}, (), ["profiler"]),
        ({"mapped": (mapped("/usr/lib/libcudadebugger.so.580.1"),)}, (), ["profiler"]),
        ({}, ("/usr/local/cuda/bin/nsys profile python a.py",), ["profiler"]),
        ({}, ("compute-sanitizer python a.py",), ["profiler"]),
        ({}, ("vim nsys.txt",), []),
    ],
)
def test_profilers(special: dict[str, Any], above: tuple[str, ...], expected: list[str]) -> None:
    higher = tuple(Above(60, "x", tuple(line.split())) for line in above)
    tasks = (task(process(100)), task(process(110, 100), **special))
    found = judge(cuda_facts(look={"tasks": tasks, "above": higher}))
    assert [one.id for one in found if one.blocks] == expected
    assert told(facts(look={"tasks": tasks, "above": higher})) == []
