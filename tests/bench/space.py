"""Room for the measurements, looked for before they begin, and given back after them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.bench import contents
from tests.bench.rounds import say, undisturbed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MIB: Final = 1 << 20
BESIDE: Final = 1024 * MIB  # seeds, logs, and the job's own memory beside what it was asked to hold


class NoRoom(Exception):
    """There is too little space."""


def demand(folder: Path, mebibytes: int, *, archive: bool) -> None:
    """See that a raw image, and an archive of it where asked, have room in a folder.

    Raises:
        NoRoom: they have not.
    """
    need = mebibytes * MIB * (2 if archive else 1) + 2 * BESIDE
    free = shutil.disk_usage(folder).free
    if free < need:
        raise NoRoom(f"{folder} has {free // MIB} MiB free, {need // MIB} MiB are needed")


def memory_free() -> int:
    """Return how many bytes programs can get."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


@contextmanager
def workplace(folder: Path, mebibytes: int, *, tmpfs: bool) -> Iterator[dict[bool, Path]]:
    """Give a folder on the disk and, where asked, one in memory; both are removed afterwards."""
    place = Path(tempfile.mkdtemp(prefix="gpuckpt-bench-", dir=folder))
    places = {False: place}
    memory = place / "memory"
    try:
        if tmpfs and _mount(memory, mebibytes):
            places[True] = memory
        yield places
    finally:
        with undisturbed():
            if True in places:
                subprocess.run(["umount", "-l", str(memory)], check=False)
            shutil.rmtree(place)


def _mount(memory: Path, mebibytes: int) -> bool:
    memory.mkdir()
    size = mebibytes * 5 // 4 + BESIDE // MIB
    argv = ["mount", "-t", "tmpfs", "-o", f"size={size}m,mode=700", "gpuckpt-bench", str(memory)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        say(f"no tmpfs can be mounted, its rows are left out: {done.stderr.strip()}")
    return done.returncode == 0


def seeds(place: Path, kinds: Iterable[str]) -> dict[str, list[Path]]:
    """Make what the jobs of these kinds fill their memory with.

    Not in this process: it stays small, since what it starts is told to have had its memory.
    """
    found: dict[str, list[Path]] = {}
    for kind in kinds:
        found[kind] = [place / f"seed-{name}" for name in contents.SEEDS[kind]]
        for name, path in zip(contents.SEEDS[kind], found[kind], strict=True):
            if not path.exists():
                subprocess.run([sys.executable, contents.__file__, name, path], check=True)
    return found


def grow_memory(gib: int) -> None:
    """Touch so much memory once, on machines that get theirs only when they use it.

    Else the first ways would pay for it, and the later ones not.
    """
    total = int(Path("/proc/meminfo").read_text().split()[1]) >> 20
    if total < gib:
        say(f"touching {gib} GiB of memory once: the machine has {total} GiB so far")
        script = f"b = bytes(1 << 20)\nheld = [b * 1024 for _ in range({gib})]"
        subprocess.run([sys.executable, "-c", script], check=False)
