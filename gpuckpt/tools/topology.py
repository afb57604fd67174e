"""How the GPUs of a host hang together: NVLink, PCI, and the NUMA node each belongs to.

NVML is asked for one thing at a time and may refuse any: a virtual machine hides switches and
bridges, an old driver does not know the question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuckpt.tools.procfs import read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# nvml.h: nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`
_PATHS: Final = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_MOST_LINKS: Final = 18  # nvml.h: NVML_NVLINK_MAX_LINKS
_BY_NVLINK: Final = 2  # nvml.h: NVML_P2P_CAPS_INDEX_NVLINK
_OK: Final = 0  # nvml.h: NVML_P2P_STATUS_OK


def numa_node(root: Path, bus_id: str) -> int | None:
    """Return the NUMA node of a PCI device, None where the kernel knows none."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        # NVML writes eight digits of the domain, the kernel four, or more if there are
        name = f"{int(domain, 16):04x}:{rest}"
        node = int(read(root / "sys/bus/pci/devices" / name / "numa_node") or b"-1")
    except (ValueError, OSError):
        return None
    return node if node >= 0 else None


def paths(ask: Callable[..., Any], handles: Sequence[object]) -> list[tuple[str, ...]]:
    """Return for each GPU what lies between it and every other; no rows where nobody knows."""
    rows = [
        tuple("" if one is other else _path(ask, one, other) for other in handles)
        for one in handles
    ]
    return rows if any(map(any, rows)) else [()] * len(rows)


def _path(ask: Callable[..., Any], one: object, other: object) -> str:
    return _PATHS.get(ask("nvmlDeviceGetTopologyCommonAncestor", one, other, default=-1), "")


def nvlinks(
    ask: Callable[..., Any], handles: Sequence[object], bus_ids: Sequence[str]
) -> list[tuple[int, ...]]:
    """Return for each GPU how many NVLinks lead to every other; no rows where there are none.

    Links that end at no GPU end at a switch, which leads to all GPUs that NVML says can be
    reached by NVLink.
    """
    known = {bus_id.lower() for bus_id in bus_ids if bus_id}
    rows: list[tuple[int, ...]] = []
    for one in handles:
        ends = _ends(ask, one)
        switched = sum(end not in known for end in ends)
        row = [
            0 if one is other else ends.count(bus_id.lower()) or _reached(ask, one, other, switched)
            for other, bus_id in zip(handles, bus_ids, strict=True)
        ]
        rows.append(tuple(row))
    return rows if any(map(any, rows)) else [()] * len(rows)


def _reached(ask: Callable[..., Any], one: object, other: object, switched: int) -> int:
    """Return the links through switches; one at least, where it is certain that there is any."""
    said = ask("nvmlDeviceGetP2PStatus", one, other, _BY_NVLINK, default=-1)
    return max(1, switched) if said == _OK else 0


def _ends(ask: Callable[..., Any], handle: object) -> list[str]:
    """Return the bus ids at the far ends of all links that are up, "" where NVML hides one."""
    found = []
    for link in range(_MOST_LINKS):
        if ask("nvmlDeviceGetNvLinkState", handle, link, default=0):
            remote = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link, default=None)
            bus_id = remote.busId if remote is not None else ""
            text = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id
            found.append(text.lower())
    return found
