"""NVML: the NVIDIA driver, its GPUs, and who holds how much of their memory.

NVML is asked for one field at a time and may refuse any of them: a virtual machine has no
persistence mode, a consumer GPU no MIG. Nothing here knows CUDA.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from gpuckpt.model import Gpu, GpuUse, NvidiaFacts
from gpuckpt.tools.topology import numa_node, nvlinks, paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_T = TypeVar("_T")
_VERSION: Final = re.compile(r"NVIDIA UNIX (Open )?(?:\S+ )?Kernel Module(?: for \S+)?\s+([\d.]+)")
_LIBRARY: Final = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.[\d.]+)")
_LIBRARIES: Final = (
    f"usr/lib/{platform.machine()}-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "run/nvidia/driver/usr/lib64",
)


class Nvidia:
    """The NVIDIA driver of this host, if there is one.

    NVML stays open from the first question to `close`: opening it costs up to a second on a host
    with many GPUs.
    """

    def __init__(
        self,
        nvml: Any = None,  # noqa: ANN401 - the library has no types
        root: Path = Path("/"),
    ) -> None:
        """Use the pynvml module, or whatever stands in for it, and the files under `root`."""
        self._given = nvml
        self._root = root
        self._open: Any = None
        self._ties: list[tuple[tuple[int, ...], tuple[str, ...]]] | None = None

    def facts(self) -> NvidiaFacts | None:
        """Return driver and GPUs in NVML's order, None where there is no driver.

        Where NVML does not work with the loaded module, as after an upgrade, there are no GPUs.
        """
        nvml = self._library()
        module, flavour = _module(self._root)
        library = _installed(self._root)
        if nvml is None:
            return NvidiaFacts(module, "", (), module, flavour, library) if module else None
        cuda = self._ask(nvml.nvmlSystemGetCudaDriverVersion_v2, default=0)
        gpus = [self._gpu(index, handle) for index, handle in self._handles()]
        return NvidiaFacts(
            driver=_text(self._ask(nvml.nvmlSystemGetDriverVersion, default="")),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            gpus=tuple(self._tied(gpus)),
            module=module,
            flavour=flavour,
            library=library,
        )

    def uses(self, pids: Iterable[int] | None = None) -> tuple[GpuUse, ...]:
        """Return the bytes the given processes, or all there are, hold on each GPU.

        0 bytes means that the process is known there and NVML does not say how much it holds, as
        inside some virtual machines: the caller has to estimate. In a pid namespace of its own
        NVML may speak of the host's pids.
        """
        wanted = None if pids is None else set(pids)
        if self._library() is None or wanted == set():
            return ()
        found: dict[tuple[int, str], int] = {}
        for _, handle in self._handles():
            running: list[Any] = self._ask(
                self._open.nvmlDeviceGetComputeRunningProcesses, handle, default=[]
            )
            uuid = _text(self._ask(self._open.nvmlDeviceGetUUID, handle, default=""))
            for process in running:
                if wanted is None or process.pid in wanted:
                    key = (process.pid, uuid)
                    found[key] = found.get(key, 0) + (process.usedGpuMemory or 0)
        return tuple(GpuUse(pid, uuid, held) for (pid, uuid), held in found.items())

    def close(self) -> None:
        """Let go of NVML; the next question opens it again."""
        if self._open is not None:
            with suppress(self._open.NVMLError):
                self._open.nvmlShutdown()
            self._open = self._ties = None

    def _library(self) -> Any:  # noqa: ANN401 - see __init__
        """Return NVML, opened, or None where there is no driver."""
        if self._open is None:
            nvml = self._given or _pynvml()
            if nvml is not None:
                with suppress(nvml.NVMLError):
                    nvml.nvmlInit()
                    self._open = nvml
        return self._open

    def _handles(self) -> Iterator[tuple[int, object]]:
        count = self._ask(self._open.nvmlDeviceGetCount, default=0)
        for index in range(count):
            # None: a GPU that has fallen off the bus still counts, all its fields are empty
            yield index, self._ask(self._open.nvmlDeviceGetHandleByIndex, index, default=None)

    def _gpu(self, index: int, handle: object) -> Gpu:
        nvml = self._open
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle, default=None)
        pci = self._ask(nvml.nvmlDeviceGetPciInfo, handle, default=None)
        capability = self._ask(nvml.nvmlDeviceGetCudaComputeCapability, handle, default=())
        mig = self._ask(nvml.nvmlDeviceGetMigMode, handle, default=None)
        persistence = self._ask(nvml.nvmlDeviceGetPersistenceMode, handle, default=None)
        return Gpu(
            index=index,
            uuid=_text(self._ask(nvml.nvmlDeviceGetUUID, handle, default="")),
            name=_text(self._ask(nvml.nvmlDeviceGetName, handle, default="")),
            memory_total=int(memory.total) if memory else 0,
            memory_free=int(memory.free) if memory else 0,
            bus_id=_text(pci.busId) if pci else "",
            compute_capability=".".join(str(part) for part in capability),
            mig=None if mig is None else bool(mig[0]),
            persistence=None if persistence is None else bool(persistence),
            numa=numa_node(self._root, _text(pci.busId)) if pci else None,
        )

    def _tied(self, gpus: list[Gpu]) -> Iterator[Gpu]:
        """Add what ties the GPUs together: asked once, for it does not change."""
        if self._ties is None or len(self._ties) != len(gpus):
            handles = [handle for _, handle in self._handles()]
            bus_ids = [gpu.bus_id for gpu in gpus]
            links = nvlinks(self._ask_for, handles, bus_ids)
            self._ties = list(zip(links, paths(self._ask_for, handles), strict=True))
        for gpu, (links_, paths_) in zip(gpus, self._ties, strict=True):
            yield replace(gpu, nvlinks=links_, paths=paths_)

    def _ask_for(self, name: str, *args: object, default: _T) -> Any | _T:  # noqa: ANN401
        """Ask by name: an old library may not even know the question."""
        call = getattr(self._open, name, None)
        return default if call is None else self._ask(call, *args, default=default)

    def _ask(self, call: Callable[..., Any], *args: object, default: _T) -> Any | _T:  # noqa: ANN401
        """Ask one thing; `default` if NVML, or a library older than the question, refuses."""
        if None in args:
            return default
        try:
            return call(*args)
        except self._open.NVMLError:
            return default


def _module(root: Path) -> tuple[str, str]:
    """Return version and flavour of the loaded kernel module, empty if there is none."""
    try:
        said = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return "", ""
    found = _VERSION.search(said)
    if found is None:
        return "", ""
    return found[2], "open" if found[1] else "proprietary"


def _installed(root: Path) -> str:
    """Return the version that the name of the driver's library leads to, "" if it is not found."""
    for folder in _LIBRARIES:
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            found = _LIBRARY.fullmatch(os.path.basename(os.path.realpath(root / folder / name)))  # noqa: PTH119
            if found:
                return found[1]
    return ""


def _pynvml() -> Any:  # noqa: ANN401 - see Nvidia.__init__
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def _text(raw: str | bytes) -> str:
    """Return text; nvidia-ml-py gave bytes before version 12."""
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
