"""How fast all-reduces are, by size: `bandwidth.py LOG`; run by crew.py.

A line is `size BYTES seconds SECONDS`: the mean of a few rounds after two that were not counted.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from kit import Log
from torchkit import join

MIB = 1 << 20
SIZES = {1: 40, 16: 20, 64: 10, 256: 5, 1024: 3}  # MiB: rounds


def main() -> None:
    log = Log(sys.argv[1], alone=False)
    _, _, mine = join(log, "nccl")
    for size, rounds in SIZES.items():
        numbers = torch.zeros(size * MIB // 4, device=mine)
        for number in range(rounds + 2):
            if number == 2:
                torch.cuda.synchronize()
                begun = time.monotonic()
            dist.all_reduce(numbers)
        torch.cuda.synchronize()
        log.say(f"size {size * MIB} seconds {(time.monotonic() - begun) / rounds:.6f}")
    dist.barrier()
    log.say("end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
