"""A deterministic training that can be brought to rest: `torchrun ... FOLDER STEPS BACKEND`.

As ranks.py, but NCCL stays as it is: at the end of a step the process group can go away and come
back. Each rank writes FOLDER/rank-N.log: every loss as the hex digits of its float, in the end
the digests of all weights and of the optimizer's state, then "end"; and into FOLDER/times-N, which
is no log, how long each `down` and `up` took.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
import torch.distributed as dist
from kit import Log
from torch.nn.parallel import DistributedDataParallel
from torchkit import join, place
from train import digest

from gpuckpt import cooperate

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH, BATCH = 512, 32
PAUSE = 0.04  # seconds after each step


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
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(mode=True)
    layers: list[torch.nn.Module] = []
    for _ in range(3):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
    net = torch.nn.Sequential(*layers).to(mine)
    devices = [mine] if mine.type == "cuda" else None
    network = DistributedDataParallel(net, device_ids=devices)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    generator = torch.Generator(mine).manual_seed(100 + rank)
    for step in range(steps):
        given, wanted = torch.randn(2, BATCH, WIDTH, device=mine, generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(network(given), wanted)
        loss.backward()
        optimizer.step()
        log.say(f"step {step} loss {loss.item().hex()}")
        time.sleep(PAUSE)
        if point.here():
            network = DistributedDataParallel(net, device_ids=devices)
    log.say(f"weights {digest(net.parameters())}")
    log.say(f"optimizer {digest(s for o in optimizer.state.values() for s in o.values())}")
    point.close()
    dist.barrier()
    log.say("end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
