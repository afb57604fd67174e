"""All-reduces one after the other, without a pause: `collective.py PATH BACKEND`.

PATH is this rank's log, or a folder for rank-N.log of each. Every result is checked; the ranks
agree in the reduced numbers themselves on the round in which they end.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from kit import Log
from torchkit import join, place

WORDS = 1 << 20  # 4 MiB
STOP = 1000.0
TICK = 0.1  # seconds


def main() -> None:
    path, backend = Path(sys.argv[1]), sys.argv[2]
    log = Log(str(path / f"rank-{place()[0]}.log" if path.is_dir() else path), alone=False)
    _, size, mine = join(log, backend)
    numbers = torch.empty(WORDS, device=mine)
    ticks, said = itertools.count(1), 0.0
    for number in itertools.count(1):
        numbers.fill_(1)
        if log.stopping:
            numbers[0] = STOP
        dist.all_reduce(numbers)
        first, last = numbers[[0, -1]].tolist()
        if last != size or first not in {size, *(size + (STOP - 1) * n for n in range(size + 1))}:
            log.say(f"failed: round {number} gave {first} and {last}")
            return
        if first > size:
            break
        if (now := time.monotonic()) > said + TICK:
            said = now
            log.say(f"tick {next(ticks)} round {number}")
    log.say("end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
