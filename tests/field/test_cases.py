"""The table of field cases is in step with the tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.field.cases import CASES

TESTS = Path(__file__).parent.parent
# how many there are of each group
GROUPS = {"C": 7, "D": 23, "G": 32, "O": 5, "P": 6, "R": 20, "S": 11}
NODE = re.compile(r"(?P<file>[\w/]+\.py)::(?P<name>test_\w+)(?:\[(?P<parameter>.+)\])?")


@cache
def functions(file: Path) -> frozenset[str]:
    """Return the names of a module's tests."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def missing(node: str) -> str:
    """Say what of a node id does not exist, nothing if it does."""
    found = NODE.fullmatch(node)
    if found is None:
        return "no node id"
    file = TESTS / found["file"]
    if not file.is_file():
        return f"no file {found['file']}"
    if found["name"] not in functions(file):
        return f"no test {found['name']}"
    words = re.split(r"-(?=\w)|(?<=\w)-", found["parameter"] or "")
    text = file.read_text(encoding="utf-8")
    return next((f"no parameter {word}" for word in words if word not in text), "")


def test_every_case_is_there_once_and_in_order() -> None:
    ids = [case.id for case in CASES]
    assert ids == sorted(set(ids))
    assert {group: sum(id_[0] == group for id_ in ids) for group in GROUPS} == GROUPS
    assert all(case.title for case in CASES)


def test_every_case_is_shown_or_judged() -> None:
    silent = [case.id for case in CASES if not case.nodes and len(case.verdict.split()) < 2]
    assert not silent
    unfinished = [case.id for case in CASES if case.verdict and not case.verdict.endswith(".")]
    assert not unfinished, "a verdict is a sentence"
    assert not [case.id for case in CASES if "TODO" in case.verdict]


def test_every_test_named_exists() -> None:
    wrong = [
        (case.id, node, why) for case in CASES for node in case.nodes if (why := missing(node))
    ]
    assert not wrong


def test_every_test_of_this_folder_belongs_to_a_case() -> None:
    named = {node.partition("::")[0] for case in CASES for node in case.nodes}
    here = Path(__file__)
    files = {str(file.relative_to(TESTS)) for file in here.parent.glob("test_*.py") if file != here}
    assert files <= named
