"""Rules about programs that are known not to come back well."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.rule import descriptor
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding

# every kernel, of whatever language, is told its ports by such a file
_CONNECTION: Final = re.compile(r"(.*/)?kernel-[0-9A-Za-z-]+\.json")
_INJECTIONS: Final = ("CUDA_INJECTION64_PATH", "CUDA_INJECTION32_PATH", "NVTX_INJECTION64_PATH")
_INJECTED: Final = re.compile(
    r"/lib(ToolsInjection|cuda-injection|sanitizer-\w+|InterceptorInjection|TreeLauncher)\w*[.\w]*"
    r"\.so|/libcudadebugger\.so"
)
_TOOL: Final = re.compile(r"(nsys(-launcher)?|ncu|nv-nsight-cu-cli|compute-sanitizer|cuda-gdb)\b")
_OUTPUT: Final = re.compile(r"/(?!dev/|proc/|sys/)")


def jupyter_kernel(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A kernel ends when it finds itself without its server, and so it does after a restore."""
    root = facts.tree.root
    words = root.argv[1:]
    file = next((word for word in words if _CONNECTION.fullmatch(word)), "")
    if not file and not any(word.startswith("ipykernel") for word in words):
        return
    server = next((one for one in facts.look.above if "jupyter" in one.command), None)
    whole = f"Dump process {server.pid}, its server, with all kernels" if server else ""
    yield blocker(
        "jupyter-kernel",
        file or root.command,
        "This is a Jupyter kernel alone: restored without its server it ends at once.",
        f"{whole or 'Dump its server with all kernels'}, or run the work as a plain script.",
        root.pid,
    )


def profiler(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Tools that sit between a job and the driver do not survive a checkpoint.

    PyTorch maps CUPTI always, so that library alone says nothing.
    """
    known = set(facts.cuda_pids)
    above = next((one for one in facts.look.above if _TOOL.match(_program(one.command))), None)
    for task in facts.look.tasks:
        pid = task.process.pid
        if pid not in known:
            continue
        names = (name for name in _INJECTIONS if task.settings.get(name))
        library = next((one.target for one in task.mapped if _INJECTED.search(one.target)), "")
        what = next(names, library) or (f"process {above.pid} {above.command}" if above else "")
        if what:
            yield blocker(
                "profiler",
                what,
                "A profiler or debugger of CUDA is in the job, and the driver does not checkpoint "
                "with one.",
                "Start the job without it.",
                pid,
            )


def _program(command: str) -> str:
    first, _, rest = command.partition(" ")
    return f"{first.rpartition('/')[2]} {rest}"


def outputs_repeated(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """What the job writes after a dump that leaves it running, a restored copy writes again."""
    if not choices.leave_running or choices.rehearsal:
        return
    written = {
        fd.target: (task.process.pid, fd.fd)
        for task in reversed(facts.look.tasks)
        for fd in reversed(task.descriptors)
        if fd.kind == "file" and fd.writes and not fd.deleted and _OUTPUT.match(fd.target)
    }
    for path, (pid, fd) in sorted(written.items(), key=lambda one: one[1])[:1]:
        more = f" and {len(written) - 1} more" if len(written) > 1 else ""
        yield warning(
            "outputs-repeated",
            descriptor(fd, path) + more,
            "The job goes on and writes; a copy restored from this image writes the same again.",
            "Restore only after the job has ended; files that are not carried get lines twice.",
            pid,
        )


RULES: Final[tuple[Rule, ...]] = (jupyter_kernel, profiler, outputs_repeated)
