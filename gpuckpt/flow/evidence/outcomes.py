"""What of an attempt cannot be true together: an outcome, and what is told beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.account import Verdict
from gpuckpt.flow.work.history import DONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.evidence.document import Attempt


def contradictions(one: Attempt) -> Iterator[tuple[str, str]]:
    """Yield the part of the attempt that contradicts another, and how."""
    yield from _gates(one)
    lengths = {each.name: each.seconds for each in one.timing.intervals} if one.timing else {}
    if lengths.get("probe-ready") is not None and not one.probe:
        yield "probe", "A probe has succeeded, and none was asked for."
    if one.operation != "restore" or one.outcome != DONE or one.after is None:
        return  # what is older tells no more
    if one.error:
        yield "error", f"It is done, and failed: {one.error}"
    if lengths.get("runs") is None:
        yield "timing.runs", "It is done, and the job was never seen to run."
    if not one.gates:
        yield "gates", "It is done, and nothing was compared."
    for gate in one.gates:
        if gate.verdict is Verdict.CLOSED:
            yield "gates", f"It is done, and {gate.gate} of {gate.object} was closed."
    for finding in one.findings:
        if finding.blocks and finding.id not in one.forced:
            yield "findings", f"It is done, and {finding.id} of {finding.object} stopped it."


def _gates(one: Attempt) -> Iterator[tuple[str, str]]:
    for gate in one.gates:
        same = gate.image == gate.host
        if (gate.verdict is Verdict.SAME and not same) or (gate.verdict is Verdict.PASSED and same):
            told = "the same" if not same else "different"
            yield "gates", f"The values of {gate.gate} of {gate.object} are not {told}."
        if gate.verdict is Verdict.FORCED and gate.gate not in one.forced:
            yield "gates", f"{gate.gate} of {gate.object} was forced, and nobody named it."
