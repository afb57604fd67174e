"""Reading what was typed: each reader returns a value or a one-line reason and a hint.

A reader is made for one option, so that its complaint can name the option and, if that is
where the text came from, the environment variable.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.cli import units
from gpuckpt.errors import UsageError
from gpuckpt.location import Url, is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuckpt.location import Location

TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"", "0", "false", "f", "no", "n", "off"})
LARGEST_PID = 4_194_304  # PID_MAX_LIMIT of 64-bit kernels
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
_LABEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_LONGEST_LABEL = 256
_GATE = re.compile(r"gate-[a-z0-9-]+")


def variable(option: str) -> str:
    """Return the environment twin of an option: `--lock-timeout`, GPUCKPT_LOCK_TIMEOUT."""
    return "GPUCKPT_" + option.lstrip("-").replace("-", "_").upper()


def refuse(option: str, reason: str, hint: str) -> UsageError:
    """Return the error for a bad value of `option`."""
    twin = variable(option)
    if option.startswith("--") and os.environ.get(twin):
        hint = f"{hint} {twin} is set to {os.environ[twin]!r}."
    return UsageError(f"{option}: {reason}", hint=hint)


def pid(text: str) -> int:
    """Read a process id."""
    hint = "`gpuckpt jobs` lists the GPU jobs of this node with their pids."
    if not _WHOLE.fullmatch(text.strip()):
        raise refuse("PID", f"{text!r} is not a number", hint)
    number = int(text)
    if number < 1:
        raise refuse("PID", f"{number} is not a process id: they start at 1", hint)
    if number > LARGEST_PID:
        raise refuse("PID", f"{number} is larger than any pid Linux gives ({LARGEST_PID})", hint)
    return number


def switch(option: str) -> Callable[[str], bool]:
    """Return a reader of yes and no, as the environment has them for a flag."""

    def read(text: str) -> bool:
        word = text.strip().lower()
        if word not in TRUE and word not in _FALSE:
            raise refuse(option, f"{text!r} is neither yes nor no", "Write 1 or 0.")
        return word in TRUE

    return read


def seconds(option: str, *, zero: bool) -> Callable[[str], float]:
    """Return a reader of durations; `zero` says whether none at all makes sense."""
    wanted = "a number of seconds, zero or more" if zero else "a number of seconds above zero"

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise refuse(option, f"{text!r} is not a number", f"Give {wanted}.") from None
        if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
            raise refuse(option, f"{text} makes no sense here", f"Give {wanted}.")
        return number

    return read


def whole(option: str, lowest: int, highest: int) -> Callable[[str], int]:
    """Return a reader of whole numbers between two bounds, both allowed."""

    def read(text: str) -> int:
        hint = f"Give a whole number from {lowest} to {highest}."
        if not _WHOLE.fullmatch(text.strip()):
            raise refuse(option, f"{text!r} is not a whole number", hint)
        if not lowest <= int(text) <= highest:
            raise refuse(option, f"{text.strip()} is out of range", hint)
        return int(text)

    return read


def level(option: str, lowest: int, highest: int) -> Callable[[str], int | None]:
    """Return a reader of zstd levels: a number, or the words auto (None) and none (0)."""
    number = whole(option, lowest, highest)

    def read(text: str) -> int | None:
        word = text.strip().lower()
        if word == "auto":
            return None
        if word == "none":
            return 0
        if word.isalpha():
            hint = f"Write auto, none, or a whole number from {lowest} to {highest}."
            raise refuse(option, f"{word!r} is unknown", hint)
        return number(text)

    return read


def size(option: str) -> Callable[[str], int]:
    """Return a reader of sizes such as 4096, 10M or 1.5GiB."""

    def read(text: str) -> int:
        try:
            return units.parse_size(text)
        except ValueError:
            hint = "Give bytes, or a number with K, M, G or T: 10M, 1.5G."
            raise refuse(option, f"{text!r} is not a size", hint) from None

    return read


def choice(
    option: str, allowed: Iterable[str], elsewhere: Iterable[str] = ()
) -> Callable[[str], str]:
    """Return a reader that takes one of a few words.

    `elsewhere` are those that other commands have: in the environment they stand for the first.
    """
    words, others = tuple(allowed), frozenset(elsewhere)

    def read(text: str) -> str:
        if text in others and os.environ.get(variable(option)) == text:
            return words[0]
        if text not in words:
            raise refuse(option, f"{text!r} is unknown", f"Choose from: {', '.join(words)}.")
        return text

    return read


def path(option: str, what: str = "the path of an image folder") -> Callable[[str], Path]:
    """Return a reader of paths; the path is made absolute, links are left alone."""

    def read(text: str) -> Path:
        if not text.strip() or "\0" in text:
            raise refuse(option, "the path is empty", f"Give {what}.")
        try:
            return Path(os.path.abspath(text))  # noqa: PTH100 - Path.absolute keeps `..`
        except FileNotFoundError:
            hint = "Change to another one (cd), or give an absolute path."
            raise refuse(option, "the current folder was removed", hint) from None

    return read


def location(option: str, *, whole: bool = True) -> Callable[[str], Location]:
    """Return a reader of paths and of URLs, of a `whole` store too; file:// is a path."""
    absolute = path(option, "the path of an image folder, or a URL")

    def read(text: str) -> Location:
        if not is_url(text) or text.startswith("file://"):
            return absolute(text.removeprefix("file://"))
        url = Url(text)
        if url.tells:
            hint = "Use a key, an agent, or what the store's own programs use: ~/.aws, ~/.ssh."
            raise refuse(option, "every user of this host can see a password in it", hint)
        if not url.host and url.scheme != "memory":
            raise refuse(option, f"{text!r} names no bucket or host", "Write s3://BUCKET/IMAGE.")
        if not text.isprintable() or "::" in text or ".." in url.folder.split("/"):
            raise refuse(option, f"{text!r} is no URL of a folder", "Write s3://BUCKET/IMAGE.")
        if not (whole or url.folder):
            raise refuse(option, f"{text!r} is a whole store", f"Write {url}/NAME.")
        return url

    return read


def destination(text: str) -> str:
    """Check where a copy goes; a slash at its end says that it goes inside, and stays."""
    location("DEST", whole=text.endswith("/"))(text)
    return text


def log(text: str) -> str:
    """Read where a job's output goes; a slash at its end says that it is a folder, and stays."""
    found = path("--log", "the path of a file or folder for the job's output")(text)
    return f"{found}/" if text.endswith("/") else str(found)


def folder(option: str) -> Callable[[str], Path]:
    """Return a reader of the paths of folders that are there."""
    absolute = path(option)

    def read(text: str) -> Path:
        found = absolute(text)
        if not found.is_dir():
            what = "is no folder" if found.exists() else "does not exist"
            raise refuse(option, f"{found} {what}", "Name the folders that images are made in.")
        return found

    return read


def label(text: str) -> str:
    """Check one K=V; `labels` makes the mapping."""
    name, equals, value = text.partition("=")
    hint = "Write it as NAME=VALUE, for example --label run=night-7."
    if not equals:
        raise refuse("--label", f"{text!r} has no '='", hint)
    if not _LABEL_NAME.fullmatch(name):
        allowed = "letters, digits, and . _ / - inside"
        raise refuse("--label", f"{name!r} is no name: {allowed}, at most 63", hint)
    if len(value) > _LONGEST_LABEL or not value.isprintable():
        limit = f"printable and at most {_LONGEST_LABEL} characters"
        raise refuse("--label", f"the value of {name!r} must be {limit}", hint)
    return text


def labels(texts: Iterable[str]) -> dict[str, str]:
    """Return the labels as a mapping; a name given twice is refused."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name in found:
            raise refuse("--label", f"{name!r} is given twice", "Give every label once.")
        found[name] = value
    return found


def gate(text: str) -> str:
    """Check the form of a gate's id."""
    if not _GATE.fullmatch(text):
        hint = "Gates are named by the refusal, for example gate-driver."
        raise refuse("--force-gate", f"{text!r} is not the id of a gate", hint)
    return text


def gpu_map(text: str) -> str:
    """Check the form of OLD=NEW,...; `gpu_pairs` makes the pairs. Only an image knows the names."""
    hint = (
        "Write it as OLD=NEW,..., a GPU of the image first, each by its number, its UUID or the "
        "beginning of it: --gpu-map 0=1,1=0."
    )
    pairs = gpu_pairs(text)
    for old, new in pairs:
        if not (old and new) or "=" in new:
            raise refuse("--gpu-map", f"{text!r} is no list of OLD=NEW", hint)
    for names in ([old for old, _ in pairs], [new for _, new in pairs]):
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise refuse("--gpu-map", f"GPU {twice} is named twice", hint)
    return text


def gpu_pairs(text: str | None) -> tuple[tuple[str, str], ...]:
    """Return the pairs of OLD=NEW,... as they were typed."""
    parts = (part.partition("=") for part in text.split(",")) if text else ()
    return tuple((old.strip(), new.strip()) for old, _, new in parts)


def ignorable(text: str) -> str:
    """Check that a finding is one that may be ignored."""
    from gpuckpt.flow.sight.plan import IGNORABLE

    if text not in IGNORABLE:
        reason = (
            f"{text!r} cannot be ignored: no finding has this id, or the dump would fail all the "
            "same or harm the job"
        )
        raise refuse("--ignore", reason, f"Possible: {', '.join(sorted(IGNORABLE))}.")
    return text


def plan_target(text: str) -> int | Location:
    """Read a pid, checked, or where an image is."""
    if _WHOLE.fullmatch(text.strip()):
        return pid(text)
    return location("TARGET")(text)


def command(option: str) -> Callable[[str], str]:
    """Return a reader of shell commands."""

    def read(text: str) -> str:
        if not text.strip() or "\0" in text:
            raise refuse(option, "the command is empty", "Give a command a shell can run.")
        return text

    return read
