"""Hosts made of namespaces: each with its own file tree, pids, network, name and /proc.

The tree is a view of this machine's by overlayfs: what a host has written lies in its upper layer
alone, so that a listing of that shows every change to any file.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.root.harness import PATIENCE, Answer, ended, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMESPACES = ("--mount", "--pid", "--net", "--uts", "--ipc")
UPPER = "/upper"  # where a host sees its own upper layer
# as pid 1 a shell waits for whoever loses his parent; the last line says that all is in place
SETUP = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 host "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o lowerdir=/,upperdir="$1/upper",workdir="$1/work" host "$1/root"
cd "$1/root"
mkdir -p .old upper var/lib/gpuckpt
mount --bind "$1/upper" upper
mount --rbind /dev dev
mount --rbind /sys sys
mount -t tmpfs shm dev/shm
mount -t tmpfs -o mode=700 state var/lib/gpuckpt
mount -t proc proc proc
echo "$2" >proc/sys/kernel/hostname
pivot_root . .old
umount -l /.old
rmdir /.old
cd /
echo ready
exec </dev/null >/dev/null 2>&1
while :; do sleep 3600 & wait $!; done
"""
# a new network namespace has its loopback down; `ip` may not be installed
LOOPBACK = """
import fcntl, socket, struct
with socket.socket() as one:  # SIOCSIFFLAGS, IFF_UP
    fcntl.ioctl(one, 0x8914, struct.pack("16sh14x", b"lo", 1))
"""


@dataclass
class Host:
    """One host; `init` is its process 1 as this machine counts it."""

    name: str
    init: int
    outer: subprocess.Popen[str] = field(repr=False)

    @classmethod
    def start(cls, name: str, folder: Path) -> Host:
        """Start a host; its files are gone with it."""
        folder.mkdir()
        command = ["unshare", *NAMESPACES, "--fork", "--kill-child"]
        outer = subprocess.Popen(
            [*command, "bash", "-c", SETUP, "init", str(folder), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert outer.stdout is not None
        assert outer.stderr is not None
        if outer.stdout.readline() != "ready\n":
            pytest.skip(f"no host can be made here: {outer.stderr.read()}")
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        host = cls(name, int(children[0]), outer)
        host.run(sys.executable, "-c", LOOPBACK)
        return host

    def path(self, path: str) -> Path:
        """Return a path of the host, as it can be reached from here."""
        return Path(f"/proc/{self.init}/root") / path.lstrip("/")

    def command(self, *words: object) -> list[str]:
        """Return a command line that runs in the host."""
        enter = ["nsenter", "--target", str(self.init), *NAMESPACES]
        # --wd leads to a folder of the outside, and --wdns came with util-linux 2.38
        return [*enter, "sh", "-c", 'cd / && exec "$@"', "sh", *map(str, words)]

    def run(self, *words: object) -> str:
        """Run a program in the host to its end, and return what it says."""
        done = subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def gpuckpt(self, *args: object) -> Answer:
        """Run gpuckpt with --json in the host."""
        known = {key: value for key, value in os.environ.items() if key != "GPUCKPT_STATE_DIR"}
        done = subprocess.run(
            self.command(sys.executable, "-m", "gpuckpt", *args, "--json"),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=known | {"PYTHONDONTWRITEBYTECODE": "1"},
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def alive(self, pid: int) -> bool:
        """Whether a process of the host is there, by the host's number."""
        return self.path(f"/proc/{pid}").exists()

    def end(self, pid: int) -> None:
        """End a process of the host, and wait until its number is free."""
        self.run("kill", "-9", str(pid))
        wait_for(f"process {pid} of {self.name} is gone", lambda: not self.alive(pid))

    def listing(self) -> dict[str, tuple[object, ...]]:
        """Return everything that was ever changed on this host; gpuckpt's records lie elsewhere."""
        top = self.path(UPPER)
        found: dict[str, tuple[object, ...]] = {}
        for folder, folders, files in os.walk(top):
            for name in (*folders, *files):
                path = Path(folder) / name
                found[str(path.relative_to(top))] = _seen(path)
            folders[:] = [one for one in folders if not (Path(folder) / one).is_symlink()]
        return found

    def stop(self) -> None:
        """End the host with all that runs in it."""
        self.outer.kill()
        self.outer.communicate(timeout=PATIENCE)
        wait_for(f"{self.name} has ended", lambda: ended(self.init))


def _seen(path: Path) -> tuple[object, ...]:
    """Return what must not change: kind and mode, owner, times, content; of a folder no size."""
    known = path.lstat()
    common = (known.st_mode, known.st_uid, known.st_gid, known.st_mtime_ns)
    if stat.S_ISLNK(known.st_mode):
        return (*common, str(path.readlink()))
    if stat.S_ISREG(known.st_mode):
        return (*common, path.read_bytes())
    return common


def carry(old: Host, new: Host, paths: Iterable[str]) -> None:
    """Copy files and folders from host to host as they are."""
    for path in paths:
        new.path(path).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["cp", "-a", "--", old.path(path), new.path(path).parent], check=True, timeout=PATIENCE
        )


def remove(path: Path) -> None:
    """Remove a file or a whole folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
