"""What a shell offers on TAB: images for IMAGE, this user's GPU processes for PID."""

from __future__ import annotations

import os
from pathlib import Path

_MANIFEST = "manifest.json"
_DEVICE = "/dev/nvidia"


def images(incomplete: str) -> list[str]:
    """Offer the images and the folders that begin with what was typed."""
    folder, _, start = incomplete.rpartition("/")
    place = Path(folder or ("/" if incomplete.startswith("/") else "."))
    stem = incomplete[: len(incomplete) - len(start)]
    try:
        with os.scandir(place) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if entry.name.startswith(start)
                and (start.startswith(".") or not entry.name.startswith("."))
                and entry.is_dir()
            )
    except OSError:
        return []
    return [stem + name + ("" if (place / name / _MANIFEST).is_file() else "/") for name in names]


def pids(incomplete: str) -> list[str]:
    """Offer the pids that hold an NVIDIA device open, as far as this user may look."""
    return sorted(
        (
            entry.name
            for entry in Path("/proc").iterdir()
            if entry.name.isdecimal() and entry.name.startswith(incomplete) and _on_gpu(entry)
        ),
        key=int,
    )


def pids_and_images(incomplete: str) -> list[str]:
    """Offer both, for what takes either."""
    return [*pids(incomplete), *images(incomplete)]


def ignorable(incomplete: str) -> list[str]:
    """Offer the ids that --ignore takes."""
    from gpuckpt.flow.sight.plan import IGNORABLE

    return sorted(name for name in IGNORABLE if name.startswith(incomplete))


def _on_gpu(process: Path) -> bool:
    try:
        return any(str(link.readlink()).startswith(_DEVICE) for link in (process / "fd").iterdir())
    except OSError:
        return False
