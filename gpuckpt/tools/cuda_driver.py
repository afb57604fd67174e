"""The driver's checkpoint calls on one process, through cuda.core.checkpoint.

Runs inside the call processes only: a call can hang, and the driver library has to be initialised
by whoever restores (or persistence mode be on). The other way to make the calls, for older
drivers and bindings, is cuda_binary.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from gpuckpt.model import CudaState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OLDEST_CUDA: Final = (12, 8)
# bindings 13.0.0, 13.0.1 lack the restore call, 13.3.0 its arguments; 12.x has no GPU pairs
NEEDED: Final = (
    "cuCheckpointProcessGetState",
    "cuCheckpointProcessLock",
    "cuCheckpointProcessCheckpoint",
    "cuCheckpointProcessRestore",
    "cuCheckpointProcessUnlock",
    "CUcheckpointRestoreArgs",
    "CUcheckpointGpuPair",
)
_RESULT: Final = re.compile(r"CUDA_ERROR_([A-Z0-9_]+)")
_UNSETTLED: Final = re.compile(r"Unknown CUDA checkpoint process state: [45]\b")
_NOT_SUPPORTED: Final = "not supported by the installed NVIDIA driver"


class CallRefused(Exception):
    """The driver refused a call; `name` is the CUresult's without CUDA_ERROR_."""

    def __init__(self, name: str, detail: str) -> None:
        """Keep the name for decisions and the text for people."""
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail


class Unsettled(CallRefused):
    """The process is on its way from one state to another (CUDA 13.4: states 4 and 5)."""


class DriverMissing(Exception):
    """This way to the driver does not exist here; the text says why."""


class Driver(Protocol):
    """The calls; each raises CallRefused if the driver does not do it."""

    backend: str
    version: str
    cuda: str

    def state(self, pid: int) -> CudaState:
        """Return the state; NONE if there is no CUDA in the process."""

    def restore_thread(self, pid: int) -> int:
        """Return the thread through which the driver works inside the process."""

    def lock(self, pid: int, timeout_ms: int) -> None:
        """Hold the process's CUDA calls once its GPU work is done."""

    def checkpoint(self, pid: int) -> None:
        """Move GPU memory into the process's own memory and let go of the GPUs."""

    def restore(self, pid: int, gpu_map: Mapping[str, str]) -> None:
        """Bring GPU memory back, onto the mapped GPUs."""

    def unlock(self, pid: int) -> None:
        """Let the process's CUDA calls go on."""


class Bindings:
    """The calls through cuda.core; `checkpoint` is that module."""

    backend = "bindings"

    def __init__(self, checkpoint: Any, version: str, cuda: str) -> None:  # noqa: ANN401
        """Use a module that was found whole and a driver that was initialised."""
        self._process = checkpoint.Process
        self.version = version
        self.cuda = cuda

    def state(self, pid: int) -> CudaState:
        """See Driver."""
        try:
            with _named():
                return CudaState(str(self._process(pid).state))
        except CallRefused as why:
            if why.name == "NOT_INITIALIZED":  # what the driver says of a pid without CUDA
                return CudaState.NONE
            raise

    def restore_thread(self, pid: int) -> int:
        """See Driver."""
        with _named():
            return int(self._process(pid).restore_thread_id)

    def lock(self, pid: int, timeout_ms: int) -> None:
        """See Driver."""
        with _named():
            self._process(pid).lock(timeout_ms=timeout_ms)

    def checkpoint(self, pid: int) -> None:
        """See Driver."""
        with _named():
            self._process(pid).checkpoint()

    def restore(self, pid: int, gpu_map: Mapping[str, str]) -> None:
        """See Driver."""
        pairs = {bare_uuid(old): bare_uuid(new) for old, new in gpu_map.items()}
        with _named():
            self._process(pid).restore(gpu_mapping=pairs or None)

    def unlock(self, pid: int) -> None:
        """See Driver."""
        with _named():
            self._process(pid).unlock()


def load_bindings() -> Bindings:
    """Find cuda.core and the driver library, and initialise the driver in this process.

    Raises:
        DriverMissing: a part is absent, too old, or does not start.
    """
    try:
        from cuda import bindings, core  # noqa: PLC0415 - absent or broken is an answer
        from cuda.bindings import driver  # noqa: PLC0415
        from cuda.core import checkpoint  # noqa: PLC0415
    except Exception as why:
        raise DriverMissing(f"cuda-python cannot be used: {one_line(why)}") from why
    missing = [name for name in NEEDED if not hasattr(driver, name)]
    version = f"cuda-core {core.__version__}, cuda-bindings {bindings.__version__}"
    if missing:
        raise DriverMissing(f"{version} lacks {', '.join(missing)}; 13.3.1 or newer is whole")
    return Bindings(checkpoint, version, initialise(driver))


def initialise(driver: Any) -> str:  # noqa: ANN401
    """Start the driver library (cuInit) and return the CUDA version it speaks.

    Raises:
        DriverMissing: there is no library, it does not start, or it is older than 12.8.
    """
    try:
        (result,) = driver.cuInit(0)
        status, number = driver.cuDriverGetVersion()
    except Exception as why:
        raise DriverMissing(f"libcuda.so.1 cannot be used: {one_line(why)}") from why
    if int(result) != 0 or int(status) != 0:
        raise DriverMissing(f"the driver does not start: cuInit answers {result.name}")
    found = (number // 1000, number % 1000 // 10)
    if found < OLDEST_CUDA:
        raise DriverMissing(
            f"the driver speaks CUDA {found[0]}.{found[1]}; the checkpoint calls came with 12.8"
        )
    return f"{found[0]}.{found[1]}"


def bare_uuid(uuid: str) -> str:
    """Return a GPU's UUID as cuda.core wants it, from the way NVML prints it (GPU-...).

    Raises:
        CallRefused: INVALID_VALUE, it is no UUID of a whole GPU.
    """
    bare = uuid.removeprefix("GPU-").lower()
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bare):
        raise CallRefused("INVALID_VALUE", f"{uuid!r} is not the UUID of a GPU")
    return bare


def one_line(error: object) -> str:
    """Return an error's text on one line of bounded length."""
    return " ".join(str(error).split())[:300]


@contextmanager
def _named() -> Iterator[None]:
    """Turn whatever cuda.core raises into CallRefused with the CUresult's name."""
    try:
        yield
    except Exception as why:
        text = one_line(why)
        if _UNSETTLED.search(text):
            raise Unsettled("NOT_SETTLED", text) from why
        if found := _RESULT.match(text):
            raise CallRefused(found[1], text) from why
        if _NOT_SUPPORTED in text:  # cuda.core says the same for NOT_SUPPORTED and NOT_FOUND
            detail = "the driver does not support this for what the process uses"
            raise CallRefused("NOT_SUPPORTED", detail) from why
        raise CallRefused("UNKNOWN", f"{type(why).__name__}: {text}") from why
