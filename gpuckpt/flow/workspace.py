"""The private folder of one CRIU run, and what is kept of it when the run fails."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEPT_LOGS = 50


@contextmanager
def workspace(state_dir: Path, operation_id: str) -> Iterator[Path]:
    """Give a fresh private folder; an error's log is moved to safety before it is removed.

    Only a GpuckptError that names a log in the folder gets it kept, under `state_dir`/logs.
    """
    folder = folder_of(state_dir, operation_id)
    folder.mkdir(mode=0o700, parents=True)
    try:
        yield folder
    except GpuckptError as why:
        if why.log is not None and why.log.parent == folder:
            why.log = _keep(why.log, state_dir / "logs", operation_id)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove(state_dir: Path, operation_id: str) -> None:
    """Remove the folder of an operation that was killed before it could."""
    shutil.rmtree(folder_of(state_dir, operation_id), ignore_errors=True)


def folder_of(state_dir: Path, operation_id: str) -> Path:
    """Return the folder of an operation, be it there or not."""
    return state_dir / "run" / operation_id


def run_folders(state_dir: Path) -> tuple[Path, ...]:
    """Return the folders of all operations there are; whose they are, the journal knows."""
    return tuple(sorted((state_dir / "run").glob("*")))


def kept_logs(state_dir: Path) -> tuple[Path, ...]:
    """Return the logs and traces that were kept, oldest first."""
    found = [*(state_dir / "logs").glob("*"), *state_dir.glob("gpuckpt-bug-*.txt")]
    return tuple(sorted(found, key=lambda path: path.stat().st_mtime))


def _keep(log: Path, folder: Path, operation_id: str) -> Path | None:
    """Move a log out of the way of the clean-up; the oldest kept ones make room."""
    if not log.exists():
        return None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = folder / f"{operation_id}-{log.name}"
    shutil.move(log, kept)
    by_age = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for old in by_age[:-KEPT_LOGS]:
        old.unlink(missing_ok=True)
    return kept
