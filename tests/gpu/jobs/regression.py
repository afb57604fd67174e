"""A deterministic training on several ranks, of which every rank tells all that it computes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
from torch.nn.parallel import DistributedDataParallel
from train import digest

if TYPE_CHECKING:
    from kit import Log

WIDTH, BATCH = 512, 32
PAUSE = 0.04  # seconds after each step


class Regression:
    """One rank's part: the network, its optimizer and its own random numbers."""

    def __init__(self, log: Log, rank: int, device: torch.device) -> None:
        """Make everything from fixed seeds; the ranks have met already."""
        self._log = log
        self._device = device
        torch.manual_seed(7)
        torch.use_deterministic_algorithms(mode=True)
        layers: list[torch.nn.Module] = []
        for _ in range(3):
            layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
        self._net = torch.nn.Sequential(*layers).to(device)
        self.wrap()
        self._optimizer = torch.optim.AdamW(self._net.parameters(), lr=1e-3)
        self._generator = torch.Generator(device).manual_seed(100 + rank)

    def wrap(self) -> None:
        """Tie the network to those of the other ranks, by the group that is there now."""
        devices = [self._device] if self._device.type == "cuda" else None
        self._network = DistributedDataParallel(self._net, device_ids=devices)

    def step(self, number: int) -> None:
        """Take one step, and log its loss as the hex digits of the float."""
        given, wanted = torch.randn(2, BATCH, WIDTH, device=self._device, generator=self._generator)
        self._optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self._network(given), wanted)
        loss.backward()
        self._optimizer.step()
        self._log.say(f"step {number} loss {loss.item().hex()}")
        time.sleep(PAUSE)

    def close(self) -> None:
        """Log the digests of all weights and of the optimizer's state."""
        state = (one for part in self._optimizer.state.values() for one in part.values())
        self._log.say(f"weights {digest(self._net.parameters())}")
        self._log.say(f"optimizer {digest(state)}")
