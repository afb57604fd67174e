"""What an image meets on this host: everything a restore depends on, looked at, nothing touched."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from msgspec import field
from msgspec.structs import replace

from gpuckpt.errors import HostUnfit
from gpuckpt.flow.gpu.memory import holders
from gpuckpt.flow.returning import doubts
from gpuckpt.flow.returning.ledger import Ledger, place_id
from gpuckpt.flow.returning.target.bound import taken_names
from gpuckpt.flow.returning.target.fileplan import FileStep, file_plan, journals
from gpuckpt.flow.returning.target.files import fake_link, files, is_there
from gpuckpt.flow.returning.target.gpus import planned, short
from gpuckpt.flow.returning.target.ground import folder_of, made_in, makeable
from gpuckpt.flow.returning.target.ports import processes, remains_of, seen_port, talkers
from gpuckpt.flow.returning.target.software import Software, needed, software
from gpuckpt.flow.returning.target.standing import Standing, standings
from gpuckpt.flow.sight.obstacles import check_answers
from gpuckpt.flow.work.journal import Journal
from gpuckpt.tools import foreground
from gpuckpt.tools.net import PortState
from gpuckpt.tools.pidspace import own_memory
from gpuckpt.tools.surroundings import Surroundings
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuckpt.flow.returning.ledger import Restored
    from gpuckpt.flow.returning.target.fileplan import Choice
    from gpuckpt.flow.returning.target.ports import SeenPort
    from gpuckpt.flow.work.journal import Entry
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.gpuplan import GpuPlan
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.outside import FileRecord, LockRecord, Outside
    from gpuckpt.model import Finding, HostFacts, NvidiaFacts, Owner, Process, Version
    from gpuckpt.tools.diag import Connection
    from gpuckpt.tools.unixnames import SocketName


class TargetFacts(Value, frozen=True):
    """One look at a host for one image.

    `no_criu` says why there is none that can work. `files`, `names` and `software` hold what
    is here of what the manifest lists, None for what is not; `writable` tells which folders take
    names, `makeable` those that CRIU makes itself if they are missing. `locked` are files whose
    locks others have, with the pid and name of one of these. `remains` are connections between
    the ends of the job's own, and closed ones on its ports, `talkers` who has them, by the local
    port; `sockets` names of its Unix sockets that are in use. `taken` are the job's numbers in use,
    with their users. `running` are processes of this very job that are alive, from
    before the dump or from an earlier restore, which `restored` tells of; `copies` tell of others
    that look like it. `others` are restores going on now. `gpu_short` has the GPUs
    with too little memory: the bytes needed, and who holds it, in words. `gpus` says which GPU
    goes where: planned once, with what --gpu-map `asked`. `owners` says what the job's users and
    groups are called here. `stays`: gpuckpt will be
    the parent of the job to its end, `apart`: it gets a pid namespace of its own. `no_programs`
    is the state directory if none may be started from it. `carried` tells
    how the files that the image carries stand here, `steps` what is done about them, those that
    have changed by `choice`; `rooms` how many bytes their folders take, None if not even names.
    `moved` has the paths that are others here, OLD and NEW.
    """

    host: HostFacts
    own: Surroundings = field(default_factory=Surroundings)
    nvidia: NvidiaFacts | None = None
    criu: Version | None = None
    no_criu: HostUnfit | None = None
    files: Mapping[str, FileRecord | None] = field(default_factory=dict)
    names: Mapping[str, bool] = field(default_factory=dict)
    writable: Mapping[str, bool] = field(default_factory=dict)
    makeable: Mapping[str, bool] = field(default_factory=dict)
    software: Software = field(default_factory=Software)
    locked: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    taken: Mapping[int, Process | None] = field(default_factory=dict)
    ports: tuple[SeenPort, ...] = ()
    remains: tuple[Connection, ...] = ()
    talkers: Mapping[int, Process] = field(default_factory=dict)
    sockets: Mapping[SocketName, Process | None] = field(default_factory=dict)
    addresses: Mapping[str, bool] = field(default_factory=dict)
    gpu_short: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    terminal: bool = False
    copies: tuple[Finding, ...] = ()
    restored: Restored | None = None
    running: frozenset[int] = frozenset()
    others: tuple[Entry, ...] = ()
    stays: bool = False
    apart: bool = False
    no_programs: str = ""
    carried: tuple[Standing, ...] = ()
    steps: tuple[FileStep, ...] = ()
    choice: Choice = "refuse"
    moved: tuple[tuple[str, str], ...] = ()
    rooms: Mapping[str, int | None] = field(default_factory=dict)
    asked: tuple[tuple[str, str], ...] = ()
    gpus: GpuPlan | None = None
    owners: tuple[Owner, ...] = ()


def gather(
    tools: Toolbox,
    manifest: Manifest,
    *,
    stays: bool = False,
    apart: bool = False,
    gpu_map: tuple[tuple[str, str], ...] = (),
    choice: Choice = "refuse",
    moved: tuple[tuple[str, str], ...] = (),
    check: Callable[[], None] = lambda: None,
    place: str = "",
) -> TargetFacts:
    """Look at all of it once; `gpu_map` has pairs of GPUs, by the names the user gave them.

    `choice` is what becomes of files that have changed, `moved` what the manifest's paths were;
    `check` is called while files are read, and may raise; `place` is where the image lies.

    Raises:
        HostUnfit: a filesystem that the job needs does not answer.
    """
    check_answers(tools, (*(one.path for one in manifest.outside.files), *needed(manifest)))
    criu, no_criu = _criu(tools)
    host = tools.host.facts()
    restored = Ledger(tools.state_dir).last(manifest.image_id)
    outside = manifest.outside
    stand = standings(tools, manifest, host.boot_id, apart=apart, check=check)
    steps = file_plan(manifest, stand, _folders(tools, manifest, apart=apart), choice)
    running = _running(tools, manifest, host.boot_id, restored, place)
    facts = TargetFacts(
        host=host,
        own=tools.proc.surroundings(os.getpid()),
        criu=criu,
        no_criu=no_criu,
        files=files(tools, manifest, steps, apart=apart),
        names={name: is_there(tools, name, apart=apart) for name in _names(manifest, steps)},
        writable=_writable(tools, manifest),
        makeable=_makeable(tools, outside),
        software=software(tools, manifest),
        addresses={
            one.local: tools.net.port("tcp", one.local, 0) is not PortState.NO_ADDRESS
            for one in outside.connections
        },
        terminal=foreground.is_ours(0),
        restored=restored,
        running=running,
        copies=tuple(doubts.copies(tools, manifest, running)),
        stays=stays,
        asked=gpu_map,
        owners=_owners(tools, manifest),
        apart=apart,
        no_programs="" if tools.host.executes(tools.state_dir) else str(tools.state_dir),
        carried=stand,
        steps=steps,
        choice=choice,
        moved=moved,
        rooms=_rooms(tools, manifest),
    )
    return look_again(tools, manifest, facts)


def _writable(tools: Toolbox, manifest: Manifest) -> dict[str, bool]:
    """Say which folders of sockets and of names that the dump left take names."""
    places = {folder_of(path) for path in manifest.outside.sockets}
    places |= {folder_of(one.path) for one in manifest.outside.remaps if one.linked}
    return {one: tools.files.writable(made_in(tools, manifest, one)) for one in sorted(places)}


def _makeable(tools: Toolbox, outside: Outside) -> dict[str, bool]:
    """Say where the names of deleted files can be made for a moment."""
    ghosts = {folder_of(one.path) for one in outside.remaps if not one.linked}
    return {place: makeable(tools, place) for place in sorted(ghosts)}


def _names(manifest: Manifest, steps: Iterable[FileStep]) -> list[str]:
    """Return names that a restore makes, those of others that it needs, and those of journals."""
    outside = manifest.outside
    names = [*journals(manifest, steps)]
    names += [name for one in outside.remaps for name in (one.name, one.path, fake_link(one))]
    # a name that begins with @ is no path: whether somebody has it, only a connection would show
    return names + [name for name in outside.servers if name.startswith("/")]


def look_again(tools: Toolbox, manifest: Manifest, facts: TargetFacts) -> TargetFacts:
    """Look once more at what may pass by itself: numbers, ports, names, GPU memory."""
    nvidia = tools.nvidia.facts()
    plan = facts.gpus.renewed(nvidia) if facts.gpus else planned(manifest, nvidia, facts.asked)
    ports = tuple(seen_port(tools, listener) for listener in manifest.outside.listeners)
    remains = remains_of(tools, manifest, ports)
    return replace(
        facts,
        taken={} if facts.apart else _taken(tools, manifest),
        # after them: a restore that has made one of them is in the journal already
        others=_others(tools, facts.host.boot_id),
        ports=ports,
        remains=remains,
        talkers=talkers(tools, remains),
        sockets=taken_names(tools, manifest, apart=facts.apart),
        locked=_locked(tools, manifest.outside.locks, apart=facts.apart),
        nvidia=nvidia,
        gpus=plan,
        gpu_short=short(manifest, nvidia, plan, partial(holders, tools)),
    )


def _rooms(tools: Toolbox, manifest: Manifest) -> dict[str, int | None]:
    """Return the bytes that fit into each folder a carried file is in."""
    folders = sorted({folder_of(one.path) for one in manifest.carried})
    return {folder: tools.carried.room(made_in(tools, manifest, folder)) for folder in folders}


def _folders(tools: Toolbox, manifest: Manifest, *, apart: bool) -> dict[str, bool]:
    """Say which folders that a restore makes are there; memory of its own begins empty."""
    return {
        one.path: not (apart and own_memory(one.path))
        and tools.carried.identity(one.path) is not None
        for one in manifest.outside.folders
    }


def _taken(tools: Toolbox, manifest: Manifest) -> dict[int, Process | None]:
    """Return the job's numbers in use and their users; one may be given back between two looks."""
    found = {number: tools.proc.owner(number) for number in tools.proc.taken(manifest.ids)}
    unseen = [number for number, user in found.items() if user is None]
    given_back = set(unseen).difference(tools.proc.taken(unseen) if unseen else ())
    return {number: user for number, user in found.items() if number not in given_back}


def _owners(tools: Toolbox, manifest: Manifest) -> tuple[Owner, ...]:
    """Return what the job's users and groups are called here."""
    users, groups = (
        [one.number for one in manifest.owners if one.kind == kind] for kind in ("user", "group")
    )
    return tools.host.owners(users, groups)


def _criu(tools: Toolbox) -> tuple[Version | None, HostUnfit | None]:
    try:
        return tools.criu.version, None
    except HostUnfit as why:
        return None, why


def _locked(
    tools: Toolbox, records: Iterable[LockRecord], *, apart: bool
) -> dict[str, tuple[int, str]]:
    """Return those locks that somebody has who would not share them."""
    found: dict[str, tuple[int, str]] = {}
    # in a memory of its own the file is another one
    for one in (one for one in records if not (apart and own_memory(one.path))):
        for other in tools.files.locks(one.path):
            same = (one.kind == "flock") == (other.kind == "flock") and other.kind != "lease"
            if same and (one.exclusive or other.exclusive):
                process = tools.proc.process(other.pid) if other.pid > 0 else None
                found[one.path] = other.pid, process.comm if process else "?"
    return found


def _running(
    tools: Toolbox, manifest: Manifest, boot_id: str, restored: Restored | None, place: str
) -> frozenset[int]:
    """Return the same, with what was started while the image at its place could not be read."""
    unread = Ledger(tools.state_dir).last(place_id(place))
    found = (running_here(tools, manifest, boot_id, one) for one in (restored, unread))
    return frozenset[int]().union(*found)


def running_here(
    tools: Toolbox, manifest: Manifest, boot_id: str, restored: Restored | None
) -> frozenset[int]:
    """Return the pids under which this very job runs here, by the start times it had."""
    known: set[tuple[int, int]] = set()
    if manifest.host.boot_id == boot_id:
        known |= {(one.host_pid or one.pid, one.start_time) for one in manifest.tree}
    if restored is not None and restored.boot_id == boot_id:
        known |= {(ref.pid, ref.start_time) for ref in restored.known}
    pids = sorted({pid for pid, _ in known})
    now = ((one.pid, one.ref.start_time) for one in processes(tools, pids) if not one.zombie)
    return frozenset(pid for pid, started in now if (pid, started) in known)


def _others(tools: Toolbox, boot_id: str) -> tuple[Entry, ...]:
    """Return other restores that go on right now, of this image or another."""
    return tuple(
        entry
        for entry in Journal(tools.state_dir).entries()
        if entry.operation == "restore"
        and entry.boot_id == boot_id
        and entry.owner.pid != os.getpid()
        and tools.proc.alive(entry.owner)
    )
