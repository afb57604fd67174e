"""The threads of a process, one by one: what the first of them shows proves nothing of the others.

A thread in uninterruptible sleep is met often and means little; it is stuck if it has not run
at all for a while.
"""

from __future__ import annotations

import ctypes
import platform
import time
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.procfs import link, numbers, read, text
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# in seconds; what waits for a disk has long moved on by then
STUCK_AFTER: Final = 1.0
_POLL: Final = 0.05
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_KCMP: Final = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
# <linux/kcmp.h>: what threads share, unless one of them has called unshare
_SHARED: Final = {"open files": 2, "current folder": 3}
_NAMESPACES: Final = {"net": "network", "mnt": "mounts", "uts": "host name", "ipc": "System V IPC"}


class Thread(Value, frozen=True):
    """One thread; `tracer` is the pid of who traces it, `seccomp` its mode (0: none).

    `switches` counts how often it has given up its CPU: while that stands still it has not run.
    """

    tid: int
    name: str
    state: str
    tracer: int
    seccomp: int
    switches: int


def thread(folder: str, tid: int) -> Thread | None:
    """Return one thread of the process whose /proc folder this is, None if it is gone."""
    raw = read(f"{folder}/task/{tid}/status")
    if not raw:
        return None
    raw = b"\n" + raw
    switches = (b"voluntary_ctxt_switches", b"nonvoluntary_ctxt_switches")
    return Thread(
        tid=tid,
        name=text(_field(raw, b"Name")),
        state=text(_field(raw, b"State"))[:1],
        tracer=int(_field(raw, b"TracerPid") or 0),
        seccomp=int(_field(raw, b"Seccomp") or 0),
        switches=sum(int(_field(raw, name) or 0) for name in switches),
    )


def _field(raw: bytes, name: bytes) -> bytes:
    """Cut one value out: with thousands of threads, reading all of them as a table is slow."""
    _, _, rest = raw.partition(b"\n" + name + b":\t")
    return rest.partition(b"\n")[0]


def apart(folder: str, pid: int, tids: Iterable[int]) -> tuple[tuple[int, str], ...]:
    """Return what threads have to themselves that the first thread's dump is to stand for."""
    found: list[tuple[int, str]] = []
    first = {kind: link(f"{folder}/ns/{kind}") for kind in _NAMESPACES}
    for tid in tids:
        if tid == pid:
            continue
        own = [(tid, what) for what, kind in _SHARED.items() if _differ(pid, tid, kind)]
        # a thread that is ending has let go of both already
        if own and numbers(f"{folder}/task/{tid}/fd") and link(f"{folder}/task/{tid}/cwd"):
            found += own
        for kind, word in _NAMESPACES.items():
            name = link(f"{folder}/task/{tid}/ns/{kind}")
            if name is not None and name != first[kind]:
                found.append((tid, word))
    return tuple(found)


def _differ(pid: int, tid: int, kind: int) -> bool:
    """Whether two threads of the real /proc do not share a thing; no where nobody can say."""
    if _KCMP is None:
        return False
    # 1, 2: ordered, 3: different; -1: not permitted, or gone
    return int(_LIBC.syscall(_KCMP, pid, tid, kind, 0, 0)) > 0


def stuck(root: Path | str, sleepers: Iterable[tuple[int, Thread]]) -> dict[int, list[Thread]]:
    """Return those of the threads, by pid, that stay in uninterruptible sleep without running."""
    left = {(pid, one.tid): one for pid, one in sleepers}
    ends = time.monotonic() + STUCK_AFTER
    while left and time.monotonic() < ends:
        time.sleep(_POLL)
        for (pid, tid), before in tuple(left.items()):
            now = thread(f"{root}/{pid}", tid)
            if now is None or now.state != "D" or now.switches != before.switches:
                del left[pid, tid]
    found: dict[int, list[Thread]] = {}
    for (pid, _), one in left.items():
        found.setdefault(pid, []).append(one)
    return found


def waits_in(folder: str, tid: int) -> str:
    """Return the kernel's function that a thread waits in, "" if it is not told."""
    try:
        name = text(read(f"{folder}/task/{tid}/wchan") or b"")
    except OSError:
        return ""
    return "" if name == "0" else name
