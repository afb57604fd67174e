"""Descriptors of other processes, as copies of ours; here the other process is this one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gpuckpt.tools.borrowed import borrowed, copied

NOBODY = 1 << 22  # the kernel gives no pid as high


def opened() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_is_no_socket_any_more_is_passed_over() -> None:
    """A busy job closes a socket, and what it opens next gets its number."""
    with socket.socket() as one, Path(os.devnull).open() as other:
        before = opened()
        asked = (one.fileno(), other.fileno(), 9999)
        found = [(fd, copy.family, copy.fileno()) for fd, copy in borrowed(os.getpid(), asked)]
        assert opened() == before
        assert [(fd, family) for fd, family, _ in found] == [(one.fileno(), socket.AF_INET)]
        assert found[0][2] != one.fileno()


def test_a_process_that_is_gone_has_none() -> None:
    assert list(borrowed(NOBODY, (0,))) == []
    with pytest.raises(ProcessLookupError), copied(NOBODY, 0):
        pytest.fail("nothing to copy")
