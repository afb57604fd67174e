"""A small language model with a cache per session, on one GPU or split over several by heads.

Weights come from a seed, tokens are bytes. Session after session is fed token by token; keys and
values of all that was said stay on the GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.functional import gelu, layer_norm

TOKENS, WIDTH, HEADS, LAYERS, MOST = 256, 256, 8, 4, 512
HEAD = WIDTH // HEADS


@dataclass
class Session:
    """What was said so far: keys and values of each layer, and how the next token is drawn."""

    cache: torch.Tensor
    generator: torch.Generator
    warmth: float
    length: int = 0
    last: int = 0


class Engine:
    """One rank's share of the model."""

    def __init__(self, rank: int, size: int, mine: torch.device) -> None:
        self._size, self._mine = size, mine
        self._heads = HEADS // size
        self._sessions: dict[str, Session] = {}
        drawn = torch.Generator().manual_seed(5)

        def weights(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=drawn) / math.sqrt(shape[-1])

        self._known = weights(TOKENS, WIDTH).mul(8).to(mine)
        self._layers = []
        for _ in range(LAYERS):
            asked = weights(3, HEADS, HEAD, WIDTH).chunk(size, 1)[rank]
            told = weights(WIDTH, WIDTH).chunk(size, 1)[rank]
            wide = weights(4 * WIDTH, WIDTH).chunk(size, 0)[rank]
            narrow = weights(WIDTH, 4 * WIDTH).chunk(size, 1)[rank]
            self._layers.append([w.contiguous().to(mine) for w in (asked, told, wide, narrow)])

    def begin(self, name: str, tokens: list[int], warmth: float) -> None:
        """Begin a session; `warmth` 0 takes the likeliest token, else the draw has a seed."""
        cache = torch.zeros(LAYERS, 2, self._heads, MOST, HEAD, device=self._mine)
        generator = torch.Generator(self._mine).manual_seed(1000 + sum(tokens))
        session = self._sessions[name] = Session(cache, generator, warmth)
        for token in tokens:
            self._feed(session, token)

    def go_on(self, name: str, count: int) -> list[int]:
        """Say the next tokens of a session."""
        session = self._sessions[name]
        said = []
        for _ in range(count):
            said.append(session.last)
            self._feed(session, session.last)
        return said

    @torch.no_grad()
    def _feed(self, session: Session, token: int) -> None:
        state = self._known[token]
        state = state + self._wave(session.length)
        for layer, weights in enumerate(self._layers):
            state = state + self._whole(self._attend(session, layer, weights, _normal(state)))
            wide, narrow = weights[2:]
            state = state + self._whole(narrow @ gelu(wide @ _normal(state)))
        session.length += 1
        session.last = self._draw(session, self._known @ _normal(state))

    def _attend(
        self, session: Session, layer: int, weights: list[torch.Tensor], state: torch.Tensor
    ) -> torch.Tensor:
        asked, told = weights[:2]
        query, key, value = (asked.reshape(-1, WIDTH) @ state).view(3, self._heads, HEAD)
        session.cache[layer, 0, :, session.length] = key
        session.cache[layer, 1, :, session.length] = value
        keys, values = session.cache[layer, :, :, : session.length + 1]
        weight = torch.softmax((keys @ query[:, :, None]).squeeze(2) / math.sqrt(HEAD), 1)
        return told @ (weight[:, None] @ values).reshape(-1)

    def _whole(self, part: torch.Tensor) -> torch.Tensor:
        if self._size > 1:
            dist.all_reduce(part)
        return part

    def _wave(self, length: int) -> torch.Tensor:
        return torch.sin(torch.arange(WIDTH, device=self._mine) * (length + 1) * 0.01)

    def _draw(self, session: Session, scores: torch.Tensor) -> int:
        if session.warmth == 0:
            drawn = scores.argmax().reshape(1)
        else:
            chances = torch.softmax(scores / session.warmth, 0)
            drawn = torch.multinomial(chances, 1, generator=session.generator)
        if self._size > 1:
            dist.broadcast(drawn, 0)
        return int(drawn.item())


def _normal(state: torch.Tensor) -> torch.Tensor:
    return layer_norm(state, (WIDTH,))
