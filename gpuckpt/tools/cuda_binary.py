"""The driver's checkpoint calls through NVIDIA's cuda-checkpoint program.

The second choice: it reaches drivers from 555 on, costs 40 to 100 ms a call, and answers in words.
Never `--toggle`, which does the opposite of what was meant on a process half-way.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import ToolFailed
from gpuckpt.model import CudaState
from gpuckpt.tools.cuda_driver import CallRefused, DriverMissing, Unsettled, bare_uuid, one_line
from gpuckpt.tools.run import Command, Finished, Runner

if TYPE_CHECKING:
    from collections.abc import Mapping

# What cuGetErrorString says, which is all the program prints; `tests/gpu` compares the two.
ERROR_NAMES: Final = {
    "invalid argument": "INVALID_VALUE",
    "out of memory": "OUT_OF_MEMORY",
    "initialization error": "NOT_INITIALIZED",
    "no CUDA-capable device is detected": "NO_DEVICE",
    "invalid device context": "INVALID_CONTEXT",
    "OS call failed or operation not supported on this OS": "OPERATING_SYSTEM",
    "the operation cannot be performed in the present state": "ILLEGAL_STATE",
    "device not ready": "NOT_READY",
    "operation not permitted": "NOT_PERMITTED",
    "operation not supported": "NOT_SUPPORTED",
}
_QUESTION: Final = 20.0
_QUOTED: Final = re.compile(r'"([^"]+)"')
_VERSION: Final = re.compile(r"Version (\d+(?:\.\d+)*)")


class Binary:
    """The calls through the program; none of them is ever cut short."""

    backend = "binary"
    cuda = ""

    def __init__(self, program: str, runner: Runner) -> None:
        """Ask the program who it is.

        Raises:
            DriverMissing: it is not there or does not know the single actions (before 555).
        """
        self._program = program
        self._runner = runner
        try:
            asked = Command((program, "--help"), timeout=_QUESTION, merge=True)
            said = runner.run(asked, check=False)
        except ToolFailed as why:
            raise DriverMissing(f"{program} cannot be used: {one_line(why)}") from why
        if "--action" not in said.stdout:
            raise DriverMissing(f"{program} is too old: it does not know --action")
        found = _VERSION.search(said.stdout)
        self.version = f"cuda-checkpoint {found[1] if found else 'of unknown version'}"

    def state(self, pid: int) -> CudaState:
        """See Driver."""
        try:
            said = self._call("--get-state", "--pid", str(pid)).stdout.strip().lower()
        except CallRefused as why:
            if why.name == "NOT_INITIALIZED":
                return CudaState.NONE
            raise
        if said in {"checkpointing", "restoring"}:
            raise Unsettled("NOT_SETTLED", f"the process is {said}")
        try:
            return CudaState(said)
        except ValueError as why:
            raise CallRefused("UNKNOWN", f"the state is said to be {said[:80]!r}") from why

    def restore_thread(self, pid: int) -> int:
        """See Driver."""
        said = self._call("--get-restore-tid", "--pid", str(pid)).stdout.strip()
        try:
            return int(said)
        except ValueError as why:
            raise CallRefused("UNKNOWN", f"the restore thread is said to be {said[:80]!r}") from why

    def lock(self, pid: int, timeout_ms: int) -> None:
        """See Driver."""
        self._call("--action", "lock", "--pid", str(pid), "--timeout", str(timeout_ms))

    def checkpoint(self, pid: int) -> None:
        """See Driver."""
        self._call("--action", "checkpoint", "--pid", str(pid))

    def restore(self, pid: int, gpu_map: Mapping[str, str]) -> None:
        """See Driver."""
        pairs = ",".join(
            f"GPU-{bare_uuid(old)}=GPU-{bare_uuid(new)}" for old, new in gpu_map.items()
        )
        more = ("--device-map", pairs) if pairs else ()
        self._call("--action", "restore", "--pid", str(pid), *more)

    def unlock(self, pid: int) -> None:
        """See Driver."""
        self._call("--action", "unlock", "--pid", str(pid))

    def _call(self, *words: str) -> Finished:
        """Run one action to its end, however long it takes: killed, it may leave the driver
        out of step with the process.
        """  # noqa: D205
        try:
            return self._runner.run(Command((self._program, *words)))
        except ToolFailed as why:
            text = one_line(why.stderr or why.stdout or why)
            quoted = _QUOTED.search(text)
            reason = quoted[1] if quoted else text
            raise CallRefused(ERROR_NAMES.get(reason, "UNKNOWN"), text) from why
