"""A host judged from what it said of itself is judged as it would judge itself, wherever it can."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuckpt.errors import CriuBroken, CriuMissing, GpuckptError
from gpuckpt.flow.returning.target.facts import gather
from gpuckpt.flow.returning.target.judge import judge
from gpuckpt.flow.returning.target.saved import target_facts
from gpuckpt.flow.returning.target.savedhost import load, take
from gpuckpt.image.outside import ConnectionRecord, FileRecord, ListenerRecord, Outside, RemapRecord
from gpuckpt.model import Owner, TcpPolicy, Version
from gpuckpt.tools.net import PortState
from gpuckpt.tools.surroundings import Surroundings
from tests import gpu_samples, host_samples
from tests.fakes.host import FakeHost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding, HostFacts, NvidiaFacts

RELAXED = settings(deadline=None, max_examples=150)
PATHS = ("/a/log", "/b/\udce4", "/c/d/x")
ADDRESSES = ("10.0.0.1", "10.0.0.2", "fd00::7")
MODELS = ("NVIDIA H200", "NVIDIA L4")
GIB = 1 << 30


@dataclass
class Machine:
    """The tools that answer what is drawn; all others are those of an idle fake host."""

    host: HostFacts
    nvidia: NvidiaFacts | None
    criu: Version | GpuckptError

    def facts(self) -> HostFacts:
        return self.host

    def executes(self, folder: Path) -> bool:
        del folder
        return self.host.cpu_count > 1

    def owners(self, users: Iterable[int], groups: Iterable[int]) -> tuple[Owner, ...]:
        names = {0: "root", 7: "", 9: "other"}
        return tuple(
            Owner(kind, one, names[one])
            for kind, numbers in (("user", users), ("group", groups))
            for one in sorted(numbers)
        )

    def port(self, protocol: str, address: str, port: int, *, dual: bool = False) -> PortState:
        del protocol, port, dual
        there = address in self.host.addresses or address in {"0.0.0.0", "::1"}  # noqa: S104
        return PortState.FREE if there else PortState.NO_ADDRESS

    def unix_users(self, names: object) -> dict[Any, Any]:
        del names
        return {}

    def remains(self, *_: object) -> tuple[()]:
        return ()

    @property
    def version(self) -> Version:
        if isinstance(self.criu, GpuckptError):
            raise self.criu
        return self.criu


@dataclass
class Driver:
    """The driver of such a machine; nobody holds any GPU memory."""

    machine: Machine

    def facts(self) -> NvidiaFacts | None:
        return self.machine.nvidia

    def uses(self, pids: object = None) -> tuple[()]:
        del pids
        return ()


@st.composite
def drivers(draw: st.DrawFn) -> NvidiaFacts | None:
    """Return a driver with GPUs of any kind, or none."""
    if draw(st.integers(0, 5)) == 0:
        return None
    count = draw(st.integers(0, 4))
    gpus = [
        gpu_samples.gpu(
            draw(st.sampled_from("ab")),
            index,
            name=draw(st.sampled_from(MODELS)),
            memory_total=draw(st.sampled_from([80 * GIB, 140 * GIB])),
            memory_free=draw(st.sampled_from([GIB, 80 * GIB])),
            mig=draw(st.sampled_from([None, False, True])),
            nvlinks=tuple(draw(st.sampled_from([0, 18])) for _ in range(count)),
        )
        for index in range(count)
    ]
    driver = draw(st.sampled_from(["570.1", "580.159.04"]))
    flavour = draw(st.sampled_from(["", "open", "proprietary"]))
    return replace(gpu_samples.nvidia(gpus, driver), flavour=flavour)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Return a host that differs from that of the image in anything."""
    host = replace(
        host_samples.HOST,
        hostname=draw(st.sampled_from(["node1", "node2"])),
        kernel=draw(st.sampled_from(["5.15.0", "6.18.44", "7.0"])),
        arch=draw(st.sampled_from(["x86_64", "x86_64", "aarch64"])),
        libc=draw(st.sampled_from(["", "glibc 2.36", "glibc 2.41"])),
        cpu_flags=draw(st.sampled_from([host_samples.HOST.cpu_flags, ("fpu",)])),
        cpu_count=draw(st.sampled_from([1, 8])),
        memory_available=draw(st.sampled_from([GIB, 200 * GIB])),
        missing_capabilities=draw(st.sampled_from([(), ("CAP_KILL",)])),
        huge_pages_free=draw(st.sampled_from([0, GIB])),
        time_namespaces=draw(st.booleans()),
        addresses=tuple(draw(st.lists(st.sampled_from(ADDRESSES), min_size=1, unique=True))),
    )
    criu = draw(
        st.sampled_from([Version("4.2"), Version("4.2.1"), CriuMissing("no"), CriuBroken("b")])
    )
    return Machine(host, draw(drivers()), criu)


@st.composite
def images(draw: st.DrawFn) -> Manifest:
    """Return an image of a job on up to four GPUs, with what else such a job has."""
    count = draw(st.integers(1, 4))
    image = gpu_samples.image(
        gpu_samples.switched("a", count), gpu_samples.ranks(draw(st.integers(0, count)))
    )
    address = st.sampled_from([*ADDRESSES, "0.0.0.0", "::1"])  # noqa: S104
    ports = [
        ListenerRecord(protocol="tcp", address=one, port=80 + number)
        for number, one in enumerate(draw(st.lists(address, max_size=2)))
    ]
    lines = [
        ConnectionRecord(local=one, local_port=9, remote="10.9.9.9", remote_port=7)
        for one in draw(st.lists(st.sampled_from(ADDRESSES), max_size=1))
    ]
    root = msgspec.structs.replace(
        image.tree[0],
        cgroup=draw(st.sampled_from(["", "/job"])),
        label=draw(st.sampled_from(["", "docker-default"])),
        permitted=draw(st.sampled_from([0, 0x3, 0xFF])),
        bounding=draw(st.sampled_from([0, 0x3, 0xFF])),
        huge_pages=draw(st.sampled_from([0, 2 * GIB])),
        parent_death=draw(st.sampled_from([0, 15])),
    )
    pages = draw(st.sampled_from([0, 100 * GIB]))
    kinds = st.sampled_from([0o100644, 0o100600, 0o040755])
    files = [
        FileRecord(
            path=one,
            size=draw(st.sampled_from([10, 11])),
            mode=draw(kinds),
            build_id="",
            mtime_ns=1,
        )
        for one in draw(st.lists(st.sampled_from(PATHS), unique=True))
    ]
    remaps = [
        RemapRecord(path=one, name=f"{one}.cr.1.ghost", linked=draw(st.booleans()))
        for one in draw(st.lists(st.sampled_from(PATHS), unique=True))
    ]
    return msgspec.structs.replace(
        image,
        tree=(root, *image.tree[1:]),
        needs=draw(st.sampled_from([("criu-stream",), ("criu-stream", "new")])),
        options=msgspec.structs.replace(image.options, tcp=draw(st.sampled_from(list(TcpPolicy)))),
        outside=Outside(
            files=tuple(files),
            listeners=tuple(ports),
            terminals=(),
            connections=tuple(lines),
            remaps=tuple(remaps),
            sockets=tuple(draw(st.lists(st.sampled_from(PATHS), max_size=1))),
        ),
        owners=tuple(
            Owner(kind, number, "root")
            for kind, number in draw(
                st.sets(st.tuples(st.sampled_from(["user", "group"]), st.sampled_from([0, 7, 9])))
            )
        ),
        identity=draw(st.sampled_from([(), ("POD_IP",)])),
        host=msgspec.structs.replace(image.host, addresses=("10.0.0.1",)),
        totals=msgspec.structs.replace(image.totals, pages=pages),
    )


def toolbox(machine: Machine, rights: int, folder: Path, missing: set[str]) -> Toolbox:
    fake = FakeHost(missing=missing)
    fake.around_of[os.getpid()] = Surroundings(cgroup="/", permitted=rights, bounding=rights)
    idle = fake.toolbox(folder)
    stand_ins: dict[str, Any] = {
        "host": machine, "criu": machine, "net": machine, "nvidia": Driver(machine),
    }  # fmt: skip
    return replace(idle, **stand_ins)


def comparable(finding: Finding) -> tuple[object, ...]:
    """Who holds GPU memory changes, and is all that a saved answer says in other words."""
    reason = "" if finding.id == "gpu-memory" else finding.reason
    return finding.id, finding.severity, finding.object, finding.pid, reason, finding.remedy


@RELAXED
@given(
    machine=machines(),
    image=images(),
    rights=st.sampled_from([0x3, 0xFF]),
    missing=st.sets(st.sampled_from([*PATHS, *(f"{one}.cr.1.ghost" for one in PATHS), "/a"])),
)
def test_saved_facts_lead_to_the_same_findings(
    machine: Machine, image: Manifest, rights: int, missing: set[str]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools = toolbox(machine, rights, folder, missing)
        file = host_samples.write(folder / "facts.json", take(tools, [image]))
        here, there = gather(tools, image), target_facts(load(file), image)
    assert list(map(comparable, judge(image, there))) == list(map(comparable, judge(image, here)))
    assert there.gpus == here.gpus
