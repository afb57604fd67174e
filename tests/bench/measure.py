"""Running a command and measuring it: wall time, CPU time, memory, and when its image was there."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

POLL: Final = 0.002  # seconds between two looks whether the image is there
LONGEST: Final = 900.0  # seconds; a command that takes more has failed
MOST_WORDS: Final = 1 << 20
LAST_WORDS: Final = 120.0  # seconds; gpuckpt puts a job back when it is told to end


class CommandFailed(Exception):
    """A command that had to succeed did not."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took.

    `began`, `ended` and `safe` are of the monotonic clock; `safe` is when the image was complete.
    `cpu` counts all that it started and waited for, `peak` is the most memory of any one of them
    and `own` that of the command's first process, in bytes.
    """

    began: float
    ended: float
    safe: float
    cpu: float = 0.0
    peak: int = 0
    own: int = 0
    output: str = ""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began

    def then(self, other: Cost) -> Cost:
        """Return what this and a second one right after it took together."""
        return Cost(
            self.began,
            other.ended,
            other.ended,
            self.cpu + other.cpu,
            max(self.peak, other.peak),
            max(self.own, other.own),
            other.output,
        )

    def values(self) -> dict[str, float]:
        """Return the numbers to be kept."""
        return {
            "seconds": self.seconds,
            "cpu": self.cpu,
            "peak": float(self.peak),
            "own": float(self.own),
        }


class _Watch(threading.Thread):
    """Looks at a running command from outside."""

    def __init__(self, pid: int, image: Path | None) -> None:
        super().__init__(daemon=True)
        self.safe = self.own = 0.0
        self._pid = pid
        self._status = Path(f"/proc/{pid}/status")
        self._image = image
        self._over = threading.Event()

    def run(self) -> None:
        rounds, ends = 0, time.monotonic() + LONGEST
        while not self._over.wait(POLL):
            if time.monotonic() > ends:
                _tell_to_end(self._pid)
                ends += LAST_WORDS
            if self._image and not self.safe and self._image.exists():
                self.safe = time.monotonic()
            if rounds % 5 == 0:
                self._look()
            rounds += 1

    def _look(self) -> None:
        with suppress(OSError):
            for line in self._status.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self.own = max(self.own, int(line.split()[1]) << 10)

    def close(self) -> None:
        self._over.set()
        self.join()


def measure(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, image: Path | None = None
) -> Cost:
    """Run a command that must succeed; the image is complete when the file `image` is there.

    Raises:
        CommandFailed: it did not succeed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=None if environ is None else dict(environ),
            cwd="/",
            start_new_session=True,
        )
        watch = _Watch(child.pid, image)
        watch.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
            ended = time.monotonic()
            child.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            _end(child)
            raise
        finally:
            watch.close()
        texts = [_text(file) for file in (out, err)]
    if child.returncode != 0:
        words = "\n".join(text[-3000:] for text in texts)
        raise CommandFailed(f"{' '.join(argv)}\nended with {child.returncode}:\n{words}")
    return Cost(
        began,
        ended,
        watch.safe or ended,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss << 10,
        int(watch.own),
        texts[0],
    )


def shell(script: str) -> Cost:
    """Run a shell script that must succeed."""
    return measure(["/bin/bash", "-o", "pipefail", "-ec", script])


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a command that is not waited for any more, and what it started."""
    _tell_to_end(child.pid)
    try:
        child.wait(LAST_WORDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _tell_to_end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)


def _text(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    found: bytes = file.read(MOST_WORDS)  # type: ignore[attr-defined]
    return found.decode("utf-8", "replace")
