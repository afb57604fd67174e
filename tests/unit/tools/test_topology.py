"""What ties GPUs together, from an NVML that knows all, some or nothing of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt.tools.nvidia import Nvidia
from gpuckpt.tools.topology import numa_node

if TYPE_CHECKING:
    from pathlib import Path


class Refused(Exception):
    """What the stand-in raises where NVML would raise NVMLError."""


class _Board:
    """Stands in for pynvml: GPUs joined by `bridges`, or by `switched` links each to switches."""

    NVMLError = Refused

    def __init__(
        self, count: int, bridges: tuple[tuple[int, int, int], ...] = (), switched: int = 0
    ) -> None:
        self.count = count
        self.ends: dict[int, list[str]] = {i: ["switch"] * switched for i in range(count)}
        for one, other, links in bridges:
            self.ends[one] += [self.bus(other)] * links
            self.ends[other] += [self.bus(one)] * links
        self.linked = {pair for a, b, _ in bridges for pair in ((a, b), (b, a))}
        self.switched = switched
        self.questions = 0

    @staticmethod
    def bus(index: int) -> str:
        return f"00000000:{index + 10:02X}:00.0"

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        answer = getattr(self, name.removeprefix("nvml"), None)
        if answer is None:
            return self.refuse
        return answer

    def refuse(self, *_: object) -> Any:
        raise Refused

    def Init(self) -> None:  # noqa: N802
        pass

    def Shutdown(self) -> None:  # noqa: N802
        pass

    def DeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def DeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def DeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=self.bus(handle).encode())

    def DeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: N802
        self.questions += 1
        if link >= max(len(self.ends[handle]), 1):
            raise Refused
        return int(bool(self.ends[handle]))

    def DeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:  # noqa: N802
        end = self.ends[handle][link]
        if end == "switch":
            raise Refused
        return SimpleNamespace(busId=end)

    def DeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:  # noqa: N802
        assert index == 2, "the index of NVLink in nvml.h"
        return 0 if self.switched or (one, other) in self.linked else 5

    def DeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:  # noqa: N802
        return 40 if one // 2 == other // 2 else 50


def rows(board: _Board, root: Path) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    facts = Nvidia(board, root).facts()
    assert facts is not None
    return [(gpu.nvlinks, gpu.paths) for gpu in facts.gpus]


def test_switches_lead_to_all(tmp_path: Path) -> None:
    found = rows(_Board(4, switched=18), tmp_path)
    assert [links for links, _ in found] == [
        tuple(0 if i == k else 18 for k in range(4)) for i in range(4)
    ]
    assert found[0][1] == ("", "NODE", "SYS", "SYS")


def test_bridges_lead_to_one(tmp_path: Path) -> None:
    found = rows(_Board(4, bridges=((0, 2, 12), (1, 3, 4))), tmp_path)
    assert [links for links, _ in found] == [
        (0, 0, 12, 0),
        (0, 0, 0, 4),
        (12, 0, 0, 0),
        (0, 4, 0, 0),
    ]


def test_no_links_are_no_rows(tmp_path: Path) -> None:
    assert [links for links, _ in rows(_Board(2), tmp_path)] == [(), ()]


def test_an_nvml_that_knows_nothing_of_it(tmp_path: Path) -> None:
    """Every question may be refused, and an old library lacks some."""
    board = _Board(2, switched=18)
    for name in ("NvLinkState", "P2PStatus", "TopologyCommonAncestor", "PciInfo"):
        setattr(board, f"DeviceGet{name}", board.refuse)
    assert rows(board, tmp_path) == [((), ()), ((), ())]
    board = _Board(2)
    board.DeviceGetNvLinkState = None  # type: ignore[assignment, method-assign]
    assert rows(board, tmp_path)[0] == ((), ("", "NODE"))
    hidden = _Board(2, switched=18)
    hidden.DeviceGetNvLinkState = hidden.refuse  # type: ignore[method-assign]
    assert rows(hidden, tmp_path)[0][0] == (0, 1), "NVML says it can be reached, not by how many"


def test_it_is_asked_once(tmp_path: Path) -> None:
    """GPU memory is asked for many times a second while something waits for it."""
    board = _Board(2, switched=18)
    nvidia = Nvidia(board, tmp_path)
    nvidia.facts()
    asked = board.questions
    facts = nvidia.facts()
    assert board.questions == asked
    assert facts is not None
    assert facts.gpus[0].nvlinks == (0, 18)
    nvidia.close()
    nvidia.facts()
    assert board.questions == 2 * asked


@pytest.mark.parametrize(
    ("bus_id", "name", "said", "node"),
    [
        ("00000000:0A:00.0", "0000:0a:00.0", "1\n", 1),
        ("00010000:0A:00.0", "10000:0a:00.0", "0\n", 0),
        ("00000000:0A:00.0", "0000:0a:00.0", "-1\n", None),
        ("00000000:0A:00.0", "0000:0b:00.0", "1\n", None),
        ("00000000:0A:00.0", "0000:0a:00.0", "what\n", None),
        ("", "0000:0a:00.0", "1\n", None),
    ],
)
def test_the_kernel_tells_the_numa_node(
    tmp_path: Path, bus_id: str, name: str, said: str, node: int | None
) -> None:
    folder = tmp_path / "sys/bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(said)
    assert numa_node(tmp_path, bus_id) == node
