"""A deterministic training that can be brought to rest: `torchrun ... FOLDER STEPS BACKEND`.

As ranks.py, but NCCL stays as it is: at the end of a step the process group can go away and come
back. Each rank writes FOLDER/rank-N.log: every loss as the hex digits of its float, in the end
the digests of all weights and of the optimizer's state, then "end"; and into FOLDER/times-N, which
is no log, how long each `down` and `up` took.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from kit import Log
from regression import Regression
from torchkit import join, place

from gpuckpt import cooperate

if TYPE_CHECKING:
    from collections.abc import Callable


def timed(name: str, call: Callable[[], object], place_: Path) -> Callable[[], None]:
    """Return the call with a line in a file about how long it took."""

    def run() -> None:
        begun = time.monotonic()
        call()
        with place_.open("a") as file:
            file.write(f"{name} {time.monotonic() - begun:.4f}\n")

    return run


def main() -> None:
    folder, steps, backend = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    log = Log(f"{folder}/rank-{place()[0]}.log", alone=False)
    rank, _, mine = join(log, backend)
    point = cooperate.torch_ranks(device_id=mine) if backend == "nccl" else cooperate.torch_ranks()
    point._down = timed("down", point._down, folder / f"times-{rank}")
    point._up = timed("up", point._up, folder / f"times-{rank}")
    training = Regression(log, rank, mine)
    for step in range(steps):
        training.step(step)
        if point.here():
            training.wrap()
    training.close()
    point.close()
    dist.barrier()
    log.say("end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
