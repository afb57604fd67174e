"""The ways that are compared: gpuckpt, bare CRIU, and CRIU with tar, zstd and sha256sum."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Taken:
    """Seconds of one step: how long the job stood still, and how long the command took."""

    frozen: float
    whole: float


class Way(Protocol):
    """One way to dump a process into a folder and to bring it back."""

    name: str

    def dump(self, pid: int, folder: Path) -> Taken:
        """Dump the process; it is gone afterwards."""

    def restore(self, folder: Path) -> Taken:
        """Bring it back."""


def run(command: str) -> float:
    """Run a shell command that must succeed; return its seconds."""
    started = time.monotonic()
    subprocess.run(["/bin/bash", "-o", "pipefail", "-ec", command], check=True)
    return time.monotonic() - started


class Gpuckpt:
    """The product, as its user types it."""

    name = "gpuckpt"

    def dump(self, pid: int, folder: Path) -> Taken:
        """Dump; the pause is what the receipt says."""
        whole, result = self._run("dump", str(pid), "-o", str(folder / "image"))
        return Taken(result["pause"], whole)

    def restore(self, folder: Path) -> Taken:
        """Restore; no settling, which no other way does."""
        whole, _ = self._run("restore", str(folder / "image"), "--settle", "0")
        return Taken(whole, whole)

    def _run(self, *args: str) -> tuple[float, dict[str, float]]:
        started = time.monotonic()
        command = [sys.executable, "-m", "gpuckpt", *args, "--json"]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        return time.monotonic() - started, json.loads(done.stdout)["result"]


class Bare:
    """CRIU alone, into a folder: neither compressed nor hashed nor synced."""

    name = "criu"

    def __init__(self, criu: str) -> None:
        """Use this CRIU."""
        self._criu = criu

    def dump(self, pid: int, folder: Path) -> Taken:
        """Dump into `folder`."""
        seconds = run(f"{self._criu} dump -t {pid} -D {folder} -o dump.log --no-default-config")
        return Taken(seconds, seconds)

    def restore(self, folder: Path) -> Taken:
        """Restore from `folder`."""
        seconds = run(f"{self._criu} restore -d -D {folder} -o restore.log --no-default-config")
        return Taken(seconds, seconds)


class Script(Bare):
    """What a careful script does today: CRIU, then tar and zstd on all cores, then a digest.

    The job counts as standing still until its archive is there: before that nothing is safe.
    """

    name = "criu + tar | zstd -T0 + sha256sum"

    def dump(self, pid: int, folder: Path) -> Taken:
        """Dump into a folder, pack it, digest the archive, remove the folder."""
        raw = folder / "raw"
        raw.mkdir()
        dumped = super().dump(pid, raw).whole
        packed = run(
            f"cd {folder} && tar -C raw -c . | zstd -q -1 -T0 -o image.tar.zst && "
            "sha256sum image.tar.zst >image.sum && rm -r raw"
        )
        return Taken(dumped + packed, dumped + packed)

    def restore(self, folder: Path) -> Taken:
        """Check the digest, unpack, restore."""
        raw = folder / "raw"
        unpacked = run(
            f"cd {folder} && sha256sum --status -c image.sum && mkdir raw && "
            "zstd -q -dc -T0 image.tar.zst | tar -C raw -x"
        )
        whole = unpacked + super().restore(raw).whole
        return Taken(whole, whole)
