"""How fast a store takes bytes: a little is sent, as a dump sends its parts, and removed again."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import GpuckptError
from gpuckpt.flow.work.storetool import asked
from gpuckpt.image.names import LOGS_DIR

if TYPE_CHECKING:
    from gpuckpt.flow.work.storetool import StoreFolder
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.location import Url

_EACH: Final = 4 << 20
_AT_ONCE: Final = 8
_PATIENCE: Final = 20.0


def send_speed(tools: Toolbox, url: Url) -> float | None:
    """Return the bytes a second that a store takes, None if it does not let us write.

    The objects lie where an image has its logs: should one be left, it is told as what is there.
    """
    try:
        return asked(tools.stores, url, _sent, _PATIENCE)
    except GpuckptError:
        return None


def _sent(folder: StoreFolder) -> float:
    data, mark = os.urandom(_EACH), os.urandom(4).hex()
    names = [f"{LOGS_DIR}/speed-{mark}-{number}" for number in range(_AT_ONCE)]
    failed: list[GpuckptError] = []

    def send(name: str) -> None:
        try:
            folder.put(name, data)
        except GpuckptError as why:
            failed.append(why)

    threads = [Thread(target=send, args=(name,), name="speed", daemon=True) for name in names]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begun
    for name in names:
        with suppress(GpuckptError):
            folder.remove(name)
    if failed:
        raise failed[0]
    return _EACH * _AT_ONCE / max(took, 1e-6)
