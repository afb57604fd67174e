"""What keeps a look from seeing: errors of the tools, turned into findings beside all others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import CudaCallFailed, GpuckptError, GpuStepFailed, HostUnfit, UsageError
from gpuckpt.flow.gpu.tree import states_of
from gpuckpt.flow.work.storetool import asked
from gpuckpt.image.disk import image_around
from gpuckpt.model import CudaState, blocker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.location import Location, Url
    from gpuckpt.model import Finding, Version
    from gpuckpt.tools.destination import Place


# a store that is silent for so long keeps no look waiting
_PATIENCE: Final = 30.0


def criu_version(tools: Toolbox) -> tuple[Version | None, tuple[Finding, ...]]:
    """Return the version of CRIU, or the finding that there is none to be used."""
    try:
        return tools.criu.version, ()
    except GpuckptError as why:
        return None, (told(why, "CRIU"),)


def cuda_states(
    tools: Toolbox, pids: Iterable[int]
) -> tuple[dict[int, CudaState], tuple[Finding, ...]]:
    """Ask the driver about the processes; those it does not tell of become findings."""
    try:
        return states_of(tools, pids), ()
    except GpuStepFailed as why:
        failed = why.__cause__
        if not isinstance(failed, CudaCallFailed):
            return {}, (told(why, "NVIDIA driver"),)
        known = {
            one.pid: one.after
            for one in failed.outcomes
            if one.ok and one.after not in {None, CudaState.NONE}
        }
        return {pid: state for pid, state in known.items() if state}, tuple(
            blocker(
                "gpu-unanswered",
                f"pid {one.pid}",
                _sentence(f"the driver does not tell the state of this process: {one.text}"),
                "Look whether the process or its GPU hangs (nvidia-smi, dmesg), and try again.",
                one.pid,
            )
            for one in failed.failed
            if not one.gone
        )
    except GpuckptError as why:
        return {}, (told(why, "NVIDIA driver"),)


def destination(tools: Toolbox, folder: Path) -> tuple[int | None, Place | None, list[Finding]]:
    """Return the room in a folder and what it is on; a filesystem that is sick says neither."""
    try:
        return tools.host.free_bytes(folder), tools.host.place(folder), []
    except OSError as why:
        reason = f"The filesystem cannot be asked for its room: {why.strerror or why}."
        remedy = "Mount it again, or write the image elsewhere (-o)."
        return None, None, [blocker("not-writable", str(folder), reason, remedy)]


def store(tools: Toolbox, url: Url) -> tuple[bool, list[Finding]]:
    """Say whether a store has something at a URL, or why it does not tell.

    Raises:
        UsageError: nothing that is installed can talk to it.
    """
    try:
        return bool(asked(tools.stores, url, lambda folder: folder.names(), _PATIENCE)), []
    except UsageError:
        raise
    except GpuckptError as why:
        remedy = why.hint or "Look whether the store can be reached, or write elsewhere (-o)."
        told = _sentence(f"no image can be written: {why.message}")
        return False, [blocker("not-writable", str(url), told, remedy)]


def check_answers(tools: Toolbox, paths: Iterable[str], pids: Iterable[int] = ()) -> None:
    """Look at no file on a filesystem whose server is gone: nothing would end that wait.

    Raises:
        HostUnfit: one does not answer.
    """
    if silent := tools.files.silent(paths, pids):
        raise HostUnfit(
            f"{', '.join(silent)} does not answer: whoever looks at a file there waits without end",
            hint="See that its server answers, or unmount it (umount -f -l), and try again.",
        )


def told(why: GpuckptError, thing: str) -> Finding:
    """Return an error as a finding; its id is the error's name."""
    remedy = why.hint or "`gpuckpt doctor` tells more."
    return blocker(why.name.replace("_", "-"), thing, _sentence(why.message), remedy)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def in_an_image(output: Location | None) -> Iterator[Finding]:
    """Whatever lies in an image and is not its own counts as damage of it."""
    if isinstance(output, Path) and (around := image_around(output)):
        yield blocker(
            "image-exists",
            str(output),
            f"It is in the image {around}, and would damage it.",
            "Name a place beside it (-o).",
        )
