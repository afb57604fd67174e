"""A CRIU log in, a sentence for people out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuckpt.tools import criulog

if TYPE_CHECKING:
    from pathlib import Path

HARMLESS = (
    "(00.001) Error (criu/rlimit.c:30): rlimit: Can't setup RLIMIT_NOFILE for self: "
    "Operation not permitted\n"
)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Error (cr-restore.c:1): Can't fork for 4711: File exists", "pid 4711"),
        (
            "Error (x.c:1): Can't open file usr/lib/x.so on restore: No such file",
            "/usr/lib/x.so",
        ),
        (
            "Error (x.c:1): Can't open file data/my file on restore: No such file or directory",
            "/data/my file is missing",
        ),
        (
            "Error (x.c:1): File var/log/job has bad size 12 (expect 10)",
            "another size",
        ),
        (
            "Error (x.c:1): Can't dump file 17 of that type [20666] (chr 195:255)",
            "descriptor 17",
        ),
        (
            "Error (x.c:1): Connected TCP socket, consider using --tcp-established",
            "TCP",
        ),
        ("Error (x.c:1): inet: In-flight connection (l) for 100db5", "waits to be accepted"),
        ("Error (x.c:1): pidfd: pidfd pid 1 is not a part of process tree..", "process 1"),
        ("Error (x.c:1): Some file locks are hold by dumping tasks!", "file locks"),
        (
            "Error (x.c:1): Can't link remap to /dev/shm/sem.f0oRsO: File exists",
            "link_remap file of another dump",
        ),
        (
            "Error (x.c:1): Can't bind inet socket (id 26): Address already in use",
            "port",
        ),
    ],
)
def test_known_failures_are_translated(tmp_path: Path, line: str, said: str) -> None:
    """A rule's sentence names the object; harmless errors before it do not mislead."""
    log = tmp_path / "dump.log"
    log.write_text(
        f"{HARMLESS}(00.002) {line}\n(00.003) Error (criu/cr-dump.c:1): Dumping FAILED.\n"
    )
    report = criulog.read(log)
    assert said in report.sentence
    assert report.hint
    assert report.lines == (f"(00.002) {line}",)


def test_an_unknown_failure_shows_its_lines(tmp_path: Path) -> None:
    """No rule, no sentence: the lines speak."""
    log = tmp_path / "dump.log"
    log.write_text(f"{HARMLESS}(00.1) Error (criu/new.c:7): the moon is full\n")
    report = criulog.read(log)
    assert report.sentence == ""
    assert report.lines == ("(00.1) Error (criu/new.c:7): the moon is full",)


def test_a_log_without_errors_shows_its_end(tmp_path: Path) -> None:
    """A CRIU that was killed says nothing: its last lines tell how far it came."""
    log = tmp_path / "dump.log"
    log.write_text("".join(f"(00.{number}) step {number}\n" for number in range(20)))
    assert criulog.read(log).lines[-1] == "(00.19) step 19"


def test_no_log_is_no_reason_to_fail(tmp_path: Path) -> None:
    """CRIU may have died before it opened its log."""
    assert criulog.read(tmp_path / "missing") == criulog.Report("", "", ())
