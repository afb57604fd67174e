"""The same manifest with other numbers for its processes: those of another pid namespace.

CRIU's images keep the numbers a job had where it was dumped. A job in a pid namespace of its own
has these in there, and others on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuckpt.errors import Bug

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuckpt.image.manifest import Manifest, NvidiaRecord, ProcessRecord
    from gpuckpt.image.outside import Outside


def renumbered(manifest: Manifest, numbers: Mapping[int, int]) -> Manifest:
    """Return the manifest with every pid and thread as `numbers` gives it.

    A group, session or parent that `numbers` does not have is one outside the job: 0. What CRIU
    wrote down itself, `ids`, stays.

    Raises:
        Bug: `numbers` lacks a process or thread.
    """
    nvidia = manifest.nvidia
    return replace(
        manifest,
        root_pid=_number(manifest.root_pid, numbers),
        tree=tuple(_process(one, numbers) for one in manifest.tree),
        nvidia=None if nvidia is None else _nvidia(nvidia, numbers),
        outside=_outside(manifest.outside, numbers),
        quiesced=tuple(_number(one, numbers) for one in manifest.quiesced),
    )


def _number(number: int, numbers: Mapping[int, int]) -> int:
    if number not in numbers:
        raise Bug(f"the number {number} of a task is not known in its pid namespace")
    return numbers[number]


def _process(one: ProcessRecord, numbers: Mapping[int, int]) -> ProcessRecord:
    return replace(
        one,
        pid=_number(one.pid, numbers),
        ppid=numbers.get(one.ppid, 0),
        pgid=numbers.get(one.pgid, 0),
        sid=numbers.get(one.sid, 0),
        threads=tuple(_number(tid, numbers) for tid in one.threads),
        restore_thread=_number(one.restore_thread, numbers) if one.restore_thread else 0,
        bound=tuple(
            replace(bound, threads=tuple(_number(tid, numbers) for tid in bound.threads))
            for bound in one.bound
        ),
    )


def _nvidia(nvidia: NvidiaRecord, numbers: Mapping[int, int]) -> NvidiaRecord:
    uses = (replace(use, pid=numbers.get(use.pid, 0)) for use in nvidia.uses)
    return replace(nvidia, uses=tuple(uses))


def _outside(outside: Outside, numbers: Mapping[int, int]) -> Outside:
    pipes = (replace(one, pid=numbers.get(one.pid, 0)) for one in outside.pipes)
    return replace(outside, pipes=tuple(pipes))
