"""doctor: whether this host can dump and restore, with a real try at the end.

Everything is looked at, so that one visit tells all there is to repair.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuckpt.errors import GpuckptError, Interrupted
from gpuckpt.events import Silent
from gpuckpt.flow.sight.rules.host import OLDEST_KERNEL
from gpuckpt.flow.trial import trial
from gpuckpt.flow.work import hugepages
from gpuckpt.model import Version
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.events import Reporter
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import HostFacts, NvidiaFacts

# 570: NVML's own descriptors are let go of, as every PyTorch job needs
OLDEST_DRIVER = Version("570")
# 580: a job may come back on other GPUs
MAPPING_DRIVER = Version("580")
LEAST_SPACE = 64 << 20
_SETTINGS = ("/etc/criu/default.conf", "~/.criu/default.conf")


class Check(Value, frozen=True):
    """One thing looked at; `id` is stable, `remedy` empty where there is nothing to do."""

    id: str
    status: Literal["ok", "warning", "failed"]
    text: str
    remedy: str = ""


class DoctorResult(Value, frozen=True):
    """All checks, in the order they were made."""

    checks: tuple[Check, ...]


def doctor(tools: Toolbox, reporter: Reporter, interrupts: Interrupts) -> DoctorResult:
    """Look at the host, then dump and restore a small job, on the GPU too if there is one.

    Raises:
        Interrupted: a signal came; nothing of the trial is left.
    """
    with reporter.step("look", "host, CRIU, driver, space"):
        host, nvidia = tools.host.facts(), tools.nvidia.facts()
        checks = [*_host(host), *_criu(tools), *_settings()]
        checks += _driver(tools, nvidia)
        if nvidia is not None and nvidia.gpus:
            checks += [*_gpus(nvidia), _huge_pages(host)]
        checks += _space(tools)
    devices = ["cpu", "gpu"] if nvidia is not None and nvidia.gpus else ["cpu"]
    for device in devices:
        with reporter.step("try", f"dump and restore a small job on the {device}"):
            checks.append(_try(tools, device, interrupts))
    return DoctorResult(tuple(checks))


def _host(host: HostFacts) -> Iterator[Check]:
    if host.missing_capabilities:
        names = ", ".join(host.missing_capabilities)
        yield Check("privileges", "failed", f"missing: {names}", "Run it as root.")
    elif host.only_own:
        text = "CAP_SYS_RESOURCE is missing: only root's own jobs can be dumped here"
        yield Check("privileges", "warning", text, "Run it where root has all capabilities.")
    else:
        yield Check("privileges", "ok", "everything CRIU needs")
    if Version(host.kernel) < OLDEST_KERNEL:
        text = f"{host.kernel} cannot give a restored process its old pid"
        yield Check("kernel", "failed", text, f"Linux {OLDEST_KERNEL} or newer is needed.")
    else:
        yield Check("kernel", "ok", host.kernel)
    if host.arch != "x86_64":
        text = f"{host.arch}: only x86_64 is known to work"
        yield Check("arch", "warning", text)


def _criu(tools: Toolbox) -> Iterator[Check]:
    try:
        program, version = tools.criu.program, tools.criu.version
    except GpuckptError as why:
        yield Check("criu", "failed", str(why), why.hint)
        return
    yield Check("criu", "ok", f"{program}, version {version}")
    try:
        said = tools.criu.check().splitlines()
    except GpuckptError as why:
        text = "; ".join((str(why), *why.excerpt))
        yield Check("criu-check", "failed", text, why.hint)
        return
    yield Check("criu-check", "ok", said[-1] if said else "passed")


def _settings() -> Iterator[Check]:
    """CRIU's own configuration files: gpuckpt makes it ignore them, and not all expect that."""
    names = [*_SETTINGS, os.environ.get("CRIU_CONFIG_FILE", "")]
    found = [name for name in names if name and _is_file(name)]
    if found:
        text = f"{', '.join(found)} has no effect on gpuckpt"
        yield Check("criu-config", "warning", text, "Nothing to do: gpuckpt sets what it needs.")


def _is_file(name: str) -> bool:
    try:
        return Path(name).expanduser().is_file()
    except (OSError, RuntimeError):  # a home that is another user's, or none at all
        return False


def _driver(tools: Toolbox, nvidia: NvidiaFacts | None) -> Iterator[Check]:
    if nvidia is None:
        yield Check("driver", "ok", "no NVIDIA driver: only jobs without CUDA can be dumped here")
        return
    found = Version(nvidia.driver)
    text = f"{nvidia.driver}, CUDA {nvidia.cuda}"
    if nvidia.module and nvidia.library and nvidia.module != nvidia.library:
        reason = f"module {nvidia.module} is loaded, libraries are {nvidia.library}"
        yield Check("driver", "failed", reason, "Reboot, or install the module's own libraries.")
    elif found < OLDEST_DRIVER:
        reason = f"{text}: it cannot checkpoint a process that uses NVML, as PyTorch does"
        yield Check("driver", "failed", reason, f"Install driver {MAPPING_DRIVER} or newer.")
    elif found < MAPPING_DRIVER:
        reason = f"{text}: a job can come back only on the GPUs it had"
        remedy = f"Driver {MAPPING_DRIVER} or newer can move it to others."
        yield Check("driver", "warning", reason, remedy)
    else:
        yield Check("driver", "ok", text)
    try:
        backend = tools.cuda.describe()
    except GpuckptError as why:
        yield Check("cuda", "failed", str(why), why.hint)
        return
    told = " ".join(word for word in (backend.kind, backend.version) if word)
    if backend.note:
        yield Check("cuda", "warning", f"{told}: {backend.note}")
    else:
        yield Check("cuda", "ok", told)


def _gpus(nvidia: NvidiaFacts) -> Iterator[Check]:
    models = ", ".join(sorted({gpu.name for gpu in nvidia.gpus}))
    yield Check("gpus", "ok", f"{len(nvidia.gpus)} ({models})")
    idle = [str(gpu.index) for gpu in nvidia.gpus if gpu.persistence is False]
    if idle:
        text = f"off on GPU {', '.join(idle)}: every driver call is slow, and some have failed"
        yield Check("persistence", "warning", text, "nvidia-smi -pm 1")
    split = [str(gpu.index) for gpu in nvidia.gpus if gpu.mig]
    if split:
        text = f"on for GPU {', '.join(split)}: the driver cannot checkpoint a job on a slice"
        yield Check("mig", "warning", text, "Jobs on whole GPUs are not affected.")


def _huge_pages(host: HostFacts) -> Check:
    if host.huge_pages == "always":
        return Check("huge-pages", "ok", "always")
    if not host.huge_pages:
        text = "this kernel has no transparent huge pages: GPU memory is copied out slower"
        return Check("huge-pages", "warning", text)
    # measured, 16 GiB on an H200: checkpoint 9.7 s with madvise, 6.3 s with always
    text = f"{host.huge_pages}: GPU memory is copied out faster with always"
    remedy = f"dump, restore and rehearse with --thp, or: echo always > {hugepages.FILE}"
    return Check("huge-pages", "warning", text, remedy)


def _space(tools: Toolbox) -> Iterator[Check]:
    for name, folder in (("space", Path()), ("state", tools.state_dir)):
        try:
            folder, free = folder.absolute(), tools.host.free_bytes(folder)  # noqa: PLW2901
        except OSError as why:  # a folder that was removed, or one of a dead filesystem
            text = f"{folder} cannot be asked for its room: {why.strerror or why}"
            yield Check(name, "failed", text, "Go to another place.")
            continue
        text = f"{free / (1 << 30):.1f} GiB free at {folder}"
        if free < LEAST_SPACE:
            yield Check(name, "failed", text, "Free some, or go to another place.")
        else:
            yield Check(name, "ok", text)


def _try(tools: Toolbox, device: str, interrupts: Interrupts) -> Check:
    name = f"try-{device}"
    try:
        done = trial(tools, device, Silent(), interrupts)
    except Interrupted:
        raise
    except GpuckptError as why:
        reasons = [str(why), *(found.reason for found in why.findings), *why.excerpt]
        return Check(name, "failed", "; ".join(reasons), why.hint)
    taken = done.dumped.receipt.seconds + done.restored.receipt.seconds
    return Check(name, "ok", f"dumped, gone, restored, nothing lost, in {taken:.1f} s")
