"""What the user's --post-restore command is told: who the job is now, where, and what it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.image.identity import told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuckpt.image.identity import Identity
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.location import Location


def environment(
    image: Location, manifest: Manifest, gpu_map: Mapping[str, str], identity: Identity
) -> dict[str, str]:
    """Return the variables; the pids are those of this host, as `manifest` has them by now."""
    before, now = identity.hostname or (manifest.host.hostname, manifest.host.hostname)
    return {
        "GPUCKPT_ROOT_PID": str(manifest.root_pid),
        "GPUCKPT_PIDS": " ".join(str(one.pid) for one in manifest.tree),
        "GPUCKPT_IMAGE": str(image),
        "GPUCKPT_GPU_MAP": ",".join(f"{old}={new}" for old, new in gpu_map.items()),
        "GPUCKPT_HOSTNAME_WAS": before,
        "GPUCKPT_HOSTNAME_NOW": now,
        **told(identity),
    }
