"""Trees as people run them: forked children of a GPU job, pools, servers, launchers."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.root.harness import Field, exists, lines_of, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.root.fake_gpu import Stage

pytestmark = pytest.mark.root

SHM = Path("/dev/shm")
# character devices that CRIU has no code for
UNKNOWN = ("/dev/fuse", "/dev/loop-control", "/dev/hwrng", "/dev/cpu_dma_latency", "/dev/kvm")


def number_of(*devices: str) -> int:
    """Return the number of the first device that can be opened."""
    for device in devices:
        try:
            fd = os.open(device, os.O_RDWR)
        except OSError:
            continue
        try:
            return os.fstat(fd).st_rdev
        finally:
            os.close(fd)
    pytest.skip(f"none of {', '.join(devices)} can be opened here")


@pytest.fixture
def nodes(stage: Stage) -> Iterator[Path]:
    """Give real devices under names of a GPU: one to hold, one to map."""
    stage.device.unlink()
    mapped = Path(f"{stage.device}-map")
    os.mknod(stage.device, stat.S_IFCHR | 0o666, number_of(*UNKNOWN))
    os.mknod(mapped, stat.S_IFBLK | 0o666, os.makedev(7, 0))  # where there is a loop device
    yield mapped
    mapped.unlink(missing_ok=True)


def start(stage: Stage, *how: str) -> subprocess.Popen[bytes]:
    job = stage.place.job("forker.py", stage.device, *how)
    move(stage.place.folder)
    stage.driver.put(job.pid, device=str(stage.device))
    return job


def move(folder: Path) -> None:
    """See that parent and children go on."""
    before = {name: len(lines_of(folder / name)) for name in ("parent", "first", "second")}
    for name, seen in before.items():
        wait_for(
            f"{name} goes on", lambda name=name, seen=seen: len(lines_of(folder / name)) > seen
        )
        lines = lines_of(folder / name)
        assert lines == [str(number) for number in range(len(lines))]


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def held(pid: int) -> set[str]:
    """Return the devices that a process has open or mapped."""
    opened = {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()}
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    mapped = {line.split(maxsplit=5)[5] for line in maps if "/dev/" in line}
    return {name for name in opened | mapped if name.startswith("/dev/") and name != "/dev/null"}


def test_children_that_a_process_with_cuda_has_forked(stage: Stage, nodes: Path) -> None:
    job = start(stage)
    image, again = stage.place.folder / "image", stage.place.folder / "again"
    both = children(job.pid)
    mapped = any(str(nodes) in held(pid) for pid in both)
    found = stage.gpuckpt("plan", job.pid).result["findings"]
    told = [one for one in found if one["id"] == "gpu-inherited"]
    assert [(one["severity"], one["pid"]) for one in told] == [("warning", min(both))]
    # nothing of it is touched: they go on as they were
    assert stage.gpuckpt("dump", job.pid, "-o", again, "--leave-running").code == 0
    move(stage.place.folder)
    assert all(str(stage.device) in held(pid) for pid in both)
    assert stage.gpuckpt("dump", job.pid, "-o", image).code == 0
    job.wait()
    wait_for("the pids are free", lambda: not any(map(exists, (job.pid, *both))))
    nodes.unlink()  # nobody needs it any more
    result = stage.gpuckpt("restore", image, "--settle", "0.2").result
    stage.place.restored += result["pids"]
    move(stage.place.folder)
    for pid in both:
        assert held(pid) == {"/dev/zero", *(["/dev/zero (deleted)"] if mapped else [])}


def test_a_gpu_that_a_child_has_opened_for_itself(stage: Stage, nodes: Path) -> None:
    """It draws with it, say: with /dev/zero in its place it would fail later."""
    del nodes
    job = start(stage, "own")
    answer = stage.gpuckpt("plan", job.pid)
    assert answer.code == 4
    found = [one for one in answer.json["error"]["findings"] if one["severity"] == "blocker"]
    assert [(one["id"], one["pid"]) for one in found] == [
        ("gpu-without-cuda", pid) for pid in children(job.pid)
    ]


@pytest.fixture
def crowd(place: Field) -> Iterator[Field]:
    """Give a place whose job leaves no semaphores behind."""
    yield place
    for left in SHM.glob(f"sem.gpuckpt-{place.folder.parent.name}-*"):
        left.unlink()


@pytest.fixture
def short() -> Iterator[Path]:
    """Give a folder for sockets, whose paths have 107 bytes at most: a worker's has too many."""
    with tempfile.TemporaryDirectory(prefix="gpuckpt-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def test_a_tree_of_all_that_people_start(crowd: Field, short: Path) -> None:
    """Pools, a manager, full queues, servers that fork, children of all kinds: see the job."""
    job = crowd.job("crowd.py", short)
    log = crowd.folder / "log"
    wait_for("all is in use", lambda: len(lines_of(log)) > 2)
    image = crowd.dump(job)
    for left in SHM.glob(f"sem.gpuckpt-{crowd.folder.parent.name}-*"):
        left.unlink()  # as a boot does
    sockets = list(short.glob("pymp-*/listener-*"))
    assert len(sockets) > 1  # the manager's, the fork server's
    for folder in short.glob("pymp-*"):
        shutil.rmtree(folder)
    assert crowd.restore(image) == job.pid
    (crowd.folder / "go").touch()
    wait_for("what was full is emptied", lambda: "emptied" in log.read_text())
    assert all(one.is_socket() for one in sockets)
    assert all(one.parent.stat().st_mode & 0o777 == 0o700 for one in sockets)
    lines = lines_of(log)
    assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
    assert "failed" not in (crowd.folder / "output").read_text()
