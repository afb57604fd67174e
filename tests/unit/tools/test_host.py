"""What a host has room for: real files here, recorded ones for what this machine is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuckpt.tools.cgroups import Cgroups
from gpuckpt.tools.host import Host

GIB = 1 << 30


def test_this_host_is_described() -> None:
    facts = Host().facts()
    assert facts.hostname == os.uname().nodename
    assert facts.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert facts.libc.startswith("glibc ")
    assert facts.euid == os.geteuid()
    assert 0 < facts.memory_available <= facts.memory_total
    assert facts.cpu_count >= 1
    assert facts.cpu_flags == tuple(sorted(facts.cpu_flags))
    assert facts.cpu_flags


def test_addresses_are_those_that_others_can_use(tmp_path: Path) -> None:
    write(
        tmp_path / "net/fib_trie",
        "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n"
        "     |-- 192.0.2.0\n        /24 link UNICAST\n"
        "     |-- 192.0.2.9\n        /32 link BROADCAST\n        /32 host LOCAL\n"
        "     |-- 10.0.0.1\n        /32 host LOCAL\n"
        "     |-- 192.0.2.255\n        /32 link BROADCAST\n",
    )
    write(
        tmp_path / "net/if_inet6",
        "fd000000000000000000000000000002 04 40 00 82     eth0\n"
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n",
    )
    assert Host(tmp_path, tmp_path).facts().addresses == ("10.0.0.1", "192.0.2.9", "fd00::2")
    (tmp_path / "net/fib_trie").unlink()
    assert Host(tmp_path, tmp_path).facts().addresses == ()


def test_room_is_asked_where_a_folder_will_be_made(tmp_path: Path) -> None:
    assert Host().free_bytes(tmp_path / "a" / "b") == Host().free_bytes(tmp_path) > 0


def test_where_files_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert Host().writable(tmp_path)
    assert not Host().writable(tmp_path / "missing")
    assert not Host().writable(tmp_path / "file")


def test_a_host_that_tells_nothing_is_described_all_the_same(tmp_path: Path) -> None:
    facts = Host(tmp_path, tmp_path).facts()
    assert (facts.boot_id, facts.cpu_model, facts.memory_total, facts.huge_pages) == ("", "", 0, "")
    assert "CAP_SYS_ADMIN" in facts.missing_capabilities


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def recorded(root: Path, cgroup: str, mounts: str) -> Path:
    """Record /proc for pid 10, which stands for this process as well."""
    proc = root / "proc"
    write(proc / "meminfo", "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB\n")
    write(proc / "cpuinfo", "processor\t: 0\nmodel name\t: X 1\nflags\t\t: b a\n\nprocessor : 1\n")
    write(proc / "self/status", "CapEff:\t0000000000280001\n")
    write(proc / "self/mountinfo", mounts)
    for pid in ("10", "self", str(os.getpid())):
        write(proc / pid / "cgroup", cgroup)
    return proc


def two(root: Path, inner: str = "/") -> str:
    return f"25 1 0:23 {inner} {root}/cg rw shared:4 - cgroup2 cgroup2 rw\n"


def one(root: Path, controller: str) -> str:
    return f"26 1 0:24 / {root}/{controller} rw - cgroup cgroup rw,{controller}\n"


def test_recorded_cpu_pages_and_privilege(tmp_path: Path) -> None:
    proc = recorded(tmp_path, "0::/", two(tmp_path))
    write(tmp_path / "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    facts = Host(proc, tmp_path / "sys").facts()
    assert (facts.cpu_model, facts.cpu_flags, facts.huge_pages) == ("X 1", ("a", "b"), "madvise")
    assert facts.memory_available == 4 * GIB
    # held: bits 0, 19 and 21
    assert "CAP_SETUID" in facts.missing_capabilities
    assert not {"CAP_CHOWN", "CAP_SYS_ADMIN"} & set(facts.missing_capabilities)
    assert facts.only_own


def test_huge_pages_are_set_where_there_is_such_a_setting(tmp_path: Path) -> None:
    """A kernel without them gets no file of that name, and a mode it lacks is refused by it."""
    setting = tmp_path / "kernel/mm/transparent_hugepage/enabled"
    write(setting, "always [madvise] never\n")
    Host(tmp_path, tmp_path).set_huge_pages("always")
    assert setting.read_text().startswith("always")
    setting.unlink()
    with pytest.raises(FileNotFoundError):
        Host(tmp_path, tmp_path).set_huge_pages("always")
    assert not setting.exists()


def limit_two(folder: Path, limit: str, usage: int, cache: int = 0) -> None:
    write(folder / "memory.max", f"{limit}\n")
    write(folder / "memory.current", f"{usage}\n")
    write(folder / "memory.stat", f"anon 5\ninactive_file {cache}\nactive_file 0\n")


def test_the_tightest_group_above_a_process_limits_it(tmp_path: Path) -> None:
    proc = recorded(tmp_path, "0::/job/step\n", two(tmp_path))
    limit_two(tmp_path / "cg/job/step", "max", 1 * GIB)
    assert Cgroups(proc).memory_headroom(10) is None
    limit_two(tmp_path / "cg/job", str(3 * GIB), 2 * GIB, cache=GIB // 2)
    assert Cgroups(proc).memory_headroom(10) == 3 * GIB // 2
    assert Host(proc).memory_available(10) == 3 * GIB // 2
    limit_two(tmp_path / "cg/job/step", str(GIB), 2 * GIB)
    assert Cgroups(proc).memory_headroom(10) == 0


def test_version_1_limits_count_too(tmp_path: Path) -> None:
    proc = recorded(tmp_path, "4:memory:/job\n1:name=systemd:/\n0::/\n", one(tmp_path, "memory"))
    folder = tmp_path / "memory/job"
    write(folder / "memory.limit_in_bytes", "9223372036854771712\n")
    write(folder / "memory.usage_in_bytes", f"{GIB}\n")
    assert Cgroups(proc).memory_headroom(10) is None
    write(folder / "memory.limit_in_bytes", f"{2 * GIB}\n")
    write(folder / "memory.stat", "total_inactive_file 4096\ntotal_active_file 4096\n")
    assert Cgroups(proc).memory_headroom(10) == GIB + 8192


def test_groups_are_found_below_the_part_that_is_mounted(tmp_path: Path) -> None:
    proc = recorded(tmp_path, "0::/docker/abc/job\n", two(tmp_path, "/docker/abc"))
    limit_two(tmp_path / "cg/job", str(GIB), 0)
    assert Cgroups(proc).memory_headroom(10) == GIB
    # a group beside the mounted part cannot be seen, and is not mixed up with another
    beside = recorded(tmp_path, "0::/docker/abcd\n", two(tmp_path, "/docker/abc"))
    limit_two(tmp_path / "cg/d", str(GIB), 0)
    limit_two(tmp_path / "cg", str(GIB), 0)
    assert Cgroups(beside).memory_headroom(10) is None


def test_frozen_groups_are_named_in_both_versions(tmp_path: Path) -> None:
    proc = recorded(tmp_path, "5:freezer:/f\n0::/g\n", two(tmp_path) + one(tmp_path, "freezer"))
    assert Cgroups(proc).frozen(10) == ""
    write(tmp_path / "cg/g/cgroup.events", "populated 1\nfrozen 0\n")
    write(tmp_path / "freezer/f/freezer.state", "THAWED\n")
    assert Cgroups(proc).frozen(10) == ""
    write(tmp_path / "cg/g/cgroup.events", "populated 1\nfrozen 1\n")
    assert Cgroups(proc).frozen(10) == f"{tmp_path}/cg/g"
    write(tmp_path / "freezer/f/freezer.state", "FREEZING\n")
    assert Cgroups(proc).frozen(10) == f"{tmp_path}/freezer/f"


def test_containers_are_recognised_by_their_groups(tmp_path: Path) -> None:
    long = "0123456789abcdef" * 4
    uid = "12345678_1234_1234_1234_123456789abc"
    seen = {
        f"0::/system.slice/docker-{long}.scope": "Docker container 0123456789ab",
        f"4:memory:/docker/{long}\n0::/": "Docker container 0123456789ab",
        f"0::/machine.slice/libpod-{long}.scope": "Podman container 0123456789ab",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice/"
        f"cri-containerd-{long}.scope": "containerd container 0123456789ab",
        f"0::/kubepods/burstable/pod{uid.replace('_', '-')}/{long}": "Kubernetes pod "
        + uid.replace("_", "-"),
        "0::/lxc.payload.web/init.scope": "LXC container web",
        "0::/machine.slice/machine-debian.scope": "machine debian",
        "0::/user.slice/user-0.slice/session-1.scope": "",
        "0::/system.slice/docker.service": "",
    }
    for cgroup, name in seen.items():
        proc = recorded(tmp_path, cgroup + "\n", two(tmp_path))
        assert Cgroups(proc).container(10) == name, cgroup


def test_a_process_that_is_gone_is_in_no_group(tmp_path: Path) -> None:
    groups = Cgroups(recorded(tmp_path, "0::/\n", two(tmp_path)))
    assert groups.paths(11) == {}
    assert (groups.frozen(11), groups.container(11), groups.memory_headroom(11)) == ("", "", None)
