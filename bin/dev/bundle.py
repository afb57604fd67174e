"""Builds the offline kit: gpuckpt, all it imports for CPython 3.11 to 3.13, and CRIU, on x86-64.

The kit is a tar file of unpacked wheels. What is the same for all three Pythons is there once, the
rest lies side by side, so that the compressor sees how alike it is. What gpuckpt never loads
stays out.

    site/common      what all Pythons share
    site/cp311 ...   what only this one can use
    tests            pytest, for the GPU tests
    criu             CRIU with its own libraries
    bin completions  what ends up in PREFIX as it is
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 16, -1)),
    "manylinux2014_x86_64",
)
TESTS = ("pytest",)
NEVER_LOADED = (
    "*/tests/*",
    "*.a",
    "*.h",
    "*.pxd",
    "*.pyi",
    "*.pyx",
    "cuda/core/cu12/*",  # for bindings older than those we ask for
    "zstandard/_cffi*",  # for PyPy
)
CRIU = Path("/opt/gpuckpt/criu")
LIMIT = 60 << 20
CHUNK = 64 << 20  # each is a stream of its own, so that all cores compress
FILTERS = [
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 3, "dict_size": CHUNK},
]


def pip(*arguments: str) -> str:
    """Run this Python's pip and return what it prints."""
    argv = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def foreign(python: str) -> list[str]:
    """Return the options that make pip choose for another Python than its own."""
    platforms = [option for name in PLATFORMS for option in ("--platform", name)]
    return ["--only-binary=:all:", "--python-version", python, *platforms]


def pinned(names: list[str]) -> list[str]:
    """Resolve once, for the oldest Python, so that all three share their versions."""
    report = pip(
        "install", "--dry-run", "--ignore-installed", "--report=-", *foreign(PYTHONS[0]), *names
    )
    found = [package["metadata"] for package in json.loads(report)["install"]]
    return [f"{package['name']}=={package['version']}" for package in found]


def unpacked(wheels: Path) -> dict[str, bytes]:
    """Return the files of all wheels in a folder, as they lie in site-packages."""
    files: dict[str, bytes] = {}
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if re.match(r"[^/]+\.data/", name):
                    message = f"{wheel.name} is no plain wheel: {name}"
                    raise SystemExit(message)
                if not name.endswith("/"):
                    files[name] = archive.read(name)
    return {name: data for name, data in files.items() if not never_loaded(name)}


def never_loaded(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in NEVER_LOADED)


def sites(pins: list[str], work: Path) -> dict[str, bytes]:
    """Return what the three Pythons need, each file under site/common or site/cpXY."""
    own = work / "own"
    pip("wheel", "--no-deps", "--wheel-dir", str(own), str(ROOT))
    each: dict[str, dict[str, bytes]] = {}
    for python in PYTHONS:
        folder = work / python
        pip("download", "--no-deps", "--dest", str(folder), *foreign(python), *pins)
        each[f"cp{python.replace('.', '')}"] = unpacked(folder) | unpacked(own)
    first, *others = each.values()
    common = {
        name: data
        for name, data in first.items()
        if all(files.get(name) == data for files in others)
    }
    kit = {f"site/common/{name}": data for name, data in common.items()}
    for tag, files in each.items():
        kit |= {f"site/{tag}/{name}": files[name] for name in files.keys() - common.keys()}
    return kit


def alike(name: str) -> tuple[str, str]:
    """Sort key that brings the variants of one file together."""
    return re.sub(r"site/\w+/|cpython-3\d+-|-3\d+-", "", name), name


def programs() -> dict[str, Path]:
    """Return what lies around in the tree and belongs into the kit."""
    scripts = [path for path in (ROOT / "bin").iterdir() if path.is_file()]
    own = {f"bin/{path.name}": path for path in scripts if path.name != "gpuckpt"}
    return own | below(ROOT / "completions", "completions") | below(ROOT / "LICENSE", "LICENSE")


def below(place: Path, name: str) -> dict[str, Path]:
    """Return a file, or all files of a folder, under a name of its own."""
    if not place.is_dir():
        return {name: place}
    return {
        f"{name}/{path.relative_to(place)}": path for path in place.rglob("*") if path.is_file()
    }


def packed(kit: dict[str, bytes], files: dict[str, Path]) -> bytes:
    """Return a tar file of it all; the same input gives the same bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(kit, key=alike):
            member = tarfile.TarInfo(name)
            member.size = len(kit[name])
            tar.addfile(plain(member), io.BytesIO(kit[name]))
        for name in sorted(files):
            tar.add(files[name], name, filter=plain)
    return raw.getvalue()


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Forget who built it and when."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = 0
    return member


def compressed(raw: bytes) -> bytes:
    """Compress on all cores, into xz streams one after the other."""

    def stream(start: int) -> bytes:
        return lzma.compress(raw[start : start + CHUNK], filters=FILTERS)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return b"".join(pool.map(stream, range(0, len(raw), CHUNK)))


def tests(pins: list[str], work: Path) -> dict[str, bytes]:
    """Return pytest and what it needs beyond gpuckpt; all of it is plain Python."""
    more = sorted(set(pinned(list(TESTS))) - set(pins))
    pip("download", "--no-deps", "--dest", str(work / "tests"), *foreign(PYTHONS[0]), *more)
    return {f"tests/{name}": data for name, data in unpacked(work / "tests").items()}


def build(target: Path, criu: Path) -> None:
    """Write the kit's files into an empty folder."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        pins = pinned(project["project"]["dependencies"])
        kit = sites(pins, work) | tests(pins, work)
    data = compressed(packed(kit, programs() | below(criu, "criu")))
    (target / "kit.tar.xz").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    (target / "kit.sha256").write_text(f"{digest}  kit.tar.xz\n", encoding="utf-8")
    for name in ("install", "README.md"):
        shutil.copy(HERE / "kit" / name, target)


def main() -> None:
    """Build into a folder beside the old kit, which stays until the new one is whole."""
    parser = argparse.ArgumentParser(description="Build the offline kit in .bundle.")
    parser.add_argument("--criu", type=Path, default=CRIU, help=f"prefix of CRIU ({CRIU})")
    criu = parser.parse_args().criu
    if not (criu / "bin/criu").exists():
        parser.error(f"no CRIU in {criu}: run bin/install-criu")
    target, new = ROOT / ".bundle", ROOT / ".bundle.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    build(new, criu)
    shutil.rmtree(target, ignore_errors=True)
    new.rename(target)
    size = sum(path.stat().st_size for path in target.iterdir())
    print(f"{target}: {size / (1 << 20):.1f} MiB")
    if size > LIMIT:
        parser.exit(1, f"this is more than the {LIMIT >> 20} MiB allowed\n")


if __name__ == "__main__":
    main()
