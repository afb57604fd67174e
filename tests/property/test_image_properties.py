"""Whatever goes in comes out; whatever was changed is found; nothing hostile is believed."""

from __future__ import annotations

import os
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuckpt.errors import GpuckptError, ImageDamaged, ImageError
from gpuckpt.image import frames, sealed, wire
from gpuckpt.image.check import check_files
from gpuckpt.image.names import check_name, is_stage, stage_name
from gpuckpt.image.outside import FileRecord, Outside
from gpuckpt.image.pack import Packer
from gpuckpt.image.stage import Stage
from gpuckpt.image.store import Image
from gpuckpt.image.unpack import Unpacker
from gpuckpt.timing import Receipt
from tests import image_samples as samples
from tests.image_streams import PATIENCE, drain, feed, start_send, start_store, threads

if TYPE_CHECKING:
    from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
MODEST = settings(RELAXED, max_examples=60)
FEW = settings(RELAXED, max_examples=12)

# a name, and what the stream holds: pieces of zeros and of noise, of random lengths
edges = st.sampled_from([0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 4 * MIB - 1, 4 * MIB + 1])
lengths = st.one_of(st.integers(0, 300 * KIB), edges)
pieces = st.lists(st.tuples(lengths, st.booleans()), max_size=3)
criu_names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)


def data(parts: list[tuple[int, bool]]) -> bytes:
    noise = zstandard.ZstdCompressor(level=-7).compress(bytes(range(256)) * 40)
    return b"".join(
        (noise * (length // len(noise) + 1))[:length] if rough else bytes(length)
        for length, rough in parts
    )


@FEW
@given(
    files=st.dictionaries(criu_names, pieces, max_size=5),
    chunk=st.sampled_from([4096, 4097, 1 << 16, 1 << 20]),
    level=st.sampled_from([-5, 0, 1, 2]),
    workers=st.integers(1, 3),
    memory=st.sampled_from([1, 20 * MIB, 160 * MIB]),
)
def test_what_is_packed_is_unpacked(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    files: dict[str, list[tuple[int, bool]]],
    chunk: int,
    level: int,
    workers: int,
    memory: int,
) -> None:
    final = tmp_path_factory.mktemp("round") / "job"
    contents = {name: data(parts) for name, parts in files.items()}
    stage = Stage.create(final)
    packer = Packer(stage.shelf(), level, workers=workers, memory=memory)
    with threads() as pool:
        started = {name: start_store(pool, packer, name) for name in contents}
        fed = [pool.submit(feed, started[name][0], raw, chunk) for name, raw in contents.items()]
        for future in (*fed, *(stored for _, stored in started.values())):
            future.result(PATIENCE)
    stage.commit(samples.manifest(files=packer.finish()))
    stage.close()
    with Image.open(final) as image, threads() as pool:
        image.check_sizes()
        assert check_files(image) == ()
        unpacker = Unpacker(image, workers=workers, memory=memory)
        sending = {name: start_send(pool, unpacker, name) for name in contents}
        got = {name: pool.submit(drain, reader, chunk) for name, (reader, _) in sending.items()}
        assert {name: future.result(PATIENCE) for name, future in got.items()} == contents
        unpacker.close()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small image with files of no, one and several frames."""
    files = {
        "pages-1.img": data([(70 * KIB, False), (70 * KIB, True)]),
        "core-1.img": b"core" * 100,
        "empty.img": b"",
    }
    return samples.write_image(tmp_path_factory.mktemp("image") / "job", files, frame=64 * KIB)


def damaged(image: Path) -> bool:
    """Whether something refuses the image, or finds damage in it."""
    try:
        with Image.open(image) as opened:
            return bool(check_files(opened, workers=1))
    except ImageError:
        return True


PLACES = ["manifest.json", "criu/pages-1.img.zst", "criu/core-1.img.zst", "criu/empty.img.zst"]


@settings(MODEST, max_examples=150)
@given(
    place=st.sampled_from(PLACES),
    where=st.floats(0, 1, exclude_max=True),
    kind=st.sampled_from(["flip", "missing", "extra", "cut", "gone"]),
    byte=st.integers(1, 255),
)
def test_any_change_of_any_byte_is_found(
    image: Path, place: str, where: float, kind: str, byte: int
) -> None:
    file = image / place
    whole = file.read_bytes()
    at = int(where * len(whole))
    changed = {
        "flip": whole[:at] + bytes([whole[at] ^ byte]) + whole[at + 1 :],
        "missing": whole[:at] + whole[at + 1 :],
        "extra": whole[:at] + bytes([byte]) + whole[at:],
        "cut": whole[:at],
        "gone": b"",
    }[kind]
    try:
        file.write_bytes(changed)
        if kind == "gone":
            file.unlink()
        assert damaged(image)
    finally:
        file.write_bytes(whole)
        file.chmod(0o600)
    assert not damaged(image)


@given(name=st.text())
def test_no_name_leads_out_of_the_image(name: str) -> None:
    try:
        accepted = check_name(name)
    except ImageDamaged:
        return
    assert os.path.basename(accepted) == name  # noqa: PTH119 - it is text, not yet a path
    assert accepted not in {"", ".", ".."}
    assert accepted.isascii()


@given(name=st.binary(min_size=1, max_size=255).filter(lambda name: b"/" not in name))
def test_every_name_of_a_file_has_a_stage(name: bytes) -> None:
    stage = stage_name(os.fsdecode(name))
    assert len(os.fsencode(stage)) <= 255
    assert is_stage(stage)


@MODEST
@given(
    entries=st.lists(
        st.tuples(st.integers(0, 1 << 32), st.integers(0, 1 << 32)).filter(
            lambda lengths: max(lengths) < 1 << 32
        ),
        max_size=20,
    ),
    raw_size=st.integers(0, 1 << 62),
    stored_size=st.integers(0, 1 << 62),
    head=st.one_of(st.none(), st.binary(max_size=40)),
)
def test_no_table_makes_a_reader_crash_or_allocate(
    entries: list[tuple[int, int]], raw_size: int, stored_size: int, head: bytes | None
) -> None:
    table = frames.encode_table(
        b"".join(frames.encode_entry(*e, bytes(32), bytes(16)) for e in entries)
    )
    if head is not None:
        table = head + table[len(head) :]
    tracemalloc.start()
    try:
        found = list(
            frames.decode_table(
                table, version=2, frames=len(entries), raw_size=raw_size, stored_size=stored_size
            )
        )
    except frames.TableDamaged:
        pass
    else:
        assert sum(frame.raw for frame in found) == raw_size
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MIB


@MODEST
@given(
    stored=st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=200).map(zstandard.ZstdCompressor().compress),
        # a head that is in order and claims any size, before bytes that are not
        st.tuples(st.integers(0, (1 << 64) - 1), st.binary(max_size=50)).map(
            lambda claim: b"\x28\xb5\x2f\xfd\xe0" + claim[0].to_bytes(8, "little") + claim[1]
        ),
        st.tuples(st.integers(0, (1 << 32) - 1), st.binary(max_size=50)).map(
            lambda claim: b"\x5e\x2a\x4d\x18" + claim[0].to_bytes(4, "little") + claim[1]
        ),
    ),
    raw=st.integers(1, frames.MAX_FRAME),
)
def test_no_frame_makes_a_reader_crash_or_allocate(stored: bytes, raw: int) -> None:
    frame = frames.Frame(0, 0, len(stored), raw, bytes(32))
    room = memoryview(bytearray(raw))
    tracemalloc.start()
    try:
        with pytest.raises(frames.FrameDamaged):
            frames.prove_frame(frames.new_unpacker(), frame, memoryview(stored), room)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


plain_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
any_bytes = st.binary().map(lambda raw: os.fsdecode(raw.replace(b"\0", b"")))
texts = st.one_of(plain_text, any_bytes)


@MODEST
@given(
    labels=st.dictionaries(texts, texts, max_size=3),
    argv=st.lists(texts, max_size=3),
    path=texts,
    size=st.one_of(st.none(), st.integers(0, (1 << 63) - 1)),
    mtime=st.one_of(st.none(), st.integers(-(1 << 62), (1 << 63) - 1)),
    seconds=st.floats(0, 1e9),
)
def test_a_manifest_comes_back_as_it_was(
    *,
    labels: dict[str, str],
    argv: list[str],
    path: str,
    size: int | None,
    mtime: int | None,
    seconds: float,
) -> None:
    file = FileRecord(path=path, size=size, mode=None, build_id="", mtime_ns=mtime)
    root = msgspec.structs.replace(samples.process(1000, 1), argv=tuple(argv), cwd=path)
    whole = samples.manifest(
        labels=labels,
        tree=(root,),
        outside=Outside(files=(file,), listeners=(), terminals=(path,)),
        receipt=Receipt("dump", "2026-01-02T03:04:05Z", seconds, ()),
    )
    encoded = sealed.encode(whole)
    assert sealed.decode(encoded) == whole
    assert os.fsencode(sealed.decode(encoded).outside.files[0].path) == os.fsencode(path)
    encoded.decode("utf-8")


@given(text=texts)
def test_texts_survive_the_wire(text: str) -> None:
    assert wire.unescape(wire.escape(text)) == text
    str(wire.escape(text)).encode("utf-8")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@MODEST
@given(
    field=st.sampled_from(sorted(msgspec.to_builtins(samples.manifest()))),
    value=json_values,
)
def test_no_manifest_makes_a_reader_crash(field: str, value: Any) -> None:
    document = msgspec.to_builtins(samples.manifest())
    document[field] = value
    with suppress(ImageError):
        sealed.decode(samples.seal(document))


@given(raw=st.binary(max_size=300))
def test_no_bytes_make_a_reader_crash(raw: bytes) -> None:
    with pytest.raises(GpuckptError):
        sealed.decode(raw)
