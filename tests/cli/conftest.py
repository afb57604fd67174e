"""Running command lines in this process, with flows that answer as a test wants."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt.cli import main
from gpuckpt.cli.context import Application
from tests.cli import samples

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuckpt.flow.fallback import Back, FallbackRequest
    from gpuckpt.flow.request import DumpRequest, DumpResult, RestoreResult


@dataclass(frozen=True)
class Ran:
    """What one command line came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """stdout, which must be exactly one JSON object on one line."""
        assert self.out.endswith("}\n")
        assert self.out.count("\n") == 1
        found: dict[str, Any] = json.loads(self.out)
        return found


class Flows:
    """What the flows were asked, and what they answer: a result, or an error to raise."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.error: Exception | None = None
        self.job_exit = 7
        self.fallback: FallbackRequest | None = None
        self.back = samples.back()

    def dump(self, _tools: object, request: DumpRequest, reporter: Any, _i: object) -> DumpResult:
        self._asked(request)
        with reporter.step("lock", "2 processes"):
            pass
        with reporter.step("criu", "memory to image", 2 << 20) as step:
            step.advance(2 << 20)
            if self.error is not None:
                raise self.error
        reporter.note("a note")
        reporter.warn("a warning")
        return samples.dump_result(running=request.leave_running)

    def bring_back(self, _tools: object, request: FallbackRequest, _r: object, _i: object) -> Back:
        self._asked(request.what)
        self.fallback = request
        if self.error is not None:
            raise self.error
        return self.back

    def wait_for(self, _tools: object, job: RestoreResult, *_: object) -> int:
        self.requests.append(job.parent)
        return self.job_exit

    def answer(self, result: object) -> Callable[..., Any]:
        """Return a flow that gives `result`, or raises the error if there is one."""

        def flow(*asked: object) -> object:
            self.requests.append(asked)
            if self.error is not None:
                raise self.error
            return result

        return flow

    def _asked(self, request: object) -> None:
        self.requests.append(request)


@pytest.fixture
def flows(monkeypatch: pytest.MonkeyPatch) -> Flows:
    """Put stand-ins in the place of every flow; the tools must not even be made."""
    found = Flows()
    monkeypatch.setattr("gpuckpt.flow.dump.dump", found.dump)
    monkeypatch.setattr("gpuckpt.flow.fallback.bring_back", found.bring_back)
    monkeypatch.setattr("gpuckpt.flow.returning.waiting.wait_for", found.wait_for)
    monkeypatch.setattr("gpuckpt.flow.outlook.outlook", found.answer(samples.outlook()))
    for name, result in samples.results().items():
        monkeypatch.setattr(f"gpuckpt.flow.{name}.{name}", found.answer(result))
    monkeypatch.setattr(Application, "tools", None)
    return found


@pytest.fixture
def gpuckpt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Ran]:
    """Return a function that runs one command line."""
    for name in os.environ:
        if name.startswith("GPUCKPT_") and name != "GPUCKPT_TEST_SESSION":
            monkeypatch.delenv(name)
    monkeypatch.setenv("GPUCKPT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    def run(*argv: object) -> Ran:
        capsys.readouterr()
        code = main.run([str(word) for word in argv])
        told = capsys.readouterr()
        return Ran(code, told.out, told.err)

    return run
