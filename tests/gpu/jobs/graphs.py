"""A job that does all its work by replaying one CUDA graph: `graphs.py LOG`.

The graph multiplies and adds on the GPU; the same numbers are computed on the CPU beside it.
"""

from __future__ import annotations

import sys

import torch
from kit import Log

MODULUS = 65_521


def main() -> None:
    log = Log(sys.argv[1])
    value = torch.zeros(1 << 20, dtype=torch.int64, device="cuda")
    value.copy_(torch.arange(1 << 20))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        value.mul_(3).add_(7).remainder_(MODULUS)
    expected = torch.arange(1 << 20)

    def step() -> None:
        nonlocal expected
        graph.replay()
        expected = (expected * 3 + 7) % MODULUS
        if not torch.equal(value.cpu(), expected):
            raise RuntimeError("the graph gave other numbers than the CPU")

    log.count(step)


if __name__ == "__main__":
    main()
