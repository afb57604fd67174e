"""What a restore must know of to bring a tree back: an older gpuckpt refuses what it does not."""

from __future__ import annotations

from typing import Final


def needs(*, cuda: bool, parked: bool, stand_ins: bool, quiesced: bool) -> tuple[str, ...]:
    """Return the entries for a tree that has these things."""
    found = {
        "criu-stream": True,
        "cuda-in-pages": cuda,
        "cuda-parked": parked,
        "device-stand-ins": stand_ins,
        "quiesced": quiesced,
    }
    return tuple(name for name, there in found.items() if there)


KNOWN: Final = frozenset(needs(cuda=True, parked=True, stand_ins=True, quiesced=True))
