"""How much of a job's time is in no image: what a restore, or a start from the beginning, loses."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gpuckpt.model import Lost

if TYPE_CHECKING:
    from gpuckpt.image.manifest import Manifest

TICKS: Final = os.sysconf("SC_CLK_TCK")


def made_at(manifest: Manifest) -> float | None:
    """Return when an image was made, in seconds since the epoch; None if that is no time."""
    try:
        made = datetime.fromisoformat(manifest.created)
    except ValueError:
        return None
    return (made if made.tzinfo else made.replace(tzinfo=UTC)).timestamp()


def lost(manifest: Manifest | None) -> Lost:
    """Return it as of now; the host's clock may be behind the one that made the image."""
    if manifest is None:
        return Lost()
    made, root = made_at(manifest), manifest.tree[0]
    since = None if made is None else max(0.0, datetime.now(UTC).timestamp() - made)
    ran = root.clock - root.start_time / TICKS
    return Lost(since, ran if root.clock > 0 and ran >= 0 else None)
