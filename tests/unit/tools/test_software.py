"""What a tree computes with, found in real processes from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt.tools import hub
from gpuckpt.tools.distributions import installed, owners, place
from gpuckpt.tools.imported import imported
from gpuckpt.tools.interpreters import Interpreter, version
from gpuckpt.tools.libraries import beside, libraries
from gpuckpt.tools.loaded import loaded
from gpuckpt.tools.proc import Proc
from gpuckpt.tools.software import Software, Survey
from gpuckpt.tools.weights import Use
from tests.software_places import EXTENSION, distribution, environment, snapshot, uninstall

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
JOB = """
import importlib.util, mmap, sys
import pure, single, vendor.part
import native._json
importlib.util.find_spec("unused")
weights = open(sys.argv[1], "rb")
mapped = mmap.mmap(weights.fileno(), 0, access=mmap.ACCESS_READ)
weights.close()
log = open(sys.argv[2], "wb")
print("up", flush=True)
sys.stdin.read()
"""


@contextmanager
def running(*argv: object, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run a job until it says that it is up; end it afterwards."""
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [str(one) for one in argv], stdin=pipe, stdout=pipe, text=True, env=clean
    ) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "up\n"
            yield job
        finally:
            job.kill()


def survey(job: subprocess.Popen[str], software: Software, before: Survey | None = None) -> Survey:
    tree = Proc().tree(job.pid)
    return software.survey(tree.processes, full=False, before=before)


def test_a_job_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """What is mapped, what only memory tells of, and what is merely installed."""
    assert EXTENSION is not None, "no extension module to copy"
    python, site = environment(tmp_path / "venv")
    extension = f"native/{EXTENSION.name}"
    files: dict[str, dict[str, bytes | Path]] = {
        "Native-Code": {"native/__init__.py": b"", extension: EXTENSION},
        "pure": {"pure/__init__.py": b"from pure import inner", "pure/inner.py": b"def f(): 1"},
        "single": {"single.py": b"x = 1"},
        "vendor.part": {"vendor/part/__init__.py": b""},
        "vendor.other": {"vendor/other/__init__.py": b""},
        "unused": {"unused/__init__.py": b""},
    }
    infos = {name: distribution(site, name, "1.0", found) for name, found in files.items()}
    place = snapshot(tmp_path / "hub", "org/name", COMMIT, {"model.safetensors": b"w" * 5000})
    software = Software(PROC)
    log = tmp_path / "checkpoint.pt"
    with running(python, "-c", JOB, place / "model.safetensors", log) as job:
        seen = survey(job, software)
        again = survey(job, software, seen)
        alone = imported(PROC, job.pid, most=1 << 16)
    assert again == seen
    (one,) = seen.pythons
    assert (one.prefix, one.implementation) == (str(tmp_path / "venv"), "cpython")
    assert one.version == sys.version.split()[0]
    assert software.python(one.program) == one.version
    known = {one.name: how for one, how in seen.loaded.items()}
    assert known.pop("native-code") in {("mapped",), ("mapped", "memory")}
    assert known == dict.fromkeys(("pure", "single", "vendor-part"), ("memory",))
    assert seen.whole
    assert not alone.whole
    (weights,) = seen.weights
    assert (weights.model, weights.commit) == ("org/name", COMMIT)
    assert weights.known == ("argument", "mapped", "open")
    assert seen.digests[weights.path].size == 5000
    # another build of the same version is another one, wherever it is installed
    build = next(one.build for one in seen.loaded if one.name == "pure")
    shutil.copytree(site, tmp_path / "copy")
    assert installed(str(tmp_path / "copy"), ["pure"])["pure"].build == build
    uninstall(infos["pure"])
    assert software.installed(str(site), ["pure"]) == {}
    distribution(site, "pure", "1.0", {"pure/__init__.py": b"import this"})
    assert software.installed(str(site), ["pure"])["pure"].build != build


def test_what_comes_after_the_first_look_is_seen_by_the_second(tmp_path: Path) -> None:
    first, second = tmp_path / "one.gguf", tmp_path / "two.gguf"
    first.write_bytes(b"1")
    second.write_bytes(b"22")
    code = "import sys\na = open(sys.argv[1])\nprint('up', flush=True)\nsys.stdin.readline()\n"
    code += "b = open(sys.argv[1].replace('one', 'two'))\nprint('on', flush=True)\n"
    code += "sys.stdin.read()"
    software = Software(PROC)
    with running(sys.executable, "-c", code, first) as job:
        before = survey(job, software)
        assert job.stdin is not None
        assert job.stdout is not None
        job.stdin.write("\n")
        job.stdin.flush()
        assert job.stdout.readline() == "on\n"
        first.write_bytes(b"3")
        after = survey(job, software, before)
    assert [one.path for one in before.weights] == [str(first)]
    assert [one.path for one in after.weights] == [str(first), str(second)]
    assert after.digests[str(first)] != before.digests[str(first)]


def test_of_workers_that_were_forked_one_tells_for_all(tmp_path: Path) -> None:
    """However little is left to be read: what one of a kind has imported is known."""
    python, site = environment(tmp_path / "venv")
    distribution(site, "pure", "1.0", {"pure/__init__.py": b"def f(): 1"})
    code = "import os, sys, time\nimport pure\nkids = [os.fork() for _ in range(2)]\n"
    code += "if all(kids):\n    time.sleep(0.2)\n    print('up', flush=True)\nsys.stdin.read()"
    software = Software(PROC)
    with running(python, "-c", code) as job:
        tree = Proc().tree(job.pid)
        before = software.survey(tree.processes, full=False)
    assert len(tree.processes) > 2
    assert before.whole
    assert {one.name: how for one, how in before.loaded.items()} == {"pure": ("memory",)}


def test_models_that_a_command_line_names(tmp_path: Path) -> None:
    """By a path, from its folder, behind an equals sign, by the name it has in the cache."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "a.safetensors", "data.bin", "notes.txt"):
        (folder / name).write_bytes(b"x")
    (tmp_path / "lone.gguf").write_bytes(b"y")
    (tmp_path / "train.bin").write_bytes(b"no weights: nothing describes a model here")
    snapshot(tmp_path / "cache" / "hub", "org/name", COMMIT, {"model-1.safetensors": b"1"})
    snapshot(tmp_path / "cache" / "hub", "org/name", "f" * 40, {"model-1.safetensors": b"2"})
    old = "import os, sys; os.chdir(sys.argv[1]); print('up', flush=True); sys.stdin.read()"
    words = ["./model", "--weights=lone.gguf", "train.bin", "--model", "org/name"]
    words += ["--revision", COMMIT, "/", "nothing/here"]
    with running(
        sys.executable, "-c", old, tmp_path, *words, HF_HOME=str(tmp_path / "cache")
    ) as job:
        (tmp_path / "model" / "later.safetensors").write_bytes(b"its own work")
        os.utime(tmp_path / "model" / "later.safetensors", (time.time() + 60,) * 2)
        found = survey(job, Software(PROC)).weights
    names = {one.path.removeprefix(f"{tmp_path}/"): one for one in found}
    cached = f"cache/hub/models--org--name/snapshots/{COMMIT}/model-1.safetensors"
    assert set(names) == {"model/a.safetensors", "model/data.bin", "lone.gguf", cached}
    assert names[cached].commit == COMMIT
    assert {one.known for one in found} == {("argument",)}


def test_a_zombie_has_no_command_line_to_name_any() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    (ended,) = Proc().tree(child.pid).processes
    assert ended.argv == ()
    assert Software(PROC).survey((ended,), full=False).weights == ()
    child.wait()


def test_the_cache_of_hugging_face(tmp_path: Path) -> None:
    place = snapshot(tmp_path, "org/name", COMMIT, {"model.bin": b"1", "config.json": b"{}"})
    blob = os.path.realpath(place / "model.bin")
    assert hub.names_of(blob) == [str(place / "model.bin")]
    assert hub.names_of(str(tmp_path / "else")) == []
    found = hub.snapshot(str(tmp_path), "org/name", "")
    assert found == hub.snapshot_of(str(place / "model.bin"))
    assert found is not None
    assert found.commit == COMMIT
    assert hub.snapshot(str(tmp_path), "org/name", "no-such-branch") is None
    assert hub.snapshot(str(tmp_path), "../../etc", "") is None
    told = {"HOME": "/home/me", "HF_HUB_CACHE": "/fast/hub"}
    assert hub.hubs(told) == ["/fast/hub", "/home/me/.cache/huggingface/hub"]


def test_folders_of_packages() -> None:
    assert place("/v/lib/python3.11/site-packages/a/b.so") == (
        "/v/lib/python3.11/site-packages",
        "a/b.so",
    )
    assert place("/opt/mine/a.so", {"/opt/mine", "/opt"}) == ("/opt/mine", "a.so")
    assert place("/opt/other/a.so", {"/opt/mine"}) == ("", "")


def test_packages_without_a_list_of_files_are_known_by_their_top_names(tmp_path: Path) -> None:
    for name in ("Old_Thing-2.0-py3.11.egg-info", "plain-1.0.dist-info"):
        (tmp_path / name).mkdir()
    (tmp_path / "Old_Thing-2.0-py3.11.egg-info" / "top_level.txt").write_text("oldthing\n_old\n")
    found = owners(str(tmp_path), ["oldthing/a.py", "_old.so", "plain.py", "stray.py"])
    assert {one.name: (one.version, mine) for one, mine in found.items()} == {
        "old-thing": ("2.0", {"oldthing/a.py", "_old.so"}),
        "plain": ("1.0", {"plain.py"}),
    }


def test_engines_count_as_installed_where_memory_could_not_be_read(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("transformers", "torch", "other"):
        distribution(site, name, "1.0", {f"{name}/__init__.py": b"", f"{name}/_C.so": b""})
    python = Interpreter("/usr/bin/python3.11", str(tmp_path), "3.11.2", "cpython")
    used = [Use(f"{site}/torch/_C.so", "mapped")]
    found = loaded([python], used, [], whole=False)
    assert {one.name: how for one, how in found.items()} == {
        "torch": ("mapped",),
        "transformers": ("installed",),
    }
    assert [one.name for one in loaded([python], used, [], whole=True)] == ["torch"]


def test_libraries_by_their_names(tmp_path: Path) -> None:
    names = ["libcudart.so.12.4.127", "libcudart-d0da41ae.so.11.0", "libnccl.so.2", "libc.so.6"]
    names += ["libcudnn_ops_infer.so.8.9.7", "libcublasLt.so.12.4.5.8", "libcuda.so.580.1"]
    found = {one.path.rpartition("/")[2]: one for one in libraries(f"/l/{name}" for name in names)}
    assert {name: (one.name, one.version) for name, one in found.items()} == {
        names[0]: ("cudart", "12.4.127"),
        names[1]: ("cudart", "11.0"),
        names[2]: ("nccl", "2"),
        names[4]: ("cudnn_ops_infer", "8.9.7"),
        names[5]: ("cublasLt", "12.4.5.8"),
    }
    for name in ("libnccl.so.2", "libnccl.so.2.21.5", "libnccl.so"):
        (tmp_path / name).touch()
    assert beside(str(tmp_path / "libnccl.so.2.27.3")) == ("2.21.5",)
    assert beside(str(tmp_path / "none" / "libnccl.so.2")) == ()


@pytest.mark.parametrize("program", ["/bin/sh", "/nonexistent", "/proc/self/mem"])
def test_what_is_no_python_has_no_version(program: str) -> None:
    assert version(program) == ""
