"""URLs of stores: read, taken apart, and never telling a password."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt.cli import values
from gpuckpt.cli.page import Outcome, Page, Tone
from gpuckpt.cli.render import Renderer
from gpuckpt.cli.settings import Settings
from gpuckpt.errors import UsageError
from gpuckpt.location import Url, is_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.location import Location

read: Callable[[str], Location] = values.location("IMAGE")


def test_a_url_is_taken_apart() -> None:
    url = Url("SFTP://me@host:22/var/images/night-7/")
    assert str(url) == "sftp://me@host:22/var/images/night-7"
    assert (url.scheme, url.host, url.folder) == ("sftp", "host:22", "var/images/night-7")
    assert (url.name, str(url / "criu")) == ("night-7", "sftp://me@host:22/var/images/night-7/criu")
    assert Url("s3://bucket").name == ""


def test_no_password_is_ever_shown(capsys: pytest.CaptureFixture[str]) -> None:
    url = Url("sftp://me:hunter2@host/image")
    assert url.tells
    assert "hunter2" in url.secret
    page = Page("", Tone.NEUTRAL, ())
    Renderer(Settings(json=True)).outcome("show", Outcome({"image": url}, page))
    told = json.loads(capsys.readouterr().out)["result"]["image"]
    for text in (str(url), repr(url), f"{url / 'x'}", told):
        assert "hunter2" not in text
        assert "me:***@host" in text


def test_what_is_no_url_is_a_path() -> None:
    assert read("/images/a") == Path("/images/a")
    assert read("file:///images/a/") == Path("/images/a")
    assert read("s3://bucket/a") == Url("s3://bucket/a/")
    assert not is_url("a:/b")
    assert is_url("memory://a")


@pytest.mark.parametrize(
    "text",
    [
        "sftp://me:hunter2@host/image",
        "s3:///image",
        "s3://bucket/../image",
        "zip://a::s3://b/c",
        "s3://b/\n",
        "",
    ],
)
def test_what_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(text)
    assert "hunter2" not in f"{refused.value} {refused.value.hint}"


def test_no_image_takes_a_whole_store() -> None:
    output = values.location("--output", whole=False)
    for text in ("s3://bucket", "s3://bucket/", "sftp://host/"):
        assert read(text)
        with pytest.raises(UsageError, match="whole store"):
            output(text)
    assert values.destination("s3://bucket/") == "s3://bucket/"
    with pytest.raises(UsageError, match="whole store"):
        values.destination("s3://bucket")
