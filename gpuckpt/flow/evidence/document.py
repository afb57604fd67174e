"""The evidence that is kept of an image and its restores: what stands in the file.

The published schema, gpuckpt/evidence.schema.json, is made of these types by `make schema`. A field
that they do not know is an error, in a reader as in the schema.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpuckpt.account import Compared, Memory, Place
from gpuckpt.model import Finding, GpuUse, Lost
from gpuckpt.timing import Event, Foreign, Phase

URN = "urn:gpuckpt:evidence:1"
MISSING = "missing"
DUMP = "dump"

Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="BLAKE3, 256 bits, hex.")]
Count = Annotated[int, Meta(ge=0)]
Bytes = Annotated[int, Meta(ge=0, description="A number of bytes.")]
Seconds = Annotated[float, Meta(ge=0, description="Seconds, whole microseconds.")]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class SavedFile(_Part, frozen=True, kw_only=True):
    """One stored file of the image; `table` is the digest of its frame table."""

    name: str
    raw: Bytes
    stored: Bytes
    frames: Count
    table: Digest


class Saved(_Part, frozen=True, kw_only=True):
    """What was saved, from the manifest.

    `seal` is the digest that the manifest ends with. `tables` is the digest over all tables: of the
    lines `NAME TABLE`, each with a newline at its end, in the order of `files`; so it holds for
    every byte. `raw` and `stored` are the sums over `files`, `ratio` is raw / stored with three
    decimals. `referenced` are files outside the image that the job needs, `with_digest` those of
    them whose contents were hashed.
    """

    image_id: str
    format: str
    created: str
    gpuckpt: str
    criu: str
    needs: tuple[str, ...]
    labels: dict[str, str]
    seal: Digest
    tables: Digest
    files: tuple[SavedFile, ...]
    raw: Bytes
    stored: Bytes
    pages: Bytes
    ratio: Annotated[float, Meta(ge=0)]
    carried: Count
    carried_bytes: Bytes
    referenced: Count
    with_digest: Count


class Job(_Part, frozen=True, kw_only=True):
    """The job; `gpu_bytes` is the sum over `uses`, what each process held on each GPU."""

    root_pid: Count
    command: str
    cwd: str
    pids: tuple[int, ...]
    cuda_pids: tuple[int, ...]
    uses: tuple[GpuUse, ...]
    gpu_bytes: Bytes


class Interval(_Part, frozen=True, kw_only=True):
    """The time from event `begin` to event `end` by `clock`; null, and why, if one did not come.

    `begun` is the start of the operation.
    """

    name: str
    begin: str
    end: str
    clock: str
    definition: str
    seconds: Seconds | None
    reason: str


class Timing(_Part, frozen=True, kw_only=True):
    """The times of one attempt.

    All but `started` (wall clock, UTC) and `foreign` are of `clock`, from the start of the
    operation. The phases that are inside no other, and `unaccounted`, add up to `seconds`.
    """

    clock: str
    started: str
    seconds: Seconds
    unaccounted: Seconds
    phases: tuple[Phase, ...]
    events: tuple[Event, ...]
    intervals: tuple[Interval, ...]
    foreign: tuple[Foreign, ...]


class Change(_Part, frozen=True, kw_only=True):
    """Something of the host that is not as it was where the image was made."""

    what: str
    before: str
    after: str


class Attempt(_Part, frozen=True, kw_only=True):
    """One dump or restore, whatever came of it: `outcome` is done, an error's name, or missing.

    A missing one was planned and nothing tells of it. One that was not `planned` is here because
    it was recorded; a start from the beginning, in place of a restore, always is. `lost` tells what
    that cost in seconds of the job. `after` is the host a restore was tried on, `changes` what
    differs from the one before. `forced` are the gates that --force-gate named. `aside` are files
    of that host whose later bytes, or all of them, were put aside, and where to.
    """

    id: str
    operation: Literal["dump", "restore", "cold-start"]
    planned: bool
    outcome: Annotated[str, Meta(pattern="^[a-zA-Z_]+$")]
    error: str = ""
    source: str = ""
    timing: Timing | None = None
    after: Place | None = None
    changes: tuple[Change, ...] = ()
    gates: tuple[Compared, ...] = ()
    forced: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    gpu_map: dict[str, str] = {}
    path_map: dict[str, str] = {}
    aside: dict[str, str] = {}
    lost: Lost | None = None
    pids: tuple[int, ...] = ()
    memory: Memory | None = None
    probe: str = ""
    settle: Seconds = 0.0
    progress: str = ""


class Plan(_Part, frozen=True, kw_only=True):
    """What was to be done: the dump and so many restores, and the attempts that stand for them."""

    restores: Count
    attempts: tuple[str, ...]


class Target(_Part, frozen=True, kw_only=True):
    """A threshold, bound to the one interval it judges; `met` is null if that has no end."""

    attempt: str
    interval: str
    at_most: Seconds
    measured: Seconds | None
    met: bool | None


class Statement(_Part, frozen=True, kw_only=True):
    """One thing that is proved, or is not, of an attempt or of the image."""

    about: str
    what: str
    text: str


class Evidence(_Part, frozen=True, kw_only=True):
    """What is known of one image, its job and its restores, and what is not.

    `before` is the host that the image is from.
    """

    schema: Literal["urn:gpuckpt:evidence:1"]
    written: str
    gpuckpt: str
    image: Saved
    job: Job
    before: Place
    plan: Plan
    attempts: tuple[Attempt, ...]
    targets: tuple[Target, ...]
    proved: tuple[Statement, ...]
    not_proved: tuple[Statement, ...]


class Sealed(Evidence, frozen=True, kw_only=True):
    """Evidence as it is written: `blake3` is the digest of all bytes of the file before it."""

    blake3: Digest


def schema() -> bytes:
    """Return the published schema."""
    made = msgspec.json.schema(Sealed)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": URN,
        "title": "gpuckpt retained-state evidence",
    }
    return msgspec.json.format(msgspec.json.encode(head | made), indent=2) + b"\n"
