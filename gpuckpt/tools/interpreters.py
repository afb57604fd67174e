"""The Pythons that a tree runs in, and their versions, read from their files.

No Python is started to be asked: it would run the user's own start-up code as root.
"""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from gpuckpt.tools.environment import paths
from gpuckpt.tools.procfs import link, read
from gpuckpt.tools.surroundings import PYTHON, prefix
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LIBRARY: Final = re.compile(
    r".*/lib(?P<kind>python|pypy)(?P<version>3\.\d+)?[a-z]*(-c)?\.so[.\d]*"
)
_VERSION: Final = re.compile(r"(3\.\d+)")
_FOLDERS: Final = ("lib/python3*/site-packages", "lib/python3*/dist-packages")
_LARGEST: Final = 256 << 20
_SYMBOL: Final = b"Py_Version"  # CPython 3.11 and newer have it
_LEVELS: Final = {0xA: "a", 0xB: "b", 0xC: "rc"}
_EHDR64: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR64: Final = struct.Struct("<IIQQQQIIQQ")
_PHDR64: Final = struct.Struct("<IIQQQQQQ")
_SYM64: Final = struct.Struct("<IBBHQQ")
_PT_LOAD, _SHT_DYNSYM = 1, 11


class Interpreter(Value, frozen=True):
    """One of them.

    `program` is the file that is it: its shared library, or its program. `prefix` is where it
    imports from, "" if it lies within another program; `paths` are further folders of PYTHONPATH.
    """

    program: str
    prefix: str
    version: str
    implementation: str
    paths: tuple[str, ...] = ()

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that installed packages may be in."""
        place = Path(self.prefix)
        found = (one for pattern in _FOLDERS for one in place.glob(pattern)) if self.prefix else ()
        return (*sorted(map(str, found)), *self.paths)


def interpreter(root: Path, pid: int, mapped: Iterable[str]) -> Interpreter | None:
    """Return the Python that a process is, or has within; None if there is none."""
    folder = f"{root}/{pid}"
    exe = link(f"{folder}/exe") or ""
    library = next((path for path in mapped if _LIBRARY.fullmatch(path)), "")
    if not library and not PYTHON.search(exe):
        return None
    program = library or exe
    try:
        told = paths(read(f"{folder}/environ") or b"").get("PYTHONPATH", "")
    except OSError:
        told = ""
    return Interpreter(
        program=program,
        prefix=prefix(folder),
        version=version(program),
        implementation="pypy" if "pypy" in os.path.basename(program) else "cpython",  # noqa: PTH119
        paths=tuple(one for one in told.split(":") if one.startswith("/")),
    )


def version(program: str) -> str:
    """Return the version of the Python in a file: as exact as can be told; "" if it is not there.

    By the number it exports, else by the header installed beside it, else by the text in it; and if
    none of these is there, by its name.
    """
    try:
        with open(program, "rb") as file:  # noqa: PTH123 - paths from /proc may hold any bytes
            number = _exported(file)
            if number:
                return _named(number)
            short = _VERSION.search(os.path.basename(program))  # noqa: PTH119
            if short is None:
                return ""
            file.seek(0)
            return _header(program, short[1]) or _text(file, short[1]) or short[1]
    except (OSError, struct.error):
        return ""


def _named(number: int) -> str:
    """Turn 0x030b07f0 into 3.11.7."""
    major, minor, micro = number >> 24 & 0xFF, number >> 16 & 0xFF, number >> 8 & 0xFF
    level = _LEVELS.get(number >> 4 & 0xF, "")
    return f"{major}.{minor}.{micro}" + (f"{level}{number & 0xF}" if level else "")


def _header(program: str, short: str) -> str:
    """Look for what a Python's own build has installed beside it."""
    try:
        base = Path(program).resolve().parent.parent
        raw = (base / f"include/python{short}/patchlevel.h").read_text("utf-8", "replace")
    except OSError:
        return ""
    found = re.search(r'#define PY_VERSION\s+"(3[.\w+]+)"', raw)
    return found[1] if found else ""


def _text(file: IO[bytes], short: str) -> str:
    pattern = rb"\0(" + re.escape(short.encode()) + rb"\.\d{1,3}(?:(?:a|b|rc)\d+)?\+?)\0"
    found = set(re.findall(pattern, file.read(_LARGEST)))
    return found.pop().decode() if len(found) == 1 else ""


def _exported(file: IO[bytes]) -> int:
    """Return the number that a little-endian 64-bit ELF file exports as its version, 0 if none."""
    head = file.read(_EHDR64.size)
    if len(head) < _EHDR64.size or head[:6] != b"\x7fELF\x02\x01":
        return 0
    fields = _EHDR64.unpack(head)
    sections = list(_table(file, fields[6], fields[12], _SHDR64))
    for one in sections:
        if one[1] == _SHT_DYNSYM and one[6] < len(sections):
            address = _symbol(file, one, sections[one[6]])
            segments = _table(file, fields[5], fields[10], _PHDR64)
            return _word(file, address, segments) if address else 0
    return 0


def _table(
    file: IO[bytes], offset: int, count: int, entry: struct.Struct
) -> Iterator[tuple[int, ...]]:
    file.seek(offset)
    raw = file.read(count * entry.size)
    return entry.iter_unpack(raw[: len(raw) // entry.size * entry.size])


def _symbol(file: IO[bytes], symbols: tuple[int, ...], names: tuple[int, ...]) -> int:
    """Return the address of the symbol, 0 if it is not there."""
    file.seek(names[4])
    texts = file.read(min(names[5], _LARGEST))
    name = texts.find(b"\0" + _SYMBOL + b"\0") + 1
    count = min(symbols[5], _LARGEST) // _SYM64.size
    found = (one for one in _table(file, symbols[4], count, _SYM64) if one[0] == name)
    one = next(found, None) if name else None
    return one[4] if one is not None else 0


def _word(file: IO[bytes], address: int, segments: Iterable[tuple[int, ...]]) -> int:
    """Return the 4 bytes that stand at an address when the file is loaded."""
    for kind, _, offset, start, _, size, *_ in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            file.seek(offset + address - start)
            return int.from_bytes(file.read(4), "little")
    return 0
