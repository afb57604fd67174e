"""The plugin that is written byte by byte, loaded and called as CRIU does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuckpt.tools import forks
from gpuckpt.tools.criuplugin import library

# in a process of its own: a wrong byte would take the tests along
CALLER = """
import ctypes, os, struct, sys
from ctypes import byref, c_char_p, c_int, c_uint64, c_void_p
loaded = ctypes.CDLL(sys.argv[1])
at = ctypes.addressof(ctypes.c_char.in_dll(loaded, "CR_PLUGIN_DESC"))
name, init, exit, version, count, *hooks = struct.unpack("<QQQII9Q", ctypes.string_at(at, 104))
assert (ctypes.string_at(name), init, exit, version, count) == (b"gpuckpt", 0, 0, 0x200, 9)
assert [n for n, hook in enumerate(hooks) if hook] == [2, 3, 7, 8]
dump = ctypes.CFUNCTYPE(c_int, c_int, c_int)(hooks[2])
null, zero = os.open("/dev/null", os.O_RDWR), os.open("/dev/zero", os.O_RDWR)
pipe, _ = os.pipe()
assert [dump(one, 1) for one in (null, zero, pipe, 999)] == [0, -95, -95, -9]
mapped = ctypes.CFUNCTYPE(c_int, c_int, c_void_p)(hooks[7])
for fd, answer in ((null, 0), (zero, -95)):
    stat = ctypes.create_string_buffer(144)
    struct.pack_into("<Q", stat, 40, os.fstat(fd).st_rdev)
    assert mapped(-1, ctypes.addressof(stat)) == answer
again = ctypes.CFUNCTYPE(c_int, c_int, c_void_p)(hooks[3])(1, None)
assert os.path.samestat(os.fstat(again), os.fstat(zero)) and not os.get_inheritable(again)
anew = ctypes.CFUNCTYPE(c_int, c_char_p, c_uint64, c_uint64, c_void_p, c_void_p)(hooks[8])
offset, fd = c_uint64(7), c_int(-1)
assert anew(b"dev/nvidia0", 1, 7, byref(offset), byref(fd)) == 1
assert offset.value == 0 and os.path.samestat(os.fstat(fd.value), os.fstat(zero))
"""

# in processes of their own: what other tests left to be collected may go at any time
FORKS = """
import os
shared, alone = os.open("/dev/null", os.O_RDWR), os.open("/dev/zero", os.O_RDWR)
told, tell = os.pipe()
child = os.fork()
if not child:
    os.close(told)
    again = os.open("/dev/zero", os.O_RDWR)
    os.dup2(again, alone)  # the same number, and not the same file
    os.close(again)
    os.write(tell, b".")
elif os.read(told, 1):
    print(child, shared, alone, flush=True)
os.read(0, 1)
"""


@pytest.mark.programs
def test_every_hook_does_as_criu_expects(tmp_path: Path) -> None:
    null = Path("/dev/null").stat().st_rdev
    path = tmp_path / "gpuckpt.so"
    path.write_bytes(library([1 << 40, null]))
    done = subprocess.run(
        [sys.executable, "-c", CALLER, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # for a restore it needs no numbers
    assert library(()) == library([])
    assert len(library(())) < len(library(range(1, 1000)))


@pytest.mark.programs
def test_what_a_fork_leaves_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "NODES", re.compile("/dev/(null|zero)"))
    with subprocess.Popen(
        [sys.executable, "-S", "-c", FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        try:
            child, shared, alone = map(int, parent.stdout.readline().split())
            found = forks.inherited(Path("/proc"), (parent.pid, child, 1 << 30))
        finally:
            parent.stdin.close()  # both end
    mine = {use.fd: use for use in found if use.pid == child}
    assert mine[shared].number == Path("/dev/null").stat().st_rdev
    assert alone not in mine
    assert {use.fd for use in found if use.pid == parent.pid} == set(mine)
