"""Programs start with a short environment in their own session, and every end is told apart."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from gpuckpt.errors import Stopped, ToolFailed, ToolMissing, ToolTimeout
from gpuckpt.tools.run import PIPE, Command, Runner

PATIENCE = 20.0  # seconds; a loaded machine starts an interpreter slowly


def python(code: str, **more: object) -> Command:
    return Command((sys.executable, "-S", "-c", code), **more)  # type: ignore[arg-type]


def test_both_streams_and_the_status_are_kept() -> None:
    done = Runner().run(python("import sys; print('a'); print('b', file=sys.stderr)"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\n", "b\n")
    assert done.seconds > 0


def test_merge_puts_stderr_where_stdout_goes() -> None:
    done = Runner().run(python("import os; os.write(1, b'1'); os.write(2, b'2')", merge=True))
    assert (done.stdout, done.stderr) == ("12", "")


def test_a_failing_program_raises_with_all_it_said() -> None:
    command = python("import sys; print('o'); print('e', file=sys.stderr); sys.exit(3)")
    with pytest.raises(ToolFailed, match="ended with status 3") as caught:
        Runner().run(command)
    assert caught.value.argv == command.argv
    assert caught.value.returncode == 3
    assert (caught.value.stdout, caught.value.stderr) == ("o\n", "e\n")
    assert caught.value.excerpt == ("e",)


def test_unchecked_failure_is_a_result() -> None:
    assert Runner().run(python("raise SystemExit(4)"), check=False).returncode == 4


def test_a_signal_is_named() -> None:
    with pytest.raises(ToolFailed, match="was ended by SIGKILL") as caught:
        Runner().run(python("import os; os.kill(os.getpid(), 9)"))
    assert caught.value.returncode == -signal.SIGKILL


def test_a_missing_program_is_one_plain_sentence() -> None:
    with pytest.raises(ToolMissing, match=r"^no-such-program-xyz was not found$"):
        Runner().run(Command(("no-such-program-xyz",)))
    with pytest.raises(ToolMissing):
        Runner().start(Command(("no-such-program-xyz",)))


def test_a_file_that_may_not_be_executed_says_so(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(ToolMissing, match="may not be executed"):
        Runner().run(Command((str(tmp_path / "x"),)))


def test_a_missing_working_folder_is_not_blamed_on_the_program(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match="working folder"):
        Runner().run(Command(("true",), cwd=tmp_path / "gone"))


def test_the_environment_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/evil")
    monkeypatch.setenv("TZ", "UTC")
    done = Runner().run(python("import os; print(sorted(os.environ))", env={"MINE": "1"}))
    assert done.stdout.strip() in {
        "['HOME', 'LANG', 'MINE', 'PATH', 'TZ']",
        "['HOME', 'LANG', 'LC_CTYPE', 'MINE', 'PATH', 'TZ']",
    }


def test_stdin_is_empty_unless_fed() -> None:
    echo = "import sys; print(repr(sys.stdin.read()))"
    assert Runner().run(python(echo)).stdout == "''\n"
    assert Runner().run(python(echo, stdin=b"hello")).stdout == "'hello'\n"


def test_children_live_in_a_session_of_their_own() -> None:
    done = Runner().run(python("import os; print(os.getsid(0), os.getpid())"))
    session, pid = done.stdout.split()
    assert session == pid != str(os.getsid(0))


def test_descriptors_pass_only_when_asked() -> None:
    read, write = os.pipe()
    try:
        look = f"import os; os.write({write}, b'x')"
        assert Runner().run(python(look), check=False).returncode == 1
        Runner().run(python(look, pass_fds=(write,)))
        assert os.read(read, 2) == b"x"
    finally:
        os.close(read)
        os.close(write)


def test_a_timeout_ends_the_program_and_its_children() -> None:
    # the grandchild inherits stdout: were it left alive, reading to the end would take for ever
    code = "import os, time; os.fork(); print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(ToolTimeout, match="no answer within 1 s") as caught:
        Runner().run(python(code, timeout=1))
    assert caught.value.returncode is None
    pids = [int(line) for line in caught.value.stdout.split()]
    assert pids, "the children were killed before they could start within a second"
    deadline = time.monotonic() + PATIENCE
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_stop_ends_the_program_before_its_time() -> None:
    """Nobody waits a minute after Ctrl-C; a stop that never comes changes nothing."""
    stop = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        assert Runner().run(python("print(input())", stdin=b"fed"), stop_fd=stop).stdout == "fed\n"
        os.eventfd_write(stop, 1)
        with pytest.raises(Stopped):
            Runner().run(python("import time; time.sleep(600)", timeout=600), stop_fd=stop)
        with pytest.raises(ToolTimeout):
            Runner().run(python("import time; time.sleep(600)", timeout=0), stop_fd=stop)
    finally:
        os.close(stop)


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def test_a_child_talks_over_pipes_and_its_end_can_be_polled() -> None:
    code = "import sys; print(sys.stdin.readline().upper(), end='', flush=True)"
    with Runner().start(python(code, stdin=PIPE, stdout=PIPE)) as child:
        assert child.poll() is None
        assert child.wait(0.01) is None
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"hello\n")
        assert child.stdout.readline() == b"HELLO\n"
        ready, _, _ = select.select([child.pidfd], [], [], PATIENCE)
        assert ready == [child.pidfd]
        assert child.wait(PATIENCE) == 0
    assert child.pidfd == -1
    child.close()


def test_a_child_can_be_asked_and_forced_to_end() -> None:
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    )
    with Runner().start(python(stubborn, stdout=PIPE)) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.terminate()
        assert child.wait(0.2) is None
        child.kill()
        assert child.wait(PATIENCE) == -signal.SIGKILL
        child.kill()
        child.terminate()


def test_start_feeds_no_bytes() -> None:
    with pytest.raises(TypeError):
        Runner().start(Command(("true",), stdin=b"x"))
