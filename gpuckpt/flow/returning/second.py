"""Does the job run here already? Asked before it is started from its beginning.

A restore of the image asks the same among its gates. Here it must be known of all images that it
could have come back from, and of one that cannot be read any more.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError
from gpuckpt.flow.leftovers.found import cut_short, left_of
from gpuckpt.flow.leftovers.recover import concerns
from gpuckpt.flow.returning import doubts
from gpuckpt.flow.returning.candidates import beside, manifests
from gpuckpt.flow.returning.ledger import Ledger, Restored, place_id
from gpuckpt.flow.returning.target.facts import running_here
from gpuckpt.flow.work.journal import Journal
from gpuckpt.flow.work.opening import read_manifest
from gpuckpt.model import ProcessRef, blocker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.flow.returning.candidates import Candidate
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding


def copies(tools: Toolbox, found: tuple[Candidate, ...]) -> tuple[Finding, ...]:
    """Return what of the job runs, or may."""
    boot_id = tools.host.facts().boot_id
    return (*_at_work(tools, found), *_running(tools, found, boot_id), *_others(tools, found))


def remember(tools: Toolbox, found: Iterable[Candidate], started: str, job: ProcessRef) -> None:
    """Write down that the job of these images runs; OSError if that cannot be done."""
    ledger = Ledger(tools.state_dir)
    boot_id = tools.host.facts().boot_id
    for one in found:
        key = one.manifest.image_id if one.manifest else place_id(str(one.path))
        before = ledger.last(key)
        same = before if before is not None and before.boot_id == boot_id else None
        ledger.write(
            Restored(
                image_id=key,
                image=str(one.path),
                at=started,
                boot_id=boot_id,
                processes=(job,),
                files=same.files if same else (),
                cold=True,
            )
        )


def _at_work(tools: Toolbox, found: tuple[Candidate, ...]) -> Iterator[Finding]:
    """Another gpuckpt brings it back right now, or was cut short and has left something of it."""
    pids = {one.pid for manifest in manifests(found) for one in manifest.tree}
    for entry in Journal(tools.state_dir).entries():
        if not any(concerns(entry, pids, str(one.path)) for one in found):
            continue
        if not cut_short(tools, entry):
            yield blocker(
                "job-runs",
                entry.image,
                f"The {entry.title} of this job goes on, in process {entry.owner.pid}.",
                "Wait until it has ended.",
                entry.owner.pid,
            )
        elif any(one.blocks for one in left_of(tools, entry)):
            yield blocker(
                "job-runs",
                entry.image,
                f"The {entry.title} of this job was cut short, and has left something of it.",
                "Put it back first: gpuckpt repair.",
            )


def _running(tools: Toolbox, found: tuple[Candidate, ...], boot_id: str) -> Iterator[Finding]:
    ledger = Ledger(tools.state_dir)
    pids: set[int] = set()
    known: set[ProcessRef] = set()
    for manifest in manifests(found):
        earlier = ledger.last(manifest.image_id)
        pids |= running_here(tools, manifest, boot_id, earlier)
        known |= {*_led(manifest, boot_id), *_known(earlier, boot_id)}
    for one in found:
        for each in ledger.at(str(one.path)):
            known |= {*_known(each, boot_id)}
    pids |= {pid for ref in known for pid in _of(tools, ref)}
    for pid in sorted(pids)[:1]:
        yield blocker(
            "job-runs",
            f"pid {pid}",
            f"The job runs here already: process {', '.join(map(str, sorted(pids)))}.",
            "End it first: two copies would write into the same files.",
            pid,
        )


def _known(earlier: Restored | None, boot_id: str) -> tuple[ProcessRef, ...]:
    return earlier.known if earlier is not None and earlier.boot_id == boot_id else ()


def _led(manifest: Manifest, boot_id: str) -> Iterator[ProcessRef]:
    """Yield the root that was dumped here, if the session was its own."""
    root = manifest.tree[0]
    if manifest.host.boot_id == boot_id and root.sid == root.pid:
        yield ProcessRef(root.host_pid or root.pid, root.start_time)


def _of(tools: Toolbox, ref: ProcessRef) -> Iterator[int]:
    """Yield the pid of a process that lives, or of one that it has left in its group or session.

    What a job has started since is written down nowhere, and may go on without it.
    """
    if tools.proc.alive(ref):
        yield ref.pid
    elif (left := tools.proc.owner(ref.pid)) and left.pid != ref.pid and not left.zombie:
        yield left.pid


def _others(tools: Toolbox, found: tuple[Candidate, ...]) -> Iterator[Finding]:
    """A supervisor may have started it: the same command in the same folder, since the dump.

    Or it has come back, in a pid namespace maybe, from an image that we are not asked for.
    """
    seen: set[Finding] = set()
    for manifest in manifests(found):
        for one in doubts.copies(tools, manifest, (), apart=True):
            if not _is_another(tools, one.pid or 0, manifest):
                seen.add(one)
    yield from sorted(seen, key=lambda one: one.pid or 0)


def _is_another(tools: Toolbox, pid: int, manifest: Manifest) -> bool:
    """Whether it came back from the image of a job that ran beside this one, as workers do."""
    process = tools.proc.process(pid)
    boot_id = tools.host.facts().boot_id
    known = Ledger(tools.state_dir).of(process.ref, boot_id) if process else ()
    return any(beside(one, manifest) for each in known for one in _image(each))


def _image(known: Restored) -> Iterator[Manifest]:
    with suppress(GpuckptError):  # then it is not known whose job it is
        if known.image.startswith("/"):
            yield read_manifest(Path(known.image))
