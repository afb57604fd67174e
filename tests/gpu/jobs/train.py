"""A deterministic training, to be compared bit by bit: `train.py LOG STEPS`.

A small network with dropout under AdamW; every step draws its data from the GPU's generator. Each
loss goes to the log as the 32 bits of its float, and in the end the digests of all weights and of
the optimizer's and the generator's state: "weights HEX", "optimizer HEX", "rng HEX", then "end".
"""

from __future__ import annotations

import hashlib
import os
import sys
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
from kit import Log

WIDTH, BATCH = 1024, 64


def digest(tensors: object) -> str:
    found = hashlib.sha256()
    for tensor in tensors:  # type: ignore[attr-defined]
        found.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    log, steps = Log(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(1234)
    torch.use_deterministic_algorithms(mode=True)
    gpu = torch.device("cuda")
    layers = []
    for _ in range(4):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Dropout(0.1)]
    network = torch.nn.Sequential(*layers).to(gpu)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for step in range(steps):
        given, wanted = torch.randn(2, BATCH, WIDTH, device=gpu)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(network(given), wanted)
        loss.backward()
        optimizer.step()
        log.say(f"step {step} loss {loss.detach().view(torch.int32).item() & 0xFFFFFFFF:08x}")
        time.sleep(0.02)
    states = [s for state in optimizer.state.values() for s in state.values()]
    log.say(f"weights {digest(network.parameters())}")
    log.say(f"optimizer {digest(states)}")
    log.say(f"rng {digest([torch.cuda.get_rng_state(), torch.get_rng_state()])}")
    log.say("end")


if __name__ == "__main__":
    main()
