"""Real jobs are dumped, gone, restored, and go on with what they had."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.root.harness import exists, lines_of, wait_for

if TYPE_CHECKING:
    from tests.root.harness import Field

pytestmark = pytest.mark.root


def consecutive(lines: list[str], prefix: str) -> bool:
    return lines == [f"{prefix}{number}" for number in range(len(lines))]


def check_with_zstd(image: Path) -> None:
    """Plain zstd gives back as many bytes of every stored file as CRIU wrote."""
    program = shutil.which("zstd")
    if program is None:
        return
    files = msgspec.json.decode((image / "manifest.json").read_bytes())["files"]
    assert len(files) == len(list((image / "criu").iterdir())) > 10
    for entry in files:
        stored = image / "criu" / f"{entry['name']}.zst"
        with subprocess.Popen([program, "-dcq", str(stored)], stdout=subprocess.PIPE) as unpacking:
            assert unpacking.stdout is not None
            size = sum(map(len, iter(partial(unpacking.stdout.read, 1 << 20), b"")))
        assert (unpacking.returncode, size) == (0, entry["raw_size"]), entry["name"]


def test_a_job_with_everything(place: Field) -> None:
    """Threads, 512 MiB, a log, a pipe, a pair of sockets and a listener: all of it goes on."""
    job = place.job("worker.py", 512)
    before = place.ask()
    image = place.dump(job)
    check_with_zstd(image)
    logged = lines_of(place.folder / "log")
    assert place.restore(image) == job.pid
    after = place.ask()
    assert after["sha256"] == before["sha256"]
    assert after["pid"] == job.pid
    assert after["threads"] == before["threads"]
    assert all(now >= then for now, then in zip(after["counts"], before["counts"], strict=True))
    later = wait_for("threads go on", lambda: _moved(place, after))
    assert later["sha256"] == before["sha256"]
    wait_for("the log grows", lambda: len(lines_of(place.folder / "log")) > len(logged) + 3)
    assert consecutive(lines_of(place.folder / "log"), "line ")
    assert 0 < place.peak < 400 << 20, "gpuckpt needs a bounded memory, whatever the image's size"


def _moved(place: Field, then: dict[str, object]) -> dict[str, object] | None:
    now = place.ask()
    moved = now["counts"] > then["counts"] and all(
        now["passed"][way] > then["passed"][way] for way in ("pipe", "pair")
    )
    return now if moved else None


def test_a_family_of_three(place: Field) -> None:
    """A parent and two children with pipes between them: none loses or repeats a number."""
    job = place.job("family.py")
    log = place.folder / "log"
    wait_for("the family works", lambda: len(lines_of(log)) > 5)
    image = place.dump(job)
    count = len(lines_of(log))
    place.restore(image)
    assert len(place.restored) == 3
    wait_for("the family goes on", lambda: len(lines_of(log)) > count + 5)
    assert lines_of(log) == [f"{n} {n}" for n in range(len(lines_of(log)))]


def test_names_of_any_bytes(place: Field) -> None:
    """Folder, script, argument and open file have names that are no UTF-8."""
    folder = place.folder / os.fsdecode(b"n\xff\xfe \n")
    folder.mkdir()
    script, log = folder / os.fsdecode(b"j\xe9.sh"), folder / os.fsdecode(b"log\xff")
    script.write_text('cd "${0%/*}" && exec 3>"$1"; while :; do echo x >&3; sleep 0.1; done\n')
    job = place.start(["/bin/sh", str(script), str(log)])
    wait_for("it writes", lambda: len(lines_of(log)) > 2)
    image = place.dump(job)
    count = len(lines_of(log))
    place.restore(image)
    wait_for("it goes on", lambda: len(lines_of(log)) > count + 2)


def test_a_job_on_a_terminal(place: Field) -> None:
    """It gets the terminal of the restore; without one the restore is refused at once."""
    log, script = place.folder / "log", place.folder / "job.sh"
    script.write_text('echo $$ >pid; while :; do echo "on $(tty)" >>log; sleep 0.1; done')
    place.start(["script", "-qec", "sh job.sh; true", "/dev/null"])
    wait_for("it writes", lambda: len(lines_of(log)) > 2)
    pid, image = int((place.folder / "pid").read_text()), place.folder / "image"
    place.restored.append(pid)
    assert place.gpuckpt("dump", pid, "-o", image).result["image"] == str(image)
    wait_for("the pid is free", lambda: not exists(pid))
    answer = place.gpuckpt("restore", image)
    assert (answer.code, [one["id"] for one in answer.json["error"]["findings"]]) == (
        8,
        ["no-terminal"],
    )
    count = len(lines_of(log))
    line = shlex.join(place.command("restore", image, "--wait", "-q"))
    place.start(["script", "-qec", line, "/dev/null"])
    wait_for("it goes on", lambda: len(lines_of(log)) > count + 2)
    assert lines_of(log)[-1].startswith("on /dev/pts/")


def test_threads_keep_their_cpus(place: Field) -> None:
    """Bound threads stay bound, the others are not confined to the CPUs of the restore."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("there is but one CPU")
    job = place.job("worker.py", 1)
    place.ask()
    os.sched_setaffinity(job.pid, {1})
    bound = {int(path.name) for path in Path(f"/proc/{job.pid}/task").iterdir()}
    bound = {thread: os.sched_getaffinity(thread) for thread in bound}
    assert len({frozenset(cpus) for cpus in bound.values()}) > 1
    image = place.dump(job)
    command = place.command("restore", image, "--settle", "0")
    place.restored.append(job.pid)
    assert place.start(["taskset", "-c", "0", *command]).wait(60) == 0
    assert {thread: os.sched_getaffinity(thread) for thread in bound} == bound


def test_children_nobody_has_waited_for(place: Field) -> None:
    """Zombies come back as zombies, for the parent that may still ask how they ended."""
    log = place.folder / "log"
    code = (
        "import os, time\nfor n in range(40): os.fork() or os._exit(n)\n"
        "while True:\n print(len(os.listdir('/proc/self/task')), file=open('log', 'a'))\n"
        " time.sleep(0.1)\n"
    )
    job = place.start([sys.executable, "-c", code])
    wait_for("it writes", lambda: len(lines_of(log)) > 2)
    image = place.dump(job)
    count = len(lines_of(log))
    place.restore(image)
    assert len(place.restored) == 41
    wait_for("it goes on", lambda: len(lines_of(log)) > count + 2)


def test_during_heavy_allocation(place: Field) -> None:
    """A dump in the middle of allocating and freeing catches a consistent memory."""
    job = place.job("churner.py")
    log = place.folder / "log"
    wait_for("it churns", lambda: len(lines_of(log)) > 50)
    image = place.dump(job)
    count = len(lines_of(log))
    place.restore(image)
    wait_for("it goes on churning", lambda: len(lines_of(log)) > count + 50)
    assert consecutive(lines_of(log), "ok ")


def test_leave_running_and_several_restores(place: Field) -> None:
    """The job goes on beside its image; later the image is restored twice, one after the other."""
    job = place.job("worker.py", 8)
    before = place.ask()
    image = place.folder / "image"
    result = place.gpuckpt("dump", job.pid, "-o", image, "--leave-running").result
    assert result["running"] is True
    assert place.ask()["counts"] >= before["counts"]
    for _ in range(2):
        job.kill()
        job.wait()
        pid = place.restore(image)
        assert place.ask()["sha256"] == before["sha256"]
        _end(pid)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for("it is gone", lambda: not exists(pid))


@pytest.mark.parametrize(("line", "status"), [("exit 0", 0), ("exit 7", 7)])
def test_wait_ends_with_the_jobs_own_status(place: Field, line: str, status: int) -> None:
    """`restore --wait` stays as the parent and passes the exit status on."""
    job = place.job("worker.py", 1)
    place.ask()
    image = place.dump(job)
    place.restored.append(job.pid)
    command = place.command("restore", image, "--wait", "--settle", "0", "-q")
    waiting = place.start(command)
    wait_for("the restore is over", lambda: _printed(place) == [str(job.pid)])
    assert waiting.poll() is None
    place.ask(line)
    assert waiting.wait(60) == status
    assert _printed(place) == [str(job.pid)]


def _printed(place: Field) -> list[str]:
    return (place.folder / "output").read_text().split()


def test_wait_passes_signals_on(place: Field) -> None:
    """A signal to `restore --wait` reaches the job, and its death is told as a shell would."""
    job = place.job("worker.py", 1)
    place.ask()
    image = place.dump(job)
    place.restored.append(job.pid)
    waiting = place.start(place.command("restore", image, "--wait", "--settle", "0", "-q"))
    wait_for("the restore is over", lambda: _printed(place) == [str(job.pid)])
    waiting.terminate()
    assert waiting.wait(60) == 128 + 15


def test_redis(place: Field) -> None:
    """Debian's redis-server keeps its data, and a client that reconnects finds it."""
    port = _free_port()
    options = ["--port", str(port), "--save", "", "--appendonly", "no"]
    server = place.start(["redis-server", "--bind", "127.0.0.1", *options])
    wait_for("redis answers", lambda: _redis(port, "PING") == "+PONG")
    for number in range(1000):
        assert _redis(port, f"SET key{number} value{number}") == "+OK"
    image = place.dump(server, "--tcp", "close")
    place.restore(image)
    assert _redis(port, "DBSIZE") == ":1000"
    assert _redis(port, "GET key777").endswith("value777")
    assert _redis(port, "SET more data") == "+OK"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as trial:
        return int(trial.getsockname()[1])


def _redis(port: int, command: str) -> str:
    """Send one command; the client closes first, so TIME_WAIT stays on its side."""
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            client.sendall(f"{command}\r\n".encode())
            return client.recv(4096).decode().strip()
    except ConnectionRefusedError:
        return ""


def test_the_image_can_have_a_very_long_path(place: Field) -> None:
    """CRIU's limit of 85 characters for its folder is not ours."""
    job = place.job("worker.py", 1)
    place.ask()
    deep: Path = place.folder / ("long-" * 40) / ("path-" * 40)
    deep.mkdir(parents=True)
    image = deep / "image"
    place.gpuckpt("dump", job.pid, "-o", image).result  # noqa: B018 - asserts success
    job.wait()
    wait_for("the pid is free", lambda: not exists(job.pid))
    assert place.restore(image) == job.pid
