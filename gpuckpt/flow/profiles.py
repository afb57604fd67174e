"""Settings under which a kind of job can be restored, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Profile:
    """Settings for a kind of job, what they are for, and what they cost."""

    environment: Mapping[str, str]
    purpose: str
    cost: str


# with all four, two ranks on two GPUs were dumped and restored (driver 580.159, NCCL 2.28); with
# the defaults, and with P2P or cuMem alone switched off, the driver could never restore them: peer
# and shared cuMem mappings do not come back
PROFILES: Final[Mapping[str, Profile]] = {
    "nccl": Profile(
        environment={
            "NCCL_P2P_DISABLE": "1",
            "NCCL_CUMEM_ENABLE": "0",
            "NCCL_CUMEM_HOST_ENABLE": "0",
            "NCCL_NVLS_ENABLE": "0",
        },
        purpose="NCCL between the GPUs of this host by shared memory, which can be restored",
        cost="GPUs exchange data through host memory instead of NVLink or PCIe peer access: "
        "an all-reduce of 256 MiB between two H200s takes 10 ms",
    ),
}
