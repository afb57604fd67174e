"""What a rule is: a line of CRIU in, a sentence and advice out.

A pattern may name groups: pid, fd, map (a hex address), ino (a hex inode), inode (a decimal one),
id and xid (a file id), path, and any other. Sentence and hint may use them and what the reader
makes of them: {who}, {object}, {mapping}, {socket}, {file}, {path} with its slash, {locks},
{peers}, {rings}, {devices}.
"""

from __future__ import annotations

from gpuckpt.value import Value


class Rule(Value, frozen=True):
    """One kind of line; `pattern` is a regular expression over the text behind CRIU's prefix."""

    pattern: str
    sentence: str
    hint: str
