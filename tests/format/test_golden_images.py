"""Images of every format version stay readable for ever.

The golden images were written by the first gpuckpt that wrote their format and never change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3

from gpuckpt.events import Silent
from gpuckpt.flow.verify import verify
from gpuckpt.image import manifest as m
from gpuckpt.image.store import Image
from gpuckpt.image.unpack import Unpacker
from gpuckpt.model import TcpPolicy
from tests.image_streams import PATIENCE, drain, start_send, threads

GOLDEN = Path(__file__).parent
NUMBERS = b"".join(n.to_bytes(4, "big") for n in range(20_000))
CONTENTS = {
    "pages-1.img": bytes(4 << 20) + NUMBERS,
    "inventory.img": b"\x16\x31\x31\x58inventory",
    "tty-info.img": b"",
}
NOISE = {"core-1000.img": blake3(b"what does not compress").digest(length=2000)}


def contents(image: Path) -> dict[str, bytes]:
    """Return what was packed into this golden image."""
    return CONTENTS if image.name == "image-1" else CONTENTS | NOISE


@pytest.fixture(params=["image-1", "image-2"])
def image(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a copy with the modes an image has; a checkout does not keep them."""
    copy = tmp_path / request.param
    shutil.copytree(GOLDEN / request.param, copy)
    for place in (copy, *copy.rglob("*")):
        place.chmod(0o700 if place.is_dir() else 0o600)
    return copy


def test_it_is_intact(image: Path) -> None:
    assert verify(image, Silent()).damage == ()
    with Image.open(image) as opened:
        opened.check_sizes()


def test_it_gives_back_what_was_packed(image: Path) -> None:
    with Image.open(image) as opened, threads() as pool:
        unpacker = Unpacker(opened)
        assert set(contents(image)) == set(opened.entries)
        for name, raw in contents(image).items():
            reader, sent = start_send(pool, unpacker, name)
            assert drain(reader) == raw
            sent.result(PATIENCE)
            assert unpacker.read(name) == raw
        unpacker.close()


def test_it_says_what_was_dumped(image: Path) -> None:
    with Image.open(image) as opened:
        manifest = opened.manifest
    assert m.unknown_needs(manifest) == ()
    assert manifest.image_id == f"9b2f6c1e4d8a47f0b6f3f6b7f1d3a00{image.name[-1]}"
    assert manifest.root_pid == 1000
    assert [process.pid for process in manifest.tree] == [1000, 1001]
    assert manifest.tree[0].cuda == "running"
    assert manifest.options.tcp is TcpPolicy.CLOSE
    assert manifest.nvidia
    assert [gpu.index for gpu in manifest.nvidia.gpus] == [0, 1]
    assert manifest.nvidia.uses[0].bytes == 1 << 30
    (file,) = manifest.outside.files
    assert os.fsencode(file.path) == b"/data/\xff\xf4\x8f\xbe\x80/log"
    assert manifest.outside.listeners[0].port == 8080
    assert manifest.labels == {"step": "7", "näme": "Ω"}
    assert manifest.receipt.phases[0].name == "lock"
    assert manifest.totals.raw == sum(map(len, contents(image).values()))


def test_it_is_read_by_any_zstd(image: Path) -> None:
    for name, raw in contents(image).items():
        data = (image / "criu" / f"{name}.zst").read_bytes()
        reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
        assert reader.read() == raw


@pytest.mark.programs
@pytest.mark.skipif(not shutil.which("zstd"), reason="no zstd program here")
def test_it_is_read_by_the_zstd_program(image: Path) -> None:
    for name, raw in contents(image).items():
        done = subprocess.run(
            ["zstd", "-dc", image / "criu" / f"{name}.zst"], check=True, capture_output=True
        )
        assert done.stdout == raw


def test_every_format_has_a_golden_image() -> None:
    current = int(m.FORMAT.rpartition("-")[2])
    assert {path.name for path in GOLDEN.glob("image-*")} == {
        f"image-{version}" for version in range(1, current + 1)
    }
