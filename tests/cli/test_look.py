"""How pages look: plain lines that can be grepped, and a terminal of 80 and 120 columns."""

from __future__ import annotations

import io
import os
import re
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from gpuckpt import errors
from gpuckpt.cli import dump, engine, failure, plain, plan, restore, show, terminal, units
from gpuckpt.cli.live import Terminal
from gpuckpt.cli.streams import Tolerant
from gpuckpt.flow.request import Inside
from gpuckpt.flow.show import ShowResult
from gpuckpt.image.engine import (
    DistributionRecord,
    Engine,
    LibraryRecord,
    TrackedRecord,
    WeightRecord,
)
from gpuckpt.image.outside import PythonRecord
from gpuckpt.timing import Phase
from tests.cli import samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.cli.page import Page
    from tests.cli.conftest import Flows, Ran

PATIENCE = 30.0  # seconds; a grid of one row is drawn
BLOCKED = failure.page("dump", errors.Blocked("4 findings stop it", findings=samples.FINDINGS))
PAGES = {
    "blocked": BLOCKED,
    "dump": dump.outcome(samples.dump_result()).page,
    "plan": plan.outcome(samples.outlook()).page,
    "no plan": plan.outcome(samples.outlook(*samples.FINDINGS)).page,
    "show": show.outcome(ShowResult(samples.MANIFEST, samples.IMAGE, ("time-travel",))).page,
    "timeline": show.receipts(samples.IMAGE, (samples.RECORD,)).page,
}
BOXES = re.compile(r"[─-╿▀-▟]")


def drawn(page: Page, width: int, encoding: str = "utf-8") -> list[str]:
    """Return the lines of a page on a terminal without colours."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    screen = Console(file=stream, width=width, force_terminal=True, color_system=None, markup=False)
    terminal.show(screen, page)
    stream.flush()
    return raw.getvalue().decode(encoding).splitlines()


@pytest.mark.parametrize("name", PAGES)
def test_plain_lines_draw_nothing(name: str) -> None:
    lines = list(plain.lines(PAGES[name]))
    assert lines
    assert not [line for line in lines if BOXES.search(line) or "\x1b" in line or "\n" in line]


def test_a_job_in_a_namespace_has_pids_here_and_there() -> None:
    inside = Inside(900, 4711, (4711, 4720), {"@old": "@new"})
    made = replace(samples.restore_result(), root_pid=905, pids=(905, 907), inside=inside)
    lines = list(plain.lines(restore.outcome(made).page))
    assert lines[1:4] == ["pid: 905", "processes: 905 907", "inside: pid 4711, processes 4711 4720"]
    assert lines[4].startswith("init: 900: passes signals on")
    assert lines[5] == "renamed: the driver's socket @old is now @new"
    assert restore.outcome(made).quiet == "905"


def test_a_finding_is_one_plain_line() -> None:
    lines = [line for line in plain.lines(BLOCKED) if line.startswith(("blocker", "warning"))]
    assert len(lines) == len(samples.FINDINGS)
    assert lines[0] == (
        "blocker io-uring pid 4711 fd 5: an io_uring ring is open, and CRIU cannot dump one;"
        " remedy: Start the job with kernel.io_uring_disabled=2, or without libuv's ring."
    )
    assert lines[3].startswith("blocker gate-file-size /home/user/experiments/2026-07/night-7/")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_terminal(name: str, width: int) -> None:
    """But for commands to be pasted: those the terminal itself has to wrap."""
    lines = [line for line in drawn(PAGES[name], width) if "next:" not in line]
    assert max(len(line) for line in lines) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_an_error_answers_the_three_questions(width: int) -> None:
    """Is the job safe, what stopped it, what do I type next: in this order."""
    text = "\n".join(drawn(BLOCKED, width))
    places = [
        text.index(word) for word in ("4 findings", "Nothing was touched", "io-uring", "next")
    ]
    assert places == sorted(places)
    whole = re.sub(r"\s+", " ", text)
    for finding in samples.FINDINGS:
        assert finding.id in whole
        assert finding.reason in whole
        assert finding.remedy in whole


SCREEN = 24  # lines of a terminal as it opens


def test_a_plan_of_a_healthy_job_fits_on_a_screen() -> None:
    """Sixteen workers and four ranks are told in a line each, or a line together."""
    lines = drawn(plan.outcome(samples.outlook(ranks=4, workers=16)).page, 80)
    assert len(lines) < SCREEN
    (together,) = [line for line in lines if "16 x " in line]
    assert "16.0 GiB" in together  # what they hold together
    assert any(line.endswith("gpuckpt dump 100 -o " + str(samples.IMAGE)) for line in lines)


def test_a_plan_of_too_many_processes_is_cut_with_a_count() -> None:
    seen = samples.outlook(ranks=30)
    lines = list(plain.lines(plan.outcome(seen).page))
    # what is on a GPU is shown first
    assert sum(" CUDA " in line for line in lines) == 10
    assert any("and 21 more: --json lists all" in line for line in lines)
    assert len(plan.outcome(seen).payload["processes"]) == 31  # type: ignore[index]


def test_of_many_findings_of_a_kind_a_few_are_drawn() -> None:
    many = tuple(replace(samples.FINDINGS[0], object=f"fd {number}") for number in range(20))
    text = "\n".join(drawn(failure.page("dump", errors.Blocked("20", findings=many)), 80))
    assert text.count("an io_uring ring is open") == 3
    assert "and 17 x io-uring: --json lists all" in text


def test_a_plan_says_what_would_stop_the_dump(gpuckpt: Callable[..., Ran], flows: Flows) -> None:
    del flows
    page = plan.outcome(samples.outlook(*samples.FINDINGS))
    assert page.exit_code == 4
    lines = list(plain.lines(page.page))
    assert lines[0] == "3 findings stop a dump of process 100"
    assert "error: blocked, exit 4" in lines
    assert page.quiet.split() == ["io-uring", "gpu-leftover", "gate-file-size"]
    assert gpuckpt("plan", 5).out.startswith("process 100 can be dumped now")


def test_a_process_is_named_once() -> None:
    found = samples.FINDINGS[0]
    ended = replace(found, object="pid 7", pid=7)
    page = failure.page("restore", errors.VerificationFailed("it ended", findings=[ended]))
    assert sum(text.count("pid 7") for text in plain.lines(page)) == 1
    assert sum(text.count("pid 7") for text in drawn(page, 80)) == 1


def test_a_command_to_paste_is_never_broken() -> None:
    command = f"gpuckpt restore {samples.IMAGE}"
    assert any(line.endswith(command) for line in drawn(PAGES["dump"], 60))


def test_a_terminal_without_utf8_gets_ascii() -> None:
    for page in PAGES.values():
        assert "\n".join(drawn(page, 80, "ascii")).isascii()


@pytest.mark.usefixtures("flows")
def test_hostile_names_are_made_visible(gpuckpt: Callable[..., Ran]) -> None:
    """A process chooses its own command line: it must neither move the cursor nor forge lines."""
    told = gpuckpt("jobs").out
    assert "\\x1b[2J\\nno such job" in told
    assert len(told.splitlines()) == 3


def test_bytes_that_are_no_utf8_are_shown_as_bytes() -> None:
    assert units.printable(os.fsdecode(b"/data/\xe9\xff")) == r"/data/\xe9\xff"


def test_what_a_job_computes_with_takes_a_few_lines() -> None:
    names = ("transformers", "numpy", "torch", *(f"nvidia-{number}" for number in range(8)))
    weights = WeightRecord(
        path="/hub/snapshots/c/a-1.safetensors", size=3 << 20, mtime_ns=0, digest="", sampled=True
    )
    snapshot = (weights, msgspec.structs.replace(weights, path="/hub/snapshots/c/a-2.safetensors"))
    manifest = msgspec.structs.replace(
        samples.MANIFEST,
        outside=msgspec.structs.replace(
            samples.MANIFEST.outside,
            pythons=(
                PythonRecord(
                    prefix="/venv", packages=(), version="3.11.7", implementation="cpython"
                ),
            ),
        ),
        engine=Engine(
            distributions=tuple(
                DistributionRecord(name=name, version="1", folder="/s") for name in names
            ),
            libraries=(
                LibraryRecord(name="nccl", version="2", path="/venv/libnccl.so.2"),
                LibraryRecord(name="cudart", version="12.4.127", path="/l/libcudart.so.12.4.127"),
            ),
            whole=False,
        ),
        models=(
            *(msgspec.structs.replace(o, model="org/name", commit="c" * 40) for o in snapshot),
            msgspec.structs.replace(weights, path="/models/lone.gguf"),
        ),
        tracked=(TrackedRecord(path="/cache", kind="folder", digest="", entries=1, size=5),),
    )
    assert list(engine.rows(manifest)) == [
        ("python", "cpython 3.11.7, /venv"),
        (
            "loaded",
            (
                f"torch 1, transformers 1, numpy 1, {', '.join(f'nvidia-{n} 1' for n in range(5))} "
                "and 3 more, as installed"
            ),
        ),
        ("libraries", "cudart 12.4.127"),
        ("model", "org/name at cccccccccccc, 2 files, 6.0 MiB"),
        ("model", "/models/lone.gguf, 3.0 MiB"),
        ("tracked", "/cache, 1 entry, 5 B"),
    ]


def test_bars_lie_where_the_phase_was() -> None:
    assert terminal.bar(Phase("a", 0.0, 5.0), 10.0, 10, fine=True) == "█████     "
    assert terminal.bar(Phase("b", 5.0, 5.0), 10.0, 10, fine=True) == "     █████"
    assert terminal.bar(Phase("c", 10.0, 0.0), 10.0, 10, fine=True) == "         ▏"
    assert terminal.bar(Phase("d", 2.0, 0.25), 10.0, 8, fine=False) == " #      "
    assert len(terminal.bar(Phase("e", 3.0, 99.0), 10.0, 10, fine=True)) == 10
    assert terminal.bar(Phase("f", 0.0, 0.0), 0.0, 10, fine=True).strip()


def test_plain_progress_is_a_line_a_step(gpuckpt: Callable[..., Ran], flows: Flows) -> None:
    lines = gpuckpt("dump", 5).err.splitlines()
    assert [re.sub(r"[\d.]+ (s|.iB/s)", "N", line) for line in lines] == [
        "gpuckpt: lock: begins, 2 processes",
        "gpuckpt: lock: done in N, 2 processes",
        "gpuckpt: criu: begins, memory to image",
        "gpuckpt: criu: done in N, 2.0 MiB, N, memory to image",
        "gpuckpt: note: a note",
        "gpuckpt: warning: a warning",
    ]
    flows.error = errors.WriteFailed("disk full")
    assert "gpuckpt: criu: failed after" in gpuckpt("dump", 5).err


def test_progress_can_be_silenced(gpuckpt: Callable[..., Ran], flows: Flows) -> None:
    assert gpuckpt("dump", 5, "--progress", "none").err == "gpuckpt: warning: a warning\n"
    assert flows.requests


def test_steps_on_a_terminal_stand_when_they_are_done() -> None:
    stream = io.StringIO()
    screen = Console(file=stream, width=80, force_terminal=True, color_system=None)
    story = Terminal(screen)
    with story.step("lock", "2 processes"), story.step("criu", "to image", 1 << 30) as step:
        step.advance(1 << 29)
        time.sleep(0.3)  # long enough for the moving line to be drawn
        step.say("all pages")
    story.warn("careful")
    with pytest.raises(ZeroDivisionError), story.step("commit"):
        raise ZeroDivisionError
    story.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    lines = [line.strip() for line in re.split(r"[\r\n]", text)]
    finished = [line for line in lines if line.startswith(("✓", "✗", "!"))]
    assert re.fullmatch(r"✓ criu +all pages +512\.0 MiB +\S+ .iB/s +\d+\.\d+ s", finished[0])
    assert re.fullmatch(r"✓ lock +2 processes +\d+\.\d+ s", finished[1])
    assert finished[2] == "! careful"
    assert finished[3].startswith("✗ commit")
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is back


def test_drawing_never_waits_for_a_step_that_ends() -> None:
    """The thread that draws holds rich's lock, for which the step's end waits with ours."""
    story = Terminal(Console(file=io.StringIO(), width=80, force_terminal=True))
    drawn = threading.Thread(target=story.__rich__, daemon=True)
    with story._lock:
        drawn.start()
        drawn.join(PATIENCE)
        assert not drawn.is_alive()


class Broken(io.StringIO):
    """A terminal that has hung up."""

    def write(self, text: str) -> int:  # noqa: ARG002
        raise OSError(5, "Input/output error")


def test_a_terminal_that_hung_up_stops_nothing() -> None:
    stream = Tolerant(Broken())
    story = Terminal(terminal.console(stream))
    with story.step("lock"):
        story.note("nobody reads this")
    story.close()
    assert stream.broken is not None


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 << 20, "1.5 GiB"),
        (1 << 60, "1024.0 PiB"),
    ],
)
def test_sizes_are_binary(amount: int, text: str) -> None:
    assert units.size(amount) == text


@pytest.mark.parametrize(
    ("text", "amount"),
    [("0", 0), ("4096", 4096), ("10k", 10240), ("1.5G", 3 << 29), ("2MiB", 2 << 20), ("7 B", 7)],
)
def test_sizes_can_be_typed(text: str, amount: int) -> None:
    assert units.parse_size(text) == amount
