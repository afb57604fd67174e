"""R11, R12, R20, R24 and their kind: what no image carries, told beforehand, and CRIU agrees."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.field.counting import cgroup, inside, run
from tests.root.harness import Field, exists, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.root

ADDRESS = "10.213.7.1"
# a restore that goes on in spite of a finding which the command line lets nobody override
FORCE = """
import sys
from pathlib import Path
from gpuckpt.cli.context import Application
from gpuckpt.cli.settings import Settings
from gpuckpt.errors import GpuckptError
from gpuckpt.events import Silent
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.request import RestoreRequest
from gpuckpt.flow.restore import restore
request = RestoreRequest(Path(sys.argv[1]), settle=0.0, force_gates=frozenset(sys.argv[2:]))
try:
    restore(Application("restore", Settings()).tools, request, Silent(), Interrupts())
except GpuckptError as why:
    print(why.name)
"""


class Keeper:
    """The dumped job, its folder and its image."""

    def __init__(self, place: Field) -> None:
        self.place, self.folder = place, place.folder
        script = Path(__file__).parent / "jobs" / "keeper.py"
        job = place.start([sys.executable, "-S", str(script), str(self.folder), ADDRESS])
        wait_for("the job has everything", (self.folder / "ready").exists)
        self.pid = job.pid
        self.image = place.dump(job)
        manifest = json.loads((self.image / "manifest.json").read_text())
        self.names = {Path(one["path"]).name: one for one in manifest["outside"]["remaps"]}

    def blockers(self, *before: str) -> dict[str, dict[str, Any]]:
        """Ask for a plan, of a gpuckpt that is started by `before`."""
        command = [*before, *self.place.command("plan", self.image, "--json")]
        result = json.loads(run(command).stdout)["result"]
        return {one["id"]: one for one in result["findings"] if one["severity"] == "blocker"}

    def forced(self, *ids: str, before: tuple[str, ...] = ()) -> str:
        """Let CRIU try it all the same; return the error's name, "" if it worked."""
        code = [*before, sys.executable, "-c", FORCE, str(self.image), *ids]
        done = run(code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@contextmanager
def address() -> Iterator[None]:
    """Have an address that no other host has."""
    subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "address", "del", f"{ADDRESS}/32", "dev", "lo"], check=False)


@pytest.fixture
def keeper(place: Field) -> Iterator[Keeper]:
    with address():
        yield Keeper(place)


def without_address(_: Keeper) -> Callable[[], None]:
    subprocess.run(["ip", "address", "del", f"{ADDRESS}/32", "dev", "lo"], check=True)
    add = ["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"]
    return lambda: subprocess.run(add, check=True) and None


def name_in_the_way(keeper: Keeper) -> Callable[[], None]:
    name = Path(keeper.names["ghost"]["name"])
    name.touch()
    return lambda: name.unlink(missing_ok=True)  # 4.2.1 takes it for its own when it gives up


def another_linked_file(keeper: Keeper) -> Callable[[], None]:
    name, away = keeper.folder / "linked" / "other", keeper.folder / "kept"
    name.rename(away)
    name.write_text("of somebody else")
    return lambda: away.rename(name) and None


def no_socket_folder(keeper: Keeper) -> Callable[[], None]:
    folder, away = keeper.folder / "sockets", keeper.folder / "sockets.away"
    folder.rename(away)
    folder.touch()  # if nothing were there, the folder would be made again

    def mend() -> None:
        folder.unlink()
        away.rename(folder)

    return mend


BREAKS = {
    "address-missing": without_address,
    "remap-in-the-way": name_in_the_way,
    "file-taken": another_linked_file,
    "socket-folder": no_socket_folder,
}


def test_what_no_image_carries(keeper: Keeper) -> None:
    """All of it at once in one plan; then one by one, and CRIU fails at each."""
    mends = [broken(keeper) for broken in BREAKS.values()]
    assert keeper.blockers().keys() == BREAKS.keys()
    for mend in mends:
        mend()
    for id_, broken in BREAKS.items():
        mend = broken(keeper)
        assert keeper.forced(id_) == "restore_failed", id_
        mend()
    # neither a right that the job has and gpuckpt has not, nor memory that is not there
    lesser = ("setpriv", "--bounding-set", "-sys_time", "--inh-caps", "-sys_time")
    found = keeper.blockers(*lesser)
    assert found.keys() == {"capabilities"}
    assert "CAP_SYS_TIME" in found["capabilities"]["reason"]
    assert keeper.forced("capabilities", before=lesser) == "restore_failed"
    with cgroup("memory", 110 << 20) as small:
        found = keeper.blockers(*inside(small, []))
        assert found.keys() == {"memory-host"}
    assert keeper.blockers() == {}
    assert keeper.place.restore(keeper.image) == keeper.pid
    # the image has what the deleted name was linked to, so that it can be used again
    subprocess.run(["kill", "-9", str(keeper.pid)], check=True)
    wait_for("the pid is free", lambda: not exists(keeper.pid))
    assert not Path(keeper.names["name"]["name"]).exists()
    assert keeper.blockers() == {}


def test_a_python_that_has_not_imported_everything(place: Field) -> None:
    """S05: it would come back, and fail with its next import."""
    venv = place.folder / "venv"
    packages = venv / "lib" / "python3.11" / "site-packages"
    (packages / "later-1.0.dist-info").mkdir(parents=True)
    (packages / "later.py").write_text("")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(sys.executable)
    job = place.start([str(venv / "bin" / "python"), "-S", "-c", "import time; time.sleep(600)"])
    wait_for("it is a Python", lambda: "time.sleep" in Path(f"/proc/{job.pid}/cmdline").read_text())
    image = place.dump(job)
    (packages / "later-1.0.dist-info").rename(packages / "later-2.0.dist-info")
    changed = place.gpuckpt("plan", image).result["findings"]
    assert [one["id"] for one in changed] == ["python-packages"]
    assert "without later-1.0, with later-2.0" in changed[0]["reason"]
    venv.rename(place.folder / "venv.away")
    answer = place.gpuckpt("plan", image)
    found = [one["id"] for one in answer.json["result"]["findings"]]
    assert (answer.code, found) == (8, ["gate-python-prefix"])
    place.restore(image, "--force-gate", "gate-python-prefix")
