"""Rules about files without a name: deleted ones, replaced ones, and those with another name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.rule import Rule, descriptor, size
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices
    from gpuckpt.model import Finding


def deleted_file_large(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """A deleted file that is in use goes into the image whole, up to a limit."""
    for file in facts.look.deleted:
        if not file.links and file.bytes > choices.ghost_limit:
            yield blocker(
                "deleted-file-large",
                descriptor(file.fd, file.path),
                f"The deleted file holds {size(file.bytes)}, the limit is "
                f"{size(choices.ghost_limit)}.",
                "Let the job close it, or raise the limit (--ghost-limit).",
                file.pid,
            )


def link_refused(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU gives such a file a new name, link_remap.N, in the folder of the old one."""
    for file in facts.look.deleted:
        if file.links and not file.linkable:
            yield blocker(
                "link-refused",
                descriptor(file.fd, file.path),
                "The file lost the name the job knows, and CRIU cannot give it a new one: its "
                "folder is read-only, or it lies in the lower layer of an overlay.",
                "Make the folder writable (mount -o remount,rw), put the old file back "
                "(container images), or start the job anew with the file that is there now.",
                file.pid,
            )


def ghost_leftover(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A restore that was killed leaves its ghosts, and CRIU makes no file that exists."""
    for file in facts.look.deleted:
        if file.leftover:
            yield warning(
                "ghost-leftover",
                file.leftover,
                f"A restore that was cut short left this file, and the next one of {file.path} "
                "may need its name.",
                "Remove it when no restore is running: gpuckpt gc, or rm.",
                file.pid,
            )


def replaced(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """An upgrade under a running job: what it has mapped is no longer what the package installs."""
    found = [file for file in facts.look.deleted if file.fd is None and file.replaced]
    if not found:
        return
    whole = sum(file.bytes for file in found if not file.links)
    over = sum(not file.links and file.bytes > choices.ghost_limit for file in found)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    yield warning(
        "library-replaced",
        found[0].path + more,
        "The file was replaced while the job has the old one mapped, as an upgrade of its package "
        f"does; the image carries the old ones ({size(whole)}).",
        "Raise --ghost-limit so that they fit."
        if over
        else "Restart the job when it suits, to run what is installed.",
        found[0].pid,
    )


RULES: Final[tuple[Rule, ...]] = (
    deleted_file_large,
    link_refused,
    ghost_leftover,
    replaced,
)
