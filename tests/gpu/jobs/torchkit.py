"""What the test jobs of several PyTorch ranks need: a place among the ranks, and a way to end."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from kit import Log

GRACE = 3.0  # seconds


def device(number: int) -> torch.device:
    """Return a GPU; JOB_DEVICE=cpu is for trying a job where there is none."""
    if os.environ.get("JOB_DEVICE") == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def place() -> tuple[int, int]:
    """Return which of how many ranks this is, by the word of torchrun or of crew.py."""
    if "CREW_RANK" in os.environ:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["CREW_PORT"]}
    names = ("CREW_RANK", "CREW_SIZE") if "CREW_RANK" in os.environ else ("RANK", "WORLD_SIZE")
    rank, size = (int(os.environ[name]) for name in names)
    return rank, size


def join(log: Log, backend: str) -> tuple[int, int, torch.device]:
    """Meet the other ranks; return which of how many this is, and its device.

    Over NCCL each rank has a GPU of its own, otherwise all have the first.
    """
    _abort_when_told(log)
    rank, size = place()
    mine = device(rank if backend == "nccl" else 0)
    bound = mine if backend == "nccl" else None
    dist.init_process_group(backend, rank=rank, world_size=size, device_id=bound)
    return rank, size, mine


def _abort_when_told(log: Log) -> None:
    """Let SIGTERM end a rank that waits in a call for a peer that will never come."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)

    def watch() -> None:
        os.read(reader, 1)
        log.stopping = True
        time.sleep(GRACE)
        with suppress(Exception):
            dist.distributed_c10d._abort_process_group()
        time.sleep(GRACE)
        log.say("aborted")
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
