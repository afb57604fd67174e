"""Rules about processes, their surroundings and whoever watches them, on recorded facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt.flow.sight.plan import judge_dump
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.model import Version
from gpuckpt.tools.above import Above
from gpuckpt.tools.descriptors import Descriptor
from gpuckpt.tools.units import Unit
from tests.plan_samples import HERE, HOST, facts, process, task

if TYPE_CHECKING:
    from gpuckpt.model import Finding


def judge(known: Any, **choices: Any) -> list[Finding]:
    found = list(judge_dump(known, DumpChoices(**choices)))
    for one in found:
        assert one.object
        assert one.reason.endswith(".")
        assert one.reason[0].isupper()
        assert one.remedy
    return found


def told(known: Any, **choices: Any) -> list[tuple[str, bool]]:
    return [(one.id, one.blocks) for one in judge(known, **choices)]


def alone(**changes: Any) -> Any:
    return facts(process(100), look={"tasks": (task(process(100), **changes),)})


def test_tracers_are_named() -> None:
    known = facts(
        look={"tasks": (task(process(100), tracers=((101, 7),)),), "tracers": {7: "strace"}}
    )
    assert "Process 7 (strace)" in judge(known)[0].reason


def test_threads_that_do_not_wake() -> None:
    (found,) = judge(alone(stuck=((101, "nfs_wait_bit_killable"),)))
    assert (found.id, found.object) == ("stuck", "thread 101 in nfs_wait_bit_killable")
    assert "network" in found.reason
    (found,) = judge(alone(stuck=((100, "kernel_clone"),)))
    assert "vfork" in found.reason
    assert told(alone(stuck=((100, ""),), frozen="/g")) == [("frozen", True)]


def test_threads_with_things_of_their_own() -> None:
    (found,) = judge(alone(apart=((101, "open files"), (101, "mounts"))))
    assert (found.id, found.object) == ("thread-apart", "thread 101")
    assert "open files, mounts" in found.reason


@pytest.mark.parametrize(
    ("label", "binds"),
    [
        ("", False),
        ("unconfined", False),
        ("docker-default (enforce)", True),
        ("/usr/bin/job (complain)", False),
        ("chrome (unconfined)", False),
        ("snap.tool.run (enforce)", True),
        (":lxd-c1://unconfined (enforce)", True),
        ("unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023", False),
        ("system_u:system_r:unconfined_service_t:s0", False),
        ("system_u:system_r:kernel_t:s0", False),
        ("system_u:system_r:container_t:s0:c1,c2", True),
    ],
)
def test_security_labels(label: str, *, binds: bool) -> None:
    assert told(alone(label=label)) == ([("confined", True)] if binds else [])


def test_time_namespaces() -> None:
    # a job that was restored before: it lives in one, and so will its children
    own = HERE | {"time": "time:[9]", "time_for_children": "time:[9]"}
    assert judge(alone(namespaces=own)) == []
    coming = HERE | {"time_for_children": "time:[9]"}
    assert told(alone(namespaces=coming)) == [("namespace-time", True)]
    tasks = (task(process(100)), task(process(110, 100), namespaces=own))
    assert told(facts(look={"tasks": tasks})) == [("namespace-time", True)]


def test_what_the_host_forbids() -> None:
    assert told(facts(host=replace(HOST, ptrace_scope=2))) == []
    assert told(facts(host=replace(HOST, ptrace_scope=3))) == [("ptrace-forbidden", True)]
    assert told(facts(host=replace(HOST, kernel="5.4.0-1"))) == [("kernel-too-old", False)]
    newest = replace(HOST, kernel="7.0.1")
    assert told(facts(host=newest, criu=Version("4.2"))) == [("criu-too-old", True)]
    assert told(facts(host=newest, criu=Version("4.2.1"))) == []
    assert told(facts(host=newest)) == []
    filtered = (task(process(100), seccomp=2), task(process(110, 100), seccomp=2))
    assert judge(facts(look={"tasks": filtered})) == []
    assert told(facts(look={"tasks": filtered, "own_seccomp": 2})) == [("own-seccomp", True)]
    assert judge(facts(look={"own_seccomp": 2})) == []


def up(argv: str, pid: int = 60, **more: Any) -> Above:
    words = tuple(argv.split())
    return Above(pid, words[0].rpartition("/")[2][:15], words, **more)


INIT = Above(1, "systemd", ("/sbin/init",))
SHELL = up("-bash", kind="shell")
SCRIPT = up("bash run.sh", 61, kind="script", waits=True)


@pytest.mark.parametrize(
    ("above", "says"),
    [
        ((INIT,), None),
        ((up("/usr/lib/systemd/systemd --user"), INIT), None),
        ((SHELL, up("sshd: me@pts/0"), INIT), None),
        ((up("sudo python train.py"), SHELL), None),
        ((up("python sweep.py"), SCRIPT), None),
        ((SCRIPT, INIT), (False, "next line")),
        ((replace(SCRIPT, loops=True), INIT), (True, "loop")),
        ((replace(SCRIPT, waits=False), INIT), None),
        ((up("timeout 1h python a.py"), replace(SCRIPT, loops=True)), (True, "loop")),
        ((up("/venv/bin/python /venv/bin/torchrun --nproc 2 a.py"), INIT), (True, "ranks")),
        ((up("python -m torch.distributed.run a.py"), INIT), (True, "ranks")),
        ((up("python -m gpuckpt run --log a -- torchrun a.py"), INIT), None),
        ((up("gpuckpt --quiet run -- python -m torch.distributed.run a.py"), INIT), None),
        ((up("torchrun a.py -- gpuckpt run"), INIT), (True, "ranks")),
        ((up("gpuckpt run -- torchrun a.py"), up("runsv job"), INIT), (True, "another copy")),
        ((up("/usr/bin/python3 /usr/bin/accelerate launch a.py"), INIT), (True, "ranks")),
        ((up("/usr/bin/mpirun -n 2 a.out"), SHELL), (True, "ranks")),
        ((up("prted --prtemca ess base"), INIT), (True, "ranks")),
        ((up("slurmstepd: [12.batch]"), INIT), (True, "Slurm")),
        ((SCRIPT, up("slurmstepd: [12.batch]"), INIT), (True, "Slurm")),
        (
            (up("/bin/bash /var/spool/slurmd/job00012/slurm_script", kind="script"), INIT),
            (True, "Slurm"),
        ),
        ((up("/usr/bin/python3 /usr/bin/supervisord -n"), INIT), (True, "another copy")),
        ((up("runsv train"), up("runsvdir -P /etc/service")), (True, "another copy")),
        ((up("s6-supervise train"), INIT), (True, "another copy")),
        ((up("python3 /usr/local/bin/wandb agent me/x/1"), SHELL), (True, "start another")),
        ((up("/usr/bin/containerd-shim-runc-v2 -namespace moby"), INIT), (True, "container")),
        ((up("/usr/bin/conmon --api-version 1"), INIT), (True, "container")),
        ((up("/sbin/docker-init -- python a.py", 1),), None),
        ((up("tmux new -d"), INIT), (False, "window")),
        ((up("tmuxinator start"), INIT), None),
    ],
)
def test_who_watches(above: tuple[Above, ...], says: tuple[bool, str] | None) -> None:
    known = facts(process(100, sid=50), look={"above": above})
    found = judge(known)
    assert judge(known, leave_running=True) == judge(known, rehearsal=True) == []
    # a script does not wait for what it has started in a session of its own
    detached = judge(facts(process(100), look={"above": above}))
    assert detached == [one for one in found if "this shell script" not in one.reason]
    if says is None:
        assert found == []
    else:
        (one,) = found
        assert (one.id, one.blocks, one.pid) == ("supervised", says[0], 100)
        assert says[1] in one.reason


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (None, []),
        (Unit("train.service", "always", 100), [("supervised", True)]),
        (Unit("train.service", "on-failure", 110), [("supervised", True)]),
        (Unit("train.service", "on-success", 100), [("supervised", False)]),
        (Unit("train.service", "no", 100), [("supervised", False)]),
        (Unit("train.service"), [("supervised", False)]),
        (Unit("cron.service", "on-failure", 44), []),
    ],
)
def test_units_of_systemd(unit: Unit | None, expected: list[tuple[str, bool]]) -> None:
    assert told(facts(unit=unit)) == expected
    assert told(facts(unit=unit), leave_running=True) == []


@pytest.mark.parametrize(
    "argv",
    [
        "python -m ipykernel_launcher -f /run/user/1/jupyter/kernel-1f-2.json",
        "python -m ipykernel -f x.json",
        "R --slave -e IRkernel::main() --args /root/.local/kernel-abc.json",
    ],
)
def test_jupyter_kernels_alone(argv: str) -> None:
    kernel = process(100, argv=tuple(argv.split()))
    (found,) = judge(facts(kernel))
    assert (found.id, found.blocks, found.pid) == ("jupyter-kernel", True, 100)
    server = up("python /usr/bin/jupyter-lab", 50)
    assert "process 50" in judge(facts(kernel, look={"above": (server,)}))[0].remedy
    # beside its server it comes back
    whole = (process(90, argv=("jupyter-lab",)), replace(kernel, ppid=90))
    assert judge(facts(*whole)) == []


def test_outputs_of_a_job_that_goes_on() -> None:
    opened = (
        Descriptor(0, "/dev/null", "chr"),
        Descriptor(1, "/work/log", "file", writes=True),
        Descriptor(2, "/work/log", "file", writes=True),
        Descriptor(3, "/work/data", "file"),
        Descriptor(4, "/work/out", "file", writes=True),
        Descriptor(5, "/dev/shm/x", "file", writes=True),
    )
    known = alone(descriptors=opened)
    assert judge(known) == []
    (found,) = judge(known, leave_running=True)
    assert (found.id, found.blocks) == ("outputs-repeated", False)
    assert found.object == "fd 1 /work/log and 1 more"


@pytest.mark.parametrize(
    ("special", "above", "name"),
    [
        ({"settings": {"container": "podman"}}, (), "podman container"),
        ({"environment": frozenset({"APPTAINER_CONTAINER"})}, (), "Apptainer"),
        ({"environment": frozenset({"FLATPAK_ID"})}, (), "Flatpak"),
        ({"environment": frozenset({"SNAP_INSTANCE_NAME"})}, (), "snap"),
        ({"environment": frozenset({"KUBERNETES_SERVICE_HOST"})}, (), "Kubernetes"),
        ({}, ("systemd-nspawn -D /c",), "systemd-nspawn"),
        ({}, ("starter-suid x",), "Apptainer"),
        ({}, ("bwrap --unshare-all x",), "bubblewrap"),
        ({}, ("unshare -m python",), "unshare"),
        ({}, ("bash",), ""),
    ],
)
def test_containers_by_their_names(special: Any, above: tuple[str, ...], name: str) -> None:
    inside = task(process(100), namespaces=HERE | {"mnt": "mnt:[2]"}, **special)
    higher = tuple(up(line) for line in above)
    (found,) = judge(facts(look={"tasks": (inside,), "above": higher}))
    assert found.id == "namespace-mnt"
    assert (name in found.reason) if name else ("runs in" not in found.reason)
    # the same names without a namespace of its own say nothing
    assert told(facts(look={"tasks": (task(process(100), **special),)})) == []
