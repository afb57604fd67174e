"""A driver for machines without a GPU: real call processes, a stand-in for what they call.

The stand-in is a program in place of cuda-checkpoint, named to gpuckpt by GPUCKPT_CUDA_CHECKPOINT
like the real one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuckpt.model import CudaState

if TYPE_CHECKING:
    from collections.abc import Iterable

SCRIPT = Path(__file__).parent / "bin" / "cuda-checkpoint"


class FakeDriver:
    """The driver's side: which process is in which state, and what goes wrong."""

    def __init__(self, folder: Path) -> None:
        """Keep everything in `folder`, which must exist."""
        self.folder = folder
        self.program = folder / "program"
        # Call processes get a clean environment, so the place of the states is in the program.
        self.program.write_text(
            f"#!/bin/sh\nFAKE_CUDA='{folder}' exec '{sys.executable}' -S -E '{SCRIPT}' \"$@\"\n"
        )
        self.program.chmod(0o755)

    @property
    def environ(self) -> dict[str, str]:
        """What makes gpuckpt use this driver."""
        return {"GPUCKPT_CUDA_CHECKPOINT": str(self.program)}

    def put(self, pid: int, state: CudaState = CudaState.RUNNING, device: str = "") -> None:
        """Give a process CUDA; `device` is what a gpu_job.py holds while it has its GPU."""
        (self.folder / str(pid)).write_text(state.value)
        if device:
            (self.folder / f"{pid}.device").write_text(device)

    def state(self, pid: int) -> CudaState:
        """Return the state of a process."""
        path = self.folder / str(pid)
        return CudaState(path.read_text()) if path.exists() else CudaState.NONE

    def fault(self, pid: int, action: str, **what: Any) -> None:
        """Make an action on a process misbehave; see the program for how."""
        (self.folder / f"{pid}.{action}.fault").write_text(json.dumps(what))

    def gpus(self, old: Iterable[str], new: Iterable[str]) -> None:
        """Take maps of just these GPUs only, and only to those that there are."""
        (self.folder / "gpus").write_text(json.dumps({"old": list(old), "new": list(new)}))

    def heal(self, pid: int, action: str) -> None:
        """Take a fault away."""
        (self.folder / f"{pid}.{action}.fault").unlink()

    def calls(self, *, states: bool = False) -> list[str]:
        """Return the calls so far as `PID ACTION [TIMEOUT] [MAP]`, those for a state on demand."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if states or line.split()[1] != "state"]
