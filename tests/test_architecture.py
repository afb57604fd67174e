"""The rules of the house that no single file can show: layers, sizes, names, one door outside."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gpuckpt
from gpuckpt.errors import Bug, GpuckptError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "gpuckpt").rglob("*.py"))
FILE_LINES = 300
LISTS = {"errors.py": 450, "model.py": 450}  # many small things, found by searching
FUNCTION_LINES = 60
DOORS = {"subprocess", "multiprocessing", "pty"}
STARTERS = re.compile(r"system|popen|posix_spawnp?|(exec|spawn)[lv]p?e?|fork|forkpty")


def parsed(source: Path) -> ast.Module:
    return ast.parse(source.read_text(encoding="utf-8"), str(source))


def names(sources: list[Path]) -> list[str]:
    return [str(source.relative_to(ROOT)) for source in sources]


def linter(name: str) -> Path:
    program = Path(sys.prefix) / "bin" / name
    if not program.exists():
        pytest.skip(f"{name} is not installed beside this Python")
    return program


def every_error() -> list[type[GpuckptError]]:
    for module in pkgutil.walk_packages(gpuckpt.__path__, "gpuckpt."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[GpuckptError]] = []
    todo = [GpuckptError]
    while todo:
        found.append(todo.pop())
        todo += found[-1].__subclasses__()
    return found


@pytest.mark.programs
def test_imports_follow_the_layers() -> None:
    done = subprocess.run(
        [linter("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("source", SOURCES, ids=names(SOURCES))
def test_files_and_functions_stay_short(source: Path) -> None:
    assert len(source.read_text(encoding="utf-8").splitlines()) <= LISTS.get(
        source.name, FILE_LINES
    )
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES
    ]
    assert not long


@pytest.mark.parametrize("source", SOURCES, ids=names(SOURCES))
def test_programs_start_through_one_door(source: Path) -> None:
    # two of them are programs by themselves: one becomes a program of the user's and starts none,
    # one is process 1 of a pid namespace, where nobody else could start CRIU
    if source in {ROOT / f"gpuckpt/tools/{name}.py" for name in ("run", "launch", "pidspace_init")}:
        return
    used: list[str] = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            used += [alias.name for alias in node.names if alias.name.split(".")[0] in DOORS]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in DOORS:
            used.append(str(node.module))
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
            and STARTERS.fullmatch(node.attr)
        ):
            used.append(f"os.{node.attr}")
    assert not used


def test_package_files_are_empty() -> None:
    packages = [source for source in SOURCES if source.name == "__init__.py"]
    filled = [name for name in packages if name.read_text(encoding="utf-8").strip()]
    assert names(filled) == ["gpuckpt/__init__.py"]


def test_error_names_are_unique() -> None:
    errors = [error for error in every_error() if error is not Bug]  # the root's own name
    nameless = [error.__name__ for error in errors if "name" not in vars(error)]
    assert not nameless
    assert len({error.name for error in errors}) == len(errors)


def spoken(node: ast.expr) -> Iterator[str]:
    """Go through the texts that an argument may be, with a mark where a value is put in."""
    match node:
        case ast.IfExp():
            yield from spoken(node.body)
            yield from spoken(node.orelse)
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr():
            parts = (one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)
            yield "".join(map(str, parts))


@pytest.mark.parametrize("source", SOURCES, ids=names(SOURCES))
def test_findings_are_told_in_sentences(source: Path) -> None:
    """Reason and remedy begin with a capital and end with a full stop, or with a command.

    A command stands behind a colon and at the end, where it can be copied.
    """
    wrong = []
    for node in ast.walk(parsed(source)):
        if not isinstance(node, ast.Call) or len(node.args) < 4:
            continue
        if not re.search(r"\b(blocker|warning|finding|make)\b", ast.unparse(node.func)):
            continue
        for text in (*spoken(node.args[2]), *spoken(node.args[3])):
            begins = text[:1].isupper() or text.startswith(("{}", "`", "/"))
            ends = text.endswith((".", "{}")) or ": " in text.rpartition(". ")[2]
            if not (begins and ends):
                wrong.append(text)
    assert not wrong


def test_the_readme_explains_every_exit_code() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| *(\d+) *\|", readme, re.MULTILINE)
    assert {error.code for error in every_error()} <= {int(code) for code in table}
    assert len(table) == len(set(table))
