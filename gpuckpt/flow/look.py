"""The first step of a dump: look at everything, refuse whatever must be refused, touch nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.flow.facts import gather
from gpuckpt.flow.gpu import states_of
from gpuckpt.flow.plan import judge_dump, refusal
from gpuckpt.flow.rules.rule import DumpChoices
from gpuckpt.flow.tasks import check_target
from gpuckpt.tools.criu import CriuOptions

if TYPE_CHECKING:
    from gpuckpt.flow.request import DumpRequest
    from gpuckpt.flow.toolbox import Toolbox
    from gpuckpt.model import CudaState, Finding, HostFacts, NvidiaFacts, Process, Tree, Version


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen before the first step: the tree, the host, and what both ask of the dump."""

    tree: Tree
    cuda: dict[int, CudaState]
    host: HostFacts
    nvidia: NvidiaFacts | None
    output: Path
    criu: Version
    options: CriuOptions
    findings: tuple[Finding, ...]


def look(tools: Toolbox, request: DumpRequest) -> Sight:
    """Gather the facts and judge them.

    Raises:
        NoSuchProcess, Forbidden: the pid names nothing that may be dumped.
        NotPrivileged, NoSpace, HostUnfit: the host cannot do it, or there is no CRIU for it.
        Blocked: findings stop the dump; all of them are listed.
    """
    root = check_target(tools, request.pid)
    criu = tools.criu.version
    tree = tools.proc.tree(request.pid)
    cuda = states_of(tools, tree.pids)
    output = output_path(request.output, root)
    facts = gather(tools, tree, cuda, output.parent)
    choices = DumpChoices(
        tcp=request.tcp, ghost_limit=request.ghost_limit, leave_running=request.leave_running
    )
    findings = judge_dump(facts, choices)
    error = refusal(findings)
    if error is not None:
        raise error
    return Sight(
        tree=tree,
        cuda=cuda,
        host=facts.host,
        nvidia=facts.nvidia,
        output=output,
        criu=criu,
        options=CriuOptions(
            tcp=request.tcp,
            file_locks=request.file_locks or facts.needs.file_locks,
            shell_job=facts.needs.shell_job,
            link_remap=facts.needs.link_remap,
            ghost_limit=request.ghost_limit,
        ),
        findings=findings,
    )


def output_path(asked: Path | None, root: Process) -> Path:
    """Return where the image goes: as asked, or command, pid and time in the current folder."""
    if asked is not None:
        return asked.absolute()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", root.comm).strip("-.") or "job"
    return Path.cwd() / f"{name}-{root.pid}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.gpuckpt"
