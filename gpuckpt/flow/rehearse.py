"""rehearse: take a job's GPU state away and give it back in place, to know that both work.

The same steps as a dump's, with the same undo, journal and dead man's switch. With a real dump
the image goes to a scratch place, is checked to the last byte, and the job goes on from memory.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs
from msgspec.structs import replace

from gpuckpt.errors import GpuckptError, NothingToRehearse, RehearsalFailed
from gpuckpt.flow.dump import dump
from gpuckpt.flow.gpu.copies import Copies
from gpuckpt.flow.gpu.sameness import Watch
from gpuckpt.flow.request import RehearseRequest, RehearseResult
from gpuckpt.flow.sight.forecast import forecast
from gpuckpt.flow.sight.look import Sight, usual_path
from gpuckpt.flow.taking.first import first_look
from gpuckpt.flow.taking.hands import Taking
from gpuckpt.flow.taking.keeping import record_of_job
from gpuckpt.flow.verify import verify
from gpuckpt.flow.work import spans
from gpuckpt.flow.work.history import DONE, History, proving
from gpuckpt.flow.work.keeping import kept
from gpuckpt.flow.work.opening import open_image
from gpuckpt.flow.work.operation import Operation
from gpuckpt.flow.work.tasks import check_target
from gpuckpt.image.remotestage import withdraw
from gpuckpt.location import Url

if TYPE_CHECKING:
    from gpuckpt.events import Reporter
    from gpuckpt.flow.request import CopiesProved, DumpRequest, DumpResult
    from gpuckpt.flow.verify import VerifyResult
    from gpuckpt.flow.work.history import Record
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.receipt import Recorder
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.location import Location
    from gpuckpt.model import Finding
    from gpuckpt.timing import Receipt

RISK = (
    "giving the GPU state back is the risky half of a rehearsal: if the driver fails there, the "
    "job stays suspended; nothing is ended, and `gpuckpt repair` goes on from there"
)
LABEL = {"rehearsal": "yes"}
WITHOUT_CUDA = "With --dump the dump itself is rehearsed."
PROOF_WITHOUT_CUDA = f"{WITHOUT_CUDA} `gpuckpt restore IMAGE --prove` proves a job's other memory."
POLL_SECONDS = 0.05


def rehearse(
    tools: Toolbox, request: RehearseRequest, reporter: Reporter, interrupts: Interrupts
) -> RehearseResult:
    """Suspend a job and let it go on; with `real`, dump it and let it go on.

    Raises:
        HostUnfit, ProcessUnfit: refused; nothing was touched.
        GpuStepFailed, DumpFailed, Interrupted: failed, and everything was put back.
        RehearsalFailed: the image that was written is damaged; the job runs.
        UndoIncomplete: something could not be put back; the journal keeps what it was.
    """
    check_target(tools, request.what.pid)
    if request.real:
        return _with_dump(tools, request, reporter, interrupts)
    operation = Operation.begin("rehearse", tools, reporter, interrupts)
    what = replace(request.what, rehearsal=True)
    with operation.record.phase("look", f"process {what.pid}"):
        sight = first_look(operation, what, image=False)
        if not sight.cuda:
            raise NothingToRehearse(
                f"no process of the tree of process {what.pid} uses CUDA, so there is nothing to "
                "take away and give back",
                hint=PROOF_WITHOUT_CUDA if request.prove else WITHOUT_CUDA,
            )
        watch = Watch(tools, what.pid, interrupts)
    return _in_place(operation, request, sight, watch)


def _in_place(
    operation: Operation, request: RehearseRequest, sight: Sight, watch: Watch
) -> RehearseResult:
    operation.record.reporter.note(RISK)
    taking = Taking(operation, sight)
    done: list[RehearseResult] = []

    def told(receipt: Receipt) -> Record:
        known = record_of_job(taking, receipt)
        failed = verdict(done[0]) if done else None
        outcome = failed.name if failed is not None else DONE
        # what a rehearsal does beyond a dump is no part of what a dump will take
        more = request.stay + proving(receipt)
        return structs.replace(known, pause=known.pause and known.pause - more, outcome=outcome)

    with kept(operation, told):
        done.append(_suspended(operation, request, taking, watch))
    return done[0]


def _suspended(
    operation: Operation, request: RehearseRequest, taking: Taking, watch: Watch
) -> RehearseResult:
    record = operation.record
    try:
        sight = taking.come_to_rest(replace(request.what, rehearsal=True), image=False)
        record.spans = spans.of_rehearsal(quiesced=bool(taking.quiesced))
        with record.phase("prepare", "driver helpers"):
            taking.open()
        copies = Copies(operation.tools, operation.interrupts)
        locked = copies.locked if request.prove else _nothing
        taking.take_gpu(request.what.lock_timeout, thp=request.what.thp, locked=locked)
        proved, differing = _proved(taking, copies, record) if request.prove else (None, ())
        if request.stay:
            with record.phase("stay", f"{request.stay:g} s without the GPU"):
                _stay(request.stay, operation.interrupts)
        taking.give_back()
        taking.let_go()
    except BaseException as why:
        taking.put_back(why)
        raise
    with record.phase("settle", f"watching for {request.settle:g} s", stoppable=False):
        wrong = [*differing, *taking.unmoved, *watch.afterwards(request.settle)]
    stored = forecast(sight.facts, History(operation.tools.state_dir).records()).stored
    receipt = record.receipt()
    return RehearseResult(
        pid=request.what.pid,
        pids=sight.tree.pids,
        cuda_pids=tuple(taking.cuda.pids),
        gpu_bytes=taking.cuda.bytes,
        image_bytes=sight.facts.image_bytes,
        pause=receipt.interval("pause") or 0.0,
        stay=request.stay,
        moving=(watch.moved, watch.moves),
        receipt=receipt,
        findings=tuple(taking.findings),
        wrong=tuple(wrong),
        stored_bytes=int(stored.value),
        basis=stored.basis,
        proved=proved,
    )


def _proved(
    taking: Taking, copies: Copies, record: Recorder
) -> tuple[CopiesProved, tuple[Finding, ...]]:
    """Take the GPU memory a second time, and compare what came of it with the first."""
    with record.phase("digest", "copies of GPU memory", taking.cuda.bytes) as step:
        copies.advance = step.advance
        copies.first()
    taking.turn_gpu()
    with record.phase("prove", "copies against the first", taking.cuda.bytes) as step:
        copies.advance = step.advance
        return copies.second()


def _nothing(_: list[int]) -> None:
    pass


def _stay(seconds: float, interrupts: Interrupts) -> None:
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        interrupts.check()
        time.sleep(min(POLL_SECONDS, left))


def _with_dump(
    tools: Toolbox, request: RehearseRequest, reporter: Reporter, interrupts: Interrupts
) -> RehearseResult:
    """Make a real dump that leaves the job running, and look at what came of it."""
    with reporter.step("watch", "the job, undisturbed"):
        watch = Watch(tools, request.what.pid, interrupts)
    if watch.before.states:
        reporter.note(RISK)
    result = dump(tools, _scratch(tools, request.what), reporter, interrupts)
    kept: Location | None = result.image
    try:
        with reporter.step("settle", f"watching for {request.settle:g} s"):
            wrong = watch.afterwards(request.settle)
        _check(result, verify(result.image, reporter, interrupts, tools.stores))
    except RehearsalFailed:
        raise  # the image is the evidence
    except BaseException:
        _remove(tools, result, reporter)
        raise
    if not request.keep:
        _remove(tools, result, reporter)
        kept = None
    return RehearseResult(
        pid=request.what.pid,
        pids=tuple(process.pid for process in result.manifest.tree),
        cuda_pids=tuple(result.manifest.cuda),
        gpu_bytes=watch.before.gpu_bytes,
        image_bytes=result.manifest.totals.raw,
        pause=result.pause,
        stay=0.0,
        moving=(watch.moved, watch.moves),
        receipt=result.receipt,
        findings=result.findings,
        wrong=tuple(wrong),
        dumped=result,
        kept=kept,
    )


def _scratch(tools: Toolbox, what: DumpRequest) -> DumpRequest:
    """Return the dump to be made: beside where a real one would go, and labelled."""
    output = what.output
    if output is None:
        beside = usual_path(check_target(tools, what.pid))
        output = beside.with_suffix(f".rehearsal{beside.suffix}")
    labels = {**what.labels, **LABEL}
    return replace(what, output=output, leave_running=True, rehearsal=True, labels=labels)


def _check(result: DumpResult, verified: VerifyResult) -> None:
    if verified.damage:
        first = verified.damage[0]
        raise RehearsalFailed(
            f"the job runs on, but the image {result.image} is not as it was written: {first}",
            hint="Look at what it lies on (dmesg); it was kept. Remove it when you are done.",
        )


def _remove(tools: Toolbox, result: DumpResult, reporter: Reporter) -> None:
    """Remove the image of a rehearsal, and nothing else that has its name by now."""
    try:
        with open_image(result.image, tools.stores) as image:
            mine = image.manifest.image_id == result.manifest.image_id
        if mine and isinstance(result.image, Path):
            shutil.rmtree(result.image)
        elif mine and isinstance(result.image, Url):
            withdraw(tools.stores.folder(result.image))
    except (GpuckptError, OSError) as why:
        reporter.warn(f"the scratch image {result.image} could not be removed: {why}")


def verdict(result: RehearseResult) -> RehearsalFailed | None:
    """Return the error that what is wrong amounts to, None if the job came back as it was."""
    wrong = [one for one in result.wrong if one.blocks]
    if not wrong:
        return None
    return RehearsalFailed(
        f"the job was given everything back and is not as before: {wrong[0].reason}",
        findings=wrong,
        hint="Do not dump this kind of job before the cause is known.",
    )
