"""A training that is fed by four DataLoader workers: `loader.py LOG fork|spawn`.

CUDA is at work before the workers are started. Each batch is compared with the one that should
come now by the sampler's seed; `tick N` stands for a batch that was right and was learned from.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from kit import Log
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchkit import device

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT, BATCH, WIDTH, WORKERS = 256, 8, 64, 4


class Numbers(Dataset):
    """Item N is drawn with the seed N."""

    def __len__(self) -> int:
        """See Dataset."""
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        """See Dataset."""
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


def sampler() -> RandomSampler:
    return RandomSampler(range(COUNT), generator=torch.Generator().manual_seed(11))


def wanted(numbers: Numbers) -> Iterator[torch.Tensor]:
    """Give the batches as they should come, epoch by epoch."""
    order = sampler()
    while True:
        indices = list(order)
        for begin in range(0, COUNT, BATCH):
            yield torch.stack([numbers[index] for index in indices[begin : begin + BATCH]])


def coming(loader: DataLoader) -> Iterator[torch.Tensor]:
    while True:
        yield from loader


def main() -> None:
    log, method = Log(sys.argv[1], alone=False), sys.argv[2]
    mine = device(0)
    network = torch.nn.Linear(WIDTH, WIDTH).to(mine)
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.ones(1, WIDTH, device=mine)).sum().item()
    numbers = Numbers()
    loader = DataLoader(
        numbers,
        BATCH,
        sampler=sampler(),
        num_workers=WORKERS,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    batches = zip(coming(loader), wanted(numbers), strict=True)

    def step() -> None:
        come, expected = next(batches)
        if not torch.equal(come, expected):
            raise RuntimeError("this is not the batch that should come now")
        optimizer.zero_grad()
        network(come.to(mine)).square().mean().backward()
        optimizer.step()

    log.count(step)


if __name__ == "__main__":
    main()
