"""NVML may be absent, and may refuse any single question."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt.model import GpuUse
from gpuckpt.tools.nvidia import Nvidia

if TYPE_CHECKING:
    from pathlib import Path


class Refused(Exception):
    """What the stand-in raises where NVML would raise NVMLError."""


def refuse(*_: object) -> Any:
    raise Refused


class _Library:
    """Stands in for pynvml on a host with two GPUs, the second of which has fallen off the bus."""

    NVMLError = Refused

    def __init__(self) -> None:
        self.opened = 0
        self.nvmlSystemGetDriverVersion = lambda: b"580.159.04"
        self.nvmlSystemGetCudaDriverVersion_v2 = lambda: 13010
        self.nvmlDeviceGetCount = lambda: 2
        self.nvmlDeviceGetHandleByIndex = lambda index: "h0" if index == 0 else refuse()
        self.nvmlDeviceGetUUID = lambda _: "GPU-1"
        self.nvmlDeviceGetName = lambda _: b"NVIDIA H200"
        self.nvmlDeviceGetMemoryInfo = lambda _: SimpleNamespace(total=100, free=60, used=40)
        self.nvmlDeviceGetPciInfo = lambda _: SimpleNamespace(busId="00000000:0A:00.0")
        self.nvmlDeviceGetCudaComputeCapability = lambda _: (9, 0)
        self.nvmlDeviceGetMigMode = lambda _: [0, 1]
        self.nvmlDeviceGetPersistenceMode = lambda _: 1
        self.processes = [(5, 30), (5, 4), (6, None), (7, 1)]

    def nvmlInit(self) -> None:  # noqa: N802
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlDeviceGetComputeRunningProcesses(self, _: object) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in self.processes]


def test_driver_and_gpus_are_described() -> None:
    facts = Nvidia(_Library()).facts()
    assert facts is not None
    assert (facts.driver, facts.cuda) == ("580.159.04", "13.1")
    first, second = facts.gpus
    assert (first.index, first.uuid, first.name) == (0, "GPU-1", "NVIDIA H200")
    assert (first.memory_total, first.memory_free, first.bus_id) == (100, 60, "00000000:0A:00.0")
    assert (first.compute_capability, first.mig, first.persistence) == ("9.0", False, True)
    assert (second.index, second.uuid, second.memory_total, second.mig) == (1, "", 0, None)


def test_each_question_may_be_refused() -> None:
    library = _Library()
    for name in list(vars(library)):
        if name.startswith("nvmlDevice") and not name.endswith(("Count", "ByIndex")):
            setattr(library, name, refuse)
    facts = Nvidia(library).facts()
    assert facts is not None
    assert facts.gpus[0] == facts.gpus[0].__class__(0, "", "", 0, 0, "")
    assert facts.gpus[0].mig is None
    assert facts.gpus[0].persistence is None


def test_bytes_are_summed_per_process_and_gpu() -> None:
    uses = Nvidia(_Library()).uses([5, 6, 8])
    assert uses == (GpuUse(5, "GPU-1", 34), GpuUse(6, "GPU-1", 0))
    assert Nvidia(_Library()).uses([]) == ()


def test_no_driver_is_no_error() -> None:
    library = _Library()
    library.nvmlInit = refuse  # type: ignore[method-assign]
    nvidia = Nvidia(library)
    assert nvidia.facts() is None
    assert nvidia.uses([5]) == ()
    nvidia.close()
    assert library.opened == 0


def test_nvml_is_opened_once_and_let_go() -> None:
    library = _Library()
    nvidia = Nvidia(library)
    nvidia.facts()
    nvidia.uses([5])
    assert library.opened == 1
    nvidia.close()
    nvidia.close()
    assert library.opened == 0
    assert nvidia.uses([5])


def test_the_real_library_answers_or_is_absent() -> None:
    nvidia = Nvidia()
    facts = nvidia.facts()
    assert facts is None or facts.driver
    nvidia.close()


@pytest.mark.parametrize(
    ("said", "module", "flavour"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
            "580.159.04",
            "open",
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC",
            "535.104.05",
            "proprietary",
        ),
        ("NVRM version: something else", "", ""),
    ],
)
def test_module_and_library(tmp_path: Path, said: str, module: str, flavour: str) -> None:
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(f"{said}\nGCC version:  gcc version 12.3.0\n")
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.590.44.01").write_text("")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.590.44.01")
    facts = Nvidia(_Library(), tmp_path).facts()
    assert facts is not None
    assert (facts.module, facts.flavour, facts.library) == (module, flavour, "590.44.01")
    # NVML does not work with a module of another version
    library = _Library()
    library.nvmlInit = refuse  # type: ignore[method-assign]
    broken = Nvidia(library, tmp_path).facts()
    assert (broken.driver if broken is not None else "") == module
    (folder / "libcuda.so.1").unlink()
    whole = Nvidia(_Library(), tmp_path).facts()
    assert whole is not None
    assert whole.library == ""
