"""Start a job from its beginning, once no image of it can be restored, and see that it runs.

Its process is there and written down before its program begins: whoever comes next, be it after a
kill of this process, knows that the job runs, or finds that it does not.
"""

from __future__ import annotations

import shlex
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.errors import ColdStartFailed, GpuckptError, NoSuchProcess, VerificationFailed
from gpuckpt.flow.returning import second
from gpuckpt.flow.returning.candidates import manifests
from gpuckpt.flow.returning.coldstart import start_of
from gpuckpt.flow.returning.elapsed import lost
from gpuckpt.flow.returning.probing import answered
from gpuckpt.flow.work.history import COLD, Record, command
from gpuckpt.flow.work.keeping import kept
from gpuckpt.flow.work.operation import Operation
from gpuckpt.flow.work.tasks import end_restored
from gpuckpt.flow.work.undo import Undo
from gpuckpt.image.relocate import Relocation
from gpuckpt.model import blocker
from gpuckpt.value import Value

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.events import Reporter
    from gpuckpt.flow.request import RestoreRequest
    from gpuckpt.flow.returning.candidates import Candidate
    from gpuckpt.flow.returning.coldstart import Else
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.location import Location
    from gpuckpt.model import Attempt, ProcessRef
    from gpuckpt.timing import Receipt
    from gpuckpt.tools.starting import Ready, Start

POLL_SECONDS: Final = 0.05
_LOGS: Final = "cold"
_KEPT: Final = "It was kept and may run: end it before anything else is tried."
_ENDED: Final = "It was ended (--on-verify-fail kill)."


class ColdRequest(Value, frozen=True):
    """What to start in place of which images, and what `what` says of looking at it afterwards.

    `attempts` are those to restore one of them, `why` the newest could not be.
    """

    cold: Else
    what: RestoreRequest
    found: tuple[Candidate, ...]
    attempts: tuple[Attempt, ...]
    why: GpuckptError


class Started(Value, frozen=True):
    """A job that was started; `ready` is its process, our child, `image` what it stands in for.

    `why` that could not be restored; `kept` is where the record of it was put. `ended`: it has come
    to a good end already, as a command does that has others start the job.
    """

    root_pid: int
    why: GpuckptError
    start: Start
    image: Location
    receipt: Receipt
    ready: Ready
    ended: bool = False
    kept: Path | None = None


def cold_start(
    tools: Toolbox, request: ColdRequest, reporter: Reporter, interrupts: Interrupts
) -> Started:
    """Start the job, unless it runs already.

    Raises:
        ColdStartFailed: it was not started, or has failed.
        VerificationFailed: it runs, or was ended, because the probe does not succeed.
        Interrupted: a signal came; it was ended.
        UndoIncomplete: it could not be ended.
    """
    operation = Operation.begin(COLD, tools, reporter, interrupts)
    one = _ColdStart(operation, request)
    with kept(operation, one.told) as here:
        started = one.run()
    return replace(started, kept=here.path)


class _ColdStart:
    """One start: what its steps share."""

    def __init__(self, operation: Operation, request: ColdRequest) -> None:
        self.operation = operation
        self.tools = operation.tools
        self.record = operation.record
        self.interrupts = operation.interrupts
        self.request = request
        newest = next(manifests(request.found), None)
        self.manifest = newest and Relocation(request.what.map_path).manifest(newest)
        self.argv = request.cold.argv or (self.manifest.tree[0].argv if self.manifest else ())
        self.undo = Undo()
        self.interrupts.left = self.undo.left

    def run(self) -> Started:
        start = start_of(self.tools, self.request.cold, self.manifest, self._log())
        try:
            with self.record.phase("start", shlex.join(start.argv)):
                ready = self._begin(start)
            self._look(ready, start)
            self.interrupts.check()
        except BaseException as why:
            self.undo.run(why)
            raise
        self.undo.keep()
        return Started(
            root_pid=ready.pid,
            why=self.request.why,
            start=start,
            image=self.request.found[0].path,
            receipt=self.record.receipt(),
            ready=ready,
            ended=ready.status() == 0,
        )

    def told(self, receipt: Receipt) -> Record:
        """Return what is kept of it, whatever came of it."""
        manifest = self.manifest
        return Record(
            operation=COLD,
            started=receipt.started,
            receipt=receipt,
            command=command(self.argv, ""),
            processes=1,
            image_id=manifest.image_id if manifest else "",
            image=str(self.request.found[0].path),
            attempts=self.request.attempts,
            lost=lost(manifest),
        )

    def _log(self) -> Path:
        """Return where its output goes if it had no files: beside the journal there is room."""
        name = "".join(one if one.isalnum() else "-" for one in (self.argv or ("job",))[0])
        moment = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        return self.tools.state_dir / _LOGS / f"{name[-40:].strip('-')}-{moment}.log"

    def _begin(self, start: Start) -> Ready:
        """Write the job down before its program begins, with the journal locked against others."""
        journal = self.operation.journal
        try:
            journal.make()
            with journal.locked():
                ready = self._ready(start)
        except ColdStartFailed:
            raise
        except (GpuckptError, OSError) as why:
            raise ColdStartFailed(f"it could not be written down that it runs: {why}") from why
        self.interrupts.check()
        if reason := ready.go(self.interrupts.fd):
            self.interrupts.check()
            raise ColdStartFailed(f"{start.argv[0]} could not be started: {reason}")
        return ready

    def _ready(self, start: Start) -> Ready:
        if wrong := second.copies(self.tools, self.request.found):
            said = wrong[0].reason.removesuffix(".")
            raise ColdStartFailed(said, findings=wrong, hint=wrong[0].remedy)
        ready = self.tools.starter.ready(start)
        self.undo.add(f"process {ready.pid} is left", ready.give_up)
        process = self.tools.proc.process(ready.pid)
        if process is None:
            raise ColdStartFailed("its process has ended before its program began")
        self.undo.add(f"the job, process {ready.pid}, is left", partial(self._end, process.ref))
        second.remember(self.tools, self.request.found, self.record.started, process.ref)
        return ready

    def _look(self, ready: Ready, start: Start) -> None:
        """See that it stays alive for a while; one that is waited for tells its end by itself."""
        what = self.request.what
        if what.probe:
            with self.record.phase("probe", what.probe):
                self._probe(ready, start, what.probe)
        elif not start.inherits:
            with self.record.phase("settle", f"until it has run for {what.settle:g} s"):
                self._rest(ready, time.monotonic() + what.settle)
        if what.probe or not start.inherits:
            self._alive(ready, start)

    def _probe(self, ready: Ready, start: Start, probe: str) -> None:
        what, rest = self.request.what, partial(self._rest, ready)
        answer = answered(self.tools.shell, self.interrupts, probe, what.probe_timeout, rest)
        self._alive(ready, start)
        if not answer:
            return
        keep = what.on_verify_fail == "keep"
        if keep:
            self.undo.keep()
        reason = f"The probe did not succeed: {answer}."
        raise VerificationFailed(
            f"the job was started from its beginning and fails its probe: {answer}",
            hint=_KEPT if keep else _ENDED,
            findings=[blocker("probe", probe, reason, "Look at its output.", ready.pid)],
        )

    def _rest(self, ready: Ready, until: float) -> bool:
        """Let time pass; whether it runs still, or has ended well."""
        while (left := until - time.monotonic()) > 0 and not ready.status():
            self.interrupts.check()
            time.sleep(min(POLL_SECONDS, left))
        return not ready.status()

    def _alive(self, ready: Ready, start: Start) -> None:
        if not (status := ready.status()):
            return
        how = f"with status {status}" if status > 0 else f"by signal {-status}"
        files = dict.fromkeys(filter(None, (start.stdout, start.stderr, start.log)))
        where = f"; its output is in {' and '.join(map(str, files))}" if files else ""
        raise ColdStartFailed(f"it was started and ended {how} at once{where}")

    def _end(self, job: ProcessRef) -> None:
        """End it with all that it has started by now."""
        if not self.tools.proc.alive(job):
            return
        try:
            tree = self.tools.proc.tree(job.pid)
        except NoSuchProcess:  # this very moment
            return
        end_restored(self.tools, [one.ref for one in tree.processes], ())
