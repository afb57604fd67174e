"""A process's environment, as it was when the program started: names, and the values of a few.

Values are secrets and none of our business, but for the settings and paths listed here: how
libraries are to behave, which rank of how many a process is, and where it finds its software and
models. They are looked at and never written to an image, a journal or a log, but for the GPUs that
a process could see, by their UUIDs, and folders in which a Python or a model was found.
What a program sets for itself later is not seen.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from msgspec import field

from gpuckpt.tools.procfs import text
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

# the whole list of variables whose values are looked at
SETTINGS: Final = re.compile(
    r"NCCL_(P2P|CUMEM|CUMEM_HOST|NVLS|SHM|IB|MNNVL)_(DISABLE|ENABLE|LEVEL)"
    r"|TORCH_NCCL_(HEARTBEAT_TIMEOUT_SEC|ENABLE_MONITORING)"
    r"|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_MPS_PIPE_DIRECTORY|(CUDA|NVTX)_INJECTION(32|64)_PATH"
    r"|TF_FORCE_UNIFIED_MEMORY|UCX_TLS|UV_USE_IO_URING"
    r"|(LOCAL_)?WORLD_SIZE|(LOCAL_|GROUP_)?RANK|MASTER_ADDR"
    r"|OMPI_COMM_WORLD_(LOCAL_)?(SIZE|RANK)|PMI_(SIZE|RANK)"
    r"|container"
)

# and of those that hold paths
PATHS: Final = re.compile(
    r"PATH|VIRTUAL_ENV|CONDA_PREFIX|PYTHONPATH|HOME|XDG_CACHE_HOME|HF_HOME|HF_HUB_CACHE"
    r"|HUGGINGFACE_HUB_CACHE|TRANSFORMERS_CACHE"
)

# variables whose names alone say that a program may know where and as what it was started
IDENTITY: Final = re.compile(
    r"HOSTNAME|HOST|MASTER_ADDR|CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES"
    r"|SLURM_(JOB_?ID|STEP_?ID|JOB_NODELIST|NODELIST|NODEID|PROCID)"
    r"|PBS_JOBID|LSB_JOBID|JOB_ID|COBALT_JOBID|OAR_JOB_ID|POD_IP|POD_NAME|KUBERNETES_SERVICE_HOST"
)


class Environment(Value, frozen=True):
    """All names, and the values of those that are settings."""

    names: frozenset[str] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)


def environment(raw: bytes) -> Environment:
    """Read an environ file; of a name that is there twice the first counts, as with getenv."""
    names: set[str] = set()
    settings: dict[str, str] = {}
    for entry in raw.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        word = text(name)
        if not equals or not word:
            continue
        names.add(word)
        if SETTINGS.fullmatch(word):
            settings.setdefault(word, text(value))
    return Environment(frozenset(names), settings)


def paths(raw: bytes) -> dict[str, str]:
    """Read from an environ file where a program looks for software and models."""
    found: dict[str, str] = {}
    for entry in raw.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if PATHS.fullmatch(text(name)):
            found.setdefault(text(name), os.fsdecode(value))
    return found
