"""What gpuckpt and the processes that make its driver calls say to each other.

One JSON object a line. A call process greets once, then answers every ask in order. It is told
"release" before its stdin ends; an end without it means that gpuckpt died.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from gpuckpt.model import CudaState

# the module that a call process runs, by which it is known in a list of processes
HELPER: Final = "gpuckpt.tools.cuda_helper"

Action = Literal["state", "open", "lock", "checkpoint", "restore", "unlock", "release"]


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The greeting: what makes the calls, or in `fault` why nothing can."""

    backend: str = ""
    version: str = ""
    cuda: str = ""
    fault: str = ""


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing to do for one process. `timeout_ms` is for lock and open, `gpu_map` for restore.

    `first` comes with open: the state the process had and gets back if gpuckpt dies; and so does
    `restore_thread` for a process that is parked, which cannot be asked for it.
    """

    id: int
    action: Action
    pid: int
    first: CudaState | None = None
    timeout_ms: int = 0
    restore_thread: int = 0
    gpu_map: dict[str, str] = msgspec.field(default_factory=dict)


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of one ask; the fields are those of `CudaOutcome`.

    `restore_thread` comes with open: the thread the driver works through, 0 if it does not say.
    """

    id: int
    error: str = ""
    before: CudaState | None = None
    after: CudaState | None = None
    gone: bool = False
    detail: str = ""
    restore_thread: int = 0


Line = Hello | Ask | Answer

_encode: Final = msgspec.json.Encoder().encode
read_hello: Final = msgspec.json.Decoder(Hello).decode
read_ask: Final = msgspec.json.Decoder(Ask).decode
read_answer: Final = msgspec.json.Decoder(Answer).decode


def line(message: Line) -> bytes:
    """Return the message as one line with its end."""
    return _encode(message) + b"\n"
