"""Every number of a forecast, with what it rests on: assumed, measured, or from receipts."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from gpuckpt.flow.sight.experience import JUDGED, NEWEST, Experience, Lately
from gpuckpt.flow.sight.forecast import (
    COMMIT,
    FREEZE,
    GPU_OUT,
    LOCK_MANY,
    LOCK_ONE,
    SPOOL,
    STREAM_MOST,
    Estimate,
    forecast,
)
from gpuckpt.flow.work.history import KEPT, History, Record, record_of
from gpuckpt.model import CudaState, GpuUse
from gpuckpt.timing import Interval, Phase, Receipt
from gpuckpt.tools.destination import Place
from tests.cli import samples
from tests.plan_samples import GIB, cuda_facts, facts, process

if TYPE_CHECKING:
    from pathlib import Path


def record(command: str = "python3 train.py", **changes: Any) -> Record:
    """Return the record of a dump of 10 GiB, half of it stored, 8 GiB of it from a GPU."""
    phases = (
        Phase("prepare", 0.0, 0.6),
        Phase("lock", 0.6, 0.3),
        Phase("gpu-out", 0.9, 4.0, 8 * GIB),
        Phase("stream", 4.9, 5.0, 10 * GIB),
        Phase("commit", 9.9, 0.5),
    )
    plain = Record(
        operation="dump",
        started="2026-01-01T00:00:00Z",
        receipt=Receipt("dump", "2026-01-01T00:00:00Z", 11.0, phases),
        command=command,
        raw=10 * GIB,
        stored=5 * GIB,
        gpu_bytes=8 * GIB,
        processes=2,
        cuda=2,
    )
    return structs.replace(plain, **changes)


def test_without_any_experience_everything_is_assumed() -> None:
    known = forecast(cuda_facts())
    assert known.raw.value == known.stored.value == cuda_facts().image_bytes
    assert known.memory.value == pytest.approx(8 * GIB * 1.05)
    assert known.memory_available == 48 * GIB
    assert known.lock.value == LOCK_ONE
    assert known.gpu_out.value == pytest.approx(8 * GIB / GPU_OUT)
    assert known.stream.value == pytest.approx(known.raw.value / STREAM_MOST)
    parts = (known.lock, known.gpu_out, known.freeze, known.stream, known.commit)
    assert all("assumed" in one.basis for one in parts)
    assert known.pause == pytest.approx(sum(one.value for one in parts))
    assert known.attach.value > 0


def test_a_job_without_a_gpu_needs_no_driver() -> None:
    known = forecast(facts())
    assert (known.gpu_out.value, known.attach.value, known.memory.value) == (0, 0, 0)


def test_receipts_of_the_same_command_count_most() -> None:
    mine, other = record(), record("another", stored=10 * GIB)
    known = forecast(cuda_facts(), (mine, other))
    assert known.stored.value == pytest.approx(known.raw.value / 2)
    assert known.stored.basis == "from 1 receipt of this command"
    known = forecast(cuda_facts(), (other,))
    assert known.stored.value == pytest.approx(known.raw.value)
    assert known.stored.basis == "from 1 receipt of jobs like it"
    small = record("small", raw=GIB, stored=GIB, gpu_bytes=GIB)
    assert forecast(cuda_facts(), (small,)).stored.basis == "from 1 receipt"
    assert forecast(facts(), (other,)).stored.basis == "from 1 receipt"  # that one had no GPU


def test_the_newest_receipts_count_and_one_strange_one_does_not() -> None:
    """What a job took long ago, on another disk say, is forgotten; a median stays calm."""
    then = [record(stored=10 * GIB)] * 20
    now = [record(stored=GIB)] * 7
    strange = record(stored=10 * GIB)
    known = forecast(cuda_facts(), (*then, *now, strange))
    assert known.stored.value == pytest.approx(known.raw.value / 10)
    assert known.stored.basis == f"from {NEWEST} receipts of this command"


def test_a_forecast_says_how_good_forecasts_were() -> None:
    """The error counts of what was done, whatever the job; the median, and of how many."""
    assert forecast(cuda_facts(), (record(), record(pause=9.0))).lately == Lately()
    past = [record("any", pause=pause, expected=10.0) for pause in (9.0, 12.0, 15.0)]
    past += [record(pause=99.0, expected=1.0, outcome="dump_failed")]
    assert forecast(cuda_facts(), past).lately == Lately(0.2, 3)
    past += [record(pause=10.0, expected=10.0)] * JUDGED
    assert forecast(cuda_facts(), past).lately == Lately(0.0, JUDGED)


def test_rates_come_from_receipts() -> None:
    known = forecast(cuda_facts(), (record(), record()))
    assert known.lock.value == 0.3
    assert known.gpu_out.value == pytest.approx(4.0)
    assert known.gpu_out.basis.startswith("from 2 receipts of this command, 2.1 GB/s")
    assert known.stream.value == pytest.approx(known.raw.value / (2 * GIB))
    assert (known.freeze.value, known.freeze.basis) == (FREEZE, "assumed")
    assert known.commit.value == 0.5
    assert known.attach.value == pytest.approx(0.3)


def test_small_and_failed_operations_teach_nothing() -> None:
    tiny = record(raw=1 << 20, stored=1 << 19)
    phases = tuple(replace(one, bytes=one.bytes and 1 << 20) for one in tiny.receipt.phases)
    tiny = structs.replace(tiny, receipt=replace(tiny.receipt, phases=phases))
    failed, other = record(outcome="dump_failed"), record(operation="restore")
    known = forecast(cuda_facts(), (tiny, failed, other))
    assert "assumed" in known.stored.basis
    assert "assumed" in known.stream.basis


def test_a_job_that_goes_on_does_not_wait_for_the_disk() -> None:
    """What waits in memory is only read; receipts of the one kind say nothing of the other."""
    rich = replace(cuda_facts(), host=replace(cuda_facts().host, memory_available=200 * GIB))
    known = forecast(rich, write_speed=50e6, leave_running=True)
    assert known.spool is not None
    assert known.spool.whole
    assert known.stream.value == pytest.approx(known.raw.value / SPOOL)
    assert known.commit.value == 0
    assert known.gpu_in.value > 0
    parted = replace(record().receipt, phases=(*record().receipt.phases, Phase("write", 11.0, 9.0)))
    records = (record(), record(receipt=parted), record(receipt=parted))
    assert "from 2 receipts" in forecast(rich, records, leave_running=True).stream.basis
    assert "from 1 receipt of" in forecast(rich, records).stream.basis
    assert forecast(rich).spool is None


def test_what_does_not_fit_into_memory_is_waited_for() -> None:
    poor = replace(cuda_facts(), host=replace(cuda_facts().host, memory_available=0))
    known = forecast(poor, leave_running=True)
    assert known.spool is not None
    assert known.spool.bytes == 0
    assert known.stream.value == pytest.approx(forecast(poor).stream.value)
    assert "0% of it in memory" in known.stream.basis


def test_a_slow_disk_is_what_the_pause_is_made_of() -> None:
    slow = forecast(cuda_facts(), (), write_speed=50e6)
    fast = forecast(cuda_facts(), (), write_speed=10e9)
    assert slow.stream.value + slow.commit.value == pytest.approx(slow.stored.value / 50e6 + COMMIT)
    assert fast.commit.value == COMMIT
    assert slow.commit.basis == "write speed measured"


def test_every_process_with_cuda_has_its_price() -> None:
    listed = tuple(process(100 + number) for number in range(24))
    states = {one.pid: CudaState.RUNNING for one in listed}
    uses = tuple(GpuUse(one.pid, "GPU-0", GIB) for one in listed)
    many = forecast(cuda_facts(**plain(listed), states=states, uses=uses))
    assert many.attach.value == pytest.approx(3 * 0.4)  # eight cores
    assert many.lock.value == LOCK_MANY


def plain(listed: tuple[Any, ...]) -> dict[str, Any]:
    known = facts(*listed)
    return {"tree": known.tree}


def test_a_rehearsal_teaches_what_the_gpu_s_part_takes() -> None:
    phases = (Phase("gpu-out", 0.0, 8.0, 8 * GIB), Phase("gpu-in", 9.0, 2.0, 8 * GIB))
    tried = record(operation="rehearse", raw=0, stored=0)
    tried = structs.replace(tried, receipt=replace(tried.receipt, phases=phases))
    known = forecast(cuda_facts(), (tried,))
    assert known.gpu_out.value == pytest.approx(8.0)
    assert known.gpu_in.value == 0.0
    stays = forecast(cuda_facts(), (tried,), leave_running=True)
    assert stays.gpu_in.value == pytest.approx(2.0)
    others = ("lock", "gpu-out", "freeze")
    same = sum(known.parts[name].value for name in others)
    assert stays.pause == pytest.approx(same + stays.stream.value + 2.0)


def test_the_place_is_told() -> None:
    there = Place("nfs4", "/ckpt", network=True, free_inodes=7)
    known = forecast(facts(place=there))
    assert (known.filesystem, known.network, known.inodes_free) == ("nfs4", True, 7)


def test_records_come_back_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    history = History(tmp_path / "state")
    assert history.records() == ()
    for number in range(KEPT + 3):
        history.add(record(started=f"2026-01-01T{number // 60:02}:{number % 60:02}:00Z"))
    found = history.records()
    assert len(found) == KEPT
    assert found[0].started == "2026-01-01T00:03:00Z"
    folder = tmp_path / "state" / "receipts"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()} == {0o600}


def test_what_cannot_be_kept_or_read_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    History(tmp_path / "file").add(record())
    assert History(tmp_path / "file").records() == ()
    history = History(tmp_path)
    history.add(record())
    (tmp_path / "receipts" / "strange.json").write_text("{")
    assert history.records() == (record(),)


def test_a_record_is_made_from_a_manifest() -> None:
    made = record_of(samples.MANIFEST, samples.RECEIPT)
    assert (made.command, made.raw) == ("python train.py --epochs 90", samples.MANIFEST.totals.raw)
    assert (made.cuda, made.processes, made.gpu_bytes) == (1, 2, 12 * GIB)


OLD = (
    b'{"operation":"dump","started":"2026-01-02T03:04:05Z","receipt":{"operation":"dump","started":'
    b'"2026-01-02T03:04:05Z","seconds":3.0,"phases":[{"name":"lock","started":0.5,"seconds":0.25,'
    b'"bytes":0,"rounds":1}]},"command":"python3 train.py","raw":1,"stored":1,"gpu_bytes":0,'
    b'"processes":1,"cuda":1,"host":"h","driver":"","pause":2.0,"expected":1.0,"outcome":"done"}'
)


def test_records_of_older_versions_are_read_and_learned_from(tmp_path: Path) -> None:
    (tmp_path / "receipts").mkdir()
    (tmp_path / "receipts" / "20260102T030405Z-dump-0.json").write_bytes(OLD)
    (old,) = History(tmp_path).records()
    assert (old.took, old.image_id, old.receipt.rest) == (2.0, "", 2.75)
    assert old.receipt.interval("pause") is None
    known = forecast(cuda_facts(), (old,))
    assert known.lately == Lately(1.0, 1)
    assert known.lock == Estimate(0.25, "from 1 receipt of this command")
    assert History(tmp_path).of_image("") == (old,)


def test_what_a_proof_took_is_not_expected_of_others() -> None:
    """A restore that was proved says of CRIU, and of itself, what it took without that."""
    phases = (Phase("criu", 0.5, 5.0, 10 * GIB), Phase("prove", 3.0, 3.0, 10 * GIB, inside="criu"))
    runs = (Interval("runs", "begun", "released", 6.0),)
    receipt = Receipt("restore", "2026-01-01T00:00:00Z", 7.0, phases, intervals=runs)
    proved = record(operation="restore", receipt=receipt)
    assert proved.took == 3.0
    learned = Experience((proved,), ("restore",), "python3 train.py", size=1, cuda=False).rate(
        "criu"
    )
    assert learned is not None
    assert learned.value == 5 * GIB
