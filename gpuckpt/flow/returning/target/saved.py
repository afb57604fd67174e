"""A host known from what it said of itself, judged by the rules of a restore.

What no saved file can tell is left as if all were well, and named: nobody shall take silence for
an answer.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict, replace

from gpuckpt import errors
from gpuckpt.flow.returning.target.facts import TargetFacts
from gpuckpt.flow.returning.target.fileplan import file_plan
from gpuckpt.flow.returning.target.gpus import planned, short
from gpuckpt.flow.returning.target.ports import SeenPort
from gpuckpt.flow.returning.target.standing import Standing, State
from gpuckpt.model import Version
from gpuckpt.tools.addresses import plain
from gpuckpt.tools.net import PortState
from gpuckpt.tools.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.flow.returning.target.savedhost import NoCriu, SavedHost
    from gpuckpt.image.manifest import Manifest


def _computes_with(image: Manifest) -> object:
    libraries = image.engine.libraries
    return image.outside.pythons or libraries or image.models or image.tracked


_UNSEEN: Final = "who holds it is not in the host's facts"

# what a host tells of images that it was asked about
ASKED: Final[dict[str, tuple[str, Callable[[Manifest], object]]]] = {
    "files": ("files", lambda image: image.outside.files),
    "software": ("software and model", _computes_with),
    "names": ("names", lambda image: image.outside.remaps or image.outside.servers),
    "writable": ("folders", lambda image: image.outside.sockets or image.outside.remaps),
    "makeable": ("folders", lambda image: image.outside.remaps),
    "rooms": ("folders", lambda image: image.carried),
    "owners": ("users", lambda image: image.owners),
}
# what changes from one moment to the next, with the word for it, and whether an image cares
PASSING: Final[dict[str, tuple[str, Callable[[Manifest], object]]]] = {
    "taken": ("pids", lambda image: image.ids),
    "ports": ("ports", lambda image: image.outside.listeners),
    "remains": ("connections", lambda image: image.outside.connections),
    "talkers": ("connections", lambda image: image.outside.connections),
    "sockets": ("sockets", lambda image: image.outside.names or image.outside.sockets),
    "locked": ("locks", lambda image: image.outside.locks),
    "carried": ("carried files", lambda image: image.carried),
    "steps": ("carried files", lambda image: image.carried),
    "terminal": ("terminal", lambda image: image.options.shell_job),
    "restored": ("earlier restores", lambda image: image.tree),
    "running": ("copies of the job", lambda image: image.tree),
    "copies": ("copies of the job", lambda image: image.tree),
    "others": ("other restores", lambda image: image.tree),
}


def not_judged(manifest: Manifest, saved: SavedHost) -> tuple[str, ...]:
    """Name what this image depends on and the host's facts do not tell."""
    known = manifest.image_id in saved.images
    listed = [*PASSING.values(), *(() if known else ASKED.values())]
    if not saved.host.addresses:
        listed.append(("addresses", lambda image: image.outside.listeners))
    return tuple(dict.fromkeys(word for word, matters in listed if matters(manifest)))


def target_facts(saved: SavedHost, manifest: Manifest) -> TargetFacts:
    """Return the facts that the rules judge; all carried files count as not there yet."""
    plan = planned(manifest, saved.nvidia)
    missing = tuple(Standing(one, State.MISSING) for one in manifest.carried)
    facts = TargetFacts(
        host=saved.host,
        own=Surroundings(**asdict(saved.rights)),
        nvidia=saved.nvidia,
        criu=Version(saved.criu) if saved.criu else None,
        no_criu=_no_criu(saved.no_criu) if saved.no_criu else None,
        addresses={one.local: _has(saved, one.local) for one in manifest.outside.connections},
        ports=tuple(
            SeenPort(one, PortState.FREE if _has(saved, one.address) else PortState.NO_ADDRESS)
            for one in manifest.outside.listeners
        ),
        gpus=plan,
        gpu_short=short(manifest, saved.nvidia, plan, lambda _: _UNSEEN),
        terminal=True,
        no_programs=saved.no_programs,
        carried=missing,
        steps=file_plan(manifest, missing, {}),
    )
    found = saved.images.get(manifest.image_id)
    return facts if found is None else replace(facts, **asdict(found))


def _no_criu(why: NoCriu) -> errors.HostUnfit:
    """Return the error again; one this gpuckpt does not know is of the kind above it."""
    kinds = {kind.name: kind for kind in errors.HostUnfit.__subclasses__()}
    return kinds.get(why.name, errors.HostUnfit)(why.message, hint=why.hint)


def _has(saved: SavedHost, address: str) -> bool:
    """Whether the host has an address, as far as it tells; some are everywhere."""
    one = ipaddress.ip_address(plain(address))
    everywhere = one.is_loopback or one.is_unspecified or one.is_link_local
    return everywhere or not saved.host.addresses or str(one) in saved.host.addresses
