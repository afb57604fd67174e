"""A CRIU log in, a sentence for people out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuckpt.tools import criulog
from tests.unit.tools.criu_lines import DUMP, NAMES, RESTORE

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.tools.criuwords.rule import Rule

HARMLESS = (
    "(00.001) Error (criu/rlimit.c:30): rlimit: Can't setup RLIMIT_NOFILE for self: "
    "Operation not permitted\n"
)


@pytest.mark.parametrize(
    ("lines", "said"),
    [pytest.param(lines, said, id=name) for name, lines, said in (*DUMP, *RESTORE)],
)
def test_known_failures_are_translated(tmp_path: Path, lines: str, said: str) -> None:
    """A sentence names process and object; harmless errors before it do not mislead."""
    log = tmp_path / "dump.log"
    log.write_text(HARMLESS + lines)
    report = criulog.read(log, NAMES)
    assert said in report.sentence
    assert report.hint.endswith(".")
    assert report.lines
    assert HARMLESS.strip() not in report.lines
    assert "{" not in report.sentence + report.hint
    # nobody has to know the names: a failure may come before anything was looked at
    assert criulog.read(log).sentence


@pytest.mark.parametrize(
    "rule", [*criulog.CAUSES, *criulog.WEAK, *criulog.AREAS], ids=lambda rule: rule.pattern
)
def test_every_rule_says_whole_sentences(rule: Rule) -> None:
    """No rule asks for a word that its pattern may not give."""
    words = criulog.words(criulog.Line("", "", None, None), {}, NAMES)
    groups = dict.fromkeys(criulog.groups(rule.pattern), "1")
    for text in (rule.sentence, rule.hint):
        assert text.format(**words | groups)
    assert rule.hint.endswith(".")
    assert not rule.sentence.endswith(".")


def test_an_unknown_failure_shows_its_lines_and_the_last_ones(tmp_path: Path) -> None:
    """No rule, no sentence: the lines speak."""
    log = tmp_path / "dump.log"
    moon = "(00.1) Error (criu/new.c:7): the moon is full"
    log.write_text(f"{HARMLESS}{moon}\n(00.2) going home\n")
    report = criulog.read(log)
    assert report.sentence == ""
    assert report.lines == (moon, HARMLESS.strip(), "(00.2) going home")
    assert report.complaint == "the moon is full"


def test_where_it_failed_is_told_when_why_is_not_known(tmp_path: Path) -> None:
    """CRIU's modules put their name before their messages."""
    log = tmp_path / "dump.log"
    log.write_text("(00.1) Dumping opened files (pid: 4711)\n(00.2) Error (x.c:1): unix: Odd\n")
    told = criulog.read(log, NAMES).sentence
    assert "at a unix socket of process 4711 (train), in a way that gpuckpt does not know" in told
    assert told.endswith("unix: Odd")


def test_a_log_without_errors_shows_its_end(tmp_path: Path) -> None:
    """A CRIU that was killed says nothing: its last lines tell how far it came."""
    log = tmp_path / "dump.log"
    log.write_text("".join(f"(00.{number}) step {number}\n" for number in range(20)))
    assert criulog.read(log).lines[-1] == "(00.19) step 19"
    assert criulog.last_lines(log)[-1] == "(00.19) step 19"


def test_what_comes_after_the_closing_line_is_no_cause(tmp_path: Path) -> None:
    """CRIU kills what it has made, and complains of that too."""
    log = tmp_path / "restore.log"
    log.write_text(
        "(00.2) Error (criu/cr-restore.c:2331): Restoring FAILED.\n"
        "(00.3) Error (criu/cr-restore.c:1269): 4711 killed by signal 9: Killed\n"
    )
    assert criulog.read(log).sentence == ""


def test_a_cause_counts_before_its_consequences(tmp_path: Path) -> None:
    """The first line that tells a cause wins, wherever a weak one stands."""
    log = tmp_path / "restore.log"
    log.write_text(
        "(00.1) Error (x.c:1): 4712 killed by signal 9: Killed\n"
        "(00.2)   4711: Error (x.c:1): Can't open file a on restore: No such file or directory\n"
    )
    assert "/a, which process 4711" in criulog.read(log).sentence


def test_no_log_is_no_reason_to_fail(tmp_path: Path) -> None:
    """CRIU may have died before it opened its log."""
    assert criulog.read(tmp_path / "missing") == criulog.Report("", "", ())


def test_the_middle_of_a_flooded_log_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criulog, "READ_BYTES", 200)
    log = tmp_path / "restore.log"
    cause = (
        "(00.1)   4711: Error (x.c:1): Can't open file a on restore: No such file or directory\n"
    )
    log.write_text(cause + "(00.2) again\n" * 1000 + "(00.3) the end\n")
    report = criulog.read(log)
    assert "is missing" in report.sentence
    assert criulog.last_lines(log)[-1] == "(00.3) the end"
