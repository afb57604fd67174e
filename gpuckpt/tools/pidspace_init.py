"""A pid namespace for one job: the small program that is process 1 in it, and the way back in.

    python -I -S pidspace_init.py make ORDERS TOLD    # CRIU in new ones; process 1 stays
    python -I -S pidspace_init.py enter ORDERS PID    # CRIU in those of process PID

Runs as a script of its own, so it knows nothing but Python. ORDERS and TOLD are descriptors: the
orders are the pids of the job's root and of CRIU in the namespace and CRIU's command line, told is
the pid that process 1 has outside. The first process ends as CRIU does. CRIU's hook reaches
gpuckpt's pipes through the process that started CRIU: gpuckpt itself is no process in there.

Process 1 reaps whatever loses its parent, passes signals on to the job's root and ends with its
exit status; with it the kernel ends all that is left in the namespace. Until the job stands it
dies with gpuckpt: nothing half-made is ever left.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

NAME = "gpuckpt-init"
DOOR = "GPUCKPT_DOOR"
SHM = "/dev/shm"  # noqa: S108 - the system's
# <linux/prctl.h>, <linux/sched.h>, <linux/mount.h>
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_NEWNS, _NEWPID = 0x00020000, 0x20000000
_NOSUID, _NODEV, _NOEXEC, _REC, _SLAVE = 0x2, 0x4, 0x8, 0x4000, 0x80000
_POLL_SECONDS = 0.02
# all that a process may get and not have died of; what a fault in here raises stays deadly
_OURS = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
}
SIGNALS = signal.valid_signals() - _OURS
# what a terminal sends goes to the whole foreground group, so that scripts' children get it too
_TO_THE_GROUP = {signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}

_libc = ctypes.CDLL(None, use_errno=True)
_ended: dict[int, int] = {}


def main(argv: list[str]) -> int:
    """Do one of the two; ends as CRIU does, by its signal too."""
    how, orders, where = argv[0], int(argv[1]), int(argv[2])
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    status = make(orders, where) if how == "make" else enter(orders, where)
    if status < 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), -status)
    return status


def make(orders: int, told: int) -> int:
    """Start process 1 of a new namespace, and wait for what it says of CRIU."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
    _call("unshare", _NEWPID)
    reports, report = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(reports)
        os.close(told)
        _exit_with(lambda: _first(orders, report))
    os.close(report)
    os.close(orders)
    if os.read(reports, 1):
        os.write(told, b"%d" % init)
    os.close(told)
    status = os.read(reports, 16)
    return int(status) if status else _mind(init) or 1


def _first(orders: int, report: int) -> int:
    """Be process 1: make the place, let CRIU fill it, and look after what it has made."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
    _call("prctl", _PR_SET_NAME, NAME.encode())
    os.setsid()
    _furnish()
    os.write(report, b"r")
    root, free, command = _read(orders)
    with open("/proc/sys/kernel/ns_last_pid", "wb") as file:  # noqa: PTH123
        file.write(b"%d" % (free - 1))  # or CRIU and its helpers could have the job's numbers
    status = _mind(_start(command), root)
    if status == 0:
        _call("prctl", _PR_SET_PDEATHSIG, 0)
    os.write(report, b"%d" % status)
    if status != 0:
        return 1
    _let_go()
    status = _mind(root)
    while _visited():
        time.sleep(_POLL_SECONDS)
    return status if status >= 0 else 128 - status


def enter(orders: int, pid: int) -> int:
    """Run CRIU in the namespaces of a process, below one of ours that is in them too."""
    places = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("mnt", "pid")]
    for place in places:
        _call("setns", place, 0)
        os.close(place)
    inside = os.fork()
    if inside == 0:
        _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
        _exit_with(lambda: _mind(_start(_read(orders)[2])))
    os.close(orders)
    return _mind(inside)


def _furnish() -> None:
    """Give the namespace its /proc, and memory files of its own: two copies share no names.

    What is mounted outside from now on is seen in here, but not the other way round.
    """
    _call("unshare", _NEWNS)
    _call("mount", None, b"/", None, _REC | _SLAVE, None)
    _call("mount", b"proc", b"/proc", b"proc", _NOSUID | _NODEV | _NOEXEC, None)
    if not os.path.isdir(SHM):  # noqa: PTH112 - this program stays small
        return
    folders = _folders(SHM)
    seen = os.statvfs(SHM)
    flags = _NOSUID | _NODEV | (_NOEXEC if seen.f_flag & os.ST_NOEXEC else 0)
    size = b"mode=1777,size=%d" % (seen.f_blocks * seen.f_frsize)
    _call("mount", b"shm", SHM.encode(), b"tmpfs", flags, size)
    for path, was in folders:
        os.mkdir(path)  # noqa: PTH102
        os.chown(path, was.st_uid, was.st_gid)
        os.chmod(path, was.st_mode & 0o7777)  # noqa: PTH101


def _folders(top: str) -> list[tuple[str, os.stat_result]]:
    """Return all folders below one, those above first: a job's files may lie in them."""
    found = []
    for folder, names, _ in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118
            seen = os.lstat(path)
            if stat.S_ISDIR(seen.st_mode):
                found.append((path, seen))
    return found


def _read(orders: int) -> tuple[int, int, list[bytes]]:
    """Return the root's pid, CRIU's and its command line; a gpuckpt that has died sends nothing."""
    with os.fdopen(orders, "rb") as pipe:
        told = pipe.read()
    if not told:
        raise SystemExit(1)
    root, free, *command = told.split(b"\0")
    return int(root), int(free), command


def _start(command: list[bytes]) -> int:
    """Start CRIU, with the way to the descriptors that its hook needs."""
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.environ[DOOR] = f"/proc/{me}/fd"
        _exit_with(lambda: os.execvp(command[0], command))  # noqa: S606 - what gpuckpt said
    return pid


def _mind(pid: int, other: int = 0) -> int:
    """Wait for a child and pass signals on to it; reap every other one.

    Returns its exit status, negative for a signal; that of `other` is kept until it is asked for.
    """
    while pid not in _ended:
        number = signal.sigwait(SIGNALS)
        if number != signal.SIGCHLD:
            deliver(pid, number)
            continue
        with suppress(ChildProcessError):
            while (dead := os.waitpid(-1, os.WNOHANG))[0]:
                if dead[0] in {pid, other}:
                    _ended[dead[0]] = os.waitstatus_to_exitcode(dead[1])
    return _ended[pid]


def deliver(pid: int, number: int) -> None:
    """Send a child a signal, with its group if it leads one; nothing if it has ended."""
    with suppress(ProcessLookupError):
        if number in _TO_THE_GROUP and os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def _visited() -> bool:
    """Whether a CRIU is still at work in here: it has ended the job, and must not end with it."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:  # noqa: PTH123
                if os.fsencode(__file__) in file.read().split(b"\0"):
                    return True
    return False


def _let_go() -> None:
    """Hold nothing of gpuckpt's, and no folder."""
    os.chdir("/")
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    os.close(nothing)


def _exit_with(work: Callable[[], int]) -> NoReturn:
    """End a forked process here, whatever happens, and never in its parent's place."""
    status = 1
    try:
        status = work()
        if status < 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.kill(os.getpid(), -status)
    except Exception as why:  # noqa: BLE001 - gpuckpt reads it from CRIU's output
        sys.stderr.write(f"gpuckpt: {why}\n")
    finally:
        os._exit(status & 0xFF)


def _call(name: str, *arguments: object) -> None:
    """Call the C library.

    Raises:
        OSError: it failed.
    """
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
