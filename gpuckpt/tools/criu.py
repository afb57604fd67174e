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
from gpuckpt.tools import pidspace
from gpuckpt.tools.criuend import Watch, no_namespace
from gpuckpt.tools.criuplugin import library
from gpuckpt.tools.criuwatch import Hook, Talk, opened, supervise
from gpuckpt.tools.foreground import is_ours, kept
from gpuckpt.tools.run import Command
from gpuckpt.tools.streamer import Capture, Serve

if TYPE_CHECKING:
    from gpuckpt.tools.criurun import CriuOptions, DumpRun, RestoreRun
    from gpuckpt.tools.pidspace import NewSpace, Space
    from gpuckpt.tools.run import Child, Runner

# without it CRIU obeys files in /etc and in the home folder, and even tells no version if one of
# them has an option that it does not know
_ALONE = "--no-default-config"
# up to 4.1.1 no process with an inet socket can be dumped on kernels >= 6.16 (SO_PASSCRED)
OLDEST = Version("4.2")
PREFIX_PROGRAM = Path("/opt/gpuckpt/criu/bin/criu")
# CRIU's own limit for collecting tasks; its default of 10 s is too short for large trees
COLLECT_SECONDS = 60
# a restore has nobody to cure: what it has made is ended
RESTORE_CURE_SECONDS = 2.0
# in the work folder of a dump
DUMP_LOG = "dump.log"
# level 3 tells processes and descriptors; 4, on request, every page it reads as well
DEBUG = "GPUCKPT_CRIU_DEBUG"


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
        with closing(capture), Hook(run.work, "post-dump", pidspace.door(run.place)) as hook:

            def verdict() -> None:
                capture.drain()
                run.commit()

            log = run.work / DUMP_LOG
            watch = Watch(log, run.stop_fd, run.deadline, DumpFailed, run.names)
            argv = ["-t", str(run.pid), "--ghost-limit", str(run.options.ghost_limit)]
            argv += ["--timeout", str(COLLECT_SECONDS)]
            argv += ["--leave-running"] if run.leave_running else []
            talk = Talk(capture, hook, verdict, run.abort, watch)
            self._run(["dump", *argv], run.options, talk, run.place)

    def restore(self, run: RestoreRun) -> None:
        """Restore a tree as children of this process.

        Raises:
            Stopped: `run.stop_fd` said so before the approval.
            RestoreFailed: CRIU failed; half-made tasks may still have to be ended.
            GpuckptError: whatever `run.has`, `run.send` or `run.approve` raised.
        """
        serve = Serve(run.work, run.has, run.send)
        with closing(serve), Hook(run.work, "post-restore", pidspace.door(run.place)) as hook:

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
                self._run(["restore", "-d", "-S"], run.options, talk, run.place, run.stdin)

    def _run(
        self,
        argv: list[str],
        options: CriuOptions,
        talk: Talk,
        place: Space | NewSpace | None,
        stdin: int | None = None,
    ) -> None:
        hook, work = talk.hook, talk.hook.work
        # a libdir of our own keeps CRIU's CUDA plugin out: two owners of the driver's state clash
        argv += ["--stream", _ALONE, "--libdir", str(hook.plugins)]
        if options.stand_ins is not None:
            (hook.plugins / "gpuckpt.so").write_bytes(library(options.stand_ins))
        level = "-v4" if os.environ.get(DEBUG) else "-v3"
        argv += ["-W", str(work), "-o", talk.watch.log.name, level, "--manage-cgroups=ignore"]
        argv += ["--action-script", str(hook.script), *_shared(options)]
        with opened(work) as folder, (work / "criu.out").open("wb") as output:
            argv += ["-D", f"/proc/self/fd/{folder}"]
            command = Command(
                (self.program, *argv),
                stdin=stdin,
                stdout=output.fileno(),
                merge=True,
                pass_fds=(folder,) if place is None else (folder, *hook.ends),
                # CRIU gives the job our terminal, which it can only within our session
                our_session=is_ours(stdin),
            )
            child = self._start(command, place, talk.watch)
        with child:
            talk.server.start(child.pid, below=place is not None)
            supervise(child, talk)

    def _start(self, command: Command, place: Space | NewSpace | None, watch: Watch) -> Child:
        if place is None:
            return self._runner.start(command)
        try:
            return pidspace.start(self._runner, command, place)
        except pidspace.NotMade as why:
            raise no_namespace(watch) from why


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
