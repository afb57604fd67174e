"""A PyTorch job that has been profiled once: `profiled.py LOG`."""

from __future__ import annotations

import sys

import torch
from kit import Log
from torch.profiler import ProfilerActivity, profile


def main() -> None:
    log = Log(sys.argv[1])
    tensor = torch.ones(1 << 20, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
        tensor.mul_(2)
        torch.cuda.synchronize()

    def step() -> None:
        tensor.mul_(0.5)
        torch.cuda.synchronize()

    log.count(step)


if __name__ == "__main__":
    main()
