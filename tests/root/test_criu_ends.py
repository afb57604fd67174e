"""CRIU that ends badly, past all our gates: its words, its deadline, its log, its own death.

Here CRIU is driven by tools/criu alone, so that a dump or restore goes on where a plan or a gate
would have stopped it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.errors import DumpFailed, GpuckptError, RestoreFailed
from gpuckpt.tools.criu import find
from gpuckpt.tools.criunames import recorded, seen
from gpuckpt.tools.criurun import CriuOptions, DumpRun, RestoreRun
from gpuckpt.tools.proc import Proc
from gpuckpt.tools.run import Runner
from tests.root.harness import PATIENCE, exists, state_of, wait_for
from tests.targets import target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.root.harness import Field

pytestmark = pytest.mark.root


@dataclass
class Driven:
    """One job's dump and restore by CRIU alone, its images raw in a folder."""

    folder: Path
    images: Path = field(init=False)
    run: int = 0

    def __post_init__(self) -> None:  # noqa: D105
        self.images = self.folder / "images"
        self.images.mkdir()

    def work(self) -> Path:
        self.run += 1
        made = self.folder / f"work{self.run}"
        made.mkdir(mode=0o700)
        return made

    def store(self, name: str, fd: int) -> None:
        with (self.images / name).open("wb") as file:
            while data := os.read(fd, 1 << 20):
                file.write(data)

    def send(self, name: str, fd: int) -> None:
        with suppress(BrokenPipeError), os.fdopen(os.dup(fd), "wb") as pipe:
            pipe.write((self.images / name).read_bytes())

    def dump(self, pid: int, *, running: bool, options: CriuOptions, **changes: object) -> Path:
        """Dump the tree; return CRIU's work folder."""
        look = Proc().look(Proc().tree(pid))
        run = DumpRun(
            pid=pid,
            work=self.work(),
            store=self.store,
            abort=lambda: None,
            commit=lambda: None,
            options=options,
            leave_running=running,
            stop_fd=os.eventfd(0),
            deadline=PATIENCE,
            names=lambda: seen(look),
        )
        find(Runner()).dump(replace(run, **changes))  # type: ignore[arg-type]
        return run.work

    def restore(self, options: CriuOptions | None = None, **changes: object) -> None:
        """Restore what was dumped."""
        files = (self.images / "files.img").read_bytes()
        run = RestoreRun(
            work=self.work(),
            has=lambda name: (self.images / name).exists(),
            send=self.send,
            approve=lambda: None,
            options=options or CriuOptions(),
            stop_fd=os.eventfd(0),
            deadline=PATIENCE,
            names=lambda: recorded({}, files),
        )
        find(Runner()).restore(replace(run, **changes))  # type: ignore[arg-type]


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[Driven]:
    """Give a place for one job; what CRIU leaves of it becomes our child."""
    Proc().adopt_orphans(on=True)
    yield Driven(tmp_path)
    Proc().adopt_orphans(on=False)


def failure(kind: type[GpuckptError], act: Callable[[], object]) -> GpuckptError:
    """Return the error that something must end in; its log and lines are there."""
    with pytest.raises(kind) as caught:
        act()
    assert caught.value.log is not None
    assert caught.value.excerpt
    return caught.value


DEVICE = "import os; f = os.open('/dev/fuse', os.O_RDWR)"
RING = "import ctypes; ctypes.CDLL(None).syscall(425, 4, ctypes.create_string_buffer(120))"
TCP = """
import socket; s = socket.create_server(('127.0.0.1', 0))
c = socket.create_connection(s.getsockname()); d, _ = s.accept()
"""
LOCK = "import fcntl; f = open('x', 'w'); fcntl.flock(f, fcntl.LOCK_EX)"
GHOST = "import os; f = open('x', 'w'); f.write('x' * 9999); f.flush(); os.unlink('x')"
REFUSALS = {
    "device": (DEVICE, ["process {pid} (python", "descriptor 3 (/dev/fuse)"]),
    "ring": (RING, ["process {pid} (python", "descriptor 3 (anon_inode:[io_uring])"]),
    "tcp": (TCP, ["process {pid} (python", "127.0.0.1:", " connected to 127.0.0.1:"]),
    "lock": (LOCK, ["file locks", "{folder}/x (process {pid}, descriptor 3)"]),
    "ghost": (GHOST, ["{folder}/x", "12288 bytes"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_dump_names_process_and_object(driven: Driven, case: str) -> None:
    code, said = REFUSALS[case]
    options = CriuOptions(ghost_limit=4096)
    with target(driven.folder, code) as pid:
        why = failure(DumpFailed, lambda: driven.dump(pid, running=True, options=options))
        for words in said:
            assert words.format(pid=pid, folder=driven.folder) in why.message
        assert state_of(pid) in {"R", "S"}


FILES = """
import os, socket
data = open('data', 'w+'); data.write('x'); data.flush()
s = socket.create_server(('127.0.0.1', {port}))
"""


def test_refused_restores_name_what_is_in_the_way(driven: Driven) -> None:
    """One image, and one thing after the other that is not as it was."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with target(driven.folder, FILES.format(port=port)) as pid:
        driven.dump(pid, running=False, options=CriuOptions())
    wait_for("the pid is free", lambda: not exists(pid))
    data, core = driven.folder / "data", driven.images / f"core-{pid}.img"
    pages = driven.images / "pages-1.img"

    def refused() -> str:
        with ended(pid):
            return failure(RestoreFailed, driven.restore).message

    data.write_text("longer")
    assert f"{data} has 6 bytes; it had 1" in refused()
    data.unlink()
    assert f"{data}, which process {pid}" in refused()
    data.write_text("x")
    with socket.create_server(("127.0.0.1", port)):
        assert f"tcp 127.0.0.1 port {port}" in refused()
    with as_it_was(core):
        core.write_bytes(core.read_bytes()[:-10])
        assert "cut short" in refused()
        core.write_bytes(b"")
        assert "missing or empty" in refused()
    with as_it_was(pages):
        os.truncate(pages, pages.stat().st_size - 4096)
        assert f"the memory pages of process {pid}" in refused()
    with ended(pid):
        driven.restore()


def test_a_restore_that_hangs_ends_by_its_deadline_or_its_log(driven: Driven) -> None:
    """Whatever keeps it: here it waits for memory pages that never come."""
    with target(driven.folder, "") as pid:
        driven.dump(pid, running=False, options=CriuOptions())
    wait_for("the pid is free", lambda: not exists(pid))

    def hang(**limits: object) -> GpuckptError:
        over = threading.Event()

        def send(name: str, fd: int) -> None:
            if name.startswith("pages-"):
                assert over.wait(PATIENCE), "nobody ended the wait"
            else:
                driven.send(name, fd)

        with ended(pid):
            return failure(
                RestoreFailed, lambda: driven.restore(send=send, abort=over.set, **limits)
            )

    why = hang(deadline=1.0)
    assert "its deadline of 1 s" in why.message
    assert "it was moving the job's memory" in why.message
    assert "flooded its log" in hang(largest_log=4096).message


RACES = 4  # busy processors may keep it from winning one
AGENT = """
import ctypes
ptrace = ctypes.CDLL(None).ptrace
ptrace.argtypes = [ctypes.c_long] * 4
print('ready', flush=True)
while ptrace(0x4206, {pid}, 0, 0): pass  # PTRACE_SEIZE
"""


def test_a_tracer_that_is_faster_than_criu(driven: Driven) -> None:
    """Security agents attach to every new process: that is told, and who it was about.

    CRIU itself holds the root from the start, but the others late.
    """
    with target(driven.folder, "import os\nos.fork()") as pid:
        wait_for("there are two", lambda: len(Proc().tree(pid).pids) == 2)
        child = Proc().tree(pid).pids[1]
        driven.dump(pid, running=False, options=CriuOptions())
    with ended(pid), ended(child):
        pass
    races = (_beaten(driven, pid, child) for _ in range(RACES))
    why = next(filter(None, races), None)
    assert why is not None, "the agent was never faster"
    assert why.log is not None
    assert f"process {child} could not be taken over: another program traces" in why.message


def _beaten(driven: Driven, pid: int, child: int) -> GpuckptError | None:
    """Restore while the agent lies in wait; None if it got no processor in time."""
    with ended(child), ended(pid), target(driven.folder, AGENT.format(pid=child)):
        try:
            driven.restore()
        except RestoreFailed as why:
            return why
    return None


def test_a_criu_that_is_killed_says_by_what(driven: Driven) -> None:
    """And the job, which it had frozen, goes on."""
    with target(driven.folder, "b = bytearray(b'ab' * (50 << 20))") as pid:

        def kill(name: str, fd: int) -> None:
            if name.startswith("pages"):
                os.kill(criu_of(pid), signal.SIGKILL)
            driven.store(name, fd)

        options = CriuOptions()
        dump = lambda: driven.dump(pid, running=True, options=options, store=kill)  # noqa: E731
        assert (
            "CRIU was ended by SIGKILL, which gpuckpt did not send"
            in failure(DumpFailed, dump).message
        )
        wait_for("the job is let go", lambda: state_of(pid) in {"R", "S"})


def test_what_a_killed_restore_had_made_is_ended(place: Field) -> None:
    """The half-made tasks outlive their CRIU, and the image is restored after that."""
    job = place.job("worker.py", 32)
    before = place.ask()
    image = place.dump(job)
    command = place.command("restore", image, "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as restoring:
        wait_for("a task is made", lambda: exists(job.pid))
        os.kill(criu_of(job.pid), signal.SIGKILL)
        told = json.loads(restoring.communicate(timeout=PATIENCE)[0])["error"]
    assert (restoring.returncode, told["name"]) == (9, "restore_failed")
    assert "CRIU was ended by SIGKILL" in told["message"]
    assert Path(told["log"]).exists()
    assert not exists(job.pid)
    place.restore(image)
    assert place.ask()["sha256"] == before["sha256"]


def criu_of(pid: int) -> int:
    """Return the pid of the CRIU that dumps or restores a process."""
    marks = f"-t\0{pid}\0".encode(), f"-{pid}-".encode()
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            # a half-made task still bears the command line of its CRIU
            ours = b"--no-default-config" in line and folder.name != str(pid)
            if ours and any(mark in line for mark in marks):
                return int(folder.name)
    raise AssertionError(f"no CRIU works on {pid}")


@contextmanager
def as_it_was(path: Path) -> Iterator[None]:
    """Give a file its content back."""
    whole = path.read_bytes()
    yield
    path.write_bytes(whole)


@contextmanager
def ended(pid: int) -> Iterator[None]:
    """End what CRIU has made or left of a process, and wait for it as its parent."""
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_for(f"pid {pid} is gone", lambda: Proc().reap([pid]) or not exists(pid), 20)
