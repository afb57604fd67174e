"""What `make bench ARGS=...` may be asked for."""

from __future__ import annotations

import argparse
import math
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.bench.contents import KINDS
from tests.bench.machine import has_gpu
from tests.bench.rounds import STEPS
from tests.bench.ways import Bare, Gpuckpt, Packed, environ, packer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.bench.ways import Way

PARTS: Final = ("cases", "growth", "start-up", "gpu")
WAYS: Final = "gpuckpt,criu,criu-tmpfs,zstd,lz4"
GPU_WAYS: Final = "gpuckpt,criu-tmpfs,criu,gpuckpt-tmpfs"
GPU_STEPS: Final = ("pause", "dump", "warm")  # the time of a GPU is dear
QUICK: Final = {"rounds": 1, "mebibytes": 256, "sizes": "64,128,256", "gib": "0.5"}
KEEP: Final = "gpuckpt-bench.jsonl"
WAYS_HELP: Final = (
    "what is compared: gpuckpt, criu, criu and tar with zstd (zstd-3: at that level) or lz4; "
    "-tmpfs: the image in memory; 'gpuckpt --level none / --prove' adds options to dump / restore"
)


@dataclass(frozen=True)
class Options:
    """What to measure."""

    parts: tuple[str, ...]
    folder: Path
    rounds: int
    minutes: float
    cases: tuple[str, ...]
    processes: tuple[int, ...]
    mebibytes: int
    sizes: tuple[int, ...]
    gib: tuple[float, ...]
    dtypes: tuple[str, ...]
    ways: tuple[str, ...]
    gpu_ways: tuple[str, ...]
    steps: frozenset[str]
    gpu_steps: frozenset[str]
    keep: Path
    tables_of: tuple[Path, ...]


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="one round of small ones, to see that it works")
    add("--gpu", action="store_true", help="only the training state on the GPU")
    add("--parts", help=f"of {','.join(PARTS)}; gpu and start-up where there is a GPU")
    add("--folder", type=Path, default=Path("/var/tmp"), help="where images go")
    add("--rounds", type=_number, default=3, help="of everything, one after the other")
    add("--minutes", type=_amount, default=90, help="begin nothing that would end later")
    add("--cases", default=",".join(KINDS), help="; ".join(f"{k}: {v}" for k, v in KINDS.items()))
    add("--processes", type=_numbers, default="1,4", help="that share the memory")
    add("--mebibytes", type=_number, default=2048, help="of memory in a case")
    add(
        "--sizes",
        type=_numbers,
        default="512,1024,2048,4096,8192",
        help="in MiB, for the growth",
    )
    add("--gib", type=_amounts, default="1,8,24", help="of training state on the GPU")
    add("--dtypes", default="fp32", help="of the training: fp32, bf16")
    add("--ways", help=f"{WAYS_HELP}; default {WAYS}, on a GPU {GPU_WAYS}")
    add("--steps", help=f"of {','.join(STEPS)}; on a GPU {','.join(GPU_STEPS)} if not said")
    add("--keep", type=Path, help=f"every number, as JSON lines; default FOLDER/{KEEP}")
    add("--tables-of", type=Path, nargs="+", default=[], help="measure nothing: tables of such")
    if parser.parse_known_args(arguments)[0].quick:
        parser.set_defaults(**QUICK)
    asked = parser.parse_args(arguments)
    usual = ("gpu", "start-up") if has_gpu() else ("cases", "growth", "start-up")
    steps = _words(asked.steps) if asked.steps else None
    options = Options(
        parts=("gpu",) if asked.gpu else _words(asked.parts) if asked.parts else usual,
        folder=asked.folder,
        rounds=asked.rounds,
        minutes=asked.minutes,
        cases=_words(asked.cases),
        processes=asked.processes,
        mebibytes=asked.mebibytes,
        sizes=asked.sizes,
        gib=asked.gib,
        dtypes=_words(asked.dtypes),
        ways=_words(asked.ways or WAYS),
        gpu_ways=_words(asked.ways or GPU_WAYS),
        steps=frozenset(steps or STEPS) | {"dump"},
        gpu_steps=frozenset(steps or GPU_STEPS) | {"dump"},
        keep=asked.keep or asked.folder / KEEP,
        tables_of=tuple(asked.tables_of),
    )
    _check(parser, options)
    return options


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _amount(text: str) -> float:
    with suppress(ValueError):
        if 0 < (found := float(text)) < math.inf:
            return found
    raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(_number, _words(text)))


def _amounts(text: str) -> tuple[float, ...]:
    return tuple(map(_amount, _words(text)))


def _check(parser: argparse.ArgumentParser, options: Options) -> None:
    for name, words, known in (
        ("parts", options.parts, PARTS),
        ("cases", options.cases, KINDS),
        ("steps", options.steps, STEPS),
        ("dtypes", options.dtypes, ("fp32", "bf16")),
    ):
        if wrong := set(words) - set(known):
            parser.error(f"--{name}: {', '.join(sorted(wrong))} is none of {', '.join(known)}")
    if not options.folder.is_dir():
        parser.error(f"--folder: {options.folder} is no folder")


def ways(specs: Sequence[str], criu: str, state: Path) -> Mapping[str, Way]:
    """Return the ways that can be gone here, by name; say which cannot.

    Raises:
        SystemExit: one has a name that means nothing.
    """
    found: dict[str, Way] = {}
    for spec in specs:
        kind, _, more = spec.partition(" ")
        dumping, _, restoring = more.partition("/")
        tmpfs = kind.endswith("-tmpfs")
        base = kind.removesuffix("-tmpfs")
        program = base.partition("-")[0]
        if base == "gpuckpt":
            options = (dumping.split(), restoring.split())
            found[spec] = Gpuckpt(spec, tmpfs, environ(state), *options)
        elif base == "criu":
            found[spec] = Bare(spec, tmpfs, criu)
        elif program in {"zstd", "lz4"}:
            if shutil.which(program):
                found[spec] = Packed(Bare(spec, tmpfs, criu), packer(base))
            else:
                print(f"{program} is not installed: its rows are left out")
        else:
            raise SystemExit(f"--ways: {spec!r} is unknown; {WAYS_HELP}")
    return found
