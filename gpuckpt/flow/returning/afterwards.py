"""The looks at a job that runs again: at once, by the user's probe, and when it has settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.errors import VerificationFailed
from gpuckpt.flow.work import spans

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.flow.request import RestoreRequest
    from gpuckpt.flow.returning.proof import Proof
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.model import Finding

_KEPT: Final = "What is left of the job was kept: end it before the image is restored again."
_ENDED: Final = "The job was ended (--on-verify-fail kill)."


def look_at(
    operation: Operation,
    request: RestoreRequest,
    proof: Proof,
    judge: Callable[[list[Finding]], None],
) -> None:
    """Have all that is wrong judged; the probe comes early, so that it tells when the job serves.

    Before it others are told of the job: what a probe waits for may hang on them.

    Raises:
        VerificationFailed: as `judge` does.
    """
    record, settle = operation.record, request.settle
    first = bool(request.post_restore or request.probe)
    with record.phase("verify", "processes, GPU state") as step:
        judge(proof.look())
        if not first:
            step.say(f"settling for {settle:g} s")
            judge(proof.settle(settle))
    if request.post_restore:
        with record.phase("post-restore", request.post_restore):
            judge(proof.tell(request.image, request.post_restore, request.probe_timeout))
    if request.probe:
        with record.phase("probe", request.probe):
            judge(proof.probe(request.probe, request.probe_timeout))
            record.event(spans.PROBED)
    if first:
        with record.phase("settle", f"until it has run for {settle:g} s"):
            judge(proof.settle(settle))
    if not proof.motion.moved:
        record.missed(spans.PROGRESS, proof.motion.reason)


def not_passed(wrong: list[Finding], *, keep: bool) -> VerificationFailed:
    """Return what is told of a job that runs, or has run, and is not as it should be."""
    return VerificationFailed(
        f"the job was restored but did not pass: {wrong[0].reason.removesuffix('.')}",
        hint=_KEPT if keep else _ENDED,
        findings=wrong,
    )
