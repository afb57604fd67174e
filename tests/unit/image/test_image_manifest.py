"""manifest.json: what is written comes back, and nothing else is believed."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuckpt.errors import Bug, ImageDamaged, ImageUnsupported
from gpuckpt.image import manifest as m
from gpuckpt.image import sealed
from gpuckpt.image.outside import FileRecord, Outside
from gpuckpt.model import CarriedFile
from tests import image_samples as samples

if TYPE_CHECKING:
    from collections.abc import Callable


def sample() -> m.Manifest:
    raw = b"x" * 100000
    return samples.manifest(files=(samples.entry("pages-1.img", raw, *samples.stored(raw)),))


def changed(path: str, value: Any) -> bytes:
    """Return the sample's JSON with one field, "a.0.b", set to something else."""
    document = json.loads(sealed.encode(sample()))
    *way, last = path.split(".")
    place: Any = document
    for key in way:
        place = place[int(key)] if isinstance(place, list) else place[key]
    place[int(last) if isinstance(place, list) else last] = value
    return samples.seal(document)


def test_a_manifest_comes_back_as_it_was() -> None:
    data = sealed.encode(sample())
    assert sealed.decode(data) == sample()
    assert data.endswith(b"}\n")
    assert json.loads(data)["format"] == m.FORMAT


def test_bytes_that_are_no_utf8_come_back(  # paths and arguments may hold any byte
) -> None:
    odd = os.fsdecode(b"/data/\xff\xfe/\xf4\x8f\xbe\x80/\xc3\xa9")
    files = (FileRecord(path=odd, size=1, mode=33188, build_id="", mtime_ns=-5),)
    whole = samples.manifest(outside=Outside(files=files, listeners=(), terminals=(odd,)))
    data = sealed.encode(whole)
    assert os.fsencode(sealed.decode(data).outside.files[0].path) == os.fsencode(odd)
    assert sealed.decode(data) == whole
    data.decode("utf-8")


def test_a_manifest_that_could_not_be_read_back_is_never_written() -> None:
    for bad in (
        samples.manifest(root_pid=5),
        samples.manifest(labels={"a": "\0"}),
        samples.manifest(labels={"a": "\ud800"}),
        samples.manifest(ids=[1000, 1001]),
    ):
        with pytest.raises(Bug):
            sealed.encode(bad)


def test_fields_of_a_later_gpuckpt_are_passed_over() -> None:
    assert sealed.decode(changed("later", {"deep": [1, {"x": -1}]})) == sample()


def test_unknown_needs_are_told_and_do_not_stop_the_reading() -> None:
    found = sealed.decode(changed("needs", ["criu-stream", "teleport", "x"]))
    assert m.unknown_needs(found) == ("teleport", "x")
    assert m.unknown_needs(sample()) == ()


def test_a_newer_format_is_unsupported() -> None:
    with pytest.raises(ImageUnsupported, match="gpuckpt-image-3"):
        sealed.decode(changed("format", "gpuckpt-image-3"))


@pytest.mark.parametrize("text", ["", "gpuckpt-image-0", "gpuckpt-image-1 ", "other"])
def test_another_format_is_damage(text: str) -> None:
    with pytest.raises(ImageDamaged):
        sealed.decode(changed("format", text))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100000,
        b'{"format": ' + b'{"a":' * 100000,
        b'{"format": "gpuckpt-image-1"}',
        b'{"format": 1}',
        b'{"format": "gpuckpt-image-1", "root_pid": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_manifest_is_damage(data: bytes) -> None:
    with pytest.raises(ImageDamaged):
        sealed.decode(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("files.0.name", "../pages-1.img"),
        ("files.0.name", "/etc/passwd"),
        ("files.0.name", "a\0b"),
        ("files.0.name", ""),
        ("files.0.raw_size", -1),
        ("files.0.raw_size", 1 << 50),
        ("files.0.raw_size", 0),
        ("files.0.raw_size", 1.5),
        ("files.0.raw_size", "100000"),
        ("files.0.raw_size", True),
        ("files.0.frames", 1 << 40),
        ("files.0.frames", 0),
        ("files.0.frames", -1),
        ("files.0.stored_size", 10),
        ("files.0.stored_size", 1 << 62),
        ("files.0.stored_blake3", "A" * 64),
        ("files.0.table_blake3", "a" * 63),
        ("files", []),
        ("totals.raw", 1),
        ("totals.stored", 1),
        ("totals.pages", 1 << 40),
        ("tree", []),
        ("tree.1.pid", 1000),
        ("tree.0.pid", 0),
        ("tree.0.threads", [1 << 23]),
        ("tree.0.uid", 1 << 32),
        ("tree.0.argv", ["a\0b"]),
        ("tree.0.start_time", -1),
        ("root_pid", 1001),
        ("ids", [1 << 30]),
        ("host.memory_total", -1),
        ("host.memory_total", 1 << 63),
        ("nvidia.gpus.0.memory_total", -1),
        ("receipt.seconds", -1.0),
        ("receipt.seconds", None),
        ("labels", {"a": 1}),
        ("labels", {"a\0": "x"}),
        ("options.tcp", "sometimes"),
        ("outside.listeners", [{"protocol": "tcp", "address": "::", "port": 65536}]),
    ],
)
def test_a_field_that_cannot_be_is_damage(path: str, value: Any) -> None:
    with pytest.raises(ImageDamaged) as caught:
        sealed.decode(changed(path, value))
    assert "\0" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"names": ["/dev/shm/../etc/passwd"]},
        {"names": ["dev/shm/x"]},
        {"names": ["/dev/shm/x", "/dev/shm/x"]},
        {"names": [], "link": ""},
        {"mode": 0o10600},
        {"uid": 1 << 32},
        {"digest": "x" * 64},
        {"extents": [[0, 4], [3, 4]]},
        {"extents": [[4092, 5]]},
        {"extents": [[0, 0], [0, 7]]},
        {"extents": [[0, 6]]},
    ],
)
def test_a_carried_file_that_cannot_be_is_damage(change: dict[str, Any]) -> None:
    file = CarriedFile(
        names=("/dev/shm/x",), link="/dev/shm/link_remap.7", device=1, inode=2, size=4096,
        mode=0o600, uid=0, gid=0, mtime_ns=-1, extents=((0, 4), (4093, 3)), digest="a" * 64,
    )  # fmt: skip
    with_bytes = samples.entry("gpuckpt-files", b"7 bytes", *samples.stored(b"7 bytes"))
    good = samples.manifest(files=(with_bytes,), carried=(file,))
    assert sealed.decode(sealed.encode(good)) == good
    document = msgspec.to_builtins(good)
    document["carried"][0].update(change)
    with pytest.raises(ImageDamaged, match="carri"):
        sealed.decode(samples.seal(document))


def test_a_file_listed_twice_is_damage() -> None:
    both = sample().files * 2
    document = msgspec.to_builtins(sample())
    document["files"] = msgspec.to_builtins(both)
    document["totals"] = {"raw": 200000, "stored": both[0].stored_size * 2, "pages": 0}
    with pytest.raises(ImageDamaged, match="twice"):
        sealed.decode(samples.seal(document))


def test_the_last_line_is_the_digest_of_all_before_it() -> None:
    data = sealed.encode(sample())
    assert data == samples.seal(json.loads(data))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"node1", b"node2"),
        lambda data: data.replace(b'"hostname"', b'"hostnamE"'),
        lambda data: data + b"\n",
        lambda data: data[:-1],
        lambda data: b" " + data,
        lambda data: json.dumps(json.loads(data)).encode(),
        lambda data: data.replace(b'"blake3"', b'"blake2"'),
        lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
    ],
)
def test_a_changed_byte_is_found(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ImageDamaged, match="digest"):
        sealed.decode(change(sealed.encode(sample())))


def test_too_many_bytes_are_refused_unread() -> None:
    with pytest.raises(ImageDamaged, match="too many"):
        sealed.decode(bytes(sealed.LARGEST_MANIFEST + 1))


def test_a_driver_state_that_does_not_exist_is_damage() -> None:
    """Whoever reads a manifest can rely on its states; a restore would act on them."""
    with pytest.raises(ImageDamaged, match="sleeping"):
        sealed.decode(changed("tree.0.cuda", "sleeping"))
