"""Environments, models and jobs that use them, made for tests of what a job computes with."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

# a small extension module that every build of CPython has beside its library
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_MODULES = Path(sys.base_exec_prefix, "lib", _VERSION, "lib-dynload")
EXTENSION = next(_MODULES.glob("_json.*.so"), None)


def distribution(site: Path, name: str, version: str, files: dict[str, bytes | Path]) -> Path:
    """Install a distribution by hand: its files, and metadata as installers write it."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [f"{info.name}/METADATA,,", f"{info.name}/RECORD,,"]
    for path, content in files.items():
        place = site / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
        digest = base64.urlsafe_b64encode(hashlib.sha256(place.read_bytes()).digest()).rstrip(b"=")
        lines.append(f"{path},sha256={digest.decode()},{place.stat().st_size}")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("\n".join(lines) + "\n")
    return info


def uninstall(info: Path) -> None:
    """Remove a distribution with its files."""
    for line in (info / "RECORD").read_text().splitlines():
        path = info.parent / line.partition(",")[0]
        if info not in path.parents:
            path.unlink()
    shutil.rmtree(info)


def environment(folder: Path) -> tuple[Path, Path]:
    """Make a virtual environment without pip; return its Python and its folder for packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    return folder / "bin" / "python", site


def snapshot(hub: Path, model: str, commit: str, files: dict[str, bytes]) -> Path:
    """Lay a model down as Hugging Face's cache does; return the folder of the snapshot."""
    root = hub / f"models--{model.replace('/', '--')}"
    place = root / "snapshots" / commit
    for folder in (place, root / "blobs", root / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        blob = root / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (place / name).symlink_to(os.path.relpath(blob, place))
    (root / "refs" / "main").write_text(commit)
    return place
