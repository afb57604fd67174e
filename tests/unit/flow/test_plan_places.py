"""What the plan says of recorded places and kinds of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.flow.sight.plan import judge_dump
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.tools.descriptors import Descriptor
from gpuckpt.tools.handles import LostWatch
from gpuckpt.tools.held import DeviceNode
from gpuckpt.tools.locks import HeldLock
from gpuckpt.tools.outside import Holder, OutsidePeer
from gpuckpt.tools.places import OddFile
from tests.plan_samples import HOST, facts, mapped, process, task

if TYPE_CHECKING:
    from gpuckpt.model import Finding

SILLY = "/home/me/.nfs0000000001c3a5f200000004"


def judged(**look: object) -> tuple[Finding, ...]:
    return judge_dump(facts(process(100), look=look), DumpChoices())


def test_a_server_that_squashes_root() -> None:
    odd = OddFile(100, None, "/home/me/libjob.so", "nfs4", "denied", remote=True)
    found, *rest = judged(odd_files=(odd,))
    assert (found.id, found.object) == ("mapped-denied", "mapping /home/me/libjob.so")
    assert "squashes root" in found.reason
    assert "no_root_squash" in found.remedy
    assert [one.id for one in rest] == ["remote-file"]


def test_files_deleted_on_nfs() -> None:
    (found,) = judged(odd_files=(OddFile(100, 5, SILLY, "nfs4", "", remote=True),))
    assert (found.id, found.blocks, found.object) == ("nfs-deleted", True, f"fd 5 {SILLY}")


def test_files_of_other_machines_are_told_once_for_each_kind() -> None:
    paths = ("/home/a", "/home/b", "/home/c")
    odd = tuple(OddFile(100, 3, path, "nfs4", "", remote=True) for path in paths)
    (found,) = judged(odd_files=odd)
    assert (found.id, found.blocks) == ("remote-file", False)
    assert found.object == "/home/a and 2 more"


def test_a_watch_on_an_overlay() -> None:
    (found,) = judged(watches=(LostWatch(100, 8, "inotify", "/var/x", "overlay"),))
    assert (found.id, found.object) == ("watch-lost", "fd 8 inotify")
    assert "/var/x (overlay)" in found.reason


@pytest.mark.parametrize(
    ("path", "major", "minor", "word"),
    [
        ("/dev/gdrdrv", 506, 0, "gdrcopy"),
        ("/dev/infiniband/uverbs0", 231, 192, "RDMA"),
        ("/dev/nvidia-fs0", 507, 0, "GPUDirect Storage"),
        ("/dev/dri/renderD128", 226, 128, "graphics"),
        ("/dev/vfio/vfio", 10, 196, "let the job close it"),
        ("/dev/ttyS0", 4, 64, "let the job close it"),
    ],
)
def test_devices(path: str, major: int, minor: int, word: str) -> None:
    (found,) = judged(nodes=(DeviceNode(100, 3, path, False, major, minor),))
    assert (found.id, found.object) == ("device-node", f"fd 3 {path}")
    assert word.lower() in found.remedy.lower()


def test_a_kind_that_nobody_has_met_is_refused() -> None:
    opened = (
        Descriptor(3, "anon_inode:[brand_new]", "anon"),
        Descriptor(4, "socket:[9]", "socket", 9, protocol="SCTP"),
        Descriptor(5, "anon_inode:[eventfd]", "anon"),
        Descriptor(6, "socket:[10]", "socket", 10, protocol="TCP"),
    )
    one = task(process(100), descriptors=opened, mapped=(mapped("anon_inode:[kvm-vcpu]"),))
    assert [(f.id, f.object) for f in judged(tasks=(one,))] == [
        ("descriptor-unsupported", "fd 3 anon_inode:[brand_new]"),
        ("mapping-unsupported", "mapping anon_inode:[kvm-vcpu]"),
        ("socket-unsupported", "fd 4 socket:[9] SCTP"),
    ]


@pytest.mark.parametrize(
    ("kernel", "libc", "word"),
    [
        ("6.12.9", "glibc 2.42", None),
        ("6.13.0-1-amd64", "glibc 2.42", "uses them"),
        ("6.15.4", "glibc 2.41", "keep them."),
        ("6.16.1", "glibc 2.42", None),
    ],
)
def test_guard_pages_of_kernels_that_hide_them(kernel: str, libc: str, word: str | None) -> None:
    host = replace(HOST, kernel=kernel, libc=libc)
    found = judge_dump(facts(process(100), host=host), DumpChoices())
    assert [(one.id, one.blocks) for one in found] == ([("guard-pages", False)] if word else [])
    assert not word or word in found[0].reason


def test_locks_on_a_file_server() -> None:
    odd = OddFile(100, 3, "/home/lock", "nfs4", "", remote=True)
    lock = HeldLock(100, 3, "/home/lock", "flock")
    assert [(one.id, one.object) for one in judged(odd_files=(odd,), locks=(lock,))] == [
        ("lock-remote", "fd 3 /home/lock"),
        ("remote-file", "/home/lock"),
    ]


@pytest.mark.parametrize(
    ("name", "who", "remedy"),
    [
        ("/run/systemd/journal/stdout", "the journal", "StandardOutput="),
        ("/run/user/1000/bus", "D-Bus", "DBUS_SESSION_BUS_ADDRESS"),
        ("/run/dbus/system_bus_socket", "D-Bus", "DBUS_SESSION_BUS_ADDRESS"),
        ("@/tmp/.X11-unix/X0", "the X server", "DISPLAY"),
        ("/run/user/1000/wayland-0", "the Wayland display", "WAYLAND_DISPLAY"),
    ],
)
def test_well_known_servers(name: str, who: str, remedy: str) -> None:
    (found,) = judged(peers=(OutsidePeer(100, 1, 5, "stream", name, Holder(9, "d")),))
    assert (found.id, found.blocks) == ("unix-peer-outside", True)
    assert f"{who}, process 9 (d)" in found.reason
    assert remedy in found.remedy


def test_a_peer_without_an_owner_may_be_on_its_way() -> None:
    lost = OutsidePeer(100, 4, 5, "stream", "", None)
    assert [one.id for one in judged(peers=(lost,))] == ["unix-peer-outside"]
    (found,) = judged(peers=(lost,), in_flight=((100, 3),))
    assert (found.id, found.blocks, found.object) == ("descriptors-in-flight", False, "fd 3")
