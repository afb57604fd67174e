"""Names inside and beside an image: which there are, and which are never accepted."""

from __future__ import annotations

import os
import re

from gpuckpt.errors import ImageDamaged

MANIFEST = "manifest.json"
CRIU_DIR = "criu"
LOGS_DIR = "logs"
OWNER = "owner"
SUFFIX = ".zst"
# an object of a store that says what is being copied there; logs may be anything
UPLOAD_CLAIM = f"{LOGS_DIR}/upload-"
COPY_CLAIM = f"{LOGS_DIR}/copy-"
# the one stored file that is no image of CRIU: the bytes of the files that are carried
CARRIED = "gpuckpt-files"
LONGEST_NAME = 128

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)
_STAGE = re.compile(r"\..+\.stage-[0-9a-f]{8}", re.DOTALL)
_LONGEST_COMPONENT = 255


def check_name(name: str) -> str:
    """Return a CRIU image's name if it is harmless.

    Raises:
        ImageDamaged: it is empty, too long, starts with "." or "-", or holds anything but
            ASCII letters, digits, ".", "_" and "-".
    """
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        shown = ascii(name[:LONGEST_NAME])
        raise ImageDamaged(f"{shown} is no name for a file of an image")
    return name


def stored_name(name: str) -> str:
    """Return the file name under which the CRIU image `name` lies in the image.

    Raises:
        ImageDamaged: as check_name.
    """
    return check_name(name) + SUFFIX


def stage_name(final: str, digits: str = "") -> str:
    """Return a name for the stage of an image that will be called `final`: fresh without digits."""
    tail = f".stage-{digits or os.urandom(4).hex()}"
    room = _LONGEST_COMPONENT - len(tail) - 1
    return f".{os.fsdecode(os.fsencode(final)[:room])}{tail}"


def is_stage(name: str) -> bool:
    """Whether a folder of this name is an image that was never finished."""
    return _STAGE.fullmatch(name) is not None
