"""A stand-in for NVIDIA's pynvml: the GPUs and who holds how much are a JSON file, FAKE_NVML.

On PYTHONPATH it takes the place of the real one for a whole program. It does not know what it was
not told: such questions are refused, as NVML refuses them in a virtual machine.
"""

# ruff: noqa: N802 - pynvml's own names

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """What pynvml raises for everything."""


def _told() -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(Path(os.environ["FAKE_NVML"]).read_text())
    except (KeyError, OSError) as why:
        raise NVMLError("Driver Not Loaded") from why
    return found


def _gpu(handle: int) -> dict[str, Any]:
    found: dict[str, Any] = _told()["gpus"][handle]
    return found


def nvmlInit() -> None:
    _told()


def nvmlShutdown() -> None:
    pass


def nvmlSystemGetDriverVersion() -> str:
    return str(_told()["driver"])


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    return 13000


def nvmlDeviceGetCount() -> int:
    return len(_told()["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetUUID(handle: int) -> str:
    return str(_gpu(handle)["uuid"])


def nvmlDeviceGetName(handle: int) -> str:
    return str(_gpu(handle)["name"])


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:
    gpu = _gpu(handle)
    return SimpleNamespace(total=gpu["memory_total"], free=gpu["memory_free"])


def nvmlDeviceGetPciInfo(handle: int) -> SimpleNamespace:
    return SimpleNamespace(busId=_gpu(handle)["bus_id"])


def nvmlDeviceGetCudaComputeCapability(handle: int) -> tuple[int, ...]:
    return tuple(int(part) for part in _gpu(handle)["compute_capability"].split("."))


def nvmlDeviceGetPersistenceMode(handle: int) -> int:
    return int(_gpu(handle)["persistence"])


def nvmlDeviceGetMigMode(handle: int) -> list[int]:
    return [int(_gpu(handle)["mig"])] * 2


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[SimpleNamespace]:
    uuid = _gpu(handle)["uuid"]
    return [
        SimpleNamespace(pid=pid, usedGpuMemory=held)
        for pid, where, held in _told()["uses"]
        if where == uuid
    ]
