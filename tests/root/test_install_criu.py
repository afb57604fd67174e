"""bin/install-criu keeps what works until something better stands, and says what it did.

The way through apt is walked by `make setup`; here the new prefix comes from a folder.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

PROGRAM = Path(__file__).parents[2] / "bin/install-criu"
PATIENCE = 60.0  # seconds; a few shells start


def prefix(folder: Path, version: str = "4.2.1", check: int = 0) -> Path:
    """Make a prefix whose CRIU claims a version, and whether this kernel lets it work."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin/criu"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "Version: {version}" && exit\nexit {check}\n'
    )
    program.chmod(0o755)
    return folder


def install(*argv: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *map(str, argv)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def version(folder: Path) -> str:
    return subprocess.run(
        [folder / "bin/criu", "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "tar"])
def test_a_prefix_is_copied(tmp_path: Path, packed: bool) -> None:
    source = prefix(tmp_path / "source")
    if packed:
        subprocess.run(["tar", "-C", source, "-cf", tmp_path / "made.tar", "."], check=True)
        source = tmp_path / "made.tar"
    target = tmp_path / "a place" / "criu"
    done = install("--prefix", target, "--from", source)
    assert done.returncode == 0, done.stderr
    assert f"CRIU 4.2.1 is installed: {target}/bin/criu" in done.stdout
    assert version(target) == "Version: 4.2.1"
    assert target.stat().st_mode & 0o777 == 0o755
    assert list(target.parent.iterdir()) == [target]


def test_what_is_good_stays(tmp_path: Path) -> None:
    target = prefix(tmp_path / "criu", "4.2.1")
    newer = prefix(tmp_path / "newer", "4.3")
    done = install("--prefix", target, "--from", newer)
    assert done.returncode == 0, done.stderr
    assert "is there already" in done.stdout
    assert version(target) == "Version: 4.2.1"
    assert install("--force", "--prefix", target, "--from", newer).returncode == 0
    assert version(target) == "Version: 4.3"


def test_what_is_too_old_is_replaced(tmp_path: Path) -> None:
    target = prefix(tmp_path / "criu", "4.1.1")
    assert install("--prefix", target, "--from", prefix(tmp_path / "new")).returncode == 0
    assert version(target) == "Version: 4.2.1"


@pytest.mark.parametrize("bad", ["old", "empty", "missing"])
def test_a_bad_source_leaves_the_old_prefix(tmp_path: Path, bad: str) -> None:
    target = prefix(tmp_path / "here/criu", "4.2.1")
    if bad == "old":
        prefix(tmp_path / bad, "4.1.1")
    elif bad == "empty":
        (tmp_path / bad).mkdir()
    done = install("--force", "--prefix", target, "--from", tmp_path / bad)
    assert done.returncode == 1
    assert "install-criu: " in done.stderr
    assert version(target) == "Version: 4.2.1"
    assert list(target.parent.iterdir()) == [target]


def test_a_kernel_that_does_not_let_criu_work_is_an_error(tmp_path: Path) -> None:
    source = prefix(tmp_path / "source", check=1)
    done = install("--prefix", tmp_path / "criu", "--from", source)
    assert done.returncode == 1
    assert "does not let it work" in done.stderr


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["--prefix"], 2), (["--nonsense"], 2), (["--prefix", "here"], 1), (["--help"], 0)],
    ids=["no-value", "unknown", "relative", "help"],
)
def test_usage(argv: list[str], code: int) -> None:
    done = install(*argv)
    assert done.returncode == code
    assert done.stdout if code == 0 else done.stderr


def test_the_real_one_runs_through_a_link(tmp_path: Path) -> None:
    real = Path("/opt/gpuckpt/criu/bin/criu")
    if not real.exists():
        pytest.skip("this machine's CRIU is not of our making")
    (tmp_path / "criu").symlink_to(real)
    done = subprocess.run(
        [tmp_path / "criu", "check"], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stdout == "Looks good.\n", done.stderr
