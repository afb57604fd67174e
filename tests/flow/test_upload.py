"""Dumps whose image goes to a store: it ends as on a disk, or as if nothing had been."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt.errors import Blocked, HostUnfit, ImageExists, ImageNotMade, WriteFailed
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.gc import GcRequest, gc
from gpuckpt.flow.outlook import outlook
from gpuckpt.flow.rehearse import rehearse
from gpuckpt.flow.repair import RepairRequest, repair
from gpuckpt.flow.request import DumpRequest, DumpResult, RehearseRequest
from gpuckpt.flow.sight.forecast import forecast
from gpuckpt.flow.sight.look import look
from gpuckpt.flow.status import status
from gpuckpt.flow.work.history import History
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Journal
from gpuckpt.image import sealed
from gpuckpt.image.remotestage import claim_of
from gpuckpt.location import Url
from gpuckpt.model import ProcessRef
from tests.fakes.host import ROOT_PID, FakeHost

if TYPE_CHECKING:
    from pathlib import Path

URL = Url("s3://bucket/train")


def run(host: FakeHost, folder: Path, **changes: Any) -> DumpResult:
    (folder / "state").mkdir(exist_ok=True)
    host.interrupts = Interrupts()
    request = replace(DumpRequest(ROOT_PID, URL), **changes)
    return dump(host.toolbox(folder / "state"), request, Silent(), host.interrupts)


def there(host: FakeHost) -> dict[str, bytes]:
    return host.stores.objects.get(str(URL), {})


@pytest.mark.parametrize("leave", [False, True], ids=["ends", "stays"])
def test_an_image_in_a_store_is_whole(tmp_path: Path, *, leave: bool) -> None:
    host = FakeHost.with_job()
    result = run(host, tmp_path, leave_running=leave)
    assert result.image == URL
    manifest = sealed.decode(there(host)["manifest.json"])
    sizes = {f"criu/{one.name}.zst": one.stored_size for one in manifest.files}
    assert sizes == {
        name: len(data) for name, data in there(host).items() if name != "manifest.json"
    }
    assert (ROOT_PID in host.processes) is leave
    assert not Journal(tmp_path / "state").entries()
    told = {one.id for one in result.findings}
    assert ("destination-network" in told) is not leave


def test_a_url_that_is_taken_is_refused(tmp_path: Path) -> None:
    host = FakeHost.with_job()
    host.stores.objects[str(URL)] = {"anything": b"mine"}
    with pytest.raises(ImageExists):
        run(host, tmp_path)
    assert there(host) == {"anything": b"mine"}
    assert "cuda.lock" not in host.calls


def test_a_store_that_is_away_is_a_finding(tmp_path: Path) -> None:
    host = FakeHost.with_job()
    host.stores.away = "unplugged"
    with pytest.raises(HostUnfit) as caught:
        run(host, tmp_path)
    (found,) = [one for one in caught.value.findings if one.blocks]
    assert (found.id, found.object) == ("not-writable", str(URL))
    assert "unplugged" in found.reason
    assert not isinstance(caught.value, Blocked)


def dies(host: FakeHost, at: str) -> None:
    """Let the store be away from such a call on."""
    real = host.around

    def around(name: str, call: Any) -> Any:
        if name == at:
            host.stores.away = "unplugged"
        return real(name, call)

    host.around = around  # type: ignore[method-assign]


@pytest.mark.parametrize("leave", [False, True], ids=["ends", "stays"])
@pytest.mark.parametrize("at", ["upload.write", "upload.close"])
def test_a_store_that_dies_costs_only_the_image(tmp_path: Path, at: str, *, leave: bool) -> None:
    """What it has is told, and stands in the journal until it answers again."""
    host, before = FakeHost.with_job(), FakeHost.with_job()
    dies(host, at)
    with pytest.raises((WriteFailed, ImageNotMade), match="unplugged") as caught:
        run(host, tmp_path, leave_running=leave)
    assert caught.value.exit_code == 6
    assert "`gpuckpt repair` removes it" in str(caught.value)
    assert (host.processes, host.cuda) == (before.processes, before.cuda)
    (entry,) = Journal(tmp_path / "state").entries()
    assert entry.stage == str(URL)

    host.move_in()  # the next gpuckpt
    host.processes[entry.owner.pid] = replace(
        host.processes[entry.owner.pid], ref=replace(entry.owner, start_time=1)
    )
    tools = host.toolbox(tmp_path / "state")
    (left,) = [one for one in status(tools).unfinished if one.left]
    assert [one.id for one in left.left] == ["left-stage"]
    assert "unplugged" in left.left[0].reason
    assert repair(tools, RepairRequest(), Silent(), Interrupts()).left
    assert run(host, tmp_path, output=tmp_path / "here", leave_running=True).running
    host.stores.away = ""
    result = repair(tools, RepairRequest(), Silent(), Interrupts())
    assert not result.left
    assert there(host) == {}
    assert not Journal(tmp_path / "state").entries()


def abandoned(host: FakeHost, folder: Path) -> None:
    """Leave objects in a store that was away when they should have gone, and is back."""
    dies(host, "upload.close")
    with pytest.raises(WriteFailed):
        run(host, folder)
    host.stores.away = ""
    host.move_in()
    me = next(pid for pid, one in host.processes.items() if pid < ROOT_PID)
    host.processes[me] = replace(host.processes[me], ref=ProcessRef(me, 1))


def test_gc_removes_what_lies_in_a_store_too(tmp_path: Path) -> None:
    host = FakeHost.with_job()
    abandoned(host, tmp_path)
    tools, sure = host.toolbox(tmp_path / "state"), Interrupts()
    for dry_run in (True, False):
        assert there(host)
        (found,) = gc(tools, GcRequest(dry_run=dry_run), sure).removed
        assert (found.kind, found.path) == ("stage", str(URL))
    assert not there(host)
    host.stores.away = "unplugged"
    assert gc(tools, GcRequest(), sure).kept == ((str(URL), "the store is unplugged"),)


def test_what_others_have_put_there_is_not_ours_to_remove(tmp_path: Path) -> None:
    """A claim that is not in the journal, or an image that was finished since."""
    host = FakeHost.with_job()
    abandoned(host, tmp_path)
    (entry,) = Journal(tmp_path / "state").entries()
    host.stores.objects[str(URL)] = {claim_of("other"): b"", "criu/a.zst": b"a"}
    tools = host.toolbox(tmp_path / "state")
    assert not repair(tools, RepairRequest(), Silent(), Interrupts()).left
    assert there(host) == {claim_of("other"): b"", "criu/a.zst": b"a"}
    assert entry.id not in Journal(tmp_path / "state").ids()


def test_a_plan_measures_the_store_and_leaves_nothing(tmp_path: Path) -> None:
    host = FakeHost.with_job()
    (tmp_path / "state").mkdir()
    tools = host.toolbox(tmp_path / "state")
    seen = outlook(tools, DumpRequest(ROOT_PID, URL), Silent())
    assert seen.error is None
    assert seen.forecast.write_speed
    assert seen.forecast.network
    assert seen.forecast.disk_free is None
    assert not there(host)
    assert "destination-network" in {one.id for one in seen.sight.findings}
    host.stores.away = "unplugged"
    assert outlook(tools, DumpRequest(ROOT_PID, URL), Silent()).forecast.write_speed is None


def test_a_store_is_expected_to_be_slower_until_it_was_tried(tmp_path: Path) -> None:
    host = FakeHost.with_job()
    host.gpu_bytes = dict.fromkeys(host.gpu_bytes, 64 << 30)
    (tmp_path / "state").mkdir()
    tools = host.toolbox(tmp_path / "state")
    facts = look(tools, DumpRequest(ROOT_PID, URL)).facts
    on_disk = replace(facts, output=tmp_path / "image")
    assert forecast(facts).commit.value > 100 * forecast(on_disk).commit.value
    assert "a store takes" in forecast(facts).commit.basis
    run(FakeHost.with_job(), tmp_path)
    known = History(tmp_path / "state").records()
    for url, taught in (
        (URL, True),
        (Url("s3://other/train"), False),
        (Url("sftp://bucket/train"), False),
    ):
        commit = forecast(replace(facts, output=url), known, leave_running=False).commit
        assert ("a store takes" not in commit.basis) is taught


def test_a_rehearsal_in_a_store_leaves_nothing(tmp_path: Path) -> None:
    host = FakeHost.with_job()
    (tmp_path / "state").mkdir()
    what = DumpRequest(ROOT_PID, URL)
    for keep in (False, True):
        request = RehearseRequest(what, settle=0.0, real=True, keep=keep)
        tools = host.toolbox(tmp_path / "state")
        result = rehearse(tools, request, Silent(), Interrupts())
        assert result.kept == (URL if keep else None)
        assert bool(there(host)) is keep
