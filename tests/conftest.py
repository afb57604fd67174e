"""What holds for every test: which abilities it may count on, and what it may not do.

A test marked `root`, `gpu` or `gpu2` is skipped where the ability is missing.
GPUCKPT_REQUIRE=root,criu,gpu names those that must be there: then a missing one, and any other skip
of such a test, is a failure.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import pytest

from tests import abilities, guard, leaks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEEDS = {
    "root": ("root", "criu"),
    "gpu": ("root", "criu", "gpu"),
    "gpu2": ("root", "criu", "gpu", "gpu2"),
}
# folders whose tests start the programs they need
REAL = {"root", "gpu", "gpu2", "cli", "bench", "field"}
MARK = "GPUCKPT_TEST_SESSION"  # inherited by every process that a test starts
KEPT = {MARK, "GPUCKPT_REQUIRE", "PYTHONPATH"}


def pytest_configure(config: pytest.Config) -> None:
    """Remember what was there before the first test, so that leaks show."""
    os.environ.setdefault(MARK, secrets.token_hex(8))
    config.stash[leaks.BEFORE] = leaks.look(os.environ[MARK])


def pytest_report_header() -> str:
    """Say which abilities are on: a green run without root proves less."""
    found = ", ".join(f"{name}: {what or 'no'}" for name, what in abilities.found().items())
    required = ", ".join(sorted(abilities.required())) or "none"
    return f"abilities: {found} (required: {required})"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what cannot run here."""
    found = abilities.found()
    for mark, names in NEEDS.items():
        missing = [name for name in names if not found[name]]
        if item.get_closest_marker(mark) and missing:
            pytest.skip(f"needs {', '.join(missing)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Turn the skip of a test whose ability is required into a failure."""
    del call
    report = yield
    demanded = any(item.get_closest_marker(mark) and mark in abilities.required() for mark in NEEDS)
    if report.skipped and demanded and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although GPUCKPT_REQUIRE is set: {report.longrepr[2]}"
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if tests left anything behind; workers leave this to their controller."""
    if hasattr(session.config, "workerinput"):
        return
    left = leaks.left(session.config.stash[leaks.BEFORE], os.environ[MARK])
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.stash[leaks.LEFT] = left


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Name what was left behind."""
    left = config.stash.get(leaks.LEFT, ())
    if left:
        terminalreporter.section("left behind by the tests", red=True)
        for line in left:
            terminalreporter.line(line)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the developer's settings and state out of every test."""
    for name in [name for name in os.environ if name.startswith(("GPUCKPT_", "PYTHON"))]:
        if name not in KEPT:
            monkeypatch.delenv(name)
    criu = abilities.criu_program()
    if criu:
        monkeypatch.setenv("GPUCKPT_CRIU", str(criu))
    monkeypatch.setenv("GPUCKPT_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture(autouse=True)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Let only tests of the REAL folders, or marked `programs`, start programs of this machine."""
    folders = set(request.path.relative_to(request.config.rootpath).parts)
    if folders & REAL or request.node.get_closest_marker("programs"):
        yield
        return
    with guard.no_programs(but=tmp_path_factory.getbasetemp()):
        yield
