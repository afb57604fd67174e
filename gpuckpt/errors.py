"""Every way gpuckpt can fail: a stable name, an exit code, and what to do next.

The name is for scripts and never changes its meaning; the code says what became of the job
(see the table in README.md). A message says what failed, the hint what to type next.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gpuckpt.model import Attempt, Condition, CudaOutcome, Finding, GpuPlace, Lost


class GpuckptError(Exception):
    """The root of all errors meant for the user.

    `job` says in a sentence what became of the job. `log` is where evidence was kept, `excerpt`
    the lines of a program's output that matter. `processes` is filled in where something of the
    job is not as it had been, `gpus` where a host was compared with an image, `receipt` where a
    record of it was kept, `attempts` and `lost` where more than one thing was tried.
    """

    code: ClassVar[int] = 1
    name: ClassVar[str] = "bug"
    job: ClassVar[str] = "Unknown: look whether it runs before anything else."
    default_hint: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        findings: Iterable[Finding] = (),
        log: Path | None = None,
        excerpt: Iterable[str] = (),
    ) -> None:
        """Keep what happened; `hint` replaces the class's own advice."""
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint
        self.findings = tuple(findings)
        self.log = log
        self.excerpt = tuple(excerpt)
        self.processes: tuple[Condition, ...] = ()
        self.gpus: tuple[GpuPlace, ...] = ()
        self.receipt: Path | None = None
        self.attempts: tuple[Attempt, ...] = ()
        self.lost: Lost | None = None

    def add(self, told: str) -> None:
        """Tell of something else that came of it."""
        self.message = f"{self.message}; {told}"
        self.args = (self.message,)

    @property
    def exit_code(self) -> int:
        """The process's exit status for this error."""
        return self.code


class Bug(GpuckptError):
    """Something gpuckpt itself did wrong."""

    default_hint = "This is a bug in gpuckpt: please report it with the text above."


class ToolFailed(GpuckptError):
    """A foreign program failed; whoever asked for it turns this into what it means for the job.

    `returncode` is None if the program never ended by itself, negative for a signal.
    """

    name = "tool_failed"

    def __init__(
        self,
        message: str,
        *,
        argv: tuple[str, ...],
        returncode: int | None = None,
        stdout: str = "",
        stderr: str = "",
    ) -> None:
        """Keep the command line and both streams as evidence."""
        super().__init__(message, excerpt=(stderr or stdout).splitlines()[-5:])
        self.argv = argv
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr


class Stopped(GpuckptError):
    """A tool was told to stop by the descriptor it watches; Interrupts knows the signal."""

    name = "stopped"


class ToolMissing(ToolFailed):
    """A foreign program is not there, or may not be executed."""

    code = 3
    name = "tool_missing"
    job = "Nothing was touched."


class ToolTimeout(ToolFailed):
    """A foreign program gave no answer in the time allowed and was ended."""

    name = "tool_timeout"


class CudaCallFailed(GpuckptError):
    """A driver call failed for at least one process; the flow turns this into what it means.

    `outcomes` has one entry for every pid that was asked, those that went well included.
    """

    name = "cuda_call_failed"

    def __init__(self, action: str, outcomes: Iterable[CudaOutcome]) -> None:
        """Compose the message from what came of each process."""
        self.action = action
        self.outcomes = tuple(outcomes)
        self.failed = tuple(outcome for outcome in self.outcomes if not outcome.ok)
        super().__init__(
            f"the driver's {action} failed for {len(self.failed)} of {len(self.outcomes)}: "
            + "; ".join(outcome.text for outcome in self.failed),
            excerpt=[outcome.text for outcome in self.failed],
        )

    @property
    def gone(self) -> tuple[int, ...]:
        """The pids of processes that died."""
        return tuple(outcome.pid for outcome in self.failed if outcome.gone)

    @property
    def timed_out(self) -> bool:
        """Whether a lock's time running out is all that happened: a later try may succeed."""
        return all(outcome.error == "NOT_READY" for outcome in self.failed)


class UsageError(GpuckptError):
    """The command line asks for something that makes no sense."""

    code = 2
    name = "usage"
    job = "Nothing was touched."


class ImageExists(UsageError):
    """The image to be written is there already; gpuckpt never overwrites one."""

    name = "image_exists"
    default_hint = "Choose another name, or move the old image away."


class HostUnfit(GpuckptError):
    """This host cannot do it; the job was not touched."""

    code = 3
    name = "host_unfit"
    job = "Nothing was touched."


class NotPrivileged(HostUnfit):
    """Root, or a capability, is missing."""

    name = "not_privileged"
    default_hint = "Run it as root (sudo gpuckpt ...)."


class CriuMissing(HostUnfit):
    """No CRIU was found."""

    name = "criu_missing"
    default_hint = "Run bin/install-criu, or name a CRIU of 4.2 or newer in GPUCKPT_CRIU."


class CriuTooOld(HostUnfit):
    """The CRIU found is older than the oldest that works."""

    name = "criu_too_old"
    default_hint = "Run bin/install-criu, or name a CRIU of 4.2 or newer in GPUCKPT_CRIU."


class CriuBroken(HostUnfit):
    """CRIU is there and cannot work on this host."""

    name = "criu_broken"


class DriverUnfit(HostUnfit):
    """The NVIDIA driver cannot checkpoint processes, or gpuckpt cannot reach it."""

    name = "driver_unfit"


class NoSpace(HostUnfit):
    """Too little room for the image or for the GPU's bytes in host memory."""

    name = "no_space"


class NotWritable(HostUnfit):
    """The place for the image cannot be written."""

    name = "not_writable"


class ProcessUnfit(GpuckptError):
    """This process cannot be dumped as it is; it was not touched."""

    code = 4
    name = "process_unfit"
    job = "Nothing was touched."


class NoSuchProcess(ProcessUnfit):
    """There is no such process, or only what is left of one."""

    name = "no_such_process"


class Forbidden(ProcessUnfit):
    """A process gpuckpt never dumps: pid 1, a kernel thread, itself or its ancestors."""

    name = "forbidden_process"


class Blocked(ProcessUnfit):
    """Findings stop the dump; all of them are listed."""

    name = "blocked"
    default_hint = "Every finding above names its remedy."


class NothingToRehearse(ProcessUnfit):
    """No process of the tree uses CUDA, and no dump was asked for."""

    name = "nothing_to_rehearse"


class GpuStepFailed(GpuckptError):
    """A driver call failed and everything was put back; the job runs."""

    code = 5
    name = "gpu_step_failed"
    job = "Everything was put back: it runs as before."


class QuiesceFailed(GpuStepFailed):
    """The job did not let go of what cannot be dumped, as it had been asked to; it goes on."""

    name = "quiesce_failed"


class QuiesceTimeout(QuiesceFailed):
    """Not all of the job had come to rest in the time allowed."""

    name = "quiesce_timeout"
    default_hint = "A step may take longer; try again with a larger --quiesce-timeout."


class GpuLockTimeout(GpuStepFailed):
    """The driver could not hold the process within the time allowed."""

    name = "gpu_lock_timeout"
    default_hint = "A long kernel may be running; try again with a larger --lock-timeout."


class GpuMemoryShort(GpuStepFailed):
    """Others hold the GPU memory that a process needs back; the driver was not asked.

    A driver's restore that runs out of memory leaves the process stuck for good.
    """

    name = "gpu_memory_short"


class GpuLeftover(GpuStepFailed):
    """A GPU device stayed open after the checkpoint, so CRIU could not dump it."""

    name = "gpu_leftover"


class DumpFailed(GpuckptError):
    """CRIU's dump or the writing of the image failed, undone; the job runs."""

    code = 6
    name = "dump_failed"
    job = "Everything was put back: it runs as before."


class WriteFailed(DumpFailed):
    """The image could not be written."""

    name = "write_failed"


class ImageNotMade(DumpFailed):
    """The job had been let go on when its image could not be finished; there is none."""

    name = "image_not_made"


class ImageError(GpuckptError):
    """The image cannot be used."""

    code = 7
    name = "image_error"
    job = "Nothing was started."


class NotAnImage(ImageError):
    """There is no image at this place."""

    name = "not_an_image"
    default_hint = "Name the folder that `gpuckpt dump` has made: there is a manifest.json in it."


class ImageUnsupported(ImageError):
    """The image needs something this gpuckpt does not know."""

    name = "image_unsupported"
    default_hint = "Use the gpuckpt version that wrote it, or a newer one."


class ImageDamaged(ImageError):
    """Bytes of the image are missing, changed or surplus."""

    name = "image_damaged"
    default_hint = "Restore from another copy of the image; `gpuckpt verify` lists all damage."


class ImageUntrusted(ImageError):
    """Others than its owner could have written the image; restoring it would run their code."""

    name = "image_untrusted"


class StoreFailed(ImageError):
    """The store that a URL names gave no answer, or refused what was asked of it."""

    name = "store_failed"


class HostMismatch(GpuckptError):
    """This host does not match what the image needs; nothing was started."""

    code = 8
    name = "host_mismatch"
    job = "Nothing was started; the image is intact."


class RestoreFailed(GpuckptError):
    """The restore failed; nothing is left behind and the image is intact."""

    code = 9
    name = "restore_failed"
    job = "Nothing is left behind; the image is intact."


class ColdStartFailed(RestoreFailed):
    """The job could not be started from its beginning either; nothing of it runs."""

    name = "cold_start_failed"


class UndoIncomplete(GpuckptError):
    """Something could not be put back; the message lists what is left."""

    code = 10
    name = "undo_incomplete"
    job = "It may be stopped or locked, or lack a process: the text above says what is left."


class Unfinished(UndoIncomplete):
    """An earlier run was cut short on this job and left what only a repair puts back."""

    name = "unfinished"
    default_hint = "`gpuckpt status` shows it, `gpuckpt repair` puts it back."


class ProcessLost(UndoIncomplete):
    """A process of the job ended during the operation; all others are as they were."""

    name = "process_lost"
    default_hint = (
        "All others are as they were. See who ended it (the kernel's log tells of memory "
        "shortage); if the job cannot go on without it, restore its last image or start it again."
    )


class VerificationFailed(GpuckptError):
    """The job was restored and did not pass the look afterwards."""

    code = 11
    name = "verification_failed"
    job = "Brought back, and kept; a restored one is ended if --on-verify-fail says so."


class RehearsalFailed(VerificationFailed):
    """All steps of a rehearsal were taken, and the job or the image is not as it should be."""

    name = "rehearsal_failed"


class EvidenceFlawed(GpuckptError):
    """A file of evidence does not hold what it says, or not all that was planned is in it."""

    code = 12
    name = "evidence_flawed"
    job = "Nothing was touched."


class Interrupted(GpuckptError):
    """A signal stopped the operation; whatever it had done was undone."""

    name = "interrupted"
    job = "Everything was put back: a job that ran before runs on."

    def __init__(self, signum: int, told: str = "") -> None:
        """Remember which signal it was; `told` is what came of it, where that must be said."""
        more = f": {told}" if told else ""
        super().__init__(f"interrupted by {signal.Signals(signum).name}{more}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as a shell reports it."""
        return 128 + self.signum
