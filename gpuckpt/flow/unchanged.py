"""verify --host: is what an image needs of this host still as it was? Nothing is touched.

Of the rules of a restore those about what lasts: files, software, model, tracked paths, driver and
GPUs. What passes, like pids and ports, is for `plan IMAGE`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.flow.returning.target.facts import gather
from gpuckpt.flow.returning.target.judge import LASTING, judge, refusal
from gpuckpt.value import Value

if TYPE_CHECKING:
    from gpuckpt.errors import GpuckptError
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding


class Unchanged(Value, frozen=True):
    """What was found; `error` is the refusal that it amounts to, None if all is as it was."""

    hostname: str
    findings: tuple[Finding, ...]
    error: GpuckptError | None


def unchanged(tools: Toolbox, manifest: Manifest) -> Unchanged:
    """Compare what an image needs with what is here.

    Raises:
        HostUnfit: a filesystem that the job needs does not answer.
    """
    facts = gather(tools, manifest)
    findings = judge(manifest, facts, LASTING)
    return Unchanged(facts.host.hostname, tuple(findings), refusal(findings, frozenset()))
