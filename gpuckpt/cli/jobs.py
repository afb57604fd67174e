"""gpuckpt jobs: the GPU jobs of this node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.cli import units
from gpuckpt.cli.context import Application
from gpuckpt.cli.page import Outcome, Page, Paragraph, Table, Tone

if TYPE_CHECKING:
    from gpuckpt.flow.jobs import Job


def jobs(app: Application) -> int:
    """List the GPU jobs of this node, with the pids to dump.

    With -q only these pids, one a line.
    """
    from gpuckpt.flow.jobs import jobs as look

    return app.show(outcome(look(app.tools)))


def outcome(found: tuple[Job, ...]) -> Outcome:
    """Show one line a job."""
    table = Table(
        "",
        ("PID", "GPU PIDS", "GPU MEMORY", "COMMAND"),
        tuple(
            (
                str(job.root.pid),
                ",".join(map(str, job.cuda_pids)),
                units.size(job.gpu_bytes),
                job.root.command,
            )
            for job in found
        ),
        right=frozenset({0, 2}),
    )
    none = Paragraph("No process of this node uses an NVIDIA GPU.")
    return Outcome(
        payload={
            "jobs": [
                {
                    "root_pid": job.root.pid,
                    "start_time": job.root.ref.start_time,
                    "command": job.root.argv,
                    "uid": job.root.uid,
                    "cuda_pids": job.cuda_pids,
                    "gpu_bytes": job.gpu_bytes,
                }
                for job in found
            ]
        },
        page=Page("", Tone.NEUTRAL, (table,) if found else (none,)),
        quiet="\n".join(str(job.root.pid) for job in found),
    )
