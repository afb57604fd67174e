"""The private folder of one CRIU run, and what is kept of it when the run fails."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError, NotPrivileged

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
    return _found(state_dir, "run/*")


def check_readable(state_dir: Path) -> None:
    """Make sure that what runs have left can be seen at all: "nothing" would be a lie.

    Raises:
        NotPrivileged: this user may not look into the state directory.
    """
    for folder in (state_dir, state_dir / "journal"):
        try:
            os.listdir(folder)  # noqa: PTH208
        except PermissionError as why:
            raise NotPrivileged(f"{folder} cannot be read by this user") from why
        except OSError:
            continue  # nothing was ever left there


def kept_logs(state_dir: Path) -> tuple[Path, ...]:
    """Return the logs, traces and reports that were kept, oldest first."""
    patterns = ("logs/*", "gpuckpt-bug-*.txt", "report-*.txt")
    return tuple(sorted((one for each in patterns for one in _found(state_dir, each)), key=_age))


def _found(state_dir: Path, pattern: str) -> tuple[Path, ...]:
    try:
        return tuple(sorted(state_dir.glob(pattern)))
    except OSError:  # closed to this user, or no such place: Python 3.11 hides only some of these
        return ()


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed this very moment
        return 0.0


def _keep(log: Path, folder: Path, operation_id: str) -> Path | None:
    """Move a log out of the way of the clean-up; the oldest kept ones make room."""
    kept = folder / f"{operation_id}-{log.name}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.move(log, kept)
        for old in sorted(folder.iterdir(), key=_age)[:-KEPT_LOGS]:
            old.unlink(missing_ok=True)
    except OSError:  # a full disk, or no log at all: the error that it tells of counts
        return kept if kept.exists() else None
    return kept
