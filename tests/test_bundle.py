"""The offline kit is one readable tar file, the same for the same input, with the right things."""

from __future__ import annotations

import importlib.util
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[1] / "bin/dev/bundle.py"


@pytest.fixture(scope="module")
def bundle() -> Any:
    spec = importlib.util.spec_from_file_location("bundle", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_streams_one_after_the_other_are_one_tar_file(
    bundle: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "CHUNK", 4096)
    kit = {"site/cp312/b-312-c.so": b"2" * 9000, "site/cp311/b-311-c.so": b"1" * 9000}
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    raw = bundle.packed(kit, {"bin/script": script})
    assert raw == bundle.packed(dict(reversed(kit.items())), {"bin/script": script})
    with tarfile.open(fileobj=io.BytesIO(bundle.compressed(raw)), mode="r:xz") as tar:
        members = {member.name: member for member in tar}
        assert list(members) == [*sorted(kit), "bin/script"]
        found = tar.extractfile("site/cp312/b-312-c.so")
        assert found is not None
        assert found.read() == b"2" * 9000
    assert members["bin/script"].mode & 0o111
    assert {(member.uid, member.mtime) for member in members.values()} == {(0, 0)}


def test_what_gpuckpt_never_loads_stays_out(bundle: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "one-1-py3-none-any.whl", "w") as wheel:
        for name in ("one/__init__.py", "one/tests/test_it.py", "one/one.pyi", "one/lib.a"):
            wheel.writestr(name, name)
    assert bundle.unpacked(tmp_path) == {"one/__init__.py": b"one/__init__.py"}


def test_a_wheel_that_is_more_than_files_is_refused(bundle: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "two-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("two-1.data/scripts/two", "")
    with pytest.raises(SystemExit, match="no plain wheel"):
        bundle.unpacked(tmp_path)


def test_the_programs_of_the_tree_are_in_it(bundle: Any) -> None:
    names = set(bundle.programs())
    assert {"bin/install-criu", "LICENSE"} <= names
    assert "bin/gpuckpt" not in names, "the installer writes its own"
    assert not [name for name in names if "dev" in name]
