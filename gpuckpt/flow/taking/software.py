"""What a job computes with, for its manifest: looked at before it stands still, and once more then.

The first look reads memory and files and may take its time. The second one, while the tree is
frozen, takes over what has not changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import DumpFailed, UsageError
from gpuckpt.flow.sight.obstacles import check_answers
from gpuckpt.image.engine import (
    DistributionRecord,
    Engine,
    LibraryRecord,
    TrackedRecord,
    WeightRecord,
)
from gpuckpt.image.outside import PythonRecord
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpuckpt.flow.request import DumpRequest
    from gpuckpt.flow.sight.look import Sight
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Tree
    from gpuckpt.tools.digest import Digest
    from gpuckpt.tools.software import Survey
    from gpuckpt.tools.tracked import Walk


class Known(Value, frozen=True):
    """All of it, as a manifest has it."""

    pythons: tuple[PythonRecord, ...] = ()
    engine: Engine = Engine()
    models: tuple[WeightRecord, ...] = ()
    tracked: tuple[TrackedRecord, ...] = ()


class Software:
    """The software and data of one dump's job."""

    def __init__(self, operation: Operation, request: DumpRequest) -> None:
        """Look at nothing yet."""
        self._tools = operation.tools
        self._operation = operation
        self._full = request.files.full
        self._track = request.track
        self._before: Survey | None = None

    def look(self, sight: Sight) -> None:
        """Take the long look, while the job runs.

        Raises:
            HostUnfit: a filesystem that is to be tracked does not answer.
            UsageError: a path to be tracked is not there, cannot be read, or holds what a dump
                itself writes.
        """
        check_answers(self._tools, self._track)
        self._check_tracked(sight)
        self._before = self._tools.software.survey(
            sight.tree.processes, full=self._full, advance=self._advance
        )
        for path in self._track:
            with self._operation.record.part(f"track {path}") as step:
                try:
                    found = self._walk(path, lambda count: self._advance(count, step.advance))
                except OSError as why:
                    raise UsageError(
                        f"{_named(why, path)} cannot be tracked: {why.strerror}"
                    ) from why
                if found is None:
                    raise UsageError(f"{path}, which is to be tracked, is not there")

    @property
    def digests(self) -> Mapping[str, Digest]:
        """The digests that the long look has made, by path."""
        return self._before.digests if self._before is not None else {}

    def now(self, tree: Tree) -> Known:
        """Look once more, at the frozen tree; what has not changed is not read again.

        Raises:
            DumpFailed: a tracked path is gone, or cannot be read any more.
        """
        survey = self._tools.software.survey(
            tree.processes, full=self._full, before=self._before, advance=self._advance
        )
        return Known(
            pythons=tuple(_pythons(self._tools, survey)),
            engine=_engine(survey),
            models=tuple(_models(survey)),
            tracked=tuple(self._tracked(path) for path in self._track),
        )

    def _check_tracked(self, sight: Sight) -> None:
        for path in self._track:
            written = [sight.output] if isinstance(sight.output, Path) else []
            for ours in (*written, self._tools.state_dir):
                inside = os.path.commonpath((os.path.realpath(ours), os.path.realpath(path)))
                if inside == os.path.realpath(path):
                    hint = "Name what the job uses in it, or write the image elsewhere (-o)."
                    raise UsageError(
                        f"{path} cannot be tracked: a dump writes to {ours}", hint=hint
                    )

    def _advance(self, count: int, told: Callable[[int], None] = lambda _: None) -> None:
        told(count)
        self._operation.interrupts.check()

    def _walk(self, path: str, advance: Callable[[int], None]) -> Walk | None:
        return self._tools.software.walk(path, full=self._full, advance=advance)

    def _tracked(self, path: str) -> TrackedRecord:
        try:
            found = self._walk(path, self._advance)
        except OSError as why:
            raise DumpFailed(f"{_named(why, path)} cannot be read: {why.strerror}") from why
        if found is None:
            raise DumpFailed(f"{path}, which is tracked, is gone")
        return TrackedRecord(
            path=path,
            kind=found.kind,
            digest=found.digest,
            entries=found.entries,
            size=found.size,
            full=self._full,
            listing=found.listing,
        )


def _named(why: OSError, path: str) -> str:
    return str(why.filename or path)


def _pythons(tools: Toolbox, survey: Survey) -> Iterator[PythonRecord]:
    """List the packages of every Python too: what is imported later is not in its memory."""
    for one in survey.pythons:
        packages = tools.files.packages(one.prefix) if one.prefix else None
        if packages is not None:
            yield PythonRecord(
                prefix=one.prefix,
                packages=packages,
                version=one.version,
                implementation=one.implementation,
                program=one.program,
            )


def _engine(survey: Survey) -> Engine:
    return Engine(
        distributions=tuple(
            DistributionRecord(
                name=one.name,
                version=one.version,
                folder=one.folder,
                build=one.build,
                known=known,
            )
            for one, known in sorted(
                survey.loaded.items(), key=lambda item: (item[0].folder, item[0].name)
            )
        ),
        libraries=tuple(
            LibraryRecord(name=one.name, version=one.version, path=one.path)
            for one in survey.libraries
        ),
        whole=survey.whole,
    )


def _models(survey: Survey) -> Iterator[WeightRecord]:
    for one in survey.weights:
        found = survey.digests[one.path]
        yield WeightRecord(
            path=one.path,
            size=found.size,
            mtime_ns=found.mtime_ns,
            digest=found.hex,
            sampled=found.sampled,
            known=one.known,
            model=one.model,
            commit=one.commit,
        )
