"""GPUs by the names people give them: the number nvidia-smi shows, a UUID, or how a UUID begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.model import blocker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.model import Finding, Gpu

# no host has a thousand GPUs, and eight digits may begin a UUID
_LONGEST_INDEX: Final = 3
_PREFIX: Final = "gpu-"


def named(gpus: Iterable[Gpu], word: str) -> list[Gpu]:
    """Return the GPUs that a word may mean: one if it is clear, none if it is unknown."""
    if word.isdecimal() and len(word) <= _LONGEST_INDEX:
        return [gpu for gpu in gpus if gpu.index == int(word)]
    start = _bare(word)
    return [gpu for gpu in gpus if start and _bare(gpu.uuid).startswith(start)]


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix(_PREFIX)


def wishes(
    asked: Iterable[tuple[str, str]], old: tuple[Gpu, ...], new: tuple[Gpu, ...]
) -> tuple[list[tuple[Gpu, Gpu]], list[Finding]]:
    """Return the pairs that were asked for, by GPU, and what is wrong with those that are not."""
    pairs: list[tuple[Gpu, Gpu]] = []
    wrong: list[Finding] = []
    for before, now in asked:
        wrong += _unclear(old, before, "the image")
        wrong += _unclear(new, now, "this host") if old else ()
        here, there = named(old, before), named(new, now)
        if len(here) == 1 and len(there) == 1:
            pairs.append((here[0], there[0]))
    olds, news = [one for one, _ in pairs], [one for _, one in pairs]
    wrong += [*_twice(olds, "goes to two GPUs"), *_twice(news, "is to take two GPUs of the image")]
    clear = [(a, b) for a, b in pairs if olds.count(a) == 1 and news.count(b) == 1]
    return clear, wrong


def _unclear(gpus: tuple[Gpu, ...], word: str, where: str) -> Iterator[Finding]:
    found = named(gpus, word)
    if len(found) == 1:
        return
    if not gpus:
        yield blocker(
            "gpu-map-unknown",
            f"--gpu-map {word}",
            f"{where.capitalize()} has no GPU.",
            "Leave --gpu-map out: the job comes back without."
            if where == "the image"
            else "Restore on a host that has one.",
        )
        return
    known = ", ".join(f"{gpu.index} {gpu.uuid}" for gpu in found or gpus)
    reason = f"More than one GPU of {where} begins with {word}: {known}."
    if not found:
        reason = f"There is no GPU {word} in {where}; there is {known}."
    yield blocker(
        "gpu-map-unclear" if found else "gpu-map-unknown",
        f"--gpu-map {word}",
        reason,
        "Name it by its number there, its UUID, or enough of the UUID.",
    )


def _twice(gpus: list[Gpu], what: str) -> Iterator[Finding]:
    for gpu in {one.uuid: one for one in gpus if gpus.count(one) > 1}.values():
        yield blocker(
            "gpu-map-twice",
            f"GPU {gpu.index} {gpu.uuid}",
            f"By --gpu-map GPU {gpu.index} {what}.",
            "Name every GPU once on each side.",
        )
