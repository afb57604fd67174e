"""The job's side alone: PyTorch's process group goes and comes, the page is left alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt import cooperate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Give a PyTorch that writes down what is asked of it."""
    told = SimpleNamespace(calls=[], group=True)

    def destroy() -> None:
        told.calls.append("destroy")
        told.group = False

    def init(**how: Any) -> None:
        assert not told.group, "PyTorch refuses a second default group"
        told.calls.append(how)
        told.group = True

    torch: Any = ModuleType("torch")
    dist: Any = ModuleType("torch.distributed")
    torch.distributed = dist
    torch.cuda = SimpleNamespace(
        is_initialized=lambda: True, synchronize=lambda: told.calls.append("synchronize")
    )
    dist.distributed_c10d = SimpleNamespace(_get_default_store=lambda: "store")
    dist.get_rank, dist.get_world_size = lambda: 1, lambda: 4
    dist.get_backend = lambda: "nccl"
    dist.is_initialized = lambda: told.group
    dist.destroy_process_group, dist.init_process_group = destroy, init
    dist.PrefixStore = lambda prefix, store: f"{prefix}/{store}"
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    yield told
    while cooperate._points:
        cooperate._points[0].close()


def test_a_process_group_goes_and_comes_back(torch: SimpleNamespace) -> None:
    """Each time on a part of the store that no group has used before."""
    point = cooperate.torch_ranks(device_id="cuda:1")
    for number in (1, 2):
        point._down()
        assert torch.calls == ["synchronize", "destroy"]
        torch.calls.clear()
        point._up()
        assert torch.calls == [
            {
                "rank": 1,
                "world_size": 4,
                "backend": "nccl",
                "device_id": "cuda:1",
                "store": f"gpuckpt-{number}/store",
            }
        ]
        torch.calls.clear()


def test_a_group_that_could_not_go_is_made_anew_all_the_same(torch: SimpleNamespace) -> None:
    """The others were down, and wait for this rank."""
    point = cooperate.torch_ranks()
    point._up()
    assert torch.calls[0] == "destroy"
    assert torch.calls[1]["store"] == "gpuckpt-1/store"


def test_the_file_stands_alone() -> None:
    """A copy of it works where nothing of gpuckpt is, with the Python that a job may have."""
    tree = ast.parse(Path(cooperate.__file__).read_text(), feature_version=(3, 8))
    lazy = {"torch", "torch.distributed"}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    assert names - lazy <= sys.stdlib_module_names | {"collections.abc"}
