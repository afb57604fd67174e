"""The cache in which Hugging Face's programs keep models: one folder a model, one a commit.

models--ORG--NAME/blobs/HASH                      the bytes
models--ORG--NAME/refs/main                       a commit, by the name of a branch
models--ORG--NAME/snapshots/COMMIT/model.safetensors -> ../../blobs/HASH
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MODEL: Final = re.compile(r"(?P<root>.*/models--(?P<name>[^/]+))(/(?P<inside>.*))?", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?")
_LONGEST_REF: Final = 200


class Snapshot(Value, frozen=True):
    """One model at one commit."""

    model: str
    commit: str
    folder: str


def snapshot_of(path: str) -> Snapshot | None:
    """Return the snapshot that a path lies in, by its names alone."""
    match = _MODEL.fullmatch(path)
    inside = (match["inside"] or "").split("/") if match else []
    if match is None or inside[0] != "snapshots" or len(inside) < 2:  # noqa: PLR2004 - a commit
        return None
    folder = f"{match['root']}/snapshots/{inside[1]}"
    return Snapshot(match["name"].replace("--", "/"), inside[1], folder)


def names_of(blob: str) -> list[str]:
    """Return the paths in snapshots that lead to a blob: a program has the blob open or mapped."""
    match = _MODEL.fullmatch(blob)
    if match is None or not (match["inside"] or "").startswith("blobs/"):
        return []
    here = os.path.realpath(blob)
    return [path for path in _links(f"{match['root']}/snapshots") if os.path.realpath(path) == here]


def hubs(told: Mapping[str, str]) -> list[str]:
    """Return where the caches of a process are, by its environment."""
    home = told.get("HF_HOME", "")
    caches = told.get("XDG_CACHE_HOME") or f"{told.get('HOME', '')}/.cache"
    named = (told.get("HF_HUB_CACHE"), told.get("HUGGINGFACE_HUB_CACHE"))
    found = [*named, told.get("TRANSFORMERS_CACHE"), f"{home or f'{caches}/huggingface'}/hub"]
    return [one for one in dict.fromkeys(found) if one and one.startswith("/")]


def snapshot(hub: str, name: str, revision: str) -> Snapshot | None:
    """Return what a program finds there that asks for a model by its name; None if nothing."""
    if not _NAME.fullmatch(name):
        return None
    root = f"{hub}/models--{name.replace('/', '--')}"
    commits: list[str] = []
    with suppress(OSError):
        commits = sorted(os.listdir(f"{root}/snapshots"))  # noqa: PTH208
    commit = revision if revision in commits else _ref(root, revision or "main")
    if commit not in commits:
        commit = commits[0] if len(commits) == 1 and not revision else ""
    return Snapshot(name, commit, f"{root}/snapshots/{commit}") if commit else None


def _ref(root: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        return ""
    try:
        with open(f"{root}/refs/{name}", encoding="ascii") as file:  # noqa: PTH123
            return file.read(_LONGEST_REF).strip()
    except (OSError, UnicodeError):
        return ""


def _links(folder: str) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            path = f"{place}/{name}"
            if os.path.islink(path):  # noqa: PTH114
                yield path
