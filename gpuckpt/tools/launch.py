"""Becoming somebody's program, without io_uring.

    python -I launch.py [--without-io-uring] -- PROGRAM [ARGUMENT...]

Runs as a script of its own, before the job and in its place, so it knows nothing but Python. A
seccomp filter answers io_uring_setup with ENOSYS, as a kernel without io_uring would: libraries
then fall back (libuv, which torchrun's store is built on, opens a ring otherwise, whatever its
environment says), and CRIU 4.2.1, which cannot dump a ring, can dump the job with its filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

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
    if argv[:1] == ["--without-io-uring"]:
        refuse_io_uring()
    command = argv[argv.index("--") + 1 :]
    try:
        os.execvp(command[0], command)  # noqa: S606 - what the user asked for
    except OSError as why:
        sys.stderr.write(f"gpuckpt run: {command[0]}: {why.strerror}\n")
        return NOT_FOUND if isinstance(why, FileNotFoundError) else NOT_EXECUTABLE


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
