"""The gates: every compared fact, both ways, with both values in the reason."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuckpt.image import compare, cpuflags
from gpuckpt.image import manifest as m
from gpuckpt.image.outside import FileRecord, Outside
from gpuckpt.model import HostFacts, NvidiaFacts, Version
from tests import image_samples as samples

if TYPE_CHECKING:
    from gpuckpt.model import Finding, Gpu

LOG = os.O_WRONLY | os.O_APPEND
REGULAR = stat.S_IFREG | 0o644


def host(**changes: Any) -> HostFacts:
    old = samples.host()
    facts = HostFacts(
        hostname="node2",
        kernel=old.kernel,
        boot_id="other",
        arch=old.arch,
        libc=old.libc,
        cpu_model="Other CPU",
        cpu_flags=old.cpu_flags,
        cpu_count=8,
        memory_total=1 << 38,
        memory_available=1 << 37,
        huge_pages="madvise",
        euid=0,
    )
    return replace(facts, **changes)


def nvidia(*gpus: Gpu, driver: str = "580.159.04") -> NvidiaFacts:
    return NvidiaFacts(driver=driver, cuda="13.0", gpus=gpus or samples.GPUS)


def gates(
    manifest: m.Manifest | None = None,
    facts: HostFacts | None = None,
    gpus: NvidiaFacts | None = None,
    criu: str = "4.2.1",
) -> dict[str, Finding]:
    found = compare.gates(
        manifest or samples.manifest(), facts or host(), gpus or nvidia(), Version(criu)
    )
    assert len({(finding.id, finding.object) for finding in found}) == len(found)
    assert all(finding.reason and finding.remedy for finding in found)
    return {finding.id: finding for finding in found}


def only(found: dict[str, Finding]) -> Finding:
    (finding,) = found.values()
    return finding


def test_the_same_host_passes() -> None:
    assert gates() == {}


def test_a_host_that_can_more_passes() -> None:
    more = host(cpu_flags=(*samples.host().cpu_flags, "amx_tile"), kernel="7.0.1")
    assert gates(facts=more, criu="5.0") == {}


def test_another_architecture_is_all_that_is_said_of_the_host() -> None:
    finding = only(gates(facts=host(arch="aarch64", cpu_flags=(), kernel="1.0")))
    assert finding.id == "gate-arch"
    assert finding.blocks
    assert "x86_64" in finding.reason
    assert "aarch64" in finding.reason


def test_missing_cpu_flags_are_named_and_can_be_overridden() -> None:
    finding = only(gates(facts=host(cpu_flags=("fpu", "sse2"))))
    assert finding.id == "gate-cpu"
    assert finding.blocks
    assert finding.reason.endswith("lacks avx, avx2.")
    assert "Other CPU" in finding.reason
    assert "--force-gate gate-cpu" in finding.remedy


def test_flags_no_program_can_see_do_not_matter() -> None:
    old = ("avx", "vmx", "hypervisor", "tsc_deadline_timer", "ibrs", "hwp_epp", "pebs", "x2apic")
    assert cpuflags.missing(old, ("avx",)) == ()
    assert cpuflags.missing(("avx512f", "vmx", "some_day"), ()) == ("avx512f", "some_day")


def test_an_older_kernel_and_another_libc_are_warned_of() -> None:
    found = gates(facts=host(kernel="6.9.1", libc="glibc 2.41"))
    assert set(found) == {"gate-kernel", "gate-libc"}
    assert not any(finding.blocks for finding in found.values())
    assert "6.18.44" in found["gate-kernel"].reason
    assert "6.9.1" in found["gate-kernel"].reason


@pytest.mark.parametrize(
    ("version", "stopped"),
    [("4.2", True), ("4.1.1", True), ("4.2.1", False), ("4.10", False), ("4.2.1-5-gabc", False)],
)
def test_only_an_older_criu_is_refused(version: str, stopped: bool) -> None:
    found = gates(criu=version)
    assert (set(found) == {"gate-criu"}) == stopped
    if stopped:
        assert version in found["gate-criu"].reason
        assert "4.2.1" in found["gate-criu"].reason


@pytest.mark.parametrize("other", ["590.10.01", "580.159.05", "580.159.03", "580.159", "570.86.15"])
def test_the_driver_must_be_the_very_same(other: str) -> None:
    """Newer or older, however little: the gate is closed, and can be forced by its name."""
    finding = only(gates(gpus=nvidia(driver=other)))
    assert finding.id == "gate-driver"
    assert finding.blocks
    assert finding.reason == f"The image is from driver 580.159.04, this host has {other}."
    assert "--force-gate gate-driver" in finding.remedy


def test_a_driver_that_is_half_upgraded_is_another_one() -> None:
    half = replace(nvidia(), module="580.159.04", library="590.10.01")
    finding = only(gates(gpus=half))
    assert finding.id == "gate-driver"
    assert "580.159.04 loaded and the libraries of 590.10.01" in finding.reason
    assert gates(gpus=replace(half, library="580.159.04")) == {}


def test_a_host_without_a_driver_takes_no_gpu_job() -> None:
    (missing,) = compare.gates(samples.manifest(), host(), None, Version("4.2.1"))
    assert missing.id == "gate-driver"
    assert "no NVIDIA driver" in missing.reason


def test_a_job_without_gpus_does_not_ask_for_any() -> None:
    plain = samples.manifest(nvidia=None)
    assert compare.gates(plain, host(), None, Version("4.2.1")) == ()
    assert gates(plain, gpus=nvidia(driver="1.0")) == {}


def test_gpu_count_model_memory_and_mig() -> None:
    first, second = samples.GPUS
    other = replace(second, uuid="GPU-new", name="NVIDIA L4", compute_capability="8.9")
    model = only(gates(gpus=nvidia(first, other)))
    assert model.id == "gate-gpu-model"
    assert "NVIDIA H200" in model.reason
    assert "NVIDIA L4" in model.reason
    small = replace(second, memory_total=second.memory_total - 1)
    memory = only(gates(gpus=nvidia(first, small)))
    assert memory.id == "gate-gpu-memory"
    assert "--force-gate gate-gpu-memory" in memory.remedy
    mig = only(gates(gpus=nvidia(first, replace(second, mig=True))))
    assert mig.id == "gate-mig"
    assert mig.object == "GPU 1"
    assert gates(gpus=nvidia(first, replace(second, mig=None))) == {}


def test_another_bus_id_is_warned_of() -> None:
    first, second = samples.GPUS
    finding = only(gates(gpus=nvidia(first, replace(second, bus_id="00000000:99:00.0"))))
    assert finding.id == "gate-gpu-bus"
    assert not finding.blocks
    assert "00000000:99:00.0" in finding.reason


def record(**changes: Any) -> FileRecord:
    whole = FileRecord(
        path="/data/x", size=100, mode=REGULAR, build_id="", mtime_ns=5, flags=os.O_RDONLY
    )
    return msgspec.structs.replace(whole, **changes)


def files(old: FileRecord, new: FileRecord | None) -> tuple[Finding, ...]:
    outside = Outside(files=(old, old), listeners=(), terminals=())
    found = compare.files(samples.manifest(outside=outside), {old.path: new})
    assert all(finding.object == old.path for finding in found)
    return found


def test_files_that_are_as_they_were_pass() -> None:
    assert files(record(), record()) == ()
    assert files(record(), record(mtime_ns=6)) == ()
    assert files(record(size=None, mode=None), record(size=7, mode=0)) == ()
    outside = Outside(files=(record(),), listeners=(), terminals=())
    assert compare.files(samples.manifest(outside=outside), {}) == ()


@pytest.mark.parametrize(
    ("old", "new", "gate", "words"),
    [
        ({}, None, "gate-file-missing", "not there"),
        ({}, {"size": 90}, "gate-file-size", "100 bytes, now it has 90"),
        ({}, {"size": 110}, "gate-file-size", "100 bytes, now it has 110"),
        ({}, {"mode": stat.S_IFREG | 0o600}, "gate-file-mode", "0o100644"),
        ({}, {"mode": stat.S_IFDIR | 0o644}, "gate-file-mode", "0o040644"),
        ({"build_id": "aa"}, {"build_id": "bb"}, "gate-file-build-id", "aa, now bb"),
        ({"build_id": "aa"}, {"build_id": ""}, "gate-file-build-id", "has none"),
        ({"flags": LOG}, {"size": 90}, "gate-file-size", "now it has 90"),
        ({"flags": os.O_RDWR | os.O_APPEND}, {"size": 110}, "gate-file-size", "110"),
    ],
)
def test_a_file_that_criu_would_refuse(
    old: dict[str, Any], new: dict[str, Any] | None, gate: str, words: str
) -> None:
    (finding,) = files(record(**old), None if new is None else record(**old | new))
    assert finding.id == gate
    assert finding.blocks
    assert words.replace("0o", "") in finding.reason
    assert "--force-gate" not in finding.remedy


def test_other_bytes_of_the_same_size_close_a_gate() -> None:
    (finding,) = files(record(digest="aa"), record(digest="bb"))
    assert (finding.id, finding.blocks) == ("gate-file-content", True)
    assert "--force-gate gate-file-content" in finding.remedy
    assert files(record(digest="aa"), record(digest="aa", mtime_ns=6)) == ()
    assert files(record(digest="aa"), record()) == ()  # nobody could read it
    assert files(record(), record(digest="bb")) == ()  # as older images are
    (finding,) = files(record(digest="aa"), record(digest="bb", size=110))
    assert finding.id == "gate-file-size"


def test_the_remedy_for_a_file_that_grew_can_be_pasted() -> None:
    (finding,) = files(record(), record(size=110))
    assert "truncate -s 100 /data/x" in finding.remedy
    (finding,) = files(record(), record(mode=stat.S_IFREG | 0o600))
    assert finding.remedy == "chmod 0644 /data/x"


def test_a_log_that_grew_is_warned_of() -> None:
    (finding,) = files(record(flags=LOG), record(flags=LOG, size=110, mtime_ns=6))
    assert finding.id == "gate-file-size"
    assert not finding.blocks
    (finding,) = files(record(flags=LOG, size=None), record(size=110, mtime_ns=6))
    assert finding.id == "gate-file-changed"
    assert not finding.blocks


def test_the_time_of_a_device_says_nothing() -> None:
    null = {"path": "/dev/null", "size": None, "mode": stat.S_IFCHR | 0o666, "flags": os.O_RDWR}
    assert files(record(**null), record(**null, mtime_ns=6)) == ()


def test_owners_are_told_together() -> None:
    mine = [record(path=path, uid=1000, gid=100) for path in ("/data/b", "/data/a", "/data/a")]
    outside = Outside(files=(*mine, record(path="/old")), listeners=(), terminals=())
    now = {one.path: msgspec.structs.replace(one, uid=1, gid=100) for one in outside.files}
    (finding,) = compare.files(samples.manifest(outside=outside), now)
    assert (finding.id, finding.object, finding.blocks) == ("gate-file-owner", "/data/a", True)
    assert finding.reason == (
        "/data/a and one more file belonged to user and group 1000:100 at the dump, and to 1:100 "
        "here."
    )
    assert compare.files(samples.manifest(outside=outside), {one.path: one for one in mine}) == ()
