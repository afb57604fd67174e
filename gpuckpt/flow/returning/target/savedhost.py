"""What one host says of itself for judging elsewhere: the JSON of `doctor --facts`.

Only what stays true for a while is in it. A file must have everything that this gpuckpt compares:
a default in place of what an older one did not look at would pass in silence.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuckpt import __version__
from gpuckpt.errors import HostUnfit, UsageError
from gpuckpt.flow.returning.target.facts import gather
from gpuckpt.flow.returning.target.software import Software
from gpuckpt.image import wire
from gpuckpt.image.outside import FileRecord
from gpuckpt.model import HostFacts, NvidiaFacts, Owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest

SCHEMA: Final = "gpuckpt-host-facts"
VERSION: Final = 1
# one word on one line: it is printed for scripts
_NAME: Final = re.compile(r"[!-~]+")
_LARGEST: Final = 64 << 20
_ANEW: Final = "Make it with `gpuckpt doctor --facts > FILE` on that host."


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """What gpuckpt itself has there, and so what it can give: see Surroundings."""

    cgroup: str
    label: str
    permitted: int
    bounding: int


class NoCriu(msgspec.Struct, frozen=True, kw_only=True):
    """Why no CRIU there can work; `name` is the error's."""

    name: str
    message: str
    hint: str


class ForImage(msgspec.Struct, frozen=True, kw_only=True):
    """What is there of what one image needs; see TargetFacts."""

    files: dict[str, FileRecord | None]
    names: dict[str, bool]
    writable: dict[str, bool]
    makeable: dict[str, bool]
    software: Software
    rooms: dict[str, int | None]
    owners: tuple[Owner, ...]


class SavedHost(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document; `images` has what was asked for, by the ids of the images.

    `criu` is the version found, "" if there is `no_criu`; `no_programs` the state directory if
    none may be started from it.
    """

    schema: str
    version: int
    gpuckpt: str
    taken: str
    host: HostFacts
    nvidia: NvidiaFacts | None
    criu: str
    no_criu: NoCriu | None
    rights: Rights
    no_programs: str
    images: dict[str, ForImage]

    @property
    def age(self) -> float:
        """How many seconds ago it was taken, as far as the two clocks agree."""
        return max(0.0, (datetime.now(UTC) - _moment(self.taken)).total_seconds())


def take(tools: Toolbox, manifests: Iterable[Manifest] = ()) -> SavedHost:
    """Look at this host, and at what there is of what these images need; nothing is touched.

    Raises:
        HostUnfit: a filesystem that a job needs does not answer.
    """
    own = tools.proc.surroundings(os.getpid())
    try:
        criu, no_criu = str(tools.criu.version), None
    except HostUnfit as why:
        criu, no_criu = "", NoCriu(name=why.name, message=why.message, hint=why.hint)
    return SavedHost(
        schema=SCHEMA,
        version=VERSION,
        gpuckpt=__version__,
        taken=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        host=tools.host.facts(),
        nvidia=tools.nvidia.facts(),
        criu=criu,
        no_criu=no_criu,
        rights=Rights(
            cgroup=own.cgroup, label=own.label, permitted=own.permitted, bounding=own.bounding
        ),
        no_programs="" if tools.host.executes(tools.state_dir) else str(tools.state_dir),
        images={one.image_id: _for_image(tools, one) for one in manifests},
    )


def _for_image(tools: Toolbox, manifest: Manifest) -> ForImage:
    found = gather(tools, manifest)
    return ForImage(**{name: getattr(found, name) for name in ForImage.__struct_fields__})


def plain(saved: SavedHost) -> dict[str, Any]:
    """Return the document as JSON has it, whatever bytes its paths are."""
    found: dict[str, Any] = wire.escape(msgspec.to_builtins(saved, str_keys=True))  # type: ignore[assignment]
    return found


def load(path: Path) -> SavedHost:
    """Read a file of `doctor --facts`, with --json or without.

    Raises:
        UsageError: it cannot be read, or is none that can be judged by.
    """
    given = _plain(path)
    if isinstance(given, dict) and isinstance(given.get("result"), dict):
        given = given["result"]
    if not isinstance(given, dict) or given.get("schema") != SCHEMA:
        raise UsageError(f"{path} holds no facts of a host", hint=_ANEW)
    if given.get("version") != VERSION:
        written = f"version {given.get('version')}, by gpuckpt {given.get('gpuckpt')}"
        raise UsageError(
            f"{path} is of another version: {written}; this gpuckpt takes {VERSION}", hint=_ANEW
        )
    try:
        found = msgspec.convert(given, SavedHost, str_keys=True)
        _moment(found.taken)
    except (msgspec.MsgspecError, ValueError) as why:
        raise UsageError(f"{path} holds no sound facts of a host: {why}", hint=_ANEW) from why
    if flaw := _unsound(found):
        raise UsageError(f"{path} holds no sound facts of a host: {flaw}", hint=_ANEW)
    if missing := next(_missing(msgspec.to_builtins(found, str_keys=True), given), ""):
        raise UsageError(
            f"{path} does not tell {missing}, which this gpuckpt compares; it was written by "
            f"gpuckpt {found.gpuckpt}",
            hint=_ANEW,
        )
    return found


def _unsound(found: SavedHost) -> str:
    if not _NAME.fullmatch(found.host.hostname):
        return f"it is called {found.host.hostname!r}"
    if bool(found.criu) == bool(found.no_criu):
        return "it has either a CRIU or a reason why there is none"
    return ""


def _plain(path: Path) -> Any:  # noqa: ANN401 - whatever somebody has written
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except OSError as why:
        raise UsageError(f"{path} cannot be read: {why.strerror}", hint=_ANEW) from why
    if len(raw) > _LARGEST:
        raise UsageError(f"{path} is too large to be the facts of a host", hint=_ANEW)
    try:
        given = wire.unescape(msgspec.json.decode(raw))
        flaw = next(wire.flaws(given), None)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as why:
        raise UsageError(f"{path} is not JSON: {why}", hint=_ANEW) from why
    if flaw:
        raise UsageError(f"{path} holds no sound facts of a host: {flaw}", hint=_ANEW)
    return given


def _moment(written: str) -> datetime:
    found = datetime.fromisoformat(written)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _missing(whole: Any, given: Any, where: str = "") -> Iterator[str]:  # noqa: ANN401
    """Yield what was filled in by a default."""
    if isinstance(whole, dict) and isinstance(given, dict):
        for name, value in whole.items():
            inside = f"{where}.{name}" if where else name
            if name in given:
                yield from _missing(value, given[name], inside)
            else:
                yield inside
    elif isinstance(whole, list | tuple) and isinstance(given, list):
        for number, (one, other) in enumerate(zip(whole, given, strict=True)):
            yield from _missing(one, other, f"{where}[{number}]")
