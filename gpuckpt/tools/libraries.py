"""The libraries that GPU programs compute with, and their versions: CUDA runtime, cuDNN, NCCL..."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

_KNOWN: Final = re.compile(
    r"lib(?P<name>cudart|cublas(Lt)?|cudnn(_[a-z_]+)?|nccl|cufft|curand|cusolver(Mg)?|cusparse(Lt)?"
    r"|nvrtc|nvJitLink|cupti|nvshmem_host|nvinfer|cufile|cutensor)"
    r"(-[0-9a-f]{8})?\.so(\.(?P<version>[\d.]+))?"
)


class Library(Value, frozen=True):
    """One that is mapped; `version` is what its file's name says, maybe no more than a part."""

    name: str
    version: str
    path: str

    @property
    def exact(self) -> bool:
        """Whether the name says more than with which others it could be exchanged."""
        return "." in self.version


def libraries(mapped: Iterable[str]) -> tuple[Library, ...]:
    """Return those of the mapped files that are such libraries."""
    found = (_library(path) for path in sorted(set(mapped)))
    return tuple(one for one in found if one is not None)


def beside(path: str) -> tuple[str, ...]:
    """Return the versions of a library that are in its folder now."""
    one = _library(path)
    here: set[str] = set()
    if one is not None:
        with suppress(OSError):
            found = map(_library, os.listdir(os.path.dirname(path)))  # noqa: PTH120, PTH208
            here = {other.version for other in found if other and other.name == one.name}
    return tuple(sorted(version for version in here if "." in version))


def _library(path: str) -> Library | None:
    match = _KNOWN.fullmatch(os.path.basename(path))  # noqa: PTH119 - paths may hold any bytes
    return Library(match["name"], match["version"] or "", path) if match else None
