"""Which installed packages the Pythons of a tree have loaded, and how that was found.

mapped: a file of it is mapped. open: one is open. memory: the interpreter's memory names a module
of it. installed: it is an engine that could be imported, and whether it was could not be seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.tools.distributions import Installed, installed, owners, place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpuckpt.tools.interpreters import Interpreter
    from gpuckpt.tools.weights import Use

ENGINES: Final = frozenset(
    {
        *("torch", "vllm", "sglang", "jax", "jaxlib", "flax", "transformers", "diffusers"),
        *("accelerate", "deepspeed", "tensorflow", "tensorrt-llm", "lightning", "triton"),
        *("pytorch-lightning", "megatron-core", "ray", "flashinfer-python", "flash-attn"),
    }
)


def loaded(
    pythons: Collection[Interpreter], used: Iterable[Use], modules: Iterable[str], *, whole: bool
) -> dict[Installed, tuple[str, ...]]:
    """Return them; `modules` are files named in memory, `whole`: all of that could be read."""
    others = {folder for one in pythons for folder in one.paths}
    known: dict[str, dict[str, set[str]]] = {}
    seen = [(one.path, "mapped" if one.how == "mapped" else "open") for one in used]
    for path, how in [*seen, *((path, "memory") for path in modules)]:
        folder, rest = place(path, others)
        if folder:
            known.setdefault(folder, {}).setdefault(rest, set()).add(how)
    found: dict[Installed, set[str]] = {}
    for folder, paths in known.items():
        for one, mine in owners(folder, paths).items():
            found[one] = set[str]().union(*(paths[path] for path in mine))
    if not whole:
        for folder in {folder for one in pythons for folder in one.folders}:
            for other in installed(folder, ENGINES).values():
                found.setdefault(other, {"installed"})
    return {one: tuple(sorted(how)) for one, how in found.items()}
