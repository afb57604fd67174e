"""Rules about file locks: those of a tree come back with it, unless somebody else has them then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding


def lock_outside(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU 4.2.1 takes a lock at the restore without a limit: taken by another, it hangs."""
    for one in facts.look.rivals:
        who = f"process {one.holder} ({one.comm})"
        if one.waits:
            yield blocker(
                "lock-wanted",
                f"fd {one.fd} {one.path}",
                f"Outside the tree {who} waits for this lock: it gets it when the job goes, and "
                "the restore would wait for it without end.",
                f"End process {one.holder} first, or see to it that it has let go before the "
                "restore (--ignore lock-wanted).",
                one.pid,
            )
        else:
            yield blocker(
                "lock-shared",
                f"fd {one.fd} {one.path}",
                f"The lock is shared with {who}, outside the tree, which keeps it when the job "
                "goes: the restore would wait for it without end.",
                "Dump the tree that holds both, or start the job with the descriptor closed "
                f"({one.fd}>&-).",
                one.pid,
            )


def lock_remote(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A lock on a file server belongs to this host as a client; another host is another client."""
    remote = {one.path: one.filesystem for one in facts.look.odd_files if one.remote}
    for lock in facts.look.locks:
        if lock.path in remote:
            yield warning(
                "lock-remote",
                f"fd {lock.fd} {lock.path}",
                f"The lock is on {remote[lock.path]}, whose server may have given it to somebody "
                "else before the restore.",
                "See to it that nobody else takes it meanwhile.",
                lock.pid,
            )


RULES: Final[tuple[Rule, ...]] = (lock_outside, lock_remote)
