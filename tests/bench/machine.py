"""What a run was made on."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from gpuckpt import __version__
from tests.bench.ways import ROOT

GIB: Final = 1 << 30
PACKAGES: Final = ("zstandard", "blake3")
PROGRAMS: Final = ("zstd", "lz4", "tar")


def facts(folder: Path, criu: str) -> dict[str, str]:
    """Return names and versions, and the machine's size."""
    found = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "processor": f"{os.cpu_count()} cores, {_cpu()}",
        "memory": f"{_memory() / GIB:.0f} GiB",
        "disk": _filesystem(folder),
        "kernel": platform.release(),
        "huge pages": _chosen(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "CRIU": criu,
        "Python": platform.python_version(),
        "gpuckpt": " ".join(filter(None, (__version__, _commit()))),
        "GPU": _gpu(),
    }
    found |= {name: _package(name) for name in (*PACKAGES, "torch")}
    found |= {name: _program(name) for name in PROGRAMS}
    return {name: text for name, text in found.items() if text}


def told(about: dict[str, str]) -> str:
    """Return facts as a paragraph."""
    return "; ".join(f"{name} {text}" for name, text in about.items())


def has_gpu() -> bool:
    """Whether there is an NVIDIA driver, as gpuckpt itself looks for it."""
    return Path("/dev/nvidiactl").exists()


def _cpu() -> str:
    found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _filesystem(folder: Path) -> str:
    done = _output("df", "--output=fstype,source", str(folder))
    return " on ".join(done.splitlines()[-1].split()) if done else ""


def _chosen(switch: Path) -> str:
    found = re.search(r"\[(\w+)\]", switch.read_text()) if switch.exists() else None
    return found[1] if found else ""


def _commit() -> str:
    return _output("git", "-C", str(ROOT), "describe", "--always", "--dirty").strip()


def _gpu() -> str:
    if not has_gpu():
        return ""
    line = _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    return line.splitlines()[0] if line else "?"


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _program(name: str) -> str:
    found = re.search(r"\d+\.\d+(\.\d+)?", _output(name, "--version"))
    return found[0] if found else ""


def _output(*argv: str) -> str:
    if not shutil.which(argv[0]):
        return ""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""
