"""The page of plan IMAGE: what it says, to people, to scripts and by its exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.cli import plain, preview
from gpuckpt.cli.page import Findings, Next
from gpuckpt.errors import NotAnImage
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.preview import preview as look
from gpuckpt.flow.request import DumpRequest
from gpuckpt.flow.work.interrupts import Interrupts
from tests.fakes.host import ROOT_PID, FakeHost

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.flow.preview import Preview


@pytest.fixture
def seen(tmp_path: Path) -> Preview:
    host = FakeHost.with_job(cuda=1, plain=0)
    tools = host.toolbox(tmp_path / "state")
    dump(tools, DumpRequest(ROOT_PID, tmp_path / "image"), Silent(), Interrupts())
    return look(tools, tmp_path / "image")


def test_good_news_leads_to_the_restore(seen: Preview) -> None:
    page = preview.outcome(seen, ["gate-cpu"])
    assert page.exit_code == 0
    assert page.page.title == "this image can be restored here now"
    (following,) = [one for one in page.page.blocks if isinstance(one, Next)]
    assert following.commands == (f"gpuckpt restore {seen.path} --force-gate gate-cpu",)
    assert isinstance(page.payload, dict)
    assert page.payload["can_restore"] is True
    assert page.payload["forecast"]["seconds"] > 0
    text = "\n".join(plain.lines(page.page))
    assert all(f"{name} 0." in text for name in ("until it runs: checks", "CRIU", "GPU"))


def test_bad_news_has_the_exit_status_of_the_restore(seen: Preview, tmp_path: Path) -> None:
    host = FakeHost.with_job(cuda=1, plain=0)  # all pids of the job are somebody else's
    host.boot_id = "another"
    found = preview.outcome(look(host.toolbox(tmp_path / "other"), seen.path))
    assert found.exit_code == 8
    assert "stop a restore here" in found.page.title
    assert "pid-taken" in found.quiet.splitlines()
    assert any(isinstance(block, Findings) for block in found.page.blocks)
    told = replace(seen, error=found.error)
    (following,) = [one for one in preview.outcome(told).page.blocks if isinstance(one, Next)]
    assert following.commands == (f"gpuckpt plan {seen.path}",)


def test_the_page_can_be_asked_again_as_it_was(seen: Preview) -> None:
    """Only restore --plan takes the options that plan does not have."""
    apart = replace(seen, facts=replace(seen.facts, apart=True), error=NotAnImage("stopped"))
    (following,) = [one for one in preview.outcome(apart).page.blocks if isinstance(one, Next)]
    assert following.commands == (f"gpuckpt restore {seen.path} --pid-namespace --plan",)
