"""The first step of a dump, and all of a plan: look at everything, judge it, touch nothing.

Looking goes on as far as it can: what a missing tool or a missing right keeps from view becomes
a finding beside all others, so that one look tells everything.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import UsageError
from gpuckpt.flow.sight.facts import gather
from gpuckpt.flow.sight.obstacles import check_answers, criu_version
from gpuckpt.flow.sight.plan import judge_dump, refusal
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.flow.sight.tcp import policy, story
from gpuckpt.flow.work.tasks import check_target
from gpuckpt.model import TcpPolicy, Version
from gpuckpt.tools.criurun import CriuOptions
from gpuckpt.value import Value

if TYPE_CHECKING:
    from gpuckpt.errors import GpuckptError
    from gpuckpt.flow.request import DumpRequest
    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.location import Location
    from gpuckpt.model import CudaState, Finding, HostFacts, NvidiaFacts, Process, Tree
    from gpuckpt.tools.pidspace import Space


class Sight(Value, frozen=True):
    """What was seen before the first step, and what it asks of the dump.

    `criu` is version 0 where there is none to be used: a blocker says so then.
    """

    facts: DumpFacts
    output: Location
    criu: Version
    options: CriuOptions
    findings: tuple[Finding, ...]

    @property
    def tree(self) -> Tree:
        """The processes to dump."""
        return self.facts.tree

    @property
    def cuda(self) -> dict[int, CudaState]:
        """The driver's state of each process that has CUDA."""
        return {pid: self.facts.states[pid] for pid in self.facts.cuda_pids}

    @property
    def host(self) -> HostFacts:
        """The host."""
        return self.facts.host

    @property
    def nvidia(self) -> NvidiaFacts | None:
        """The driver and its GPUs."""
        return self.facts.nvidia

    @property
    def space(self) -> Space | None:
        """The pid namespace that a restore has made for the job, None if it is in ours."""
        return self.facts.look.space

    @property
    def kept(self) -> str:
        """Why TCP connections are kept that nobody has decided about, "" if none are."""
        options = self.options
        by_itself = options.tcp is TcpPolicy.ESTABLISHED and not options.drop_waiting
        return story(self.facts.look.tcp) if by_itself else ""

    @property
    def error(self) -> GpuckptError | None:
        """What a dump is refused with; None if nothing stops it."""
        return refusal(self.findings)

    def refuse(self) -> None:
        """Stop here if anything stops the dump.

        Raises:
            Blocked: findings stop it; all of them are listed.
            HostUnfit, ImageExists: the same, if all of them are of this one kind.
        """
        error = self.error
        if error is not None:
            raise error


def look(
    tools: Toolbox, request: DumpRequest, *, image: bool = True, quiesced: bool = False
) -> Sight:
    """Gather the facts and judge them; whatever stops the dump is among the findings.

    `image` says whether one is to be written, `quiesced` that the job is at rest by now.

    Raises:
        NoSuchProcess, Forbidden: the pid names nothing that may be dumped.
        HostUnfit: a filesystem that the job or the image is on does not answer.
    """
    root = check_target(tools, request.pid)
    tree = tools.proc.tree(request.pid)
    output = output_path(request.output, root) if image else Path()
    here = (str(output.parent),) if image and isinstance(output, Path) else ()
    check_answers(tools, here, tree.pids)
    criu, missing = criu_version(tools)
    facts = gather(tools, tree, output if image else None, missing, criu, choice=request.files)
    return Sight(
        facts=facts,
        output=output,
        criu=criu or Version("0"),
        options=CriuOptions(
            tcp=policy(facts.look.tcp, request.tcp),
            # what was chosen by itself must lose nothing: CRIU is to fail rather than to drop
            drop_waiting=request.tcp is not TcpPolicy.NONE,
            file_locks=request.file_locks or facts.needs.file_locks,
            shell_job=facts.needs.shell_job,
            link_remap=facts.needs.link_remap,
            external_unix=facts.needs.external_unix,
            ghost_limit=request.ghost_limit,
        ),
        findings=judge_dump(facts, choices(request, quiesced=quiesced)),
    )


def choices(request: DumpRequest, *, quiesced: bool = False) -> DumpChoices:
    """Return those options of a dump that a judgement depends on."""
    return DumpChoices(
        tcp=request.tcp,
        ghost_limit=request.ghost_limit,
        leave_running=request.leave_running,
        ignore=request.ignore,
        rehearsal=request.rehearsal,
        quiesce=request.quiesce,
        quiesced=quiesced,
    )


def output_path(asked: Location | None, root: Process) -> Location:
    """Return where the image goes: as asked, or where it usually does.

    Raises:
        UsageError: the current folder is gone.
    """
    if asked is None:
        return usual_path(root)
    return asked.absolute() if isinstance(asked, Path) else asked


def usual_path(root: Process) -> Path:
    """Return command, pid and time, in the current folder.

    Raises:
        UsageError: the current folder is gone.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", root.comm).strip("-.") or "job"
    try:
        here = Path.cwd()
    except FileNotFoundError as why:
        hint = "Change to another one (cd), or name the image with -o."
        raise UsageError("the current folder was removed", hint=hint) from why
    return here / f"{name}-{root.pid}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.gpuckpt"
