"""The names of users and groups, as this host gives them to numbers.

The C library asks whoever nsswitch.conf names, which may be a directory elsewhere: so never while a
job stands still.
"""

from __future__ import annotations

import grp
import pwd
from typing import TYPE_CHECKING

from gpuckpt.model import Owner

if TYPE_CHECKING:
    from collections.abc import Iterable

USER, GROUP = "user", "group"


def owners(users: Iterable[int], groups: Iterable[int]) -> tuple[Owner, ...]:
    """Return what each number is called, the smallest first."""
    return (
        *(Owner(USER, one, _user(one)) for one in sorted(set(users))),
        *(Owner(GROUP, one, _group(one)) for one in sorted(set(groups))),
    )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OSError):
        return ""


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except (KeyError, OSError):
        return ""
