"""May this image come back on this host, and is there room for it? Nothing is started before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.flow.returning.target.facts import gather
from gpuckpt.flow.returning.target.judge import PATIENCE, judge, refuse, wait_for_room
from gpuckpt.image.gpuplan import GpuPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.flow.request import RestoreRequest
    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.image.store import Image
    from gpuckpt.model import Finding


def admit(
    operation: Operation,
    request: RestoreRequest,
    image: Image,
    judged: Callable[[TargetFacts, list[Finding]], None],
) -> tuple[TargetFacts, list[Finding]]:
    """Return what the host is like, and what has to be told of it; `judged` hears it first.

    Raises:
        ImageError, HostMismatch: refused.
    """
    tools, record, manifest = operation.tools, operation.record, image.manifest
    with record.phase("gates", "image against host"):
        image.check_sizes()
        facts = gather(
            tools,
            manifest,
            stays=request.stays,
            apart=request.pid_namespace,
            gpu_map=request.gpu_map,
            choice=request.files,
            moved=request.map_path,
            check=operation.interrupts.check,
            place=str(image.path),
        )
        plan = facts.gpus or GpuPlan()
        findings = judge(manifest, facts)
        judged(facts, findings)
        refuse(findings, request.force_gates, plan, PATIENCE)
    with record.phase("room", "memory, pids, ports") as step:
        findings = wait_for_room(tools, manifest, facts, operation.interrupts, step.say)
        judged(facts, findings)
        refuse(findings, request.force_gates, plan.renewed(tools.nvidia.facts()))
    return facts, findings
