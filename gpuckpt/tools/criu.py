"""CRIU: which one, with which options, and a watchful eye on it while it runs.

CRIU is driven by its command line because streaming exists only there (4.2.1). Each run gets a
private work folder for its log and its hook. The hook is how CRIU asks us, with every task still
stopped, whether the dump or the restore may take effect; it reaches us through our own
descriptors under /proc, so that a gpuckpt that has died reads as "no".
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import (
    CriuBroken,
    CriuMissing,
    CriuTooOld,
    DumpFailed,
    RestoreFailed,
    ToolFailed,
    ToolMissing,
    ToolTimeout,
)
from gpuckpt.model import TcpPolicy, Version
from gpuckpt.tools.criuend import LARGEST_LOG, Watch
from gpuckpt.tools.criunames import Names
from gpuckpt.tools.criuplugin import library
from gpuckpt.tools.criuwatch import Hook, Talk, opened, supervise
from gpuckpt.tools.foreground import is_ours, kept
from gpuckpt.tools.run import Command
from gpuckpt.tools.streamer import Capture, Serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.tools.run import Runner

# without it CRIU obeys files in /etc and in the home folder, and even tells no version if one of
# them has an option that it does not know
_ALONE = "--no-default-config"
# up to 4.1.1 no process with an inet socket can be dumped on kernels >= 6.16 (SO_PASSCRED)
OLDEST = Version("4.2")
PREFIX_PROGRAM = Path("/opt/gpuckpt/criu/bin/criu")
# CRIU's own limit for collecting tasks; its default of 10 s is too short for large trees
COLLECT_SECONDS = 60
# patience for a whole run: a fixed part, and one that grows at a rate any disk can keep
DEADLINE_SECONDS = 120.0
SLOWEST_BYTES_PER_SECOND = 20 << 20
# a restore has nobody to cure: what it has made is ended
RESTORE_CURE_SECONDS = 2.0
# in the work folder of a dump
DUMP_LOG = "dump.log"
# level 3 tells processes and descriptors; 4, on request, every page it reads as well
DEBUG = "GPUCKPT_CRIU_DEBUG"


@dataclass(frozen=True, slots=True)
class CriuOptions:
    """What a dump chooses and its restore must repeat; `ghost_limit` in bytes.

    `drop_waiting`: connections that nobody has accepted go without a word.
    `stand_ins` are the numbers of devices that a dump may take though CRIU has no code for them;
    a restore needs no numbers, but not None.
    """

    tcp: TcpPolicy = TcpPolicy.NONE
    drop_waiting: bool = True
    file_locks: bool = False
    shell_job: bool = False
    link_remap: bool = False
    external_unix: bool = False
    ghost_limit: int = 1 << 30
    stand_ins: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class DumpRun:
    """One dump: what to dump, where images go, and who decides.

    `store` takes each image from its pipe, and ends early once `abort` was called. `commit` runs
    when all are stored, the tree still frozen: if it returns, the tree is ended (or goes on with
    `leave_running`), if it raises, the tree goes on. `stop_fd` becoming readable ends CRIU early,
    `deadline` in seconds likewise. `names` explain the numbers in its log.
    """

    pid: int
    work: Path
    store: Callable[[str, int], None]
    abort: Callable[[], None]
    commit: Callable[[], None]
    options: CriuOptions
    leave_running: bool
    stop_fd: int
    deadline: float
    names: Callable[[], Names] = Names


@dataclass(frozen=True, slots=True)
class RestoreRun:
    """One restore: where images come from, and who decides.

    `approve` runs when all tasks stand, none of them having run yet; if it raises, they end.
    Every `send` ends soon once `abort` was called. `stdin` is the terminal that a shell job gets
    back, None where there is none. `names` explain the numbers in CRIU's log, which may have
    `largest_log` bytes.
    """

    work: Path
    has: Callable[[str], bool]
    send: Callable[[str, int], None]
    approve: Callable[[], None]
    options: CriuOptions
    stop_fd: int
    deadline: float
    stdin: int | None = None
    abort: Callable[[], None] = lambda: None
    names: Callable[[], Names] = Names
    largest_log: int = LARGEST_LOG


def deadline(size: int) -> float:
    """Return the seconds CRIU may take for `size` bytes of images, whichever way they go."""
    return DEADLINE_SECONDS + size / SLOWEST_BYTES_PER_SECOND


def find(runner: Runner) -> Criu:
    """Find CRIU: GPUCKPT_CRIU, else gpuckpt's own prefix, else PATH.

    Raises:
        CriuMissing: there is none.
        CriuTooOld: it is older than 4.2.
        CriuBroken: it cannot even tell its version.
    """
    named = os.environ.get("GPUCKPT_CRIU")
    if named:
        program = named
    elif PREFIX_PROGRAM.exists():
        program = str(PREFIX_PROGRAM)
    else:
        program = shutil.which("criu") or ""
    if not program:
        raise CriuMissing(f"CRIU was not found: neither {PREFIX_PROGRAM} nor criu in PATH")
    return Criu(runner, program, _version(runner, program))


def _version(runner: Runner, program: str) -> Version:
    try:
        text = runner.run(Command((program, "--version", _ALONE), timeout=30)).stdout
    except ToolMissing as why:
        raise CriuMissing(f"CRIU was not found: {program} is no program") from why
    except (ToolFailed, ToolTimeout) as why:
        raise CriuBroken(f"{program} cannot tell its version: {why}") from why
    words = text.split()
    version = Version(words[words.index("Version:") + 1] if "Version:" in words[:-1] else "0")
    if version < OLDEST:
        raise CriuTooOld(
            f"{program} is CRIU {version}; gpuckpt needs {OLDEST} or newer: older ones cannot "
            "dump a process with a socket on kernels from 6.16 on",
        )
    return version


class Criu:
    """The CRIU that was found."""

    def __init__(self, runner: Runner, program: str, version: Version) -> None:
        """Take a program whose version is known to be new enough."""
        self.program = program
        self.version = version
        self._runner = runner

    def check(self) -> str:
        """Run CRIU's own check of this kernel and return what it printed.

        Raises:
            CriuBroken: CRIU says that it cannot work here.
        """
        try:
            done = self._runner.run(Command((self.program, "check", _ALONE), timeout=60))
        except (ToolFailed, ToolTimeout) as why:
            raise CriuBroken(f"criu check failed: {why}", excerpt=_tail(why)) from why
        return (done.stdout + done.stderr).strip()

    def dump(self, run: DumpRun) -> None:
        """Dump a tree into `run.store` and let `run.commit` decide about it.

        Raises:
            Stopped: `run.stop_fd` said so before the commit; the tree goes on.
            DumpFailed: CRIU failed; the tree goes on unless the commit had been made.
            GpuckptError: whatever `run.store` or `run.commit` raised.
        """
        capture = Capture(run.work, run.store)
        with closing(capture), Hook(run.work, "post-dump") as hook:

            def verdict() -> None:
                capture.drain()
                run.commit()

            log = run.work / DUMP_LOG
            watch = Watch(log, run.stop_fd, run.deadline, DumpFailed, run.names)
            argv = ["-t", str(run.pid), "--ghost-limit", str(run.options.ghost_limit)]
            argv += ["--timeout", str(COLLECT_SECONDS)]
            argv += ["--leave-running"] if run.leave_running else []
            self._run(["dump", *argv], run.options, Talk(capture, hook, verdict, run.abort, watch))

    def restore(self, run: RestoreRun) -> None:
        """Restore a tree as children of this process.

        Raises:
            Stopped: `run.stop_fd` said so before the approval.
            RestoreFailed: CRIU failed; half-made tasks may still have to be ended.
            GpuckptError: whatever `run.has`, `run.send` or `run.approve` raised.
        """
        serve = Serve(run.work, run.has, run.send)
        with closing(serve), Hook(run.work, "post-restore") as hook:

            def verdict() -> None:
                serve.drain()
                run.approve()

            watch = Watch(
                run.work / "restore.log",
                run.stop_fd,
                run.deadline,
                RestoreFailed,
                run.names,
                cure=RESTORE_CURE_SECONDS,
                largest_log=run.largest_log,
            )
            talk = Talk(serve, hook, verdict, run.abort, watch)
            with kept(run.stdin):
                self._run(["restore", "-d", "-S"], run.options, talk, run.stdin)

    def _run(
        self, argv: list[str], options: CriuOptions, talk: Talk, stdin: int | None = None
    ) -> None:
        work = talk.hook.work
        # a libdir of our own keeps CRIU's CUDA plugin out: two owners of the driver's state clash
        argv += ["--stream", _ALONE, "--libdir", str(talk.hook.plugins)]
        if options.stand_ins is not None:
            (talk.hook.plugins / "gpuckpt.so").write_bytes(library(options.stand_ins))
        level = "-v4" if os.environ.get(DEBUG) else "-v3"
        argv += ["-W", str(work), "-o", talk.watch.log.name, level, "--manage-cgroups=ignore"]
        argv += ["--action-script", str(talk.hook.script), *_shared(options)]
        with opened(work) as folder, (work / "criu.out").open("wb") as output:
            argv += ["-D", f"/proc/self/fd/{folder}"]
            child = self._runner.start(
                Command(
                    (self.program, *argv),
                    stdin=stdin,
                    stdout=output.fileno(),
                    merge=True,
                    pass_fds=(folder,),
                    # CRIU gives the job our terminal, which it can only within our session
                    our_session=is_ours(stdin),
                )
            )
        with child:
            talk.server.start(child.pid)
            supervise(child, talk)


def _shared(options: CriuOptions) -> list[str]:
    """The options that dump and restore must agree on."""
    chosen: list[str] = []
    if options.tcp is TcpPolicy.ESTABLISHED:
        chosen += ["--tcp-established", "--network-lock", "nftables"]
    elif options.tcp is TcpPolicy.CLOSE:
        chosen += ["--tcp-close", "--network-lock", "skip"]
    if options.tcp is not TcpPolicy.NONE and options.drop_waiting:
        chosen.append("--skip-in-flight")
    if options.file_locks:
        chosen.append("--file-locks")
    if options.shell_job:
        chosen.append("--shell-job")
    if options.link_remap:
        chosen.append("--link-remap")
    if options.external_unix:
        chosen.append("--ext-unix-sk")
    return chosen


def _tail(why: ToolFailed | ToolTimeout) -> list[str]:
    return (why.stdout + why.stderr).strip().splitlines()[-5:]
