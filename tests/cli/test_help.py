"""Help, README and completions say what the program does; they start quickly."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt import __version__, errors
from gpuckpt.cli import completion
from gpuckpt.cli.app import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Ran

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = {
    "bash": "completions/bash/gpuckpt",
    "zsh": "completions/zsh/_gpuckpt",
    "fish": "completions/fish/gpuckpt.fish",
}
# what takes long to load, or to make; a command loads of it what it uses
NEVER = ("pydantic", "fsspec", "cuda", "rich.live", "psutil", "hmac", "gpuckpt.tools.criulog")
HEAVY = (*NEVER, "pynvml", "zstandard", "blake3", "gpuckpt.tools.proc", "gpuckpt.image.manifest")
LIGHT = {
    "--help": HEAVY,
    "--version": HEAVY,
    "dump --help": HEAVY,
    "dump abc": HEAVY,
    "show none": (*NEVER, "pynvml", "gpuckpt.tools.proc", "gpuckpt.flow.restore"),
    "plan 1": (*NEVER, "gpuckpt.flow.restore", "gpuckpt.flow.rehearse"),
    "compat none": (*NEVER, "pynvml", "gpuckpt.tools.cuda", "gpuckpt.flow.restore"),
    "restore none": (*NEVER, "pynvml", "gpuckpt.flow.dump", "gpuckpt.flow.rehearse"),
}
PATIENCE = 60.0  # seconds; a shell and a few Pythons start


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a PATH on which `gpuckpt` is this checkout."""
    program = tmp_path / "bin" / "gpuckpt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpuckpt "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_readme_has_the_help_text(command: str, gpuckpt: Callable[..., Ran]) -> None:
    ran = gpuckpt(*command.split(), "--help")
    assert ran.code == 0
    prompt = " ".join(word for word in ("$ gpuckpt", command, "--help") if word)
    assert f"\n{prompt}\n{ran.out}```" in README


@pytest.mark.parametrize("script", ["gpuckpt-drain", "gpuckpt-return"])
def test_the_readme_has_the_help_text_of_the_scripts(script: str) -> None:
    done = subprocess.run(
        [ROOT / "bin" / script, "--help"], capture_output=True, text=True, check=True
    )
    assert f"\n$ {script} --help\n{done.stdout}```" in README


def test_the_readme_says_what_becomes_of_the_job() -> None:
    rows = dict(re.findall(r"^\| *(\d+) *\|[^|]*\| *(.*?) *\|$", README, re.MULTILINE))

    def family(root: type[errors.GpuckptError]) -> list[type[errors.GpuckptError]]:
        return [root, *(one for child in root.__subclasses__() for one in family(child))]

    told: dict[str, str] = {}
    for error in family(errors.GpuckptError):  # a special case may say more than its family
        told.setdefault(str(error.code), error.job)
    told["1"] = errors.GpuckptError.job  # an Interrupted has no code of its own
    assert {code: rows[code] for code in told} == told


def test_every_option_of_the_readme_exists(gpuckpt: Callable[..., Ran]) -> None:
    known = set()
    for command in ("", *COMMANDS):
        known |= set(re.findall(r"(?<!\S)--[a-z-]+", gpuckpt(*command.split(), "--help").out))
    used = set(re.findall(r"gpuckpt [a-z]+ [^\n`]*?(--[a-z-]+)", README))
    assert used <= known


def test_the_version_is_told(gpuckpt: Callable[..., Ran]) -> None:
    assert gpuckpt("--version").out == f"gpuckpt {__version__}\n"


@pytest.mark.parametrize(("line", "heavy"), LIGHT.items(), ids=str)
def test_what_is_not_used_is_not_loaded(line: str, heavy: tuple[str, ...]) -> None:
    """Start-up is what a shell waits for on TAB, a script in a loop, and a job that stands still.

    By names, not by seconds: those are the bench's.
    """
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpuckpt", *line.split()],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    loaded = {part.rpartition("|")[2].strip() for part in done.stderr.splitlines()}
    assert "gpuckpt.cli.main" in loaded
    assert not [name for name in heavy if name in loaded]


@pytest.mark.parametrize("shell", FILES)
def test_completions_are_those_the_program_makes(
    shell: str, gpuckpt: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(completion.VARIABLE, f"source_{shell}")
    assert gpuckpt().out == (ROOT / FILES[shell]).read_text(encoding="utf-8")


def test_there_is_no_completion_for_other_shells(
    gpuckpt: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(completion.VARIABLE, "source_tcsh")
    assert gpuckpt().code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes(path: str, tmp_path: Path) -> None:
    image = tmp_path / "work" / "image"
    image.mkdir(parents=True)
    (image / "manifest.json").touch()
    (tmp_path / "work" / "other").mkdir()
    script = """
        source "$1"
        compopt() { :; }  # works inside of a completion only
        for line in 'dump --lev' 'dump --tcp ' 'dump --ignore sp' 'd' \\
            'restore im' 'restore o' 'restore ../work/'; do
            mapfile -t words < <(printf '%s\\n' gpuckpt ${line})
            [[ $line == *' ' ]] && words+=('')
            COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
            _gpuckpt gpuckpt
            echo "$line: ${COMPREPLY[*]}"
        done
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", str(ROOT / FILES["bash"])],
        cwd=tmp_path / "work",
        env={"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "dump --lev: --level",
        "dump --tcp : none established close",
        "dump --ignore sp: space",
        "d: dump doctor demo",
        "restore im: image",
        "restore o: other/",
        "restore ../work/: ../work/image ../work/other/",
    ]
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_their_file(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([program, "-n", ROOT / FILES[shell]], check=True, timeout=PATIENCE)
