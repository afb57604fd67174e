"""restore with something to fall back on: the newest image, then older ones, then a cold start.

One is left for the next only where nothing of the job is left behind, and none of it may run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.errors import (
    ColdStartFailed,
    CriuBroken,
    CriuMissing,
    CriuTooOld,
    DriverUnfit,
    GpuckptError,
    HostMismatch,
    ImageError,
    NotAnImage,
    RestoreFailed,
    VerificationFailed,
)
from gpuckpt.flow.coldstart import ColdRequest, Started, cold_start
from gpuckpt.flow.restore import restore
from gpuckpt.flow.returning.candidates import candidates, images_in, manifests
from gpuckpt.flow.returning.elapsed import lost
from gpuckpt.model import Attempt
from gpuckpt.value import Value

if TYPE_CHECKING:
    from gpuckpt.events import Reporter
    from gpuckpt.flow.request import RestoreRequest, RestoreResult
    from gpuckpt.flow.returning.candidates import Candidate
    from gpuckpt.flow.returning.coldstart import Else
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.location import Location
    from gpuckpt.model import Lost

# a restore is refused for these, and a start from the beginning would be wrong as well
_NOT_HERE: Final = frozenset({"job-runs", "not-privileged"})
# these keep a job from being restored, not from running
_NO_RESTORE: Final = (CriuMissing, CriuTooOld, CriuBroken, DriverUnfit)


class FallbackRequest(Value, frozen=True):
    """How to restore, and from which places: with `several` folders of images among them.

    `cold` says what to start if no image can be restored, None: nothing.
    """

    what: RestoreRequest
    places: tuple[Location, ...]
    several: bool = False
    cold: Else | None = None

    @property
    def asked(self) -> bool:
        """Whether there is anything to fall back on."""
        return self.several or self.cold is not None


class Back(Value, frozen=True):
    """A job that was restored, or was started from its beginning.

    `attempts` are all that was tried, in order, the last one being what succeeded; `lost` is of the
    image that it came from, or else of the newest.
    """

    job: RestoreResult | Started
    attempts: tuple[Attempt, ...]
    lost: Lost

    @property
    def started(self) -> Started | None:
        """The job if it was started from its beginning."""
        return self.job if isinstance(self.job, Started) else None


def bring_back(
    tools: Toolbox, request: FallbackRequest, reporter: Reporter, interrupts: Interrupts
) -> Back:
    """Restore the newest image that can be, or start the job from its beginning.

    Raises:
        GpuckptError: as `restore` does for the newest image, where nothing else was to be tried or
            nothing worked; for another if that may not be passed over.
        VerificationFailed: the job was started from its beginning, and fails its probe.
        UsageError: there are images of more than one job.
    """
    return _Fallback(tools, request, reporter, interrupts).run()


class _Fallback:
    """One such run."""

    def __init__(
        self, tools: Toolbox, request: FallbackRequest, reporter: Reporter, interrupts: Interrupts
    ) -> None:
        self.tools = tools
        self.request = request
        self.reporter = reporter
        self.interrupts = interrupts
        self.found = candidates(tools.stores, request.places, several=request.several)
        self.attempts: tuple[Attempt, ...] = ()

    def run(self) -> Back:
        errors = []
        for number, one in enumerate(self.found, start=1):
            self.interrupts.check()
            try:
                return self._restored(one)
            except GpuckptError as why:
                self._tried(why, str(one.path), one.created)
                if not passed_over(why, kill=self.request.what.on_verify_fail == "kill"):
                    raise
                errors.append((one, why))
                if number < len(self.found):
                    self.reporter.warn(f"{why.message}: an older image is tried")
        # of those that were really tried the newest, if there is any
        first = next((why for one, why in errors if one.manifest), errors[0][1])
        if self.request.asked:
            first.attempts = self.attempts
        if self.request.cold is None:
            raise first
        return self._started(first, self.request.cold)

    def _restored(self, one: Candidate) -> Back:
        if one.error is not None and self.request.asked:
            raise one.error
        what = replace(self.request.what, image=one.path, attempts=self.attempts)
        result = restore(self.tools, what, self.reporter, self.interrupts)
        done = Attempt(str(one.path), one.created, "restored")
        return Back(result, (*self.attempts, done), lost(one.manifest))

    def _started(self, first: GpuckptError, cold: Else) -> Back:
        """Start it; if that fails too, what kept it from being restored is the error."""
        self.interrupts.check()
        self.reporter.warn(f"{first.message}: the job is started from its beginning")
        asked = ColdRequest(
            cold=cold,
            what=self.request.what,
            found=self.found,
            attempts=self.attempts,
            why=first,
        )
        try:
            started = cold_start(self.tools, asked, self.reporter, self.interrupts)
        except ColdStartFailed as why:
            self._tried(why, "", "")
            first.attempts = self.attempts
            told = (first.hint, f"Not started from its beginning: {why.message}.", why.hint)
            first.hint = " ".join(filter(None, told))
            raise first from why
        except GpuckptError as why:
            self._tried(why, "", "")
            raise
        done = Attempt("", "", "started")
        newest = next(manifests(self.found), None)
        return Back(started, (*self.attempts, done), lost(newest))

    def _tried(self, why: GpuckptError, image: str, created: str) -> None:
        """Keep what came of one attempt, with it and with those that follow."""
        one = Attempt(image, created, why.name, why.exit_code, why.message, why.findings)
        self.attempts = (*self.attempts, one)
        if self.request.asked:
            why.attempts = self.attempts
        elif isinstance(why, NotAnImage) and images_in(self.tools.stores, self.request.places[0]):
            why.hint = "There are images in this folder: --try takes the newest that can be used."


def passed_over(why: GpuckptError, *, kill: bool) -> bool:
    """Whether something else may be tried: nothing of the job is left, and none of it may run.

    `kill`: a job that fails the look afterwards was ended.
    """
    match why:
        case HostMismatch():
            return _NOT_HERE.isdisjoint(one.id for one in why.findings)
        case VerificationFailed():
            return kill
        case _:
            return isinstance(why, (ImageError, RestoreFailed, *_NO_RESTORE))
