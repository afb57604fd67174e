"""The facts a dump is judged by, gathered once and read only.

Everything slow or foreign happens in `gather`; what follows from the facts is computed from them
alone, so that a recorded set of facts can be judged anywhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import field

from gpuckpt.flow.gpu.visible import visible
from gpuckpt.flow.request import FileChoice
from gpuckpt.flow.sight.along import Along, along, tried
from gpuckpt.flow.sight.obstacles import cuda_states, destination, in_an_image, store
from gpuckpt.flow.work.kin import Kin, kin, roots_below, starts_jobs
from gpuckpt.location import Url
from gpuckpt.model import CudaState, GpuUse, HostFacts, NvidiaFacts, Process, Tree
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.location import Location
    from gpuckpt.model import Finding, Owner, Version
    from gpuckpt.tools.destination import Place
    from gpuckpt.tools.look import Look, Task
    from gpuckpt.tools.units import Unit


class DumpNeeds(Value, frozen=True):
    """What CRIU has to be told for this tree; a restore repeats all but the sizes.

    `ghost_bytes` counts deleted files that go into the image, `largest_ghost` the biggest of them.
    """

    shell_job: bool
    file_locks: bool
    link_remap: bool
    ghost_bytes: int
    largest_ghost: int
    external_unix: bool = False


class DumpFacts(Value, frozen=True):
    """All there is to know before a dump. Sizes in bytes.

    `memory_available` is what the tightest CUDA process can still get; `output` the image to be
    made, `destination` its folder, `free_bytes` what that has room for. All are None if there is
    no destination yet, the last two in a store too, `free_bytes` also if it is not `writable`.
    `taken` tells that something has the image's name, `place` what the folder is; `obstacles` tell
    what could not be looked at.
    `others` are processes outside the tree that use its GPUs, with what they hold there. `unit` is
    the systemd service that the tree's root is in, `kin` what else of a job stands around it.
    `unasked` are those that the driver could not be asked about. `owners` names its users and
    groups, unless they are those of a container. `along` are the files that go along in the image,
    and those that stay.
    """

    tree: Tree
    look: Look
    host: HostFacts
    nvidia: NvidiaFacts | None = None
    states: Mapping[int, CudaState] = field(default_factory=dict)
    uses: tuple[GpuUse, ...] = ()
    memory_available: int = 0
    destination: Path | None = None
    free_bytes: int | None = None
    writable: bool = True
    output: Location | None = None
    taken: bool = False
    state_dir: Path | None = None
    state_writable: bool = True
    state_executes: bool = True
    place: Place | None = None
    kin: Kin = Kin()
    obstacles: tuple[Finding, ...] = ()
    others: tuple[tuple[Process, GpuUse], ...] = ()
    unit: Unit | None = None
    criu: Version | None = None
    unasked: frozenset[int] = frozenset()
    owners: tuple[Owner, ...] = ()
    along: Along = Along()

    @property
    def better_roots(self) -> tuple[int, ...]:
        """The pids to dump instead, if the tree is a part of a job or stands above jobs."""
        if starts_jobs(self.tree.root):
            return roots_below(self.tree.processes, self.cuda_pids)
        return (self.kin.job.pid,) if self.kin.job is not None else ()

    @property
    def cuda_pids(self) -> tuple[int, ...]:
        """The processes for which the driver knows a state."""
        return tuple(
            pid for pid in self.tree.pids if self.states.get(pid, CudaState.NONE) != CudaState.NONE
        )

    @property
    def visible(self) -> dict[int, tuple[str, ...] | None]:
        """The GPUs that each CUDA process could see, by UUID; None: all, or it cannot be told."""
        gpus, cuda = self.nvidia.gpus if self.nvidia else (), set(self.cuda_pids)
        tasks = (task for task in self.look.tasks if task.process.pid in cuda)
        return {task.process.pid: visible(task.settings, gpus) for task in tasks}

    @property
    def cooperating(self) -> tuple[int, ...]:
        """The processes that can be brought to rest at a step."""
        return tuple(task.process.pid for task in self.look.tasks if task.cooperates)

    @property
    def gpu_bytes_known(self) -> bool:
        """Whether NVML said of every CUDA process how much it holds."""
        said = {use.pid for use in self.uses if use.bytes}
        return said.issuperset(self.cuda_pids)

    @property
    def gpu_bytes(self) -> int:
        """The GPU memory the tree holds; at most all that is in use, where NVML does not say."""
        if not self.cuda_pids:
            return 0
        if self.gpu_bytes_known or self.nvidia is None:
            return sum(use.bytes for use in self.uses)
        return sum(gpu.memory_total - gpu.memory_free for gpu in self.nvidia.gpus)

    @property
    def needs(self) -> DumpNeeds:
        """What CRIU has to be told."""
        root = self.tree.root
        ghosts = [file.bytes for file in self.look.deleted if not file.links]
        return DumpNeeds(
            shell_job=root.sid != root.pid or bool(self.look.terminals),
            file_locks=bool(self.look.locks),
            link_remap=any(file.links for file in self.look.deleted),
            ghost_bytes=sum(ghosts),
            largest_ghost=max(ghosts, default=0),
            external_unix=any(one.found_again for one in self.look.peers),
        )

    @property
    def carried_bytes(self) -> int:
        """The bytes of files that are carried: those in memory, and those with another name."""
        known = {one.path: one.carried for one in self.look.odd_files if one.carried is not None}
        linked = sum(file.bytes for file in self.look.deleted if file.links)
        return sum(known.values()) + linked

    @property
    def image_bytes(self) -> int:
        """The raw size to expect: memory beside files, GPU memory, files, and a little.

        Shared memory is counted once, as large as the process that has most of it, or as the files
        it lies in.
        """
        memory = sum(task.memory + task.huge for task in self.look.tasks)
        shared = [task.shared_memory for task in self.look.tasks]
        memory -= sum(shared)
        memory += max(*shared, self.carried_bytes, 0)
        raw = memory + self.gpu_bytes + self.needs.ghost_bytes + self.along.bytes
        return raw + raw // 20


def gather(
    tools: Toolbox,
    tree: Tree,
    output: Location | None = None,
    obstacles: Iterable[Finding] = (),
    criu: Version | None = None,
    *,
    choice: FileChoice | None = None,
) -> DumpFacts:
    """Look at a tree, its host and its GPUs before a dump; nothing is changed anywhere.

    Args:
        tools: where to look.
        tree: the processes to dump.
        output: the image to be made.
        obstacles: what is known already not to be visible.
        criu: the version of the CRIU that was found.
        choice: which files shall go along; None asks for nothing but the usual.
    """
    seen = tools.proc.look(tree)
    # the driver is asked only about processes that may be looked into
    asked = [one.process.pid for one in seen.tasks if _answers(one)]
    states, unseen = cuda_states(tools, asked)
    cuda = [pid for pid in tree.pids if pid in states]
    uses = tools.nvidia.uses(cuda)
    folder = output.parent if isinstance(output, Path) else None
    writable = folder is None or tools.host.writable(folder)
    free, place, sick = destination(tools, folder) if folder and writable else (None, None, [])
    taken = isinstance(output, Path) and os.path.lexists(output)
    sick = [*sick, *in_an_image(output)]
    if isinstance(output, Url):
        taken, sick = store(tools, output)
    return DumpFacts(
        tree=tree,
        look=seen,
        host=tools.host.facts(),
        nvidia=tools.nvidia.facts(),
        states=states,
        uses=uses,
        others=_others(tools, tree, uses),
        memory_available=min(
            (tools.host.memory_available(pid) for pid in cuda or (tree.root.pid,)), default=0
        ),
        destination=folder,
        free_bytes=free,
        writable=writable,
        output=output,
        taken=taken,
        state_dir=tools.state_dir,
        state_executes=tools.host.executes(tools.state_dir),
        state_writable=tools.host.writable(_existing(tools.state_dir)),
        place=place,
        kin=kin(tools, tree),
        obstacles=(*obstacles, *unseen, *sick),
        unit=tools.host.unit(tree.root.pid),
        criu=criu,
        unasked=frozenset(tree.pids).difference(asked) | _silent(tree, unseen),
        owners=_owners(tools, tree) if seen.space is None else (),
        along=_along(tools, tree, seen, choice or FileChoice()),
    )


def _owners(tools: Toolbox, tree: Tree) -> tuple[Owner, ...]:
    processes = tree.processes
    found = tools.host.owners({one.uid for one in processes}, {one.gid for one in processes})
    return tuple(one for one in found if one.name)


def _along(tools: Toolbox, tree: Tree, seen: Look, choice: FileChoice) -> Along:
    """Sort the files of the tree by what has been seen of it."""
    opened = [(one.process.pid, one.descriptors, one.mapped) for one in seen.tasks if one.readable]
    used = tools.carried.used_of(opened, seen.space.reach if seen.space is not None else str)
    return tried(tools, along(tools, used, tree, choice, space=seen.space), seen.space)


def _answers(task: Task) -> bool:
    """Whether the driver can ask a process: it works through a thread of it that has to run."""
    return task.readable and not (task.frozen or task.halted)


def _silent(tree: Tree, unseen: Iterable[Finding]) -> frozenset[int]:
    """Return those that the driver was asked about in vain; all, if it could not be asked."""
    pids = {one.pid for one in unseen}
    return frozenset(tree.pids) if None in pids else frozenset(pid for pid in pids if pid)


def _existing(folder: Path) -> Path:
    """Return the folder itself, or the nearest one above it that is there."""
    return next((one for one in (folder, *folder.parents) if os.path.exists(one)), folder)  # noqa: PTH110


def _others(
    tools: Toolbox, tree: Tree, uses: tuple[GpuUse, ...]
) -> tuple[tuple[Process, GpuUse], ...]:
    """Find out who else uses the GPUs of a tree.

    In a pid namespace of its own NVML may speak of pids that are not ours, so only processes that
    can be seen are named.
    """
    gpus, mine = {use.uuid for use in uses}, set(tree.pids)
    if not gpus:
        return ()
    listed = (use for use in tools.nvidia.uses() if use.uuid in gpus and use.pid not in mine)
    found = ((tools.proc.process(use.pid), use) for use in listed)
    return tuple((process, use) for process, use in found if process is not None)
