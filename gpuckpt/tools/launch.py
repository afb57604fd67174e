"""Becoming somebody's program, without io_uring; for a cold start also as the job's own user.

    python -I launch.py [--without-io-uring] [--as JSON] -- PROGRAM [ARGUMENT...]

Runs as a script of its own, before the job and in its place, so it knows nothing but Python. A
seccomp filter answers io_uring_setup with ENOSYS, as a kernel without io_uring would: libraries
then fall back (libuv, which torchrun's store is built on, opens a ring otherwise, whatever its
environment says), and CRIU 4.2.1, which cannot dump a ring, can dump the job with its filter.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import struct
import sys
from typing import Any

# <linux/prctl.h>, <linux/seccomp.h>, <linux/audit.h>; the number is the same on every machine
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_FILTER = 2
_AUDIT_ARCH_X86_64 = 0xC000003E
_IO_URING_SETUP = 425
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
# <linux/bpf_common.h>: load a word of seccomp_data, compare, return
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCH_AT = 0, 4

# what a cold start is told by, see gpuckpt.tools.launcher
_OUTPUT = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY | os.O_NONBLOCK

NOT_EXECUTABLE = 126
NOT_FOUND = 127


def refuse_io_uring() -> None:
    """Give this process, and all that it turns into or starts, the filter.

    Without CAP_SYS_ADMIN the kernel asks for no_new_privs first: programs like sudo then get no
    more rights inside the job.

    Raises:
        OSError: the kernel has no seccomp filters.
    """
    steps = (
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 0, 3, _AUDIT_ARCH_X86_64),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_EQUAL, 0, 1, _IO_URING_SETUP),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_char_p(program), 0, 0) == 0:
        return
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_char_p(program), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"no seccomp filter could be set: {os.strerror(number)}")


def main(argv: list[str]) -> int:
    """Become the program; returns only if that was not possible."""
    options, command = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    if "--without-io-uring" in options:
        refuse_io_uring()
    if "--as" in options:
        return start_as(json.loads(options[options.index("--as") + 1]), command)
    return _become(command[0], command, sys.stderr.fileno(), "gpuckpt run: ")


def start_as(about: dict[str, Any], command: list[str]) -> int:
    """Become a job that was, as soon as a byte comes from `go`; if its writer ends, end.

    What goes wrong is written to `report`, which closes when the program runs.
    """
    go, report = about["go"], about["report"]
    for fd in (go, report):
        os.set_inheritable(fd, False)
    try:
        _take_on(about)
    except OSError as why:
        return _tell(report, f"{why.filename or 'its user'}: {why.strerror}")
    if not os.read(go, 1):
        return NOT_EXECUTABLE
    return _become(about["program"] or command[0], command, report)


def _take_on(about: dict[str, Any]) -> None:
    """Become the user first: he, and not root, must be allowed all that follows."""
    if about["groups"] is not None:
        os.setgroups(about["groups"])
        os.setresgid(*3 * (about["gid"],))
        os.setresuid(*3 * (about["uid"],))
    if about["umask"] is not None:
        os.umask(about["umask"])
    if about["cwd"] is not None:
        os.chdir(about["cwd"])
    for number, path in ((1, about["stdout"]), (2, about["stderr"])):
        if path:
            _append(number, path)


def _append(number: int, path: str) -> None:
    """Have a regular file as a descriptor; nothing else is opened, or waited for."""
    fd = os.open(path, _OUTPUT, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file any more", path)
    os.set_blocking(fd, True)
    os.dup2(fd, number)
    os.close(fd)


def _become(program: str, command: list[str], report: int, who: str = "") -> int:
    try:
        os.execvp(program, command)  # noqa: S606 - what the user asked for
    except OSError as why:
        status = NOT_FOUND if isinstance(why, FileNotFoundError) else NOT_EXECUTABLE
        return _tell(report, f"{who}{program}: {why.strerror}\n", status)


def _tell(report: int, text: str, status: int = NOT_EXECUTABLE) -> int:
    os.write(report, os.fsencode(text))
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
