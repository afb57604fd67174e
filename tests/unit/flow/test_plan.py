"""Every rule speaks when it must, is silent when it need not, and says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt.errors import Blocked, DriverUnfit, HostUnfit, NoSpace, NotWritable
from gpuckpt.flow.sight.facts import DumpNeeds, gather
from gpuckpt.flow.sight.plan import judge_dump, refusal
from gpuckpt.flow.sight.rules.rule import DumpChoices, size
from gpuckpt.model import CudaState, Finding, GpuUse, NvidiaFacts, Severity
from gpuckpt.tools.above import Above
from gpuckpt.tools.descriptors import Descriptor
from gpuckpt.tools.destination import place
from gpuckpt.tools.held import DeletedFile, DeviceNode, Terminal
from gpuckpt.tools.locks import HeldLock
from gpuckpt.tools.outside import Holder, OutsidePeer, OutsidePipe
from tests.plan_samples import GIB, HERE, HOST, cuda_facts, facts, gpu, mapped, process, task

if TYPE_CHECKING:
    from gpuckpt.flow.sight.facts import DumpFacts

BLOCKER, WARNING = Severity.BLOCKER, Severity.WARNING


def judge(known: DumpFacts, **choices: Any) -> list[Finding]:
    found = judge_dump(known, DumpChoices(**choices))
    for one in found:
        assert one.object
        assert one.reason.endswith(".")
        assert one.remedy
    return list(found)


def ids(known: DumpFacts, **choices: Any) -> list[tuple[str, Severity, int | None]]:
    return [(one.id, one.severity, one.pid) for one in judge(known, **choices)]


def with_task(of: int = 110, **changes: Any) -> DumpFacts:
    """Return the sample tree with something special about one process."""
    tasks = [task(process(100)), task(process(110, 100))]
    tasks[of == 110] = replace(tasks[of == 110], **changes)
    return facts(look={"tasks": tuple(tasks)})


def test_ordinary_jobs_have_no_findings() -> None:
    assert judge(facts()) == []
    assert judge(cuda_facts()) == []


def test_a_missing_capability_is_named() -> None:
    host = replace(HOST, euid=1000, missing_capabilities=("CAP_SYS_ADMIN", "CAP_KILL"))
    (found,) = judge(facts(host=host))
    assert (found.id, found.object) == ("not-privileged", "CAP_SYS_ADMIN, CAP_KILL")


def test_a_root_that_may_not_read_limits_dumps_only_its_own() -> None:
    """Without CAP_SYS_RESOURCE prlimit answers root only for processes of root."""
    host = replace(HOST, only_own=True)
    mine, other = process(100, uid=0, gid=0), process(110, 100, uid=65534, gid=65534)
    assert judge(facts(mine, host=host)) == []
    (found,) = judge(facts(mine, other, host=host))
    assert (found.id, found.object, found.pid) == ("not-privileged", "CAP_SYS_RESOURCE", 110)
    assert judge(facts(mine, other)) == []


def test_a_process_that_may_not_be_looked_into_is_named() -> None:
    assert ids(with_task(readable=False)) == [("not-privileged", BLOCKER, 110)]


@pytest.mark.parametrize("kind", ["pid", "mnt", "net", "user"])
def test_other_namespaces_than_ours(kind: str) -> None:
    other = HERE | {kind: f"{kind}:[2]"}
    assert ids(with_task(namespaces=other)) == [(f"namespace-{kind}", BLOCKER, 110)]
    tasks = tuple(task(process(pid), namespaces=other) for pid in (100, 110, 120))
    (found,) = judge(facts(look={"tasks": tasks}))
    assert (found.pid, found.object) == (100, f"{kind}:[2]")
    assert "3 processes" in found.reason


@pytest.mark.parametrize("kind", ["uts", "ipc", "cgroup"])
def test_namespaces_that_the_tree_has_to_share(kind: str) -> None:
    other = HERE | {kind: f"{kind}:[2]"}
    assert ids(with_task(namespaces=other)) == [(f"namespace-{kind}", BLOCKER, 110)]
    tasks = tuple(task(process(pid), namespaces=other) for pid in (100, 110))
    assert judge(facts(look={"tasks": tasks})) == []


def test_a_container_is_named() -> None:
    inside = HERE | {"mnt": "mnt:[2]"}
    (found,) = judge(with_task(namespaces=inside, container="Docker container 0123456789ab"))
    assert "Docker container 0123456789ab" in found.reason
    assert "runtime's own checkpoint" in found.remedy


def test_tracers_of_every_thread() -> None:
    (found,) = judge(with_task(tracers=((111, 4000),)))
    assert (found.id, found.object, found.pid) == ("tracer", "thread 111", 110)
    assert "4000" in found.reason


def test_stopped_processes() -> None:
    stopped = process(110, 100, state="T")
    assert ids(facts(process(100), stopped)) == [("stopped", WARNING, 110)]
    cuda = {110: CudaState.RUNNING}
    assert ("stopped", BLOCKER, 110) in ids(facts(process(100), stopped, states=cuda))
    assert ids(facts(process(100, state="T"))) == [("stopped", BLOCKER, 100)]
    traced = task(process(110, 100, state="t"), tracers=((110, 4000),))
    assert ids(facts(look={"tasks": (traced,)})) == [("tracer", BLOCKER, 110)]


def test_frozen_groups_are_named_once() -> None:
    tasks = tuple(task(process(pid), frozen="/sys/fs/cgroup/job") for pid in (100, 110))
    assert ids(facts(look={"tasks": tasks})) == [("frozen", BLOCKER, 100)]


def test_a_first_thread_that_has_ended() -> None:
    assert ids(facts(process(100), process(110, 100, state="Z"))) == [("dead-leader", BLOCKER, 110)]
    assert judge(facts(process(100), process(110, 100, state="Z", threads=(110,)))) == []


RING = "anon_inode:[io_uring]"


def test_io_uring_by_descriptor_and_by_mapping() -> None:
    assert ids(with_task(descriptors=(Descriptor(5, RING, "anon"),))) == [
        ("io-uring", BLOCKER, 110)
    ]
    assert ids(with_task(mapped=(mapped(RING),))) == [("io-uring", BLOCKER, 110)]


def node(path: str, major: int, minor: int, fd: int | None = 4, pid: int = 110) -> DeviceNode:
    return DeviceNode(pid, fd, path, block=path.startswith("/dev/sd"), major=major, minor=minor)


@pytest.mark.parametrize(
    "known",
    [
        node("/dev/null", 1, 3),
        node("/dev/urandom", 1, 9),
        node("/dev/kmsg", 1, 11),
        node("/dev/tty", 5, 0),
        node("/dev/ptmx", 5, 2),
        node("/dev/pts/3", 136, 3),
    ],
)
def test_devices_that_criu_knows(known: DeviceNode) -> None:
    assert judge(facts(look={"nodes": (known,)})) == []


@pytest.mark.parametrize(
    "unknown",
    [
        node("/dev/fuse", 10, 229),
        node("/dev/gdrdrv", 506, 0),
        node("/dev/sda", 8, 0),
        node("/dev/infiniband/uverbs0", 231, 192, fd=None),
        node("/dev/mem", 1, 1, fd=None),
        node("/dev/nvidia-fs0", 500, 0),
    ],
)
def test_devices_that_criu_does_not_know(unknown: DeviceNode) -> None:
    again = replace(unknown, fd=9)
    (found,) = judge(facts(look={"nodes": (unknown, again)}))
    assert (found.id, found.severity, found.pid) == ("device-node", BLOCKER, 110)
    assert unknown.path in found.object


GPU_FILES = (node("/dev/nvidiactl", 195, 255), node("/dev/nvidia0", 195, 0, fd=None))


def test_gpu_files_of_cuda_processes_are_in_order() -> None:
    caps = node("/dev/nvidia-caps/nvidia-cap1", 240, 1)
    assert judge(cuda_facts(look={"nodes": (*GPU_FILES, caps)})) == []


def test_gpu_files_without_cuda() -> None:
    forked = tuple(replace(one, pid=100) for one in GPU_FILES)
    (found,) = judge(cuda_facts(look={"nodes": (*GPU_FILES, *forked)}))
    assert (found.id, found.pid, found.object) == ("gpu-without-cuda", 100, "fd 4 /dev/nvidiactl")


def test_cuda_ipc_says_who_exports() -> None:
    name = "/dev/shm/cuda.shm.0.6e.1"  # 0x6e is 110
    tasks = tuple(task(process(pid), mapped=(mapped(name),)) for pid in (100, 110))
    first, second = judge(cuda_facts(look={"tasks": tasks}))
    assert (first.id, first.pid, second.pid) == ("cuda-ipc", 100, 110)
    assert "uses process 110's" in first.reason
    assert "offers" in second.reason
    assert judge(with_task(mapped=(mapped("/dev/shm/torch_110_1"),))) == []


def test_drivers_that_are_too_old() -> None:
    old = NvidiaFacts("565.57.01", "12.7", (gpu(),))
    assert ids(cuda_facts(nvidia=old)) == [("driver-too-old", BLOCKER, None)]
    assert judge(facts(nvidia=old)) == []
    newest = NvidiaFacts("570.1", "12.8", (gpu(),))
    assert judge(cuda_facts(nvidia=newest)) == []


def test_modes_count_on_the_gpus_in_use() -> None:
    bad = {"mig": True, "persistence": False}
    elsewhere = NvidiaFacts("580", "13.0", (gpu(0), gpu(1, **bad)))
    assert judge(cuda_facts(nvidia=elsewhere)) == []
    here = NvidiaFacts("580", "13.0", (gpu(0, **bad), gpu(1)))
    assert ids(cuda_facts(nvidia=here)) == [
        ("mig", BLOCKER, None),
        ("persistence-off", WARNING, None),
    ]
    # where NVML does not say which GPUs are in use every GPU may be
    assert ("mig", BLOCKER, None) in ids(cuda_facts(nvidia=elsewhere, uses=()))
    assert judge(facts(nvidia=here)) == []


def mps(**look: Any) -> list[tuple[str, Severity, int | None]]:
    return ids(cuda_facts(look=look))


def test_mps_clients_and_servers() -> None:
    cuda = process(110, 100)
    named = task(cuda, environment=frozenset({"CUDA_MPS_PIPE_DIRECTORY", "HOME"}))
    piped = task(cuda, descriptors=(Descriptor(9, "/tmp/nvidia-mps/control", "fifo"),))
    assert mps(mps_running=True) == [("mps", WARNING, 110)]
    assert mps(tasks=(named,)) == [("mps", WARNING, 110)]
    assert mps(tasks=(named,), mps_running=True) == [("mps", BLOCKER, 110)]
    assert mps(tasks=(piped,)) == [("mps", BLOCKER, 110)]
    server = Holder(9, "nvidia-cuda-mps")
    peer = OutsidePeer(110, 8, 5, "stream", "@mps", server)
    assert ("mps", BLOCKER, 110) in mps(tasks=(task(cuda),), peers=(peer,))
    assert mps(above=(Above(60, "bash"), Above(50, "nvidia-cuda-mps")), tasks=()) == [
        ("mps", BLOCKER, 100)
    ]
    own = task(process(100, comm="nvidia-cuda-mps"))
    assert mps(tasks=(own,)) == [("mps", BLOCKER, 100)]
    assert ids(facts(look={"tasks": (named,), "mps_running": True})) == []


def test_processes_that_the_driver_gave_up() -> None:
    states = {110: CudaState.FAILED}
    assert ids(cuda_facts(states=states)) == [("gpu-failed", BLOCKER, 110)]


def test_unix_sockets_to_the_outside() -> None:
    server = Holder(7, "postgres")
    stream = OutsidePeer(110, 6, 1, "stream", "/run/pg", server)
    (found,) = judge(facts(look={"peers": (stream,)}))
    assert (found.id, found.severity, found.pid) == ("unix-peer-outside", BLOCKER, 110)
    assert "process 7 (postgres)" in found.reason
    assert "/run/pg" in found.object
    (found,) = judge(facts(look={"peers": (replace(stream, holder=None),)}))
    assert "cannot be seen" in found.reason
    journal = replace(stream, name="/run/systemd/journal/stdout")
    assert "StandardOutput" in judge(facts(look={"peers": (journal,)}))[0].remedy
    # CRIU connects datagram sockets to their named peer again
    named = facts(look={"peers": (replace(stream, kind="dgram"),)})
    assert [(one.id, one.severity) for one in judge(named)] == [("unix-server", WARNING)]
    assert named.needs.external_unix
    nameless = replace(stream, kind="dgram", name="")
    assert ids(facts(look={"peers": (nameless,)})) == [("unix-peer-outside", BLOCKER, 110)]


def test_pipes_to_the_outside() -> None:
    out = OutsidePipe(110, 1, 33, writes=True, holder=Holder(7, "tee"))
    into = replace(out, fd=0, writes=False)
    written, read = judge(facts(look={"pipes": (into, out)}))
    assert (written.severity, written.object) == (BLOCKER, "fd 1 stdout pipe:[33]")
    assert "process 7 (tee)" in written.reason
    assert (read.severity, read.object) == (WARNING, "fd 0 stdin pipe:[33]")
    # inherited from somewhere, and perhaps never written to
    assert ids(facts(look={"pipes": (replace(out, fd=9),)})) == [("pipe-outside", WARNING, 110)]


def test_deleted_files_up_to_the_limit() -> None:
    ghost = DeletedFile(110, 5, "/work/big", 0, 2 * GIB)
    known = facts(look={"deleted": (ghost,)})
    assert ids(known) == [("deleted-file-large", BLOCKER, 110)]
    assert judge(known, ghost_limit=2 * GIB) == []
    linked = replace(ghost, links=1)
    assert judge(facts(look={"deleted": (linked,)})) == []
    assert judge(facts(look={"deleted": (linked,)}), leave_running=True) == []


def test_system_v_memory() -> None:
    segment = mapped("/SYSV0000002a", deleted=True)
    assert ids(with_task(mapped=(segment,))) == [("sysv-shm", BLOCKER, 110)]
    # in an IPC namespace of the tree's own CRIU dumps it
    own = HERE | {"ipc": "ipc:[2]"}
    tasks = tuple(task(process(pid), namespaces=own, mapped=(segment,)) for pid in (100, 110))
    assert judge(facts(look={"tasks": tasks})) == []


def test_terminals_warn_once() -> None:
    seen = tuple(Terminal(pid, fd, "/dev/pts/3") for pid in (100, 110) for fd in (None, 0, 1, 2))
    (found,) = judge(facts(look={"terminals": seen}))
    assert (found.id, found.severity, found.pid) == ("terminal", WARNING, 100)
    assert found.object == "controlling terminal /dev/pts/3"


def test_memory_for_the_gpus_bytes() -> None:
    short = int(8 * GIB * 1.05) - 1
    assert ids(cuda_facts(memory_available=short)) == [("memory-host", BLOCKER, None)]
    assert judge(cuda_facts(memory_available=short + 2)) == []
    # NVML does not say whose the 80 GiB are that are in use on both GPUs
    unknown = cuda_facts(uses=(GpuUse(110, "GPU-0", 0),))
    assert unknown.gpu_bytes == 80 * GIB
    assert ids(unknown) == [("memory-host", WARNING, None)]


def test_space_for_the_image() -> None:
    need = cuda_facts().image_bytes
    assert need == 10 * GIB + GIB // 2
    assert judge(cuda_facts(free_bytes=need)) == []
    assert judge(cuda_facts(free_bytes=None)) == []
    assert ids(cuda_facts(free_bytes=need - 1)) == [("space", WARNING, None)]
    assert ids(cuda_facts(free_bytes=need // 2 - 1)) == [("space", BLOCKER, None)]


def test_folders_that_take_no_image(tmp_path: Path) -> None:
    known = facts(destination=tmp_path, writable=False, free_bytes=None)
    assert ids(known) == [("not-writable", BLOCKER, None)]
    assert isinstance(refusal(judge(known)), NotWritable)
    assert judge(facts(destination=tmp_path)) == []


def test_shared_memory_is_counted_once() -> None:
    tasks = tuple(task(process(pid), memory=3 * GIB, shared_memory=2 * GIB) for pid in (100, 110))
    assert facts(look={"tasks": tasks}).image_bytes == int(4 * GIB * 1.05)


def test_what_criu_has_to_be_told() -> None:
    assert facts().needs == DumpNeeds(
        shell_job=False, file_locks=False, link_remap=False, ghost_bytes=0, largest_ghost=0
    )
    ghosts = tuple(DeletedFile(110, fd, f"/g{fd}", 0, fd * 1000) for fd in (3, 4))
    linked = DeletedFile(110, None, "/dev/shm/sem.x", 1, 4096)
    lock = HeldLock(110, 3, "/work/lock", "flock")
    known = facts(look={"deleted": (*ghosts, linked), "locks": (lock,)})
    assert known.needs == DumpNeeds(
        shell_job=False, file_locks=True, link_remap=True, ghost_bytes=7000, largest_ghost=4000
    )
    assert facts(process(100, sid=50)).needs.shell_job
    assert facts(look={"terminals": (Terminal(100, 1, "/dev/pts/0"),)}).needs.shell_job


def test_all_findings_come_at_once_blockers_first() -> None:
    tasks = tuple(
        task(process(pid), frozen=f"/g{pid}", mapped=(mapped(RING),)) for pid in (100, 110)
    )
    seen = (Terminal(100, 0, "/dev/pts/3"),)
    found = judge(facts(look={"tasks": tasks, "terminals": seen}, free_bytes=0))
    assert [one.id for one in found] == [
        "frozen",
        "frozen",
        "io-uring",
        "io-uring",
        "space",
        "terminal",
    ]


def finding(name: str, severity: Severity = BLOCKER) -> Finding:
    return Finding(name, severity, "x", "y.", "z")


def test_what_the_findings_amount_to() -> None:
    assert refusal([]) is None
    assert refusal([finding("terminal", WARNING)]) is None
    listed = (finding("io-uring"), finding("terminal", WARNING))
    error = refusal(listed)
    assert isinstance(error, Blocked)
    assert error.findings == listed
    assert isinstance(refusal([finding("mig"), finding("driver-too-old")]), DriverUnfit)
    assert isinstance(refusal([finding("space")]), NoSpace)
    both = refusal([finding("space"), finding("not-privileged")])
    assert type(both) is HostUnfit
    assert isinstance(refusal([finding("space"), finding("tracer")]), Blocked)


class _Tools:
    """Answers whatever `gather` asks, and remembers what it asked about."""

    def __init__(self) -> None:
        self.known = cuda_facts()
        self.asked: list[Any] = []
        self.proc = self.host = self.nvidia = self.cuda = self.carried = self
        self.state_dir = Path("/")
        self.told = {110: CudaState.RUNNING, 100: CudaState.RUNNING}

    def look(self, tree: Any) -> Any:
        self.asked.append(("look", tree.pids))
        return self.known.look

    def used_of(self, tree: Any, reach: Any) -> Any:
        del reach
        self.asked.append(("used", tuple(pid for pid, *_ in tree)))
        return ()

    def owners(self, users: Any, groups: Any) -> Any:
        del users, groups
        return ()

    def cuda_candidates(self, pids: Any) -> Any:
        return [pid for pid in pids if pid in self.told]

    def ancestors(self, pid: int) -> Any:
        del pid
        return (1,)

    def place(self, folder: Path) -> Any:
        return place(folder)

    def process(self, pid: int) -> Any:
        return process(pid)

    def states(self, pids: Any) -> Any:
        return {pid: self.told[pid] for pid in pids}

    def facts(self) -> Any:
        return HOST

    def uses(self, pids: Any = None) -> Any:
        self.asked.append(("uses", pids if pids is None else tuple(pids)))
        return self.known.uses

    def unit(self, pid: int) -> None:
        self.asked.append(("unit", pid))

    def memory_available(self, pid: int) -> int:
        self.asked.append(("memory", pid))
        return pid * GIB

    def executes(self, folder: Path) -> bool:
        del folder
        return True

    def writable(self, folder: Path) -> bool:
        return folder.is_dir()

    def free_bytes(self, folder: Any) -> int:
        self.asked.append(("free", folder))
        return GIB


def test_facts_are_gathered_from_every_tool(tmp_path: Path) -> None:
    tools: Any = _Tools()
    tree = tools.known.tree
    found = gather(tools, tree, tmp_path / "image")
    assert found.memory_available == 100 * GIB  # the tightest of all CUDA processes
    assert (found.free_bytes, found.cuda_pids) == (GIB, (100, 110))
    assert tools.asked == [
        ("look", (100, 110)),
        ("uses", (100, 110)),
        ("free", tmp_path),
        ("uses", None),
        ("memory", 100),
        ("memory", 110),
        ("unit", 100),
        ("used", (100, 110)),
    ]
    assert (found.taken, found.state_writable, found.obstacles) == (False, True, ())
    # the driver would wait for ever for a thread that does not run
    quiet = tuple(replace(one, frozen="/g") for one in tools.known.look.tasks[1:])
    tools.known = replace(
        tools.known, look=replace(tools.known.look, tasks=(*tools.known.look.tasks[:1], *quiet))
    )
    found = gather(tools, tree)
    assert (found.cuda_pids, found.unasked) == ((100,), {110})
    tools.told = {}
    found = gather(tools, tree, tmp_path / "missing" / "image")
    assert (found.writable, found.free_bytes) == (False, None)
    found = gather(tools, tree)
    assert found.writable
    assert (found.cuda_pids, found.free_bytes, found.gpu_bytes) == ((), None, 0)


def test_sizes_in_words() -> None:
    assert [size(n) for n in (5, 2048, 3 << 20, GIB * 3 // 2, 5000 * GIB)] == [
        "5 bytes",
        "2.0 KiB",
        "3.0 MiB",
        "1.5 GiB",
        "4.9 TiB",
    ]
