"""What a restore would meet, judged from recorded facts: one change, one finding."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuckpt.errors import CriuMissing, ImageUnsupported
from gpuckpt.flow.returning.ledger import Restored
from gpuckpt.flow.returning.target.facts import TargetFacts
from gpuckpt.flow.returning.target.judge import judge, refusal
from gpuckpt.flow.returning.target.numbers import without_us
from gpuckpt.flow.returning.target.ports import SeenPort
from gpuckpt.flow.returning.target.software import Software, Tracked, Weight
from gpuckpt.flow.sight.experience import Lately
from gpuckpt.flow.sight.homecoming import returning
from gpuckpt.flow.work.history import Record
from gpuckpt.flow.work.journal import Entry
from gpuckpt.image import manifest as m
from gpuckpt.image.engine import (
    DistributionRecord,
    Engine,
    LibraryRecord,
    TrackedRecord,
    WeightRecord,
)
from gpuckpt.image.outside import ConnectionRecord, ListenerRecord, PythonRecord, RemapRecord
from gpuckpt.model import CarriedFile, HostFacts, NvidiaFacts, ProcessRef, TcpPolicy, Version
from gpuckpt.timing import Interval, Phase, Receipt
from gpuckpt.tools.net import PortState
from gpuckpt.tools.surroundings import Surroundings
from gpuckpt.tools.unixnames import SocketName
from tests import image_samples
from tests.plan_samples import GIB, process

if TYPE_CHECKING:
    from gpuckpt.model import Finding

PLAIN = msgspec.structs.replace(
    image_samples.manifest(),
    totals=m.Totals(raw=0, stored=0, pages=GIB),
    tree=tuple(
        msgspec.structs.replace(one, permitted=0xFF, bounding=0xFF)
        for one in image_samples.manifest().tree
    ),
)
FACTS = TargetFacts(
    host=HostFacts(
        hostname="node2",
        kernel="6.18.44",
        boot_id="other",
        arch="x86_64",
        libc="glibc 2.36",
        cpu_model="Some CPU",
        cpu_flags=PLAIN.host.cpu_flags,
        cpu_count=8,
        memory_total=64 * GIB,
        memory_available=48 * GIB,
        huge_pages="",
        euid=0,
    ),
    own=Surroundings(permitted=0xFF, bounding=0xFF),
    nvidia=NvidiaFacts("580.159.04", "13.0", image_samples.GPUS),
    criu=Version("4.2.1"),
)
LISTENER = ListenerRecord(protocol="tcp", address="10.0.0.1", port=80)
GHOST = RemapRecord(path="/tmp/g", name="/tmp/g.cr.1.ghost", linked=False)
LINKED = RemapRecord(path="/dev/shm/sem.x", name="/dev/shm/link_remap.7", linked=True)
LINE = ConnectionRecord(local="10.0.0.1", local_port=9, remote="10.0.0.2", remote_port=5432)


def here(**changes: Any) -> dict[str, Any]:
    return {"software": Software(**changes)}


def engine(**installed: tuple[str, str] | None) -> dict[str, Any]:
    return here(installed={SITE: installed})


PYTHON = PythonRecord(
    prefix="/venv",
    packages=("torch-2.9.0", "numpy-2.0.0"),
    version="3.11.2",
    implementation="cpython",
    program="/usr/bin/python3.11",
)
SITE = "/venv/lib/python3.11/site-packages"
NCCL = "/usr/lib/libnccl.so.2.27.3"
WEIGHTS = "/hub/w.safetensors"
ENGINE = {
    "engine": Engine(
        distributions=(
            DistributionRecord(name="torch", version="2.9.0", folder=SITE, build="b"),
            DistributionRecord(name="jax", version="0.7.0", folder=SITE, known=("installed",)),
        ),
        libraries=(LibraryRecord(name="nccl", version="2.27.3", path=NCCL),),
    )
}
MODEL = {
    "models": (
        WeightRecord(
            path=WEIGHTS,
            size=2 << 20,
            mtime_ns=1,
            digest="d",
            sampled=False,
            model="org/name",
            commit="abcdef0123456789",
        ),
    )
}
OWN_LOG = CarriedFile(("/cache/a/log",), "", 1, 2, 0, 0o600, 0, 0, 0)
TRACKED = {
    "tracked": (TrackedRecord(path="/cache", kind="folder", digest="d", entries=3, size=9),),
}


def outside(**changes: Any) -> dict[str, Any]:
    return {"outside": msgspec.structs.replace(PLAIN.outside, **changes)}


def root(**changes: Any) -> dict[str, Any]:
    return {"tree": (msgspec.structs.replace(PLAIN.tree[0], **changes), *PLAIN.tree[1:])}


def host(**changes: Any) -> dict[str, Any]:
    return {"host": replace(FACTS.host, **changes)}


def options(**changes: Any) -> dict[str, Any]:
    return {"options": msgspec.structs.replace(PLAIN.options, **changes)}


def port(state: PortState, address: str = "10.0.0.1") -> dict[str, Any]:
    holders = (process(77, argv=("redis",)),) if state is PortState.TAKEN else ()
    listener = msgspec.structs.replace(LISTENER, address=address)
    return {"ports": (SeenPort(listener, state, holders),)}


LEDGER = Restored(
    image_id="i", image="/i", at="2026-01-01T00:00:00Z", boot_id="other",
    processes=(ProcessRef(1000, 5),),
)  # fmt: skip
MAKING = Entry(
    id="a", operation="restore", started="2026-01-01T00:00:00Z", boot_id="other", image="/i",
    owner=ProcessRef(77, 1), processes=(), first={}, pids=(1000,),
)  # fmt: skip
TIMENS = m.FileEntry(
    name="timens-0.img", raw_size=1, stored_size=1, frames=1, stored_blake3="", table_blake3=""
)
FULL, *REST = image_samples.GPUS
SHORT_GPU = NvidiaFacts("580.159.04", "13.0", (replace(FULL, memory_free=1 << 20), *REST))

# what is changed in the image, what on the host, the finding (! stops), words of its reason
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "a need": ({"needs": ("criu-stream", "x")}, {}, "!need-unknown", "needs x"),
    "no criu": (
        {}, {"criu": None, "no_criu": CriuMissing("CRIU was not found")}, "!criu-missing", "not fo"
    ),
    "old criu": ({}, {"criu": Version("4.1")}, "!gate-criu", "4.1"),
    "rights": ({}, host(missing_capabilities=("CAP_KILL",)), "!not-privileged", "CAP_KILL"),
    "its rights": (root(permitted=0x3FF), {}, "!capabilities", "CAP_LINUX_IMMUTABLE"),
    "its bounds": (root(bounding=0x1FF), {}, "capabilities", "CAP_SETPCAP"),
    "terminal": (
        outside(terminals=("/dev/pts/1",)) | options(shell_job=True), {}, "!no-terminal", "terminal"
    ),
    "clocks": ({"files": (TIMENS,)}, host(time_namespaces=False), "!gate-time-namespace", "kernel"),
    "label": (root(label="docker-default"), {}, "security-label", "docker-default"),
    "cgroup": (root(cgroup="/slurm/job_7"), {}, "cgroup", "/slurm/job_7"),
    "pid": ({}, {"taken": {1000: process(1000)}}, "!pid-taken", "train.py"),
    "being made": (
        {}, {"taken": {1000: process(1000)}, "others": (MAKING,)}, "!pid-taken", "another gpuckpt"
    ),
    "group": ({}, {"taken": {1000: process(7, pgid=1000)}}, "!pid-taken", "as its group"),
    "ours": ({}, {"taken": {1000: process(os.getpid())}}, "!pid-taken", "this very gpuckpt"),
    "unseen": ({}, {"taken": {1000: None}}, "!pid-taken", "cannot be seen"),
    "zombie": (
        {}, {"taken": {9: process(9, 8, state="Z", threads=(9,))}}, "!pid-zombie", "process 8"
    ),
    "init's zombie": (
        {}, {"taken": {9: process(9, 1, state="Z", threads=(9,))}}, "pid-zombie", "process 1 "
    ),
    "source": (
        {}, {"running": frozenset({1000}), "taken": {1000: process(1000)}}, "!job-runs", "dumped"
    ),
    "a copy": ({}, {"running": frozenset({1000}), "apart": True}, "job-runs", "a second copy"),
    "no terminal apart": (
        outside(terminals=("/dev/pts/1",)) | options(shell_job=True),
        {"apart": True, "terminal": True},
        "!no-terminal",
        "in a pid namespace",
    ),
    "again": (
        {}, {"running": frozenset({1000}), "restored": LEDGER}, "!job-runs", "2026-01-01T00:00:00Z"
    ),
    "before": ({}, {"restored": LEDGER}, "restored-before", "has ended"),
    "port": ({}, port(PortState.TAKEN), "!port-taken", "process 77 (redis)"),
    "lingering": ({}, port(PortState.LINGERING), "port-lingering", "TIME_WAIT"),
    "address": ({}, port(PortState.NO_ADDRESS), "!address-missing", "10.0.0.1"),
    "address 6": ({}, port(PortState.NO_ADDRESS, "fd00::1"), "address-missing", "fd00::1"),
    "closed": (
        outside(connections=(LINE,)) | options(tcp=TcpPolicy.CLOSE), {}, "tcp-closed", "10.0.0.2"
    ),
    "kept": (
        outside(connections=(LINE,)) | options(tcp=TcpPolicy.ESTABLISHED), {}, "tcp-kept", ":5432"
    ),
    "ghost": (outside(remaps=(GHOST,)), {"names": {GHOST.name: True}}, "!remap-in-the-way", "/g"),
    "ghost's folder": (
        outside(remaps=(GHOST,)), {"makeable": {"/tmp": False}}, "!remap-folder", "/tmp/g"
    ),
    "linked": (outside(remaps=(LINKED,)), {"names": {LINKED.name: False}}, "!remap-missing", "sem"),
    "its own name": (
        outside(remaps=(LINKED,)),
        {"names": {LINKED.name: True, LINKED.path: True, f"{LINKED.path}.cr_link": True}},
        "!remap-in-the-way",
        "sem.x",
    ),
    "socket name": ({}, {"sockets": {SocketName(b"\0mine", "dgram"): process(77)}}, "!socket-taken",
        "@mine of a Unix socket"),
    "a path": (
        {}, {"sockets": {SocketName(b"/run/s"): process(77)}}, "!socket-taken", "The name /run/s of"
    ),
    "a communicator's name": ({}, {"sockets": {SocketName(b"\0tmp/nccl-socket-0-ab\0"): None}},
        "!socket-taken", "cannot be seen"),
    "socket": (outside(sockets=("/run/x/s",)), {"writable": {"/run/x": False}}, "!socket-folder",
               "/run/x/s"),
    "venv": (
        outside(pythons=(PYTHON,)), here(packages={"/venv": None}), "!gate-python-prefix", "/venv"
    ),
    "packages": (
        outside(pythons=(PYTHON,)),
        here(packages={"/venv": ("torch-2.8.0", "numpy-2.0.0", "new-1.0")}),
        "python-packages",
        "without torch-2.9.0, with torch-2.8.0.",
    ),
    "noexec": ({}, {"no_programs": "/var/lib/gpuckpt"}, "!state-noexec", "noexec"),
    "ram": ({}, host(memory_available=GIB), "!memory-host", "GPU bytes"),
    "huge": (root(huge_pages=4 << 20), host(huge_pages_free=2 << 20), "!huge-pages", "4.0 MiB"),
    "gpu": (
        {},
        {
            "nvidia": SHORT_GPU,
            "gpu_short": {FULL.uuid: (2 * GIB, "held by process 77 (vllm) with 92160 MiB")},
        },
        "!gpu-memory",
        "process 77 (vllm)",
    ),
    "identity": ({"identity": ("SLURM_JOB_ID",)}, {}, "identity", "started on"),
    "an address": (
        {
            "identity": ("POD_IP",),
            "host": image_samples.host(hostname="node2", addresses=("9.9.9.9",)),
        },
        host(addresses=("10.0.0.9",)),
        "identity",
        "had 9.9.9.9",
    ),
    "another python": (
        outside(pythons=(PYTHON,)),
        here(pythons={"/usr/bin/python3.11": "3.11.9"}),
        "!gate-engine-python", "cpython 3.11.2, and /usr/bin/python3.11 here is cpython 3.11.9"
    ),
    "no python": (
        outside(pythons=(PYTHON,)), here(pythons={"/usr/bin/python3.11": ""}),
        "!gate-engine-python", "is not there"
    ),
    "another torch": (ENGINE, engine(torch=("2.8.0", "b")), "!gate-engine-package",
                      "torch was 2.9.0, now it is 2.8.0"),
    "another build": (ENGINE, engine(torch=("2.9.0", "c")), "!gate-engine-package",
                      "torch 2.9.0 is another build"),
    "no torch": (ENGINE, engine(torch=None), "!gate-engine-package",
                 "torch, which was 2.9.0, is not there"),
    "several": (ENGINE, engine(torch=None, jax=("0.8.0", "")), "!gate-engine-package",
                "jax was, if it was loaded, 0.7.0, now it is 0.8.0"),
    "its packages": (
        {**ENGINE, **outside(pythons=(PYTHON,))},
        here(
            packages={"/venv": ("torch-2.8.0", "numpy-2.0.0")},
            installed={SITE: {"torch": ("2.8.0", "")}},
        ),
        "!gate-engine-package", "torch was 2.9.0"
    ),
    "another nccl": (ENGINE, here(libraries={NCCL: ("2.21.5",)}), "!gate-engine-library",
                     "nccl 2.27.3; here 2.21.5 is."),
    "no nccl": (ENGINE, here(libraries={NCCL: ()}), "!gate-engine-library", "no other is."),
    "no weights": (MODEL, here(weights={WEIGHTS: None}), "!gate-model",
                   "org/name at commit abcdef012345: /hub/w.safetensors, weights of"),
    "shorter weights": (MODEL, here(weights={WEIGHTS: Weight(1 << 20, "d")}), "!gate-model",
                        "has 1.0 MiB instead of 2.0 MiB"),
    "other weights": (MODEL, here(weights={WEIGHTS: Weight(2 << 20, "e")}), "!gate-model",
                      "has other bytes"),
    "tracked gone": (TRACKED, here(tracked={"/cache": None}), "!gate-tracked", "is not here"),
    "tracked unread": (TRACKED, here(tracked={"/cache": Tracked(unread="/cache/a: denied")}),
                       "!gate-tracked", "cannot be read (/cache/a: denied)"),
    "tracked changed": (
        TRACKED,
        here(tracked={"/cache": Tracked("e", 3, (("a/b", "changed"), ("c", "new")))}),
        "!gate-tracked", "has changed: a/b is changed, c is new."
    ),
    "tracked and carried": (
        {**TRACKED, "carried": (OWN_LOG,)},
        here(tracked={"/cache": Tracked("e", 3, (("a/log", "changed"), ("c", "missing")))}),
        "!gate-tracked", "has changed: c is missing."
    ),
    "tracked without listing": (TRACKED, here(tracked={"/cache": Tracked("e", 4)}),
                                "!gate-tracked", "it had 3 entries, now 4"),
    "parent": (root(parent_death=15), {}, "!gate-parent-death", "SIGTERM"),
    "flavour": (
        {"nvidia": msgspec.structs.replace(PLAIN.nvidia, flavour="open")},
        {"nvidia": replace(FACTS.nvidia, flavour="proprietary")},  # type: ignore[type-var]
        "gate-driver-flavour",
        "proprietary",
    ),
}  # fmt: skip


def findings(image: dict[str, Any], here: dict[str, Any]) -> list[Finding]:
    return judge(msgspec.structs.replace(PLAIN, **image), replace(FACTS, **here))


def test_a_host_like_the_images_has_no_findings() -> None:
    assert findings({}, {}) == []
    assert findings(root(parent_death=15), {"stays": True}) == []
    assert findings(root(parent_death=15), {"apart": True}) == []


@pytest.mark.parametrize("case", CASES)
def test_one_change_is_one_finding(case: str) -> None:
    image, here, expected, words = CASES[case]
    (found,) = findings(image, here)
    assert ("!" if found.blocks else "") + found.id == expected
    assert words in found.reason
    assert found.reason.endswith(".")
    assert found.remedy


def test_a_package_that_has_come_along_is_nothing_of_the_jobs() -> None:
    more = here(packages={"/venv": (*PYTHON.packages, "new-1.0")})
    assert findings(outside(pythons=(PYTHON,)), more) == []


def test_a_tracked_folder_may_hold_what_the_image_carries() -> None:
    changed = here(tracked={"/cache": Tracked("e", 3, (("a/log", "changed"),))})
    assert findings({**TRACKED, "carried": (OWN_LOG,)}, changed) == []


def test_what_an_image_needs_cannot_be_forced_and_is_an_error_of_the_image() -> None:
    found = findings({"needs": ("teleport",)}, host(memory_available=0))
    error = refusal(found, frozenset({"need-unknown"}))
    assert isinstance(error, ImageUnsupported)
    assert len(error.findings) == 2


def test_a_restore_is_forecast_from_what_others_took() -> None:
    """Without receipts the numbers are assumed, and say so."""
    known = returning(PLAIN, 8)
    assert known.gpu_in.basis.startswith("assumed")
    assert known.seconds > 0
    phases = (Phase("criu", 0.0, 2.0, 1 << 30), Phase("gpu-in", 2.0, 1.0, 1 << 30))
    receipt = Receipt("restore", "2026-01-01T00:00:00Z", 3.0, phases)
    past = Record(operation="restore", started=receipt.started, receipt=receipt)
    learnt = returning(PLAIN, 8, [past])
    assert learnt.gpu_in.value == 1.0
    assert "1 receipt" in learnt.criu.basis
    assert learnt.checks.value == 0.0
    assert learnt.seconds == sum(one.value for one in learnt.parts.values())
    assert learnt.lately == Lately()
    runs = (Interval("runs", "begun", "released", 4.0), Interval("x", "begun", "y", None, "z"))
    receipt = replace(receipt, intervals=runs)
    past = msgspec.structs.replace(past, receipt=receipt, expected=5.0)
    assert returning(PLAIN, 8, [past]).lately == Lately(-0.2, 1)
    assert returning(msgspec.structs.replace(PLAIN, nvidia=None), 8).gpu_in.value == 0.0


def test_who_only_looks_is_in_nobodys_way() -> None:
    mine, others = {1000: process(os.getpid())}, {1001: process(1001), 1002: None}
    assert without_us(replace(FACTS, taken=mine | others)).taken == others
