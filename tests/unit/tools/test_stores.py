"""Real stores do what the folder of one is said to do: moto's S3 server, an sshd of this host."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import StoreFailed
from gpuckpt.location import Url
from gpuckpt.tools import remote_s3, remote_sftp
from gpuckpt.tools.remote import RemoteFolder
from tests import image_samples as samples
from tests.root import servers

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.programs

MIB = 1 << 20
PART = 5 * MIB  # the least that S3 takes
# `gpuckpt copy`, in small parts; killed after so many of them
COPIES = f"""
import os, sys
from gpuckpt.cli.main import main
from gpuckpt.tools import remote_s3
remote_s3._SMALLEST = {PART}
left, real = [int(os.environ.get("DIES_AFTER", -1))], remote_s3._Parts.write
def write(*args):
    real(*args)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), 9)
remote_s3._Parts.write = write
sys.argv.insert(1, "copy")
main()
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with servers.s3(tmp_path_factory.mktemp("s3") / "log") as (there, _):
        yield there


@pytest.fixture(params=["s3", "sftp"])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Url]:
    """Give the URL of a folder that is not there yet, of a store that takes small parts."""
    monkeypatch.setattr(remote_s3, "_SMALLEST", PART)
    monkeypatch.setattr(remote_sftp, "_PART", PART)
    if request.param == "s3":
        for name, value in request.getfixturevalue("s3").items():
            monkeypatch.setenv(name, value)
        yield Url(f"s3://{servers.BUCKET}/{tmp_path.name}/image")
        return
    with servers.sftp(tmp_path / "home") as (there, host):
        monkeypatch.setenv("HOME", there["HOME"])
        yield Url(f"{host}{tmp_path}/more/image")


def test_a_store_keeps_what_it_is_given(url: Url) -> None:
    folder = RemoteFolder(url)
    assert folder.names() == {}
    folder.put("criu/a", b"12345")
    folder.put("criu/a", b"123456")
    folder.put("logs/empty", b"")
    data = os.urandom(PART + 5)
    upload = folder.upload("criu/big", len(data))
    assert (upload.part, upload.there) == (PART, frozenset())
    upload.write(PART, data[PART:])
    upload.write(0, memoryview(data)[:PART])
    upload.close()
    assert folder.names() == {"criu/a": 6, "criu/big": len(data), "logs/empty": 0}
    assert folder.read("criu/big", PART - 3, 100) == data[PART - 3 :]
    assert folder.read("criu/big", 0, len(data)) == data
    assert folder.read("criu/a", 4, 2) == b"56"
    taken_back = folder.upload("criu/never", 0)
    taken_back.write(0, b"x")
    taken_back.abort()
    folder.remove("criu/a")
    folder.remove("criu/a")
    assert folder.names() == {"criu/big": len(data), "logs/empty": 0}
    with pytest.raises(FileNotFoundError):
        folder.read("criu/a", 0, 1)
    folder.remove_all()
    folder.remove_all()
    assert RemoteFolder(url).names() == {}
    folder.close()


def test_what_an_earlier_try_has_left_is_not_sent_again(
    url: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_sftp, "_WINDOW", 1)
    data = os.urandom(3 * PART + 1000)
    first = RemoteFolder(url).upload("criu/big", len(data))
    for offset in range(0, 3 * PART, PART):
        first.write(offset, data[offset : offset + PART])
    folder = RemoteFolder(url)
    again = folder.upload("criu/big", len(data))
    known = {0, PART, 2 * PART} if url.scheme == "s3" else {0}
    assert again.there == known
    for offset in {0, PART, 2 * PART, 3 * PART} - known:
        again.write(offset, data[offset : offset + PART])
    again.close()
    assert folder.read("criu/big", 0, len(data)) == data
    folder.upload("criu/other", 2 * PART).write(0, data[:PART])
    folder.remove_all()
    assert folder.upload("criu/other", 2 * PART).there == frozenset()
    folder.remove_all()


@pytest.mark.parametrize("name", ["run[12]", "run?", "run*"])
def test_what_lies_beside_a_folder_stays(url: Url, name: str) -> None:
    around, folder = RemoteFolder(url), RemoteFolder(url / name)
    for beside in ("run1/manifest.json", "run2/a", f"{name}-2/a"):
        around.put(beside, b"x")
    if url.scheme == "s3":  # where an object may have the name of a folder
        around.put(name, b"x")
    others = around.names()
    folder.put("criu/a", b"x")
    folder.put("manifest.json", b"x")
    folder.remove_all()
    assert (folder.names(), around.names()) == ({}, others)
    around.remove_all()
    assert around.names() == {}


def test_a_link_on_a_host_makes_a_folder_no_free_place(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image/link").symlink_to("nowhere")
    with servers.sftp(tmp_path / "home") as (there, host), pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", there["HOME"])
        assert set(RemoteFolder(Url(f"{host}{tmp_path}/image")).names()) == {"link"}


def test_a_whole_store_is_never_removed(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in s3.items():
        monkeypatch.setenv(variable, value)
    bucket = RemoteFolder(Url(f"s3://{servers.BUCKET}"))
    bucket.put("a", b"x")
    bucket.remove_all()
    assert bucket.names() == {}


def test_a_second_copy_harms_no_bytes_that_are_there(url: Url) -> None:
    """The first has made an image of them meanwhile; the second may be killed at any moment."""
    data = os.urandom(PART + 5)
    folder = RemoteFolder(url)
    for _ in range(2):
        upload = folder.upload("criu/big", len(data))
        upload.write(0, data[:PART])
        upload.write(PART, data[PART:])
        upload.close()
        folder.upload("criu/big", len(data))
        assert folder.read("criu/big", 0, len(data) + 1) == data
    longer = folder.upload("criu/big", 10)
    longer.write(0, data[:10])
    longer.close()
    assert folder.names() == {"criu/big": 10}
    folder.remove_all()


def test_a_store_that_refuses_is_named(url: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RemoteFolder(url)
    if url.scheme == "s3":
        with pytest.raises(StoreFailed, match="there is no bucket gpuckpt-none"):
            RemoteFolder(Url("s3://gpuckpt-none/image")).names()
        with pytest.raises(StoreFailed, match="bucket does not exist"):
            RemoteFolder(Url("s3://gpuckpt-none/image")).put("a", b"")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("HOME", "/nowhere")
        with pytest.raises(StoreFailed, match="credentials") as failed:
            RemoteFolder(url).names()
        assert "AWS_PROFILE" in failed.value.hint
    else:
        known = Path(os.environ["HOME"]) / ".ssh/known_hosts"
        known.write_text("")
        with pytest.raises(StoreFailed, match="not found in known_hosts"):
            RemoteFolder(url)
    folder.close()


def test_a_store_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(remote_s3._CONFIG, "read_timeout", 0.2)
    monkeypatch.setattr(remote_sftp, "_PATIENCE", 0.2)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
        there = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{there}")
        for url in (f"s3://{servers.BUCKET}/image", f"sftp://me@{there}/image"):
            with pytest.raises(StoreFailed):
                RemoteFolder(Url(url)).names()


def test_a_store_that_brings_a_byte_now_and_then_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_s3, "_PATIENCE", 1.0)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with socket.create_server(("127.0.0.1", 0), backlog=50) as slow:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{slow.getsockname()[1]}")

        def serve() -> None:
            while True:
                with suppress(OSError):
                    one, _ = slow.accept()
                    one.recv(65536)
                    one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                    threading.Thread(target=drip, args=(one,), daemon=True).start()
                if slow.fileno() < 0:
                    return

        def drip(one: socket.socket) -> None:
            with suppress(OSError), one:
                for _ in range(100):
                    one.sendall(b"x")
                    time.sleep(0.1)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(StoreFailed, match="no answer in time"):
            RemoteFolder(Url(f"s3://{servers.BUCKET}/image")).read("criu/a", 0, 1000)
        slow.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("name", ["a#b", "a?b", "a b", "p%20"])
def test_any_name_may_be_that_of_an_image(url: Url, name: str) -> None:
    folder = RemoteFolder(url / name)
    folder.put("manifest.json", b"x")
    assert RemoteFolder(url).names() == {f"{name}/manifest.json": 1}
    folder.remove_all()


def test_a_killed_copy_is_gone_on_with(tmp_path: Path, s3: dict[str, str]) -> None:
    data = os.urandom(40 * MIB)
    image = samples.write_image(tmp_path / "image", {"pages-1.img": data, "a.img": b"x"})
    url = f"s3://{servers.BUCKET}/killed"
    command = [sys.executable, "-c", COPIES, str(image), url, "--json"]
    variables = os.environ | s3
    first = subprocess.run(
        command, env=variables | {"DIES_AFTER": "5"}, capture_output=True, check=False
    )
    assert first.returncode == -signal.SIGKILL
    done = subprocess.run(command, env=variables, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["sent"] <= 4 * PART + MIB  # what was under way may have arrived, too
    assert result["bytes"] > 8 * PART
