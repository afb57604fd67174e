"""What a manifest says of the software and data a job computes with: engine, model, tracked paths.

A part of the wire types of format 1; see manifest.py for the whole.
"""

from __future__ import annotations

import msgspec


class DistributionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A Python package that the job had loaded, in the folder it is installed in.

    `build` is a digest of what it says of its files. `known` tells how it was found: mapped, open,
    memory (the interpreter's names a module of it) or installed (whether it is loaded could not be
    seen).
    """

    name: str
    version: str
    folder: str
    build: str = ""
    known: tuple[str, ...] = ()


class LibraryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A library for computing that the job had mapped, and the version in its file's name."""

    name: str
    version: str
    path: str


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """What the job computes with; `outside.pythons` and the build-ids of its files belong to it.

    `whole`: the memory of all its Pythons was read for modules.
    """

    distributions: tuple[DistributionRecord, ...] = ()
    libraries: tuple[LibraryRecord, ...] = ()
    whole: bool = True


class WeightRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A file of weights; `known` tells how it was found: mapped, open, argument or folder.

    `model` and `commit` are those of a snapshot of Hugging Face. `digest` is as FileRecord's.
    """

    path: str
    size: int
    mtime_ns: int
    digest: str
    sampled: bool
    known: tuple[str, ...] = ()
    model: str = ""
    commit: str = ""


class TrackedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder that the user wants unchanged, as one digest; FORMAT.md says of what.

    `size` is that of all its files, `full`: all their bytes count, also of large ones. `listing`
    tells of each entry, b"" if that would be too much.
    """

    path: str
    kind: str
    digest: str
    entries: int
    size: int
    full: bool = False
    listing: bytes = b""
