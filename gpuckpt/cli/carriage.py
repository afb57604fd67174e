"""Which files go along in an image: what was asked for, and what a plan tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from gpuckpt.cli import units, values
from gpuckpt.cli.filechoices import ALONG, CHANGED
from gpuckpt.cli.options import option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.flow.request import FileChoice
    from gpuckpt.flow.sight.along import Along, Taken
    from gpuckpt.tools.usedfiles import UsedFile

_FEW = 3
_WORTH_A_LINE = 0.02


def included(text: str) -> str:
    """Read the path of a file or folder that goes along."""
    return str(values.path("--include", "the path of a file or folder")(text))


def pattern(text: str) -> str:
    """Check a pattern of paths or names."""
    if not text.strip("/") or "\0" in text:
        raise values.refuse(
            "--exclude", "the pattern is empty", "Write it as '*.tmp' or '/data/cache'."
        )
    return text


Files = Annotated[
    Literal["auto", "none", "all"],
    option(
        "--files",
        metavar="WHICH",
        help="Which files go along: auto, the default, the job's own work; none but what a restore "
        "cannot do without; all that it uses.",
        parser=values.choice("--files", ALONG, CHANGED),
    ),
]
Include = Annotated[
    list[str] | None,
    option(
        "--include",
        metavar="PATH",
        help="A file or folder that goes along too. May be given several times.",
        parser=included,
    ),
]
Exclude = Annotated[
    list[str] | None,
    option(
        "--exclude",
        metavar="GLOB",
        help="Files and folders that do not go along, by path, or by name if it has no slash. May "
        "be given several times.",
        parser=pattern,
    ),
]
HashFiles = Annotated[
    Literal["sampled", "full"],
    option(
        "--hash-files",
        metavar="HOW",
        help="How large files that stay outside are hashed: sampled, the default, or full.",
        parser=values.choice("--hash-files", ("sampled", "full")),
    ),
]


def choice(
    mode: Literal["auto", "none", "all"],
    include: list[str] | None,
    exclude: list[str] | None,
    hash_files: Literal["sampled", "full"],
) -> FileChoice:
    """Return what the options of a dump say of files."""
    from gpuckpt.flow.request import FileChoice

    return FileChoice(
        mode=mode,
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        full=hash_files == "full",
    )


def rows(found: Along, image: float) -> Iterator[tuple[str, str, str]]:
    """Say how much goes along and how much stays, and name files that are much of an `image`."""
    stay = f"{_count(len(found.kept))} of {_sum(found.kept)} stay where they are"
    files = [one.file for one in found.taken]
    yield "files", _sum(files), f"{len(files) or 'none'} go{'es' * (len(files) == 1)} along, {stay}"
    largest = sorted(files, key=lambda one: one.bytes, reverse=True)[:_FEW]
    for one in largest:
        if one.bytes > image * _WORTH_A_LINE:
            yield "", units.size(one.bytes), one.path


def payload(found: Along) -> dict[str, object]:
    """Return the same for programs, with every file."""
    return {
        "carried_bytes": sum(one.file.bytes for one in found.taken),
        "carried": [_taken(one) for one in found.taken],
        "referenced_bytes": sum(one.bytes for one in found.kept),
        "referenced": [{"path": one.path, "bytes": one.bytes} for one in found.kept],
    }


def _taken(one: Taken) -> dict[str, object]:
    return {"path": one.file.path, "bytes": one.file.bytes, "why": one.why}


def _sum(files: Iterable[UsedFile]) -> str:
    return units.size(sum(one.bytes for one in files))


def _count(number: int) -> str:
    return units.count(number, "file") if number else "no file"
