"""A deterministic training on several ranks: `torchrun ... ranks.py FOLDER STEPS BACKEND`.

Each rank writes FOLDER/rank-N.log: every loss as the hex digits of its float, in the end the
digests of all weights and of the optimizer's state, then "end".
"""

from __future__ import annotations

import sys

import torch.distributed as dist
from kit import Log
from regression import Regression
from torchkit import join, place


def main() -> None:
    folder, steps, backend = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    log = Log(f"{folder}/rank-{place()[0]}.log", alone=False)
    rank, _, mine = join(log, backend)
    training = Regression(log, rank, mine)
    for step in range(steps):
        training.step(step)
    training.close()
    dist.barrier()
    log.say("end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
