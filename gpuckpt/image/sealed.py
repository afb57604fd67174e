"""manifest.json as bytes: it ends with its own digest, and is believed only if nothing is wrong."""

from __future__ import annotations

import re

import msgspec
from blake3 import blake3

from gpuckpt.errors import Bug, GpuckptError, ImageDamaged, ImageUnsupported
from gpuckpt.image import flaws, wire
from gpuckpt.image.manifest import FORMAT, Manifest

OLDER_FORMATS = frozenset({"gpuckpt-image-1"})
LARGEST_MANIFEST = 64 << 20


class _Peek(msgspec.Struct):
    format: str = ""


_ANY_FORMAT = re.compile(r"gpuckpt-image-[1-9][0-9]{0,8}", re.ASCII)
_DIGEST_LENGTH = 64
_SEAL = b',\n  "blake3": "'
_END = b"\n}"


def encode(manifest: Manifest) -> bytes:
    """Return manifest.json: indented JSON that ends with its own digest and a newline.

    Raises:
        Bug: decode would not take it, so it must never become an image.
    """
    try:
        plain = wire.escape(msgspec.to_builtins(manifest))
        data = seal(msgspec.json.format(msgspec.json.encode(plain), indent=2))
        back = decode(data)
    except (GpuckptError, msgspec.MsgspecError, UnicodeError) as why:
        raise Bug(f"the manifest could not be read back: {why}") from why
    if back != manifest:
        raise Bug("the manifest is not what it was after reading it back")
    return data


def decode(data: bytes) -> Manifest:
    """Return the manifest in `data`; entries of `needs` are not judged here.

    Raises:
        ImageUnsupported: its format is a newer one.
        ImageDamaged: a byte was changed, it is no JSON, misses fields, or holds what no
            manifest may hold.
    """
    if len(data) > LARGEST_MANIFEST:
        raise ImageDamaged(f"{len(data)} bytes are too many for a manifest")
    try:
        _check_format(msgspec.json.decode(data, type=_Peek).format)
        if not unbroken(data):
            raise ImageDamaged("the manifest does not have the digest it was written with")
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as why:
        raise ImageDamaged(f"the manifest cannot be read: {why}") from why
    plain = msgspec.to_builtins(manifest)
    found = next(wire.flaws(plain), None) or next(flaws.flaws(manifest), None)
    if found:
        raise ImageDamaged(f"the manifest cannot be trusted: {found}")
    if wire.escaped(plain):
        manifest = msgspec.convert(wire.unescape(plain), Manifest)
    return manifest


def _check_format(text: str) -> None:
    if text == FORMAT or text in OLDER_FORMATS:
        return
    if _ANY_FORMAT.fullmatch(text):
        raise ImageUnsupported(f"the image has format {text}; this gpuckpt reads {FORMAT}")
    raise ImageDamaged("the manifest does not name a format of gpuckpt images")


def seal(data: bytes) -> bytes:
    """Put the digest of all bytes before it into the last field of an indented JSON object."""
    body = data.removesuffix(_END) + _SEAL
    return body + blake3(body).hexdigest().encode() + b'"' + _END + b"\n"


def unbroken(data: bytes) -> str:
    """Return the digest that `data` was sealed with, "" if it is not as it was then."""
    body = data[: -(_DIGEST_LENGTH + len(_END) + 2)]
    if not body.endswith(_SEAL) or seal(body.removesuffix(_SEAL)) != data:
        return ""
    return data[len(body) : len(body) + _DIGEST_LENGTH].decode()
