"""R: what a host lacks for an image is found before CRIU is started, and can then be mended.

One job that holds a lot is dumped once; what it needs is broken in every way at once.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.root.harness import Field, exists, lines_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

JOBS = Path(__file__).parent / "jobs"
LIBRARY = Path("/lib/x86_64-linux-gnu/libz.so.1")


class Hoard:
    """The dumped job, the folder it needs, and its image."""

    def __init__(self, place: Field) -> None:
        self.place, self.folder = place, place.folder
        shutil.copy(LIBRARY, self.folder / "lib.so")
        for name in ("data", "gone", "moded", "ghost"):
            (self.folder / name).write_text(name)
        job = place.start([sys.executable, "-S", str(JOBS / "hoard.py"), str(self.folder)])
        wait_for("the job has everything", (self.folder / "port").exists)
        self.port = int((self.folder / "port").read_text())
        self.threads = sorted(int(path.name) for path in Path(f"/proc/{job.pid}/task").iterdir())
        self.pid = job.pid
        # what is missing or changed here shall be told, not made good
        self.image = place.dump(job, "--files", "none")

    def refused(self, *args: object) -> dict[str, list[dict[str, Any]]]:
        """Try a restore that must be refused; return what stands against it, by id."""
        answer = self.place.gpuckpt("restore", self.image, *args)
        assert answer.code == 8, (answer.code, answer.stdout, answer.stderr)
        found: dict[str, list[dict[str, Any]]] = {}
        for one in answer.json["error"]["findings"]:
            if one["severity"] == "blocker":
                found.setdefault(one["id"], []).append(one)
        assert "hoard.py" not in command_of(self.pid), "something was started"
        return found

    def assert_planned(self, refused: dict[str, list[dict[str, Any]]]) -> None:
        """See that a plan tells the same, and that the way the restore is asked for is as good."""
        for asked in (("plan", self.image), ("restore", self.image, "--plan")):
            answer = self.place.gpuckpt(*asked)
            assert (answer.code, answer.error) == (8, "host_mismatch")
            found = answer.json["result"]["findings"]
            blockers = [one for one in found if one["severity"] == "blocker"]
            assert blockers == [one for ones in refused.values() for one in ones]

    def back(self, *args: object) -> None:
        """Restore it, see it go on, and end it."""
        count = len(lines_of(self.folder / "log"))
        assert self.place.restore(self.image, *args) == self.pid
        wait_for("it goes on", lambda: len(lines_of(self.folder / "log")) > count + 2)
        os.kill(self.pid, 9)
        wait_for("the pid is free", lambda: not exists(self.pid))


def command_of(pid: int) -> str:
    """Return what runs under a pid, nothing if it is free."""
    line = Path(f"/proc/{pid}/cmdline")
    return line.read_text() if line.exists() else ""


@pytest.fixture(scope="module")
def hoard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hoard]:
    """Dump the job once for all tests of this module; none of them keeps it running."""
    folder = tmp_path_factory.mktemp("hoard")
    place = Field(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUCKPT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        try:
            yield Hoard(place)
        finally:
            place.close()


@contextmanager
def taken(*numbers: int) -> Iterator[int]:
    """Have processes with these pids; gives the pid of their parent."""
    command = [sys.executable, "-S", str(JOBS / "claim.py"), *map(str, numbers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        yield holder.pid
        assert holder.stdin is not None
        holder.stdin.close()


def other_build(library: Path) -> None:
    """Put a copy in place of a library that differs in its build id alone, as an upgrade would."""
    data = bytearray(library.read_bytes())
    note = data.index(b"GNU\0", data.index(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0"))
    data[note + 4] ^= 1
    fresh = library.with_name("fresh")
    fresh.write_bytes(data)
    fresh.rename(library)


def test_every_file_that_is_not_as_it_was(hoard: Hoard) -> None:
    """R06, R07, R08: all of them at once, each with what it was and what it is."""
    folder = hoard.folder
    other_build(folder / "lib.so")
    (folder / "data").write_text("longer than before")
    (folder / "gone").rename(folder / "gone.kept")
    (folder / "moded").chmod(0o600)
    try:
        found = hoard.refused()
        hoard.assert_planned(found)
    finally:
        shutil.copy(LIBRARY, folder / "lib.so")
        (folder / "data").write_text("data")
        (folder / "gone.kept").rename(folder / "gone")
        (folder / "moded").chmod(0o644)
    expected = {
        "gate-file-build-id": "lib.so",
        "gate-file-size": "data",
        "gate-file-missing": "gone",
        "gate-file-mode": "moded",
    }
    assert {id_: [Path(one["object"]).name for one in ones] for id_, ones in found.items()} == {
        id_: [name] for id_, name in expected.items()
    }
    assert "4 bytes, now it has 18" in found["gate-file-size"][0]["reason"]


def test_a_log_that_grew_or_was_rotated_away(hoard: Hoard) -> None:
    """R08: what is only appended to may have grown, and the job goes on at its end."""
    with (hoard.folder / "log").open("a") as log:
        log.write("somebody else's line\n")
    hoard.back()
    lines = lines_of(hoard.folder / "log")
    assert "somebody else's line" in lines[:-1]
    (hoard.folder / "log").rename(hoard.folder / "log.1")
    try:
        (found,) = hoard.refused()["gate-file-missing"]
        assert found["object"] == str(hoard.folder / "log")
    finally:
        (hoard.folder / "log.1").rename(hoard.folder / "log")


def test_who_has_the_port(hoard: Hoard) -> None:
    """R04: nothing was started for it, and it is named with its port."""
    with socket.create_server(("127.0.0.1", hoard.port)):
        (found,) = hoard.refused()["port-taken"]
    assert str(hoard.port) in found["object"]
    assert found["pid"] == os.getpid()
    with socket.create_server(("0.0.0.0", hoard.port)):  # noqa: S104 - all addresses count too
        assert "port-taken" in hoard.refused()


def test_who_has_the_numbers(hoard: Hoard) -> None:
    """R01: the pid, and the number of a thread, each with who has it."""
    main, second = hoard.threads
    with taken(main, second) as holder:
        found = hoard.refused()["pid-taken"]
    assert {one["pid"] for one in found} == {main, second}, holder
    assert all("claim.py" in one["reason"] for one in found)
    hoard.back()


def test_a_restore_that_failed_can_be_tried_again_at_once(hoard: Hoard) -> None:
    """R02: CRIU fails half-way, and nothing of what it had made holds the numbers."""
    (hoard.folder / "data").write_text("data and more")
    for _ in range(2):
        answer = hoard.place.gpuckpt("restore", hoard.image, "--force-gate", "gate-file-size")
        assert (answer.code, answer.error) == (9, "restore_failed"), answer.json
        assert "data has 13 bytes" in answer.json["error"]["message"]
        assert not exists(hoard.pid)
    (hoard.folder / "data").write_text("data")
    hoard.back()


def test_a_dump_s_choices_are_not_made_again(hoard: Hoard) -> None:
    """R22: the image knows them; a restore has no option that could contradict it."""
    answer = hoard.place.gpuckpt("restore", hoard.image, "--tcp", "close")
    assert (answer.code, answer.error) == (2, "usage")
    assert "--tcp" in answer.json["error"]["message"]


def test_half_a_copy_is_told_by_the_names_of_its_files(hoard: Hoard, tmp_path: Path) -> None:
    """R23: whatever is missing or short, all of it at once, and CRIU never sees any."""
    copy = tmp_path / "copy"
    shutil.copytree(hoard.image, copy)
    images = copy / "criu"
    for name in ("inventory.img.zst", f"core-{hoard.pid}.img.zst"):
        (images / name).unlink()
    for name in ("pages-1.img.zst", f"pagemap-{hoard.pid}.img.zst", "pstree.img.zst"):
        os.truncate(images / name, (images / name).stat().st_size // 2)
    answer = hoard.place.gpuckpt("restore", copy)
    assert (answer.code, answer.error) == (7, "image_damaged")
    told = json.dumps(answer.json["error"])
    missing = [name for name in ("inventory", f"core-{hoard.pid}") if f"{name}.img" not in told]
    short = [name for name in ("pages-1", "pagemap-", "pstree") if name not in told]
    assert not missing
    assert not short
    assert not exists(hoard.pid)
    (copy / "manifest.json").unlink()
    assert hoard.place.gpuckpt("restore", copy).code == 7
