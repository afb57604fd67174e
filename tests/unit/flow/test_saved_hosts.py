"""A host known from its saved facts: what is read, what is refused, what is not judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuckpt.errors import CriuMissing, HostUnfit, UsageError
from gpuckpt.flow.returning.target import saved as module
from gpuckpt.flow.returning.target.facts import TargetFacts
from gpuckpt.flow.returning.target.judge import judge
from gpuckpt.flow.returning.target.saved import not_judged, target_facts
from gpuckpt.flow.returning.target.savedhost import ForImage, NoCriu, load, plain, take
from gpuckpt.flow.returning.target.software import Software
from gpuckpt.image.outside import (
    ConnectionRecord,
    FileRecord,
    ListenerRecord,
    Outside,
    PythonRecord,
)
from gpuckpt.model import Carriage, CarriedFile, TcpPolicy
from tests import gpu_samples, host_samples, image_samples
from tests.fakes.host import FakeHost

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.flow.returning.target.savedhost import SavedHost
    from gpuckpt.image.manifest import Manifest

# what is known of any host, and what is for whoever restores to choose
TOLD = {
    *("host", "own", "nvidia", "criu", "no_criu", "gpus", "gpu_short", "no_programs"),
    *("addresses", "stays", "apart", "asked", "choice", "moved"),
}
EIGHT = gpu_samples.image(gpu_samples.switched("a"), gpu_samples.ranks(8))
LOG = FileRecord(path="/j/\udce4.log", size=1, mode=0o644, build_id="", mtime_ns=-5)
PYTHON = PythonRecord(prefix="/venv", packages=("torch-2.9.0",))


def ids(saved: SavedHost, manifest: Manifest) -> list[str]:
    return [one.id for one in judge(manifest, target_facts(saved, manifest))]


def test_every_fact_of_a_target_is_told_or_named_as_not_judged() -> None:
    """Whoever adds one has to say which: silence must not pass for an answer."""
    sorted_out = [*TOLD, *module.ASKED, *module.PASSING]
    assert sorted(sorted_out) == sorted(TargetFacts.__struct_fields__)
    assert set(module.ASKED) == set(ForImage.__struct_fields__)


def test_a_host_like_the_old_one_takes_the_image() -> None:
    assert ids(host_samples.saved(), EIGHT) == []
    assert not_judged(EIGHT, host_samples.saved()) == (
        "pids",
        "earlier restores",
        "copies of the job",
        "other restores",
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    host = FakeHost.with_job(cuda=1, plain=0)
    record = msgspec.structs.replace(
        image_samples.manifest(), outside=Outside(files=(LOG,), listeners=(), terminals=())
    )
    found = take(host.toolbox(tmp_path), [record])
    assert load(host_samples.write(tmp_path / "a", found)) == found
    envelope = {"schema": "gpuckpt/1", "command": "doctor", "result": plain(found)}
    assert load(host_samples.write(tmp_path / "b", envelope)) == found
    assert list(found.images[record.image_id].files) == [LOG.path]


def without(*path: str) -> dict[str, Any]:
    given: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(plain(host_samples.saved())))
    inner = given
    for name in path[:-1]:
        inner = inner[int(name)] if name.isdecimal() else inner[name]
    del inner[path[-1]]
    return given


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another schema": (plain(host_samples.saved()) | {"schema": "gpuckpt/1"}, "no facts of a host"),
    "an image's": ({"format": "gpuckpt-image-2"}, "no facts of a host"),
    "a newer version": (
        plain(host_samples.saved()) | {"version": 2, "gpuckpt": "9.0"},
        "another version: version 2, by gpuckpt 9.0; this gpuckpt takes 1",
    ),
    "a wrong kind": (plain(host_samples.saved()) | {"criu": 7}, "no sound facts"),
    "a name of two lines": (plain(host_samples.saved("a\nb")), "it is called 'a\\nb'"),
    "no name": (plain(host_samples.saved("")), "it is called ''"),
    "no CRIU, and no reason": (plain(host_samples.saved()) | {"criu": ""}, "has either a CRIU"),
    "no time": (plain(host_samples.saved()) | {"taken": "lately"}, "no sound facts"),
    "a negative number": (
        plain(host_samples.saved(memory_available=-1)), "host.memory_available is out of range"
    ),
    "nothing of the addresses": (without("host", "addresses"), "does not tell host.addresses"),
    "nothing of NVLink": (
        without("nvidia", "gpus", "3", "nvlinks"), "does not tell nvidia.gpus[3].nvlinks"
    ),
    "no rights": (without("rights"), "no sound facts"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_judged_by_is_refused(name: str, tmp_path: Path) -> None:
    given, words = REFUSED[name]
    path = host_samples.write(tmp_path / "facts.json", given)
    with pytest.raises(UsageError) as why:
        load(path)
    assert words in why.value.message
    assert str(path) in why.value.message
    assert "doctor --facts" in why.value.hint


@pytest.mark.parametrize(
    ("raw", "words"),
    [(b"", "is not JSON"), (b"{", "is not JSON"), (b"\xff", "is not JSON"), (b"[1]", "no facts")],
)
def test_what_is_no_json_is_refused(raw: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_bytes(raw)
    with pytest.raises(UsageError, match=words):
        load(tmp_path / "facts.json")
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / "missing.json")
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path)


def test_a_host_without_criu_is_refused_as_it_would_refuse_itself() -> None:
    why = NoCriu(name="criu_missing", message="CRIU was not found", hint="Install it.")
    saved = msgspec.structs.replace(host_samples.saved(), criu="", no_criu=why)
    (found,) = judge(EIGHT, target_facts(saved, EIGHT))
    assert (found.id, found.remedy) == ("criu-missing", "Install it.")
    unknown = msgspec.structs.replace(saved, no_criu=msgspec.structs.replace(why, name="new_one"))
    error = target_facts(unknown, EIGHT).no_criu
    assert type(error) is HostUnfit
    assert not isinstance(error, CriuMissing)


@pytest.mark.parametrize(
    ("address", "there"),
    [
        ("10.0.0.2", True), ("10.0.0.3", False), ("0.0.0.0", True), ("127.0.0.9", True),  # noqa: S104
        ("::", True), ("::1", True), ("fe80::1", True), ("::ffff:10.0.0.2", True),
    ],
)  # fmt: skip
def test_an_address_must_be_one_of_the_hosts(address: str, there: bool) -> None:
    port = ListenerRecord(protocol="tcp", address=address, port=80)
    line = ConnectionRecord(local=address, local_port=9, remote="10.0.0.9", remote_port=80)
    outside = Outside(files=(), listeners=(port,), terminals=(), connections=(line,))
    options = msgspec.structs.replace(EIGHT.options, tcp=TcpPolicy.ESTABLISHED)
    image = msgspec.structs.replace(EIGHT, outside=outside, options=options)
    found = ids(host_samples.saved(), image)
    assert found.count("address-missing") == (0 if there else 2)
    silent = host_samples.saved(addresses=())
    assert "address-missing" not in ids(silent, image)
    assert "addresses" in not_judged(image, silent)


def test_files_are_judged_if_the_host_was_asked_for_the_image() -> None:
    outside = Outside(files=(LOG,), listeners=(), terminals=(), pythons=(PYTHON,))
    image = msgspec.structs.replace(EIGHT, outside=outside)
    saved = host_samples.saved()
    assert {"files", "software and model"} <= set(not_judged(image, saved))
    seen = ForImage(
        files={LOG.path: None}, names={}, writable={}, makeable={},
        rooms={}, owners=(), software=Software(packages={"/venv": None}),
    )  # fmt: skip
    asked = msgspec.structs.replace(saved, images={image.image_id: seen})
    assert {"gate-file-missing", "gate-python-prefix"} <= set(ids(asked, image))
    assert not {"files", "software and model"} & set(not_judged(image, asked))


def test_memory_that_the_image_carries_counts_as_not_there() -> None:
    file = CarriedFile(
        ("/dev/shm/x",), "", 1, 2, 100 << 30, 0o600, 0, 0, 0, extents=((0, 100 << 30),),
        why=Carriage.NEEDED,
    )  # fmt: skip
    image = msgspec.structs.replace(EIGHT, carried=(file,))
    assert "memory-host" in ids(host_samples.saved(memory_available=50 << 30), image)
    assert "memory-host" not in ids(host_samples.saved(memory_available=50 << 30), EIGHT)


def test_gpus_are_planned_and_their_memory_is_counted() -> None:
    free = tuple(replace(one, memory_free=1 << 30) for one in gpu_samples.switched("b"))
    found = judge(EIGHT, target_facts(host_samples.saved(nvidia=gpu_samples.nvidia(free)), EIGHT))
    short = [one for one in found if one.id == "gpu-memory"]
    assert len(short) == 8
    assert "who holds it is not in the host's facts" in short[0].reason
    few = host_samples.saved(nvidia=gpu_samples.nvidia(gpu_samples.switched("b", 4)))
    assert "gate-gpu-missing" in ids(few, EIGHT)
    assert "gate-driver" in ids(host_samples.saved(nvidia=None), EIGHT)
