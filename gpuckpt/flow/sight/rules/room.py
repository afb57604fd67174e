"""Rules about room: memory for the GPU's bytes, space for the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.rule import Rule, size
from gpuckpt.location import Url
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices
    from gpuckpt.model import Finding


# a part of an image smaller than this one is not what makes it too large
_WORTH_A_WORD: Final = 8


def memory_host(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A checkpoint moves the GPU's bytes into the job's own memory; the kernel kills what is over.

    Where NVML does not tell the job's share from others', the sum is a bound and only warns.
    """
    need = facts.gpu_bytes + facts.gpu_bytes // 20
    if need <= facts.memory_available:
        return
    finding = blocker if facts.gpu_bytes_known else warning
    upto = "" if facts.gpu_bytes_known else "up to "
    yield finding(
        "memory-host",
        f"{size(facts.memory_available)} available",
        f"The GPU's bytes need {upto}{size(need)} of host memory, cgroup limits counted.",
        "Free host memory, raise the memory limit of the job's cgroup, or let the job free GPU "
        "memory.",
    )


def space(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A full disk ends a dump safely, so only what cannot fit is refused.

    How well the bytes compress is not known beforehand: tensors of random floats keep 90 %, caches
    and zeros nearly nothing. Halving is taken as the best to hope for.
    """
    free, need = facts.free_bytes, facts.image_bytes
    if free is None or need <= free:
        return
    finding = blocker if need // 2 > free else warning
    yield finding(
        "space",
        f"{size(free)} free",
        f"The image needs up to {size(need)} before compression{_files(facts)}.",
        f"Free some space, or write the image elsewhere (-o){_less(facts)}.",
    )


def _files(facts: DumpFacts) -> str:
    """Say how much of an image is the job's files, if that is worth a word."""
    if facts.along.bytes < facts.image_bytes // _WORTH_A_WORD:
        return ""
    return f", {size(facts.along.bytes)} of it files"


def _less(facts: DumpFacts) -> str:
    """Name the file that takes most, if files take much."""
    largest = facts.along.largest
    if not _files(facts) or largest is None:
        return ""
    return f"; or leave out files that can be made anew: --exclude {largest.path}"


def memory_image(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Files in memory count as that of who writes them: a cgroup that is full ends this process."""
    left = facts.host.memory_available - facts.gpu_bytes - facts.gpu_bytes // 20
    place = facts.place
    if place is not None and place.filesystem == "tmpfs" and facts.image_bytes > left:
        yield warning(
            "memory-image",
            f"{size(max(0, left))} available",
            f"The image needs up to {size(facts.image_bytes)} of memory before compression, cgroup "
            "limits counted; the kernel ends a dump that takes more.",
            "Write the image to a disk (-o), or raise the memory limit of the cgroup.",
        )


# CRIU 4.2.1 writes about ten images a tree and a dozen a process, each a file here
_FILES: Final = 24
_FILES_EACH: Final = 16


def inodes(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """An image is a folder of many small files, and a filesystem can run out of names for them."""
    need = _FILES + _FILES_EACH * len(facts.tree.processes)
    place = facts.place
    if place is not None and place.free_inodes is not None and place.free_inodes < need:
        yield blocker(
            "inodes",
            f"{place.free_inodes} free",
            f"The image needs up to {need} files, and the filesystem takes no more.",
            "Remove files there, or write the image elsewhere (-o).",
        )


def network_destination(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """The job stands still for as long as the writing takes."""
    place = facts.place
    if isinstance(facts.output, Url) and not choices.leave_running:
        yield warning(
            "destination-network",
            str(facts.output),
            "The image goes to a store, and the job stands still until it has every byte.",
            "If the pause matters: let the job go on after the dump (--leave-running), or write to "
            "a local disk and copy the image afterwards (gpuckpt copy).",
        )
    if place is not None and place.network:
        yield warning(
            "destination-network",
            f"{place.filesystem} on {place.mount}",
            "The image goes to a network filesystem, and the job stands still until it is there.",
            "Write to a local disk and copy the image afterwards, if the pause matters.",
        )


def image_exists(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Nothing is ever overwritten."""
    if facts.taken:
        yield blocker(
            "image-exists",
            str(facts.output),
            "Something has this name already, and gpuckpt never overwrites an image.",
            "Choose another name with -o, or move the old image away.",
        )


def state_dir(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """What is about to be done is on disk before it is done, or it is not done."""
    if not facts.state_writable:
        remedy = "Run gpuckpt as root (sudo gpuckpt ...)."
        if facts.host.euid == 0:
            remedy = "Name another one in GPUCKPT_STATE_DIR."
        yield blocker(
            "not-writable",
            str(facts.state_dir),
            "The journal cannot be written in the state directory.",
            remedy,
        )


def state_noexec(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU starts our hook from there, and would fail when the GPU's state is away."""
    if not facts.state_executes:
        yield no_programs(facts.state_dir)


def no_programs(state_dir: object) -> Finding:
    """Return that the state directory lies where no program may be started."""
    return blocker(
        "state-noexec",
        str(state_dir),
        "The state directory lies on a file system that is mounted noexec, and CRIU starts a "
        "script from there.",
        "Name another one in GPUCKPT_STATE_DIR, or mount it with exec.",
    )


def destination(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """The image is made beside its final name: the folder must be there and take files."""
    if facts.destination is not None and not facts.writable:
        yield blocker(
            "not-writable",
            str(facts.destination),
            "No image can be made in this folder: it is missing, read-only or not yours.",
            "Make the folder, or write the image elsewhere (-o).",
        )


RULES: Final[tuple[Rule, ...]] = (
    memory_host,
    destination,
    image_exists,
    space,
    memory_image,
    inodes,
    network_destination,
    state_dir,
    state_noexec,
)
