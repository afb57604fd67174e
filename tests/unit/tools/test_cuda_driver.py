"""The bindings' answers become names; a stub stands in for cuda.core.checkpoint."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuckpt.model import CudaState
from gpuckpt.tools.cuda_driver import (
    Bindings,
    CallRefused,
    DriverMissing,
    Unsettled,
    bare_uuid,
    initialise,
)

PLAIN = "0000aaaa-1111-2222-3333-444455556666"


class CUDAError(Exception):
    """As cuda.core raises it: the text begins with the CUresult's name."""


class StubProcess:
    """cuda.core.checkpoint.Process, of one process whose answers the test chooses."""

    answer: Any = "running"
    calls: list[tuple[Any, ...]]

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def _do(self, *call: Any) -> Any:
        type(self).calls.append((self.pid, *call))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    @property
    def state(self) -> Any:
        return self._do("state")

    def lock(self, timeout_ms: int) -> None:
        self._do("lock", timeout_ms)

    def checkpoint(self) -> None:
        self._do("checkpoint")

    def restore(self, gpu_mapping: dict[str, str] | None) -> None:
        self._do("restore", gpu_mapping)

    def unlock(self) -> None:
        self._do("unlock")


@pytest.fixture
def process() -> type[StubProcess]:
    return type("Process", (StubProcess,), {"calls": []})


@pytest.fixture
def bindings(process: type[StubProcess]) -> Bindings:
    return Bindings(SimpleNamespace(Process=process), "cuda-core 1.2", "13.0")


@pytest.mark.parametrize("state", ["running", "locked", "checkpointed", "failed"])
def test_states_are_the_models(bindings: Bindings, process: type[StubProcess], state: str) -> None:
    process.answer = state
    assert bindings.state(7) is CudaState(state)


def test_a_pid_without_cuda_has_none(bindings: Bindings, process: type[StubProcess]) -> None:
    process.answer = CUDAError("CUDA_ERROR_NOT_INITIALIZED: not initialised")
    assert bindings.state(7) is CudaState.NONE


def test_calls_carry_timeout_and_map(bindings: Bindings, process: type[StubProcess]) -> None:
    bindings.lock(7, 2500)
    bindings.checkpoint(7)
    bindings.restore(7, {f"GPU-{PLAIN}": f"GPU-{PLAIN}"})
    bindings.restore(7, {})
    bindings.unlock(7)
    assert process.calls == [
        (7, "lock", 2500),
        (7, "checkpoint"),
        (7, "restore", {PLAIN: PLAIN}),
        (7, "restore", None),
        (7, "unlock"),
    ]


@pytest.mark.parametrize(
    ("raised", "name"),
    [
        (CUDAError("CUDA_ERROR_NOT_READY: device not ready"), "NOT_READY"),
        (CUDAError("CUDA_ERROR_OPERATING_SYSTEM: This indicates..."), "OPERATING_SYSTEM"),
        (CUDAError("CUDA_ERROR_ILLEGAL_STATE"), "ILLEGAL_STATE"),
        (
            RuntimeError(
                "CUDA checkpointing is not supported by the installed NVIDIA driver. Upgrade to..."
            ),
            "NOT_SUPPORTED",
        ),
        (RuntimeError("something new"), "UNKNOWN"),
        (TypeError("pid must be an int"), "UNKNOWN"),
    ],
)
def test_refusals_get_the_results_name(
    bindings: Bindings, process: type[StubProcess], raised: Exception, name: str
) -> None:
    process.answer = raised
    with pytest.raises(CallRefused) as caught:
        bindings.checkpoint(7)
    assert caught.value.name == name
    assert caught.value.__cause__ is raised


def test_the_states_of_newer_drivers_are_waited_out(
    bindings: Bindings, process: type[StubProcess]
) -> None:
    process.answer = RuntimeError("Unknown CUDA checkpoint process state: 4")
    with pytest.raises(Unsettled):
        bindings.state(7)


@pytest.mark.parametrize("uuid", ["", "GPU-", "MIG-" + PLAIN, PLAIN + "0", "GPU-" + "z" * 36])
def test_what_is_not_the_uuid_of_a_gpu_never_reaches_the_driver(
    bindings: Bindings, process: type[StubProcess], uuid: str
) -> None:
    with pytest.raises(CallRefused, match="INVALID_VALUE"):
        bindings.restore(7, {f"GPU-{PLAIN}": uuid})
    assert process.calls == []


def test_uuids_lose_what_nvml_puts_before_them() -> None:
    assert bare_uuid("GPU-" + PLAIN.upper()) == PLAIN


class StubLibrary:
    """cuda.bindings.driver, as far as starting it goes."""

    def __init__(self, result: int = 0, version: int = 13000) -> None:
        self.result = result
        self.version = version

    def cuInit(self, _flags: int) -> tuple[Any]:  # noqa: N802 - the driver's name
        return (Result(self.result),)

    def cuDriverGetVersion(self) -> tuple[Any, int]:  # noqa: N802
        return Result(0), self.version


class Result(int):
    """A CUresult."""

    name = "CUDA_ERROR_NO_DEVICE"


@pytest.mark.parametrize(
    ("number", "text"), [(12080, "12.8"), (12090, "12.9"), (13000, "13.0"), (13040, "13.4")]
)
def test_the_driver_says_what_cuda_it_speaks(number: int, text: str) -> None:
    assert initialise(StubLibrary(version=number)) == text


def test_a_driver_without_the_calls_is_missing() -> None:
    with pytest.raises(DriverMissing, match=r"12\.4"):
        initialise(StubLibrary(version=12040))


def test_a_driver_that_does_not_start_is_missing() -> None:
    with pytest.raises(DriverMissing, match="NO_DEVICE"):
        initialise(StubLibrary(result=100))
