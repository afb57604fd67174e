"""Writing down in the manifest what was dumped, from the facts and from CRIU's own images."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from msgspec import field, structs

from gpuckpt import __version__
from gpuckpt.errors import DumpFailed
from gpuckpt.flow.taking.outside import outside
from gpuckpt.flow.taking.usage import Usage
from gpuckpt.image.manifest import (
    BindingRecord,
    DumpOptions,
    HostRecord,
    Manifest,
    NvidiaRecord,
    ProcessRecord,
    StartRecord,
    Totals,
)
from gpuckpt.image.needs import needs
from gpuckpt.image.renumber import renumbered
from gpuckpt.model import CudaState
from gpuckpt.timing import Receipt
from gpuckpt.tools import criuimage
from gpuckpt.tools.environment import IDENTITY
from gpuckpt.tools.pidspace import own_memory
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuckpt.flow.sight.along import Along
    from gpuckpt.flow.sight.look import Sight
    from gpuckpt.flow.taking.references import Print
    from gpuckpt.flow.taking.software import Known
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import FileEntry
    from gpuckpt.model import (
        CarriedFile,
        GpuUse,
        HostFacts,
        NvidiaFacts,
        Process,
        Tree,
    )
    from gpuckpt.tools.openfiles import OpenFiles
    from gpuckpt.tools.origin import Origin
    from gpuckpt.tools.surroundings import Surroundings
    from gpuckpt.tools.usedfiles import UsedFile

TREE: Final = "pstree.img"
OPENED: Final = "files.img"
REMAPS: Final = "remap-fpath.img"


class Dumped(Value, frozen=True):
    """What a dump has in hand when CRIU has handed everything over and the tree stands frozen.

    `around` is what each task lives in, `inside` are the numbers that the tasks have in a pid
    namespace of their own, if they do.
    `first` are the driver's states before the dump, `threads` the driver's own threads, `images`
    the CRIU images named by `wanted`, `opened` what they say of open files, `carried` the files
    taken along, `quiesced` the processes that stand at a step, `software` what the tree computes
    with. `along` are its files, those that go along and those that stay, and `prints` says what
    tells one of these from others.
    """

    sight: Sight
    tree: Tree
    around: Mapping[int, Surroundings]
    first: Mapping[int, CudaState]
    threads: Mapping[int, int]
    uses: tuple[GpuUse, ...]
    leave_running: bool
    labels: Mapping[str, str]
    images: Mapping[str, bytes]
    opened: OpenFiles
    carried: tuple[CarriedFile, ...]
    quiesced: tuple[int, ...]
    software: Known
    along: Along
    prints: Callable[[UsedFile], Print]
    inside: Mapping[int, int] = field(default_factory=dict)


def wanted(name: str) -> bool:
    """Whether a manifest is made from this image of CRIU."""
    return name in {TREE, OPENED, REMAPS} or name.startswith("core-")


def opened(images: Mapping[str, bytes]) -> OpenFiles:
    """Return what CRIU recorded of the open files.

    Raises:
        DumpFailed: CRIU has not sent what is needed.
        ImageDamaged: CRIU's images cannot be read.
    """
    return criuimage.read_files(_image(images, OPENED), images.get(REMAPS, b""))


def manifest(tools: Toolbox, dumped: Dumped) -> Manifest:
    """Compose the manifest but for what `completed` adds.

    Raises:
        DumpFailed: CRIU has not sent what is needed.
        ImageDamaged: CRIU's images cannot be read.
    """
    sight = dumped.sight
    tasks = criuimage.read_pstree(_image(dumped.images, TREE))
    found = Manifest(
        needs=needs(
            cuda=bool(dumped.first),
            parked=any(dumped.threads.values()),
            stand_ins=sight.options.stand_ins is not None,
            quiesced=bool(dumped.quiesced),
        ),
        image_id=uuid4().hex,
        created=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        gpuckpt=__version__,
        criu=str(sight.criu),
        root_pid=sight.tree.root.pid,
        host=_host(sight.host),
        nvidia=_nvidia(sight.nvidia, dumped.uses) if dumped.first else None,
        tree=tuple(_process(tools, one, dumped) for one in dumped.tree.processes),
        ids=criuimage.ids(tasks),
        options=_options(dumped),
        outside=outside(
            tools,
            sight.facts.look,
            dumped.opened,
            dumped.carried,
            pythons=dumped.software.pythons,
            usage=Usage(dumped.tree, dumped.around, dumped.along, dumped.prints, sight.space),
        ),
        labels=dict(dumped.labels),
        files=(),
        totals=_totals(()),
        receipt=Receipt("dump", "", 0.0, ()),
        identity=_identity(sight),
        carried=dumped.carried,
        quiesced=dumped.quiesced,
        owners=sight.facts.owners,
        engine=dumped.software.engine,
        models=dumped.software.models,
        tracked=dumped.software.tracked,
        start=_start(dumped.around[dumped.tree.root.pid].origin, apart=bool(dumped.inside)),
    )
    return renumbered(found, dumped.inside) if dumped.inside else found


def completed(manifest: Manifest, files: tuple[FileEntry, ...], receipt: Receipt) -> Manifest:
    """Return a manifest with what is known only when everything is stored."""
    return structs.replace(manifest, files=files, totals=_totals(files), receipt=receipt)


def _image(images: Mapping[str, bytes], name: str) -> bytes:
    if name not in images:
        raise DumpFailed(f"CRIU never sent {name}: the dump is not whole")
    return images[name]


def _core(number: int) -> str:
    return f"core-{number}.img"


def _start(origin: Origin, *, apart: bool) -> StartRecord:
    """Files in the memory of a pid namespace are nobody's but that job's."""
    files = (origin.stdout, origin.stderr)
    stdout, stderr = ("" if apart and own_memory(one) else one for one in files)
    return StartRecord(
        program=origin.program,
        umask=origin.umask,
        groups=origin.groups,
        stdout=stdout,
        stderr=stderr,
    )


def _identity(sight: Sight) -> tuple[str, ...]:
    """Names only: values are secrets, and those of another host would be of no use."""
    names = {name for task in sight.facts.look.tasks for name in task.environment}
    return tuple(sorted(name for name in names if IDENTITY.fullmatch(name)))


def _host(facts: HostFacts) -> HostRecord:
    return HostRecord(
        hostname=facts.hostname,
        kernel=facts.kernel,
        boot_id=facts.boot_id,
        arch=facts.arch,
        libc=facts.libc,
        cpu_model=facts.cpu_model,
        cpu_flags=facts.cpu_flags,
        memory_total=facts.memory_total,
        addresses=facts.addresses,
    )


def _nvidia(facts: NvidiaFacts | None, uses: tuple[GpuUse, ...]) -> NvidiaRecord | None:
    if facts is None:
        return None
    return NvidiaRecord(
        driver=facts.driver, cuda=facts.cuda, gpus=facts.gpus, uses=uses, flavour=facts.flavour
    )


def _process(tools: Toolbox, process: Process, dumped: Dumped) -> ProcessRecord:
    around = dumped.around[process.pid]
    return ProcessRecord(
        pid=process.pid,
        host_pid=process.pid if dumped.inside else 0,
        ppid=process.ppid,
        pgid=process.pgid,
        sid=process.sid,
        start_time=process.ref.start_time,
        threads=process.threads,
        comm=process.comm,
        argv=process.argv,
        exe=process.exe,
        cwd=process.cwd,
        uid=process.uid,
        gid=process.gid,
        cuda=dumped.first.get(process.pid, CudaState.NONE),
        restore_thread=dumped.threads.get(process.pid, 0),
        bound=_bound(tools, process),
        root=around.root,
        cgroup=around.cgroup,
        label=around.label,
        permitted=around.permitted,
        bounding=around.bounding,
        huge_pages=around.huge_pages,
        parent_death=_parent_death(process, dumped),
        layout=around.layout,
        clock=around.clock,
        expired=around.expired,
        visible=dumped.sight.facts.visible.get(process.pid),
    )


def _parent_death(process: Process, dumped: Dumped) -> int:
    """Within the tree parents come back together with their children; the root's does not."""
    name = _core(dumped.inside.get(process.pid, process.pid))
    if process.pid != dumped.tree.root.pid or name not in dumped.images:
        return 0
    return criuimage.read_parent_death(dumped.images[name])


def _bound(tools: Toolbox, process: Process) -> tuple[BindingRecord, ...]:
    """Group the threads that are bound to CPUs by these."""
    groups: dict[frozenset[int], list[int]] = {}
    for thread, cpus in tools.cpus.bound(process.threads).items():
        groups.setdefault(cpus, []).append(thread)
    return tuple(
        BindingRecord(cpus=tuple(sorted(cpus)), threads=tuple(threads))
        for cpus, threads in groups.items()
    )


def _options(dumped: Dumped) -> DumpOptions:
    options = dumped.sight.options
    return DumpOptions(
        tcp=options.tcp,
        tcp_by_itself=bool(dumped.sight.kept),
        file_locks=options.file_locks,
        shell_job=options.shell_job,
        link_remap=options.link_remap,
        external_unix=options.external_unix,
        stand_ins=options.stand_ins is not None,
        leave_running=dumped.leave_running,
    )


def _totals(files: tuple[FileEntry, ...]) -> Totals:
    return Totals(
        raw=sum(entry.raw_size for entry in files),
        stored=sum(entry.stored_size for entry in files),
        pages=sum(entry.raw_size for entry in files if entry.name.startswith("pages-")),
    )
