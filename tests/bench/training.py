"""A real training state on the GPU: `training FOLDER DTYPE GIB`.

A deep residual network under AdamW, so many steps into a training that weights, gradients and both
moments are what they are in real ones: 16 bytes a weight in fp32, 8 in bf16. Then it beats as
pulse.py does, each time with a little work on the GPU that leaves the state as it is, so that its
digest can be compared. JOB_DEVICE=cpu is for trying it where there is no GPU.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from tests.bench.pulse import Pulse

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICE = torch.device(os.environ.get("JOB_DEVICE", "cuda"))
ON_GPU = DEVICE.type == "cuda"
WIDTH, BATCH, STEPS = (4096, 32, 100) if ON_GPU else (512, 8, 20)
COPIES = 4  # weights, gradients, two moments
CHUNK = 1 << 22  # numbers
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Block(torch.nn.Module):
    """One layer; the sum with its input keeps gradients alive however deep the network is."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(WIDTH, WIDTH, device=DEVICE, dtype=dtype))
        torch.nn.init.normal_(self.weight, std=0.02)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        normal = functional.layer_norm(given, (WIDTH,))
        return given + functional.gelu(functional.linear(normal, self.weight))


def trained(dtype: torch.dtype, gib: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a network and its optimizer after some steps of training, `gib` GiB together."""
    torch.manual_seed(1234)
    layers = round(gib * (1 << 30) / (COPIES * dtype.itemsize * WIDTH * WIDTH))
    network = torch.nn.Sequential(*(Block(dtype) for _ in range(max(1, layers))))
    # fused: the other kinds take as much memory again while they step
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=ON_GPU or None)
    for _ in range(STEPS):
        given, wanted = torch.randn(2, BATCH, WIDTH, device=DEVICE, dtype=dtype)
        optimizer.zero_grad(set_to_none=False)
        loss = functional.mse_loss(network(given), wanted)
        loss.backward()
        optimizer.step()
    if not torch.isfinite(loss):
        raise SystemExit("the training has diverged")
    return network, optimizer


def state(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Give every tensor that must come back."""
    for weight in network.parameters():
        yield weight.detach()
        if weight.grad is not None:
            yield weight.grad
        yield from optimizer.state[weight].values()


def digest(tensors: Iterator[torch.Tensor]) -> str:
    """Return a number that any changed or moved bit changes; computed where the tensors are."""
    weights = torch.arange(1, 2 * CHUNK, 2, device=DEVICE) * 0x9E3779B97F4A7C1
    total = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for tensor in tensors:
        bits = torch.int32 if tensor.element_size() == 4 else torch.int16
        for part in tensor.to(DEVICE).reshape(-1).view(bits).split(CHUNK):
            total = total * 1000003 + (part.to(torch.int64) * weights[: part.numel()]).sum()
    return f"{total.item() & (1 << 64) - 1:016x}"


def main() -> None:
    folder, dtype, gib = sys.argv[1:]
    network, optimizer = trained(DTYPES[dtype], float(gib))
    probe = torch.zeros(1, device=DEVICE)
    pulse = Pulse(folder, 0, lambda: digest(state(network, optimizer)))
    pulse.ready()
    pulse.beat(lambda: probe.add_(1).item())


if __name__ == "__main__":
    main()
