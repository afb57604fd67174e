"""The ways that are compared: gpuckpt, bare CRIU, and CRIU followed by a packer."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tests.bench.measure import Cost, measure, shell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.jobs import Job

ROOT = Path(__file__).parents[2]
RUNNING = "running"  # the image of a job that was left running
COLLECT = 600  # seconds; CRIU's own limit of 10 is too short for large processes


class Way(Protocol):
    """One way to dump a job into a folder and to bring it back, any number of times."""

    name: str
    tmpfs: bool
    pauses: bool

    def pause(self, job: Job, folder: Path) -> Cost:
        """Dump a job that goes on into RUNNING; only those that have `pauses` are asked."""

    def dump(self, job: Job, folder: Path) -> tuple[Cost, dict[str, float]]:
        """Dump a job, which is gone afterwards; return what parts took, too."""

    def sync(self, folder: Path) -> Cost | None:
        """Bring to the disk what the dump left in memory; None if it leaves nothing."""

    def files(self, folder: Path) -> list[Path]:
        """Return the files that a restore starts from."""

    def restore(self, job: Job, folder: Path) -> tuple[Cost, dict[str, float]]:
        """Bring the job back."""


@dataclass(frozen=True)
class Gpuckpt:
    """The product, as its user types it; with more options for dump and for restore."""

    name: str
    tmpfs: bool
    environ: dict[str, str]
    dumping: Sequence[str] = ()
    restoring: Sequence[str] = ()
    pauses: bool = True

    def run(self, *args: object, image: Path | None = None) -> Cost:
        """Run a command of it."""
        argv = [sys.executable, "-P", "-m", "gpuckpt", *map(str, args)]
        return measure(argv, self.environ, image)

    def pause(self, job: Job, folder: Path) -> Cost:
        return self._dump(job, folder / RUNNING, "--leave-running")

    def dump(self, job: Job, folder: Path) -> tuple[Cost, dict[str, float]]:
        cost = self._dump(job, folder / "image")
        return cost, {"told": told(cost)["pause"], **phases(cost)}

    def _dump(self, job: Job, image: Path, *options: str) -> Cost:
        options = (*options, *self.dumping, "--json")
        return self.run("dump", job.pid, "-o", image, *options, image=image / "manifest.json")

    def sync(self, folder: Path) -> None:
        """It is on the disk already."""

    def files(self, folder: Path) -> list[Path]:
        return sorted(path for path in (folder / "image").rglob("*") if path.is_file())

    def restore(self, job: Job, folder: Path) -> tuple[Cost, dict[str, float]]:  # noqa: ARG002
        """Restore without settling, which no other way does."""
        options = ("--settle", "0", *self.restoring, "--json")
        cost = self.run("restore", folder / "image", *options)
        return cost, phases(cost)


def told(cost: Cost) -> dict[str, Any]:
    """Return what a run of gpuckpt told of itself."""
    found: dict[str, Any] = json.loads(cost.output)["result"]
    return found


def phases(cost: Cost) -> dict[str, float]:
    """Return the phases of its receipt."""
    found: dict[str, float] = {}
    for one in told(cost)["receipt"]["phases"]:
        name = f"part {one['name']}"
        found[name] = found.get(name, 0.0) + one["seconds"]
    return found


@dataclass(frozen=True)
class Bare:
    """CRIU alone, into a folder: neither compressed nor hashed nor synced."""

    name: str
    tmpfs: bool
    criu: str
    pauses: bool = True

    def pause(self, job: Job, folder: Path) -> Cost:
        return self._dump(job, folder / RUNNING, "--leave-running")

    def dump(self, job: Job, folder: Path) -> tuple[Cost, dict[str, float]]:
        return self._dump(job, folder / "raw"), {}

    def _dump(self, job: Job, raw: Path, *options: str) -> Cost:
        raw.mkdir()
        argv = [self.criu, "dump", "-t", str(job.pid), "-o", "dump.log", *options]
        argv += ["--timeout", str(COLLECT), "--link-remap", "--ghost-limit", "1G"]
        return measure([*argv, *self._common(raw)])

    def _common(self, raw: Path) -> list[str]:
        # an empty folder of plugins keeps CRIU's own CUDA plugin out, as gpuckpt does
        plugins = raw.parent / "plugins"
        plugins.mkdir(exist_ok=True)
        options = ["--no-default-config", "--manage-cgroups=ignore", "--libdir", str(plugins)]
        return [*options, "-D", str(raw)]

    def sync(self, folder: Path) -> Cost | None:
        return None if self.tmpfs else measure(["sync", "-f", str(folder)])

    def files(self, folder: Path) -> list[Path]:
        return sorted((folder / "raw").iterdir())

    def restore(self, job: Job, folder: Path) -> tuple[Cost, dict[str, float]]:  # noqa: ARG002
        raw = folder / "raw"
        argv = [self.criu, "restore", "-d", "-o", "restore.log"]
        return measure([*argv, *self._common(raw)]), {}


@dataclass(frozen=True)
class Packer:
    """A program that packs a tar file: how it is called both ways, and whether it is hashed."""

    packs: str
    unpacks: str
    hashed: bool = False


@dataclass(frozen=True)
class Packed:
    """What a script does today: CRIU, then tar and a packer, with a digest if it is careful.

    The job counts as standing still until its archive is there: before that nothing is safe.
    """

    bare: Bare
    packer: Packer
    pauses: bool = False  # it is bare CRIU's, and measured there

    @property
    def name(self) -> str:
        return self.bare.name

    @property
    def tmpfs(self) -> bool:
        return self.bare.tmpfs

    def dump(self, job: Job, folder: Path) -> tuple[Cost, dict[str, float]]:
        dumped, _ = self.bare.dump(job, folder)
        digest = " && sha256sum archive >archive.sum" if self.packer.hashed else ""
        packed = shell(
            f"cd {shlex.quote(str(folder))} && "
            f"tar -C raw -c . | {self.packer.packs} >archive{digest} && rm -r raw"
        )
        return dumped.then(packed), {"part criu": dumped.seconds, "part pack": packed.seconds}

    def sync(self, folder: Path) -> Cost | None:
        return self.bare.sync(folder)

    def files(self, folder: Path) -> list[Path]:
        return sorted(folder.glob("archive*"))

    def restore(self, job: Job, folder: Path) -> tuple[Cost, dict[str, float]]:
        shutil.rmtree(folder / "raw", ignore_errors=True)
        check = "sha256sum --status -c archive.sum && " if self.packer.hashed else ""
        unpacked = shell(
            f"cd {shlex.quote(str(folder))} && {check}mkdir raw && "
            f"{self.packer.unpacks} <archive | tar -C raw -x"
        )
        restored, _ = self.bare.restore(job, folder)
        parts = {"part unpack": unpacked.seconds, "part criu": restored.seconds}
        return unpacked.then(restored), parts


def packer(name: str) -> Packer:
    """Return a packer by its name: lz4, zstd (level 1) or zstd-LEVEL."""
    if name == "lz4":
        return Packer("lz4 -q", "lz4 -q -dc")
    level = name.partition("-")[2] or "1"
    return Packer(f"zstd -q -{level} -T0", "zstd -q -dc -T0", hashed=True)


def environ(state: Path | None = None) -> dict[str, str]:
    """Return the environment in which programs of this checkout run as installed ones do.

    `state` is where gpuckpt keeps what it learns, in place of the host's own.
    """
    kept = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])))
    more = {} if state is None else {"GPUCKPT_STATE_DIR": str(state)}
    return kept | {"PYTHONPATH": path} | more
