"""A process that uses another one's GPU memory by CUDA IPC, as PyTorch does: `sharing.py LOG`."""

from __future__ import annotations

import itertools
import sys

import torch
import torch.multiprocessing as mp
from kit import Log


def use(queue: mp.Queue) -> None:
    """Take tensors and let go of them when told."""
    held = []
    while (item := queue.get()) is not None:
        held = [item] if torch.is_tensor(item) else []
    del held


def main() -> None:
    log = Log(sys.argv[1])
    mp.set_start_method("spawn")
    queue: mp.Queue = mp.Queue()
    child = mp.Process(target=use, args=(queue,))
    child.start()
    tensor = torch.ones(1 << 20, device="cuda")
    queue.put(tensor)
    numbers = itertools.count()

    def step() -> None:
        tensor.fill_(next(numbers))
        torch.cuda.synchronize()

    log.count(step)
    queue.put(None)
    child.join()


if __name__ == "__main__":
    main()
