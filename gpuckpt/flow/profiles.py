"""Settings under which a kind of job can be restored, and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping


class Profile(Value, frozen=True):
    """Settings for a kind of job, what they are for, and what they cost."""

    environment: Mapping[str, str]
    purpose: str
    cost: str


# Two ranks on two GPUs (driver 580.159, NCCL 2.28, NVLS off): with the defaults, and with P2P or
# cuMem alone switched off, the driver could never restore them, since peer and shared cuMem
# mappings do not come back. With P2P off and either cuMem setting left as it is, one try each came
# back; with all of them off every try did.
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
        "an all-reduce of 256 MiB between two H200s runs at 27 GB/s instead of 293",
    ),
}
