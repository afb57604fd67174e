"""restore: bring a dumped tree back on this host, or leave the host as it was.

Nothing is started before the image and the host have been compared; no task runs before every
byte it is made of has been checked; and success is said only after the tree has been looked at.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gpuckpt.errors import GpuckptError, ImageError, RestoreFailed, Stopped
from gpuckpt.flow.gpu.tree import CudaTree
from gpuckpt.flow.leftovers.recover import recover
from gpuckpt.flow.request import Proved, RestoreRequest, RestoreResult
from gpuckpt.flow.returning.afterwards import look_at, not_passed
from gpuckpt.flow.returning.apart import Apart
from gpuckpt.flow.returning.binding import bind, fire
from gpuckpt.flow.returning.gates import admit
from gpuckpt.flow.returning.holding import Holding
from gpuckpt.flow.returning.keeping import Told, kept
from gpuckpt.flow.returning.ledger import remember
from gpuckpt.flow.returning.options import names_in, repeated
from gpuckpt.flow.returning.placing import Placing
from gpuckpt.flow.returning.proof import Proof
from gpuckpt.flow.returning.proving import prove
from gpuckpt.flow.returning.relocating import on_the_way, opened
from gpuckpt.flow.work import hugepages, spans
from gpuckpt.flow.work.operation import Operation
from gpuckpt.flow.work.quiescing import go_on
from gpuckpt.flow.work.tasks import below_me, end_restored
from gpuckpt.flow.work.turn import turn
from gpuckpt.flow.work.undo import Undo
from gpuckpt.flow.work.waiting import Tally
from gpuckpt.flow.work.workspace import workspace
from gpuckpt.image.identity import changes
from gpuckpt.image.unpack import Unpacker
from gpuckpt.model import CudaState, Finding
from gpuckpt.tools import criustats
from gpuckpt.tools.criurun import RestoreRun, deadline

if TYPE_CHECKING:
    from gpuckpt.events import Reporter
    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.store import Image
    from gpuckpt.tools.pidspace import Space


def restore(
    tools: Toolbox, request: RestoreRequest, reporter: Reporter, interrupts: Interrupts
) -> RestoreResult:
    """Restore an image as children of this process.

    Raises:
        ImageError, HostMismatch: no sound image, or not one for this host; nothing was started.
        RestoreFailed, Interrupted: failed; nothing is left behind.
        VerificationFailed: the tree was restored and did not pass the look afterwards.
        UndoIncomplete: something of a failed restore is left.
    """
    operation = Operation.begin("restore", tools, reporter, interrupts)
    with operation.record.phase("open", str(request.image)):
        image = opened(request, tools.stores)
    with image, turn(operation, needed=any(one.link for one in image.manifest.carried)):
        made = () if request.pid_namespace else tuple(one.pid for one in image.manifest.tree)
        told = Told(operation, request, image)
        with kept(operation, told) as here:
            recover(operation, made, str(image.path))
            # before the look at the numbers that are free: these take some
            tools.cuda.muster(len(image.manifest.cuda))
            try:
                facts, findings = admit(operation, request, image, told.judged)
            except BaseException:
                tools.cuda.close()
                raise
            result = told.done(_Restore(operation, request, image, findings, facts).run())
        return replace(result, kept=here.path)


class _Restore:
    """One restore: what its steps share."""

    def __init__(
        self,
        operation: Operation,
        request: RestoreRequest,
        image: Image,
        findings: list[Finding],
        facts: TargetFacts,
    ) -> None:
        self.operation = operation
        self.tools = operation.tools
        self.record = operation.record
        self.interrupts = operation.interrupts
        self.request, self.image = request, image
        self.findings = findings
        self.identity = changes(image.manifest, facts.host, facts.gpus)
        self.map = facts.gpus.map if facts.gpus and image.manifest.cuda else {}
        self.apart = Apart(self.tools, wanted=request.pid_namespace)
        self._take(image.manifest)
        note = partial(self._note, "files")
        wanted = bool(self.apart)
        self.placing = Placing(self.tools, image, facts.steps, note, operation, apart=wanted)
        self.proved: Proved | None = None
        self.undo = Undo()
        self.interrupts.left = self.undo.left
        # in a namespace of its own the job's numbers are not known before it is made
        known: dict[str, Any] = {"threads": self.threads, "pids": self.pids}
        known = {} if self.apart else {"first": self.manifest.cuda, **known}
        known["quiesced"] = bool(self.manifest.quiesced)
        known["placed"] = self.placing.ghosts
        self.entry = operation.enter(self.manifest.root_pid, str(image.path), **known)
        self.holding = Holding(self.tools, self.manifest, self.entry)

    def _take(self, manifest: Manifest) -> None:
        """Work on the tasks by these numbers."""
        self.manifest = manifest
        self.pids = tuple(process.pid for process in manifest.tree)
        self.cuda_pids = list(manifest.cuda)
        self.threads = {p.pid: p.restore_thread for p in manifest.tree if p.pid in manifest.cuda}
        moved = partial(self.record.event, spans.PROGRESS)
        self.proof = Proof(self.tools, manifest, self.interrupts, self.map, moved)
        self.proof.identity = self.identity

    def run(self) -> RestoreResult:
        try:
            if self.request.thp:
                hugepages.begin(self.operation, self, self.undo, gpu=bool(self.cuda_pids))
            self._place()
            self._criu()
            self._give_gpu()
            self._verify()
        except BaseException as why:
            self._put_back(why)
            raise
        self.findings += self._let_go()
        self._remember()
        return RestoreResult(
            image=self.image.path,
            root_pid=self.manifest.root_pid,
            pids=self.pids,
            receipt=self.record.receipt(),
            findings=tuple(self.findings),
            gpu_map=self.map,
            progress=self.proof.progress,
            inside=self.apart.inside(self.image.manifest),
            proved=self.proved,
            identity=self.identity,
            aside=dict(self.placing.kept),
        )

    def _place(self) -> None:
        """Put back the files that the image carries; after the tree, they go again."""
        if self.apart or self.placing.needed or self.placing.ghosts:
            self.undo.add("files made for the job are left", self.placing.take_back)
        if not self.apart:
            self._put_files()

    def _put_files(self) -> None:
        if self.placing.needed:
            with self.record.phase("files", "to their places", self.placing.bytes) as step:
                self.placing.put(step.advance)

    def _entered(self, space: Space) -> None:
        """The job's namespace is there, with nothing in it but its process 1."""
        self.apart.space = space
        self._note("space", space=space.init)
        self.placing.enter(space)
        self._put_files()

    def _criu(self) -> None:
        """Run CRIU; all its input is checked before it gets it."""
        raw = self.manifest.totals.raw
        self.holding.take(self.undo)
        self.tools.proc.adopt_orphans(on=True)
        self.undo.add("a half-restored tree is left", self._end_tree)
        with (
            workspace(self.tools.state_dir, self.entry.id) as work,
            self.record.phase("criu", "image to memory", raw) as step,
        ):
            self._note("criu")
            changed = on_the_way(self.request.map_path, self.apart.changes())
            unpacker = Unpacker(self.image, step.advance, changes=changed)
            run = RestoreRun(
                work=work,
                has=unpacker.has,
                send=unpacker.send,
                approve=self.record.part("approve")(partial(self._approve, unpacker)),
                options=repeated(self.manifest),
                stop_fd=self.interrupts.fd,
                deadline=deadline(raw),
                stdin=0 if self.manifest.options.shell_job and not self.apart else None,
                abort=unpacker.close,
                names=lambda: names_in(self.image, changed),
                place=self.apart.place(self.manifest, self._entered),
            )
            try:
                self.tools.criu.restore(run)
            except (Stopped, ImageError):  # reading is what a signal cuts short
                self.interrupts.check()
                raise
            finally:
                Tally(unpacker.waits).tell(step)
                unpacker.close()
            self._goes_on(spans.RELEASED)
            self.record.told(*criustats.read(work, criustats.RESTORE))

    def _goes_on(self, event: str) -> None:
        """Know that from here on the job may move, for all that we do."""
        self.record.event(event)
        self.proof.motion.begin()

    def _approve(self, unpacker: Unpacker) -> None:
        """Let the tasks run only if they are exactly what was dumped."""
        self.interrupts.check()
        self._take(self.apart.seen(self.manifest))
        if wrong := self.proof.exact():
            raise RestoreFailed(f"CRIU made another tree: {wrong[0].reason}", findings=wrong)
        made = below_me(self.tools, self.pids)
        self._note("made", processes=made, first=self.manifest.cuda, threads=self.threads)
        if self.request.prove:
            self.proved = prove(self.operation, self.image, unpacker.read, self.pids)
            self.findings += self.proved.findings
        self.findings += [*bind(self.tools, self.manifest), *fire(self.tools, self.manifest)]
        self.holding.release()

    def _note(self, step: str, **known: object) -> None:
        """Write down what is about to be done, and what has become known."""
        self.entry = self.operation.journal.step(self.entry, step, **known)

    def _give_gpu(self) -> None:
        """Give every CUDA process its GPU memory back, then let all of them go on."""
        if not self.cuda_pids:
            return
        self._note("gpu")
        tools = self.tools
        away = dict.fromkeys(self.cuda_pids, CudaState.CHECKPOINTED)
        cuda = CudaTree(tools, self.interrupts, self.manifest.cuda, note=self.record.reporter.note)
        cuda.part = self.record.part
        cuda.expect(self.manifest.nvidia.uses if self.manifest.nvidia else ())
        with self.record.phase("gpu-in", "host memory to GPU memory") as step:
            try:
                # if we die here, a restored process must not be touched by anybody else
                CudaTree(tools, self.interrupts, away, self.threads).open()
                cuda.bring_back(self.map)
            except GpuckptError as why:
                raise RestoreFailed(str(why), hint=why.hint, excerpt=why.excerpt) from why
            self._goes_on(spans.UNLOCKED)
            step.advance(cuda.bytes)

    def _verify(self) -> None:
        """Look at the restored tree; a failure ends it only if the user said so."""
        if self.manifest.quiesced:
            self._note("resume")
            with self.record.phase("resume", "from the step it stopped at"):
                self._judge(go_on(self.tools, self.pids))
                self._goes_on(spans.RESUMED)
        self._note("verify")
        look_at(self.operation, self.request, self.proof, self._judge)
        stays = self.request.stays or bool(self.apart)
        self.findings += self.proof.fresh(self.findings, stays=stays)
        self.interrupts.check()

    def _judge(self, wrong: list[Finding]) -> None:
        if not wrong:
            return
        keep = self.request.on_verify_fail == "keep"
        if keep:
            self.undo.keep()
            self._remember()  # whoever looks whether the job runs must find it
        raise not_passed(wrong, keep=keep)

    def _remember(self) -> None:
        remember(self.tools, self.image, self.record.started, self.pids, self.placing.inodes)

    def _end_tree(self) -> None:
        """End whatever CRIU has made."""
        end_restored(self.tools, self.apart.refs(self.pids), self.cuda_pids)

    def _put_back(self, why: BaseException) -> None:
        if self.undo:
            self.record.reporter.warn(f"{why}; putting everything back")
        self.undo.run(why)
        for one in self._let_go():  # of a job that was kept, say: no result tells of it
            self.record.reporter.warn(f"{one.object}: {one.reason} {one.remedy}")

    def _let_go(self) -> tuple[Finding, ...]:
        """Leave the tree, or what was there before it, to itself; return what could not be."""
        left = hugepages.end(self.operation, self)
        self.undo.keep()
        self.placing.settle()
        self.tools.cuda.close()
        self.tools.proc.adopt_orphans(on=False)
        hugepages.close(self.operation, self.entry)
        return left
