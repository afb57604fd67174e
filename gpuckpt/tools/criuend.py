"""How a run of CRIU came to a bad end, in words: by itself, a signal, its time or its log."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.criunames import Names
from gpuckpt.tools.procfs import read, text
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from gpuckpt.errors import GpuckptError

LARGEST_LOG = 256 << 20
CURE_SECONDS = 20.0

_NAMED: Final = frozenset(signal.Signals)  # of those for real-time only the first and the last
_CRASHES: Final = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_MEMORY: Final = "Free memory, or raise the limit of the memory cgroup, and try again."
# what CRIU was about when it was ended, by the last thing it logged
_STAGES: Final = (
    (r"\((flock|posix|ofd)\)flag", "it waited for a file lock that another process holds"),
    (r"pie: |[Pp]age|parasite|etched", "it was moving the job's memory"),
    (r"[Ss]eiz|[Ff]reez|Collect", "it was stopping the job's processes"),
    (r"script", "it waited for gpuckpt"),
)


class Watch(Value, frozen=True):
    """What ends CRIU early, and the error that tells of it; `deadline` in seconds.

    `names` are asked for only when there is something to explain. An ended CRIU gets `cure`
    seconds to fail by itself. `largest_log` in bytes: half of what the disk has left, at most.
    """

    log: Path
    stop_fd: int
    deadline: float
    error: type[GpuckptError]
    names: Callable[[], Names] = Names
    cure: float = CURE_SECONDS
    largest_log: int = LARGEST_LOG


def failed(watch: Watch, status: int | None, oom_kills: int | None) -> GpuckptError:
    """Return the error for a CRIU that failed or was killed; `oom_kills` had been before it."""
    # before it opens its log, CRIU complains on its standard output only
    log = watch.log if watch.log.exists() else watch.log.with_name("criu.out")
    report = _words().read(log, watch.names())
    sentence, hint = report.sentence, report.hint
    killed = out_of_memory(oom_kills)
    if not sentence and status is not None and status < 0:
        sentence, hint = _by_signal(-status, oom_kills)
    elif not sentence:
        sentence = f"CRIU ended with status {status} and gave no reason that gpuckpt knows"
        if report.complaint:
            sentence += f'; it complained first: "{report.complaint}"'
        hint = "The lines below are all it said of it; keep the log if you report this."
    elif killed:
        sentence += f"; the kernel ended {killed} meanwhile for lack of memory"
        hint = _MEMORY
    return watch.error(sentence, hint=hint, log=log, excerpt=report.lines)


def no_namespace(watch: Watch) -> GpuckptError:
    """Return the error for a CRIU that was never started for want of a pid namespace."""
    told = watch.log.with_name("criu.out").read_text("utf-8", "replace").strip()
    reason = told.rpartition("\n")[2].removeprefix("gpuckpt: ") or "its process 1 has ended"
    return watch.error(f"no pid namespace could be made for the job: {reason}")


def out_of_time(watch: Watch) -> GpuckptError:
    """Return the error for a CRIU that was ended at its deadline."""
    last = _words().last_lines(watch.log)
    stage = next(
        (words for pattern, words in _STAGES if any(re.search(pattern, line) for line in last)),
        "what it was about is not known",
    )
    return watch.error(
        f"CRIU did not come to an end within its deadline of {watch.deadline:.0f} s and was ended: "
        f"{stage}",
        hint="Its last lines are below: look for a disk, a lock or a process that hangs.",
        log=watch.log,
        excerpt=last,
    )


def flooded(watch: Watch, size: int) -> GpuckptError:
    """Return the error for a CRIU that wrote too much log."""
    return watch.error(
        f"CRIU flooded its log ({size >> 20} MiB) and was ended: it repeats itself for ever",
        hint="A damaged image does this, most often: check it with `gpuckpt verify`.",
        log=watch.log,
        excerpt=_words().last_lines(watch.log),
    )


def oom_kills(root: Path = Path("/proc")) -> int | None:
    """Return how many processes the kernel has ended for lack of memory; None if it hides it."""
    try:
        lines = text(read(root / "vmstat") or b"").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(found[0]) if found else None


def out_of_memory(before: int | None) -> str:
    """Say how many processes the kernel has ended since for lack of memory; "" if none."""
    now = oom_kills()
    if before is None or now is None or now <= before:
        return ""
    return f"{now - before} process{'es' if now - before > 1 else ''}"


def _words() -> ModuleType:
    """Return what understands CRIU's words: large tables, for failures only."""
    from gpuckpt.tools import criulog

    return criulog


def _by_signal(number: int, before: int | None) -> tuple[str, str]:
    name = signal.Signals(number).name if number in _NAMED else f"signal {number}"
    if number in _CRASHES:
        return (
            f"CRIU crashed ({name})",
            "`gpuckpt doctor` tells whether it works here; keep the log if you report this.",
        )
    if number == signal.SIGKILL and (killed := out_of_memory(before)):
        return f"CRIU was killed: the kernel ended {killed} for lack of memory meanwhile", _MEMORY
    if number == signal.SIGKILL and before is None:
        return f"CRIU was killed by {name}, probably because the host was out of memory", _MEMORY
    return (
        f"CRIU was ended by {name}, which gpuckpt did not send",
        "Somebody, or a watchdog, ends programs here: see who, and try again.",
    )
