"""The host: kernel, CPU, memory, privilege and room on disks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuckpt.model import HostFacts
from gpuckpt.tools import owners
from gpuckpt.tools.addresses import of_host
from gpuckpt.tools.cgroups import Cgroups
from gpuckpt.tools.destination import Place, place, write_speed
from gpuckpt.tools.procfs import kibibytes, parse_status, read, text
from gpuckpt.tools.run import Runner
from gpuckpt.tools.units import Unit, unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.model import Owner

# What CRIU uses as root, by bit in <linux/capability.h>. CAP_SYS_RESOURCE is not among them:
# CRIU 4.2 complains about its absence on virtual machines and works, but for other users' jobs.
_SYS_RESOURCE: Final = 1 << 24
_HUGE_PAGES: Final = "kernel/mm/transparent_hugepage/enabled"
_PTRACE_SCOPE: Final = "sys/kernel/yama/ptrace_scope"
_CAPABILITIES: Final = {
    0: "CAP_CHOWN",
    1: "CAP_DAC_OVERRIDE",
    3: "CAP_FOWNER",
    5: "CAP_KILL",
    6: "CAP_SETGID",
    7: "CAP_SETUID",
    8: "CAP_SETPCAP",
    12: "CAP_NET_ADMIN",
    18: "CAP_SYS_CHROOT",
    19: "CAP_SYS_PTRACE",
    21: "CAP_SYS_ADMIN",
}


class Host:
    """The host as seen by this process."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        runner: Runner | None = None,
    ) -> None:
        """Read from `proc` and `sys`: recorded folders serve as well as the real ones."""
        self._proc = proc
        self._sys = sys
        self._runner = runner or Runner()

    def facts(self) -> HostFacts:
        """Return what a manifest records and a restore compares."""
        name = os.uname()
        model, flags = _cpu(text(self._read(self._proc / "cpuinfo")))
        status = parse_status(self._read(self._proc / "self" / "status"))
        held = int(status.get("CapEff", "0"), 16)
        return HostFacts(
            hostname=name.nodename,
            kernel=name.release,
            boot_id=text(self._read(self._proc / "sys/kernel/random/boot_id")).strip(),
            arch=name.machine,
            libc=_libc(),
            cpu_model=model,
            cpu_flags=flags,
            cpu_count=os.cpu_count() or 1,
            memory_total=kibibytes(self._meminfo(), "MemTotal"),
            memory_available=self.memory_available(os.getpid()),
            huge_pages=self._huge_pages(),
            euid=os.geteuid(),
            missing_capabilities=tuple(
                cap for bit, cap in _CAPABILITIES.items() if not held & 1 << bit
            ),
            only_own=not held & _SYS_RESOURCE,
            ptrace_scope=int(text(self._read(self._proc / _PTRACE_SCOPE)) or 0),
            huge_pages_free=self._huge_pages_free(),
            time_namespaces=(self._proc / "self/ns/time").is_symlink(),
            addresses=of_host(
                self._read(self._proc / "net/fib_trie"), self._read(self._proc / "net/if_inet6")
            ),
        )

    def owners(self, users: Iterable[int], groups: Iterable[int]) -> tuple[Owner, ...]:
        """Return what users and groups are called here."""
        return owners.owners(users, groups)

    def set_huge_pages(self, mode: str) -> None:
        """Set transparent huge pages of the whole host to `mode`.

        Raises:
            OSError: there is no such setting or mode, or this process may not change it.
        """
        # "r+": a kernel without the setting must not get a file of that name in a recorded folder
        with (self._sys / _HUGE_PAGES).open("r+") as file:
            file.write(mode)

    def unit(self, pid: int) -> Unit | None:
        """Return the systemd service that a process is in, None if it is in none."""
        return unit(self._runner, dict.fromkeys(Cgroups(self._proc).paths(pid).values()))

    def memory_available(self, pid: int) -> int:
        """Return the bytes of memory a process can still get, its cgroup's limit counted."""
        available = kibibytes(self._meminfo(), "MemAvailable")
        headroom = Cgroups(self._proc).memory_headroom(pid)
        return available if headroom is None else min(available, headroom)

    def free_bytes(self, folder: Path) -> int:
        """Return the bytes that can still be written under `folder`, or where it will be made.

        The share a filesystem keeps for root is left alone.
        """
        there = folder.absolute()
        while not there.exists() and there != there.parent:
            there = there.parent
        found = os.statvfs(there)
        return found.f_bavail * found.f_frsize

    def writable(self, folder: Path) -> bool:
        """Whether files can be made in a folder: it is there, ours, and not mounted read-only."""
        # Path.is_dir would raise where a folder above is closed to us
        return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)  # noqa: PTH112

    def executes(self, folder: Path) -> bool:
        """Whether programs may be started from a folder, or the nearest above it that is there."""
        there = next((one for one in (folder, *folder.parents) if os.path.exists(one)), folder)  # noqa: PTH110
        try:
            return not os.statvfs(there).f_flag & os.ST_NOEXEC
        except OSError:
            return True

    def place(self, folder: Path) -> Place:
        """Return which filesystem a folder is on."""
        return place(folder, self._proc)

    def write_speed(self, folder: Path) -> float | None:
        """Return the bytes a second that a folder takes, by trying; None if it takes none."""
        return write_speed(folder)

    def _meminfo(self) -> dict[str, str]:
        return parse_status(self._read(self._proc / "meminfo"))

    def _huge_pages(self) -> str:
        modes = text(self._read(self._sys / _HUGE_PAGES))
        found = re.search(r"\[(\w+)\]", modes)
        return found[1] if found else ""

    def _huge_pages_free(self) -> int:
        """Return the bytes left in the pools of all page sizes."""
        total = 0
        for pool in (self._sys / "kernel/mm/hugepages").glob("hugepages-*kB"):
            free = text(self._read(pool / "free_hugepages")).strip()
            size = pool.name.removeprefix("hugepages-").removesuffix("kB")
            total += int(free or 0) * int(size) * 1024
        return total

    def _read(self, path: Path) -> bytes:
        try:
            return read(path) or b""
        except OSError:
            return b""


def _cpu(cpuinfo: str) -> tuple[str, tuple[str, ...]]:
    """Return model and sorted feature flags of the first processor."""
    first = parse_status(cpuinfo.partition("\n\n")[0].encode())
    found = {name.strip(): value for name, value in first.items()}
    flags = found.get("flags") or found.get("Features") or ""
    return found.get("model name", ""), tuple(sorted(flags.split()))


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # not glibc
        return ""
