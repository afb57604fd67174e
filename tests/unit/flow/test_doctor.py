"""What the doctor finds on hosts that are healthy and on hosts that are not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt import errors
from gpuckpt.events import Silent
from gpuckpt.flow import doctor
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.model import CudaBackend, Gpu, HostFacts, NvidiaFacts, Version

if TYPE_CHECKING:
    from collections.abc import Callable

GPU = Gpu(0, "GPU-1", "NVIDIA H200", 140 << 30, 140 << 30, "0:1", mig=False, persistence=True)
NVIDIA = NvidiaFacts("580.159.04", "13.0", (GPU,))
HOST = HostFacts(
    hostname="node7",
    kernel="6.18.5-cloud",
    boot_id="b",
    arch="x86_64",
    libc="glibc 2.36",
    cpu_model="",
    cpu_flags=(),
    cpu_count=2,
    memory_total=1 << 40,
    memory_available=1 << 40,
    huge_pages="always",
    euid=0,
)


class Criu:
    """A CRIU that is there, works, or is not."""

    def __init__(self, missing: Exception | None = None, broken: Exception | None = None) -> None:
        self.missing, self.broken = missing, broken

    @property
    def program(self) -> str:
        if self.missing:
            raise self.missing
        return "/opt/criu"

    version = Version("4.2.1")

    def check(self) -> str:
        if self.broken:
            raise self.broken
        return "Warn  something\nLooks good."


def backend(found: CudaBackend | Exception) -> Callable[[], CudaBackend]:
    def describe() -> CudaBackend:
        if isinstance(found, Exception):
            raise found
        return found

    return describe


def tools(**changes: Any) -> SimpleNamespace:
    given: dict[str, Any] = {
        "host": HOST,
        "nvidia": NVIDIA,
        "cuda": CudaBackend("bindings", "13.3.1", "13.0"),
        "criu": Criu(),
        "free": 1 << 40,
        **changes,
    }
    return SimpleNamespace(
        host=SimpleNamespace(facts=lambda: given["host"], free_bytes=lambda _folder: given["free"]),
        nvidia=SimpleNamespace(facts=lambda: given["nvidia"]),
        cuda=SimpleNamespace(describe=backend(given["cuda"])),
        criu=given["criu"],
        state_dir=Path("/var/lib/gpuckpt"),
    )


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that gives all checks by their id, with a trial that succeeds."""
    monkeypatch.setattr(doctor, "_SETTINGS", (str(tmp_path / "default.conf"),))
    monkeypatch.delenv("CRIU_CONFIG_FILE", raising=False)
    monkeypatch.setattr(doctor, "_try", lambda _t, device, _i: doctor.Check(device, "ok", "done"))

    def run(**changes: Any) -> dict[str, Any]:
        found = doctor.doctor(tools(**changes), Silent(), Interrupts())  # type: ignore[arg-type]
        ids = [check.id for check in found.checks]
        assert len(set(ids)) == len(ids)
        assert not [c for c in found.checks if c.status == "failed" and not c.remedy]
        return {check.id: check for check in found.checks}

    return run


def test_a_healthy_host_passes_everything(examine: Callable[..., dict[str, Any]]) -> None:
    checks = examine()
    assert {check.status for check in checks.values()} == {"ok"}
    assert {"cpu", "gpu"} <= set(checks)


def test_a_host_without_a_gpu_is_healthy_too(examine: Callable[..., dict[str, Any]]) -> None:
    checks = examine(nvidia=None, host=replace(HOST, huge_pages="madvise"))
    assert {check.status for check in checks.values()} == {"ok"}
    assert not {"gpu", "cuda", "gpus", "huge-pages"} & set(checks)


NO_CRIU = Criu(missing=errors.CriuMissing("CRIU was not found"))
SICK = [
    ("privileges", "failed", {"host": replace(HOST, missing_capabilities=("CAP_SYS_ADMIN",))}),
    ("privileges", "warning", {"host": replace(HOST, only_own=True)}),
    ("kernel", "failed", {"host": replace(HOST, kernel="5.4.0-generic")}),
    ("arch", "warning", {"host": replace(HOST, arch="aarch64")}),
    ("criu", "failed", {"criu": NO_CRIU}),
    ("criu", "failed", {"criu": Criu(missing=errors.CriuTooOld("3.17 is too old"))}),
    ("criu-check", "failed", {"criu": Criu(broken=errors.CriuBroken("no", hint="see dmesg"))}),
    ("driver", "failed", {"nvidia": replace(NVIDIA, driver="565.57.01")}),
    ("driver", "warning", {"nvidia": replace(NVIDIA, driver="570.158")}),
    ("driver", "failed", {"nvidia": replace(NVIDIA, module="580.1", library="580.2")}),
    ("cuda", "failed", {"cuda": errors.DriverUnfit("no way in", hint="install cuda-python")}),
    ("cuda", "warning", {"cuda": CudaBackend("binary", note="no bindings")}),
    (
        "persistence",
        "warning",
        {"nvidia": NvidiaFacts("580", "13", (replace(GPU, persistence=False),))},
    ),
    ("mig", "warning", {"nvidia": NvidiaFacts("580", "13", (replace(GPU, mig=True),))}),
    ("huge-pages", "warning", {"host": replace(HOST, huge_pages="madvise")}),
    ("huge-pages", "warning", {"host": replace(HOST, huge_pages="")}),
    ("space", "failed", {"free": 1 << 20}),
    ("state", "failed", {"free": 1 << 20}),
]


@pytest.mark.parametrize(("name", "status", "changes"), SICK)
def test_what_is_wrong_is_found(
    name: str, status: str, changes: dict[str, Any], examine: Callable[..., dict[str, Any]]
) -> None:
    assert examine(**changes)[name].status == status


def test_what_nvml_does_not_know_is_no_complaint(
    examine: Callable[..., dict[str, Any]],
) -> None:
    """On virtual machines NVML has no persistence mode, on consumer GPUs no MIG."""
    vague = NvidiaFacts("580", "13.0", (replace(GPU, persistence=None, mig=None),))
    assert not {"persistence", "mig"} & set(examine(nvidia=vague))


def test_settings_that_have_no_effect_are_pointed_out(
    examine: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "default.conf").write_text("tcp-established\n")
    check = examine()["criu-config"]
    assert check.status == "warning"
    assert str(tmp_path / "default.conf") in check.text


def test_one_visit_tells_all(examine: Callable[..., dict[str, Any]]) -> None:
    checks = examine(criu=NO_CRIU, free=0, nvidia=replace(NVIDIA, driver="550"))
    failed = {name for name, check in checks.items() if check.status == "failed"}
    assert failed == {"criu", "driver", "space", "state"}


def test_a_trial_that_fails_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise errors.DumpFailed("CRIU failed", hint="look", excerpt=["Error (x.c:1)"])

    monkeypatch.setattr(doctor, "trial", broken)
    check = doctor._try(tools(), "cpu", Interrupts())  # type: ignore[arg-type]
    assert (check.status, check.id, check.remedy) == ("failed", "try-cpu", "look")
    assert "Error (x.c:1)" in check.text


def test_an_interrupt_is_not_taken_for_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise errors.Interrupted(2)

    monkeypatch.setattr(doctor, "trial", interrupted)
    with pytest.raises(errors.Interrupted):
        doctor._try(tools(), "cpu", Interrupts())  # type: ignore[arg-type]
