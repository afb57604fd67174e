"""What a job knew of its host and is another after a move."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from gpuckpt.cli import moved
from gpuckpt.image.gpuplan import gpu_plan
from gpuckpt.image.identity import Identity, changes, told
from gpuckpt.model import HostFacts
from tests import gpu_samples, image_samples

HOST = HostFacts("node1", "6.18", "b", "x86_64", "glibc 2.36", "X", (), 8, 1 << 36, 1 << 35, "", 0)
OLD = ("10.0.0.1", "172.17.0.1")


def test_the_same_host_has_changed_nothing() -> None:
    image = gpu_samples.image(gpu_samples.switched("a", 2), gpu_samples.ranks(2))
    plan = gpu_plan(image, gpu_samples.nvidia(gpu_samples.switched("a", 2)))
    assert changes(image, HOST, plan) == Identity()
    assert moved.table(Identity()) == ()
    assert set(told(Identity()).values()) == {""}


def test_an_image_that_knows_no_addresses_tells_of_none() -> None:
    assert changes(image_samples.manifest(), replace(HOST, addresses=OLD), None) == Identity()


def test_another_host_is_told_in_full() -> None:
    old, new = gpu_samples.switched("a", 2), gpu_samples.switched("b", 2)
    image = gpu_samples.image(old, gpu_samples.ranks(2))
    record = image_samples.host(addresses=OLD)
    image = msgspec.structs.replace(image, host=record, identity=("HOSTNAME", "SLURM_JOB_ID"))
    here = replace(HOST, hostname="node2", addresses=("10.0.0.2", "172.17.0.1"))
    plan = gpu_plan(image, gpu_samples.nvidia(new), [("0", "1"), ("1", "0")])
    found = changes(image, here, plan)
    assert found.words == ("hostname", "addresses", "gpus", "order")
    assert (found.gone, found.fresh) == (("10.0.0.1",), ("10.0.0.2",))
    assert found.order == ((0, 1), (1, 0))
    said = told(found)
    assert said["GPUCKPT_CHANGED"] == "hostname addresses gpus order"
    assert (said["GPUCKPT_ADDRESSES_WAS"], said["GPUCKPT_ADDRESSES_NOW"]) == (
        "10.0.0.1",
        "10.0.0.2",
    )
    assert said["GPUCKPT_GPUS_WAS"].split() == [old[0].uuid, old[1].uuid]
    assert said["GPUCKPT_GPUS_NOW"].split() == [new[1].uuid, new[0].uuid]
    assert said["GPUCKPT_GPU_NUMBERS_NOW"] == said["GPUCKPT_CUDA_ORDER_NOW"] == "1 0"
    assert said["GPUCKPT_VARIABLES"] == "HOSTNAME SLURM_JOB_ID"
    (table,) = moved.table(found)
    assert [row[0] for row in table.rows] == ["host name", "addresses", "GPU", "GPU", "CUDA order"]
    assert table.rows[-1] == ("CUDA order", "0 1", "1 0")
    assert moved.payload(found)["device_order"] == [{"old": 0, "new": 1}, {"old": 1, "new": 0}]


def test_gpus_that_only_have_another_number_keep_their_order() -> None:
    """A job of one GPU does not care how many are before it."""
    image = gpu_samples.image(gpu_samples.switched("a", 4), [(0, 2)], {0: (2,)})
    plan = gpu_plan(image, gpu_samples.nvidia(gpu_samples.switched("b", 4)))
    found = changes(image, HOST, plan)
    assert [one.old.index for one in found.gpus] == [2]
    assert found.words == ("gpus",)
