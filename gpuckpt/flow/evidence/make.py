"""Writing the evidence of an image: what it holds, and everything that is known to have been tried.

What this host has recorded of the image stands in it whether it was named or not: nobody can leave
out the attempt that failed.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import msgspec

from gpuckpt import __version__
from gpuckpt.account import Account
from gpuckpt.errors import NotWritable, UsageError
from gpuckpt.flow.evidence import derived, facts, statements
from gpuckpt.flow.evidence.document import DUMP, MISSING, Attempt, Evidence, Plan
from gpuckpt.flow.returning.compared import old_place
from gpuckpt.flow.show import receipt
from gpuckpt.flow.work import spans
from gpuckpt.flow.work.history import COLD, History, record_of
from gpuckpt.flow.work.opening import open_image
from gpuckpt.image import sealed, wire
from gpuckpt.image.disk import image_around
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gpuckpt.account import Place
    from gpuckpt.flow.evidence.document import Target
    from gpuckpt.flow.work.history import Record
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.store import Image
    from gpuckpt.location import Location

RESTORE = "restore"
Key = tuple[str, str, float]
OF_DUMP = frozenset(one.name for one in spans.of_dump(cuda=True, quiesced=False, stays=False))
OF_RESTORE = frozenset(one.name for one in spans.of_restore(cuda=True, quiesced=False, probe=True))


class EvidenceRequest(Value, frozen=True):
    """Of which image, and where to.

    `receipts` are files of attempts that were planned; without any, all that this host knows of
    are. `planned` is how many restores were, None: as many as are told of. `targets` are pairs of
    an interval and the seconds it may take. `output` None: the image's name in the current folder.
    """

    image: Location
    receipts: tuple[Path, ...] = ()
    planned: int | None = None
    targets: tuple[tuple[str, float], ...] = ()
    output: Path | None = None


def write(request: EvidenceRequest, state_dir: Path, folder: Path) -> tuple[Path, bytes]:
    """Write the evidence of an image and return its file; without another word it is in `folder`.

    Raises:
        ImageError: there is no image, or it is damaged.
        UsageError: a receipt is of something else, or the file is there already, or in an image.
        NotWritable: it could not be written.
    """
    with open_image(request.image, trust=False) as image:
        image.check_sizes()
        data = encode(compose(image, request, state_dir))
    path = request.output or folder / f"{request.image.name}.evidence.json"
    if around := image_around(path):
        raise UsageError(
            f"{path} is in the image {around}, and would damage it",
            hint="Name a place beside it with -o.",
        )
    _write(path, data)
    return path, data


def compose(image: Image, request: EvidenceRequest, state_dir: Path) -> Evidence:
    """Put it together."""
    manifest = image.manifest
    before = old_place(manifest)
    attempts = _attempts(manifest, before, request, state_dir)
    what, job = facts.saved(image), facts.job(manifest)
    return Evidence(
        schema="urn:gpuckpt:evidence:1",
        written=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        gpuckpt=__version__,
        image=what,
        job=job,
        before=before,
        plan=Plan(
            restores=sum(one.planned for one in attempts) - 1,
            attempts=tuple(one.id for one in attempts if one.planned),
        ),
        attempts=attempts,
        targets=_targets(attempts, request.targets),
        proved=statements.proved(what, job, attempts),
        not_proved=statements.not_proved(what, job, attempts),
    )


def encode(made: Evidence) -> bytes:
    """Return the bytes of the file: indented JSON that ends with its own digest."""
    plain = wire.escape(cast("wire.Plain", msgspec.to_builtins(made)))
    return sealed.seal(msgspec.json.format(msgspec.json.encode(plain), indent=2))


def _attempts(
    manifest: Manifest, before: Place, request: EvidenceRequest, state_dir: Path
) -> tuple[Attempt, ...]:
    named = {_key(record): (path, record) for path, record in _named(manifest, request)}
    known = {
        _key(record): (path, record)
        for path, record in History(state_dir).files_of_image(manifest.image_id)
    }
    for key in known.keys() & named.keys():
        _same(*named[key], *known[key])
    every = known | named
    restores = _sorted(every, RESTORE)
    wanted = named if any(one.operation == RESTORE for _, one in named.values()) else every
    most = len(every) if request.planned is None else request.planned
    attempts = [_dump(manifest, list(every.values()))]
    planned = 0
    for number, key in enumerate(restores, 1):
        expected = key in wanted and planned < most
        planned += expected
        source, record = every[key]
        name = f"{RESTORE}-{number}"
        attempts.append(attempt(name, str(source), record, before, planned=expected))
    attempts += [
        cold_attempt(number, *every[key]) for number, key in enumerate(_sorted(every, COLD), 1)
    ]
    lacking = max(0, (request.planned or 0) - planned)
    for number in range(len(restores) + 1, len(restores) + 1 + lacking):
        name = f"{RESTORE}-{number}"
        attempts.append(Attempt(id=name, operation="restore", planned=True, outcome=MISSING))
    return tuple(attempts)


def _sorted(every: Mapping[Key, tuple[Path, Record]], operation: str) -> list[Key]:
    """Return the attempts of a kind in the order in which they ended; many may be of one second."""
    return sorted(
        (key for key in every if key[0] == operation),
        key=lambda key: (key[1], every[key][0].stat().st_mtime_ns),
    )


def cold_attempt(number: int, source: Path, record: Record) -> Attempt:
    """Return what is told of a start from the beginning."""
    return Attempt(
        id=f"{COLD}-{number}",
        operation="cold-start",
        planned=False,
        outcome=record.outcome,
        source=str(source),
        timing=derived.timing(record.receipt),
        lost=record.lost,
    )


def _named(manifest: Manifest, request: EvidenceRequest) -> Iterable[tuple[Path, Record]]:
    for path in request.receipts:
        record = receipt(path)
        if record.image_id != manifest.image_id or record.operation not in {DUMP, RESTORE, COLD}:
            what = f"image {record.image_id}" if record.image_id else "no image that it names"
            raise UsageError(
                f"{path} tells of a {record.operation} of {what}, not of {manifest.image_id}",
                hint="Name what a restore of this image has told as its receipt, or printed with "
                "--json.",
            )
        yield path, record


def _same(named: Path, told: Record, file: Path, kept: Record) -> None:
    """What was printed, or copied, may not tell otherwise than what was recorded."""
    # what is printed was made a moment earlier: the whole is a little shorter
    same = (told.outcome, told.account) == (kept.outcome, kept.account)
    times = (told.receipt.phases, told.receipt.events)
    if not same or times != (kept.receipt.phases, kept.receipt.events):
        raise UsageError(
            f"{named} does not tell of this {kept.operation} what this host has recorded in {file}",
            hint="Leave it out: what is recorded here is told of anyway.",
        )


def _key(record: Record) -> Key:
    """Return by what an attempt is known, in whatever file it is told of."""
    times = record.receipt.phases
    return record.operation, record.started, times[0].seconds if times else 0.0


def _dump(manifest: Manifest, known: list[tuple[Path, Record]]) -> Attempt:
    """Return the dump: as this host recorded it to its end, or as far as the image tells."""
    told = ((str(path), one) for path, one in known if one.operation == DUMP)
    source, record = next(told, ("manifest", record_of(manifest, manifest.receipt)))
    return Attempt(
        id=DUMP,
        operation="dump",
        planned=True,
        outcome=record.outcome,
        source=source,
        timing=derived.timing(record.receipt),
    )


def attempt(name: str, source: str, record: Record, before: Place, *, planned: bool) -> Attempt:
    """Return what is told of a restore."""
    told = record.account or Account()
    return Attempt(
        id=name,
        operation="restore",
        planned=planned,
        outcome=record.outcome,
        error=told.error,
        source=source,
        timing=derived.timing(record.receipt),
        after=told.place,
        changes=derived.changes(before, told.place, told.gpu_map, told.path_map),
        gates=told.gates,
        forced=told.forced,
        findings=told.findings,
        gpu_map=told.gpu_map,
        path_map=told.path_map,
        aside=told.aside,
        pids=told.pids,
        memory=told.memory,
        probe=told.probe,
        settle=told.settle,
        progress=told.progress,
    )


def _targets(
    attempts: tuple[Attempt, ...], declared: Iterable[tuple[str, float]]
) -> tuple[Target, ...]:
    return tuple(
        derived.target(one, interval, at_most)
        for interval, at_most in declared
        for one in attempts
        if one.planned and interval in (OF_DUMP if one.operation == DUMP else OF_RESTORE)
    )


def _write(path: Path, data: bytes) -> None:
    """Write a new file, whole or not at all, and never over another."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(fresh)  # unlike a rename it refuses a name that is taken
        finally:
            fresh.unlink()
    except FileExistsError as why:
        raise UsageError(f"{path} is there already", hint="Choose another name with -o.") from why
    except OSError as why:
        raise NotWritable(f"{path} cannot be written: {why.strerror}") from why
