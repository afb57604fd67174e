"""Several images and hosts: who takes what, who is best, and what the whole amounts to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuckpt.errors import HostMismatch, ImageUnsupported, NotAnImage, UsageError
from gpuckpt.events import Silent
from gpuckpt.flow import compat as module
from gpuckpt.flow.compat import compat
from gpuckpt.flow.dump import dump
from gpuckpt.flow.request import DumpRequest
from gpuckpt.flow.returning.opening import Opened
from gpuckpt.flow.work.interrupts import Interrupts
from tests import gpu_samples, host_samples
from tests.fakes.host import ROOT_PID, FakeHost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuckpt.flow.compat import Compat
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest

EIGHT = gpu_samples.image(gpu_samples.switched("a"), gpu_samples.ranks(8))
FOUR = gpu_samples.image(gpu_samples.switched("c", 4), gpu_samples.ranks(4))
CARDS = gpu_samples.nvidia(gpu_samples.switched("d", 4))
OLD = gpu_samples.nvidia(gpu_samples.switched("e"), "570.1")


def nothing() -> Toolbox:
    pytest.fail("this host was looked at")


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Compat]:
    """Return a function that judges images, by name, on hosts that said so of themselves."""

    def run(
        images: dict[str, Manifest], *hosts: Any, force: frozenset[str] = frozenset()
    ) -> Compat:
        listed = {tmp_path / name: Opened(tmp_path / name, one) for name, one in images.items()}
        monkeypatch.setattr(module, "examined", listed.__getitem__)
        files = [
            host_samples.write(tmp_path / f"{number}.json", one) for number, one in enumerate(hosts)
        ]
        return compat(nothing, list(listed), files, force)

    return run


def test_the_best_host_comes_first(ask: Callable[..., Compat]) -> None:
    found = ask(
        {"job": EIGHT},
        host_samples.saved("old", OLD),
        host_samples.saved("other-libc", libc="glibc 2.41"),
        host_samples.saved("small", memory_available=100 << 30),
        host_samples.saved("large"),
        host_samples.saved("home", gpu_samples.nvidia(gpu_samples.switched("a"))),
    )
    assert [one.name for one in found.hosts] == ["home", "large", "small", "other-libc", "old"]
    assert [one.verdict for one in found.fits] == ["yes", "yes", "yes", "warnings", "no"]
    assert found.taking_all == ("home", "large", "small", "other-libc")
    assert found.error is None
    assert all(one.age and one.age > 0 for one in found.hosts)


def test_each_image_needs_a_host_of_its_own(ask: Callable[..., Compat]) -> None:
    hosts = host_samples.saved("eight"), host_samples.saved("four", CARDS)
    found = ask({"large": EIGHT, "small": FOUR}, *hosts)
    assert [(one.host, one.image.name, one.verdict) for one in found.fits] == [
        ("eight", "large", "yes"),
        ("eight", "small", "no"),
        ("four", "large", "no"),
        ("four", "small", "yes"),
    ]
    assert found.taking_all == ()
    assert found.error is None
    (homeless,) = ask({"large": EIGHT, "small": FOUR}, hosts[0]).homeless
    assert homeless.name == "small"
    error = ask({"large": EIGHT, "small": FOUR}, hosts[0]).error
    assert isinstance(error, HostMismatch)
    assert error.message == "1 of 2 images cannot be restored on eight"
    forced = ask({"small": FOUR}, hosts[0], force=frozenset({"gate-gpu-count"}))
    assert (forced.error, forced.fits[0].verdict) == (None, "warnings")


def test_an_image_that_nobody_can_restore_is_to_blame_itself(ask: Callable[..., Compat]) -> None:
    strange = msgspec.structs.replace(EIGHT, needs=("time-travel",))
    hosts = host_samples.saved("one"), host_samples.saved("two", OLD)
    assert isinstance(ask({"job": strange}, *hosts).error, ImageUnsupported)
    error = ask({"job": EIGHT}, hosts[1]).error
    assert isinstance(error, HostMismatch)
    assert [one.id for one in error.findings if one.blocks] == ["gate-driver", "gate-gpu-remap"]


def test_hosts_of_one_name_are_named_by_their_files(ask: Callable[..., Compat]) -> None:
    twice = host_samples.saved("node"), host_samples.saved("node", OLD), host_samples.saved("b")
    names = [one.name for one in ask({"job": EIGHT}, *twice).hosts]
    assert sorted(one.rpartition("/")[2] for one in names) == ["0.json", "1.json", "b"]


def test_without_facts_this_host_is_looked_at(tmp_path: Path) -> None:
    host = FakeHost.with_job(cuda=1, plain=0)
    tools = host.toolbox(tmp_path / "state")
    image = tmp_path / "image"
    dump(tools, DumpRequest(ROOT_PID, image), Silent(), Interrupts())
    found = compat(lambda: tools, [image, image])
    (fit,) = found.fits
    assert (fit.host, fit.verdict, fit.not_judged) == ("fake", "yes", ())
    (image / "manifest.json").unlink()
    with pytest.raises(NotAnImage):
        compat(lambda: tools, [image])
    with pytest.raises(UsageError):
        compat(lambda: tools, [image], [image / "none.json"])
