"""A deterministic training on several ranks: `torchrun ... ranks.py FOLDER STEPS BACKEND`.

Each rank writes FOLDER/rank-N.log: every loss as the hex digits of its float, in the end the
digests of all weights and of the optimizer's state, then "end".
"""

from __future__ import annotations

import os
import sys
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
import torch.distributed as dist
from kit import Log
from torch.nn.parallel import DistributedDataParallel
from torchkit import join, place
from train import digest

WIDTH, BATCH = 512, 32
PAUSE = 0.04  # seconds after each step


def main() -> None:
    folder, steps, backend = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    log = Log(f"{folder}/rank-{place()[0]}.log", alone=False)
    rank, _, mine = join(log, backend)
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(mode=True)
    layers: list[torch.nn.Module] = []
    for _ in range(3):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
    network = DistributedDataParallel(
        torch.nn.Sequential(*layers).to(mine),
        device_ids=[mine] if mine.type == "cuda" else None,
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    generator = torch.Generator(mine).manual_seed(100 + rank)
    for step in range(steps):
        given, wanted = torch.randn(2, BATCH, WIDTH, device=mine, generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(network(given), wanted)
        loss.backward()
        optimizer.step()
        log.say(f"step {step} loss {loss.item().hex()}")
        time.sleep(PAUSE)
    log.say(f"weights {digest(network.parameters())}")
    log.say(f"optimizer {digest(s for o in optimizer.state.values() for s in o.values())}")
    dist.barrier()
    log.say("end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
