"""A plugin for CRIU that puts a stand-in where a forked child holds a device it cannot use.

CRIU gives up at a descriptor or mapping of a device that it has no code for, whatever its options
say (4.2.1: --external is for block devices, mounts and namespaces); only a plugin may say
otherwise. Ours says yes to the very device numbers it is made for, and at the restore /dev/zero
takes their place, which can be opened and mapped anywhere. The living job is never touched.

A plugin is a shared library. This one is a few instructions that need no other library; it is
written here byte by byte, since no compiler is to be expected on a GPU node.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

# criu-plugin.h as of 4.2: version 0.2.0, the hooks of interest by their places, and how many come
# up to the last of these; later ones take older plugins
_VERSION: Final = 0x000200
_DUMP_FILE, _RESTORE_FILE, _DEVICE_MAPPED, _MAP_ANEW = 2, 3, 7, 8
_HOOKS: Final = 9
_NAME: Final = b"gpuckpt\0"
_SYMBOL: Final = b"\0CR_PLUGIN_DESC\0"

# x86-64 instructions; the numbers of devices follow, eight bytes each, and a zero after the last
_CODE: Final = bytes.fromhex(
    # 0x00: int dump_file(int fd, int id)
    "4881ec98000000"  # sub rsp, 152      room for a struct stat
    "4889e6"  # mov rsi, rsp
    "b805000000"  # mov eax, 5            fstat
    "0f05"  # syscall
    "488b542428"  # mov rdx, [rsp+40]     its st_rdev
    "4881c498000000"  # add rsp, 152
    "85c0"  # test eax, eax
    "7405"  # jz 0x26
    "c3"  # ret                           with the error
    # 0x22: int device_mapped(int fd, const struct stat *stat)
    "488b5628"  # mov rdx, [rsi+40]       its st_rdev
    # 0x26: is rdx one of the numbers?
    "488d3548000000"  # lea rsi, [0x75]
    "48ad"  # 0x2d: lodsq                 rax = the next number
    "4885c0"  # test rax, rax
    "7408"  # jz 0x3c
    "4839d0"  # cmp rax, rdx
    "75f4"  # jne 0x2d
    "31c0"  # xor eax, eax                taken
    "c3"  # ret
    "b8a1ffffff"  # 0x3c: mov eax, -95    ENOTSUP: CRIU refuses it as ever
    "c3"  # ret
    # 0x42: int restore_file(int id)
    "488d3d22000000"  # lea rdi, [0x6b]
    "be02000800"  # mov esi, 0x80002      O_RDWR | O_CLOEXEC
    "b802000000"  # mov eax, 2            open
    "0f05"  # syscall
    "c3"  # ret                           with the descriptor or the error
    # 0x56: int map_anew(path, address, old_offset, uint64_t *offset, int *fd)
    "48c70100000000"  # mov qword [rcx], 0
    "e8e0ffffff"  # call 0x42
    "418900"  # mov [r8], eax
    "b801000000"  # mov eax, 1            CRIU maps that descriptor
    "c3"  # ret
    "2f6465762f7a65726f00"  # 0x6b: "/dev/zero"
)
_ENTRIES: Final = {_DUMP_FILE: 0x00, _RESTORE_FILE: 0x42, _DEVICE_MAPPED: 0x22, _MAP_ANEW: 0x56}

# <elf.h>
_PAGE: Final = 4096
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ_WRITE, _READ_RUN = 6, 5
_HASH, _STRTAB, _SYMTAB, _RELA, _RELASZ, _RELAENT, _STRSZ, _SYMENT = 4, 5, 6, 7, 8, 9, 10, 11
_RELATIVE: Final = 8


def library(numbers: Iterable[int]) -> bytes:
    """Return the plugin that takes devices of these numbers, as st_rdev tells them, and no other.

    A plugin without numbers is good for a restore.
    """
    code = _CODE + b"".join(struct.pack("<Q", one) for one in (*sorted(numbers), 0))
    read = bytearray(64 + 4 * 56)  # the ELF header and four program headers come last
    symbol = _append(read, bytes(48))
    string = _append(read, _SYMBOL)
    hashes = _append(read, struct.pack("<5I", 1, 2, 1, 0, 0))  # one bucket: the second symbol
    relocations = _append(read, bytes(24 * (1 + len(_ENTRIES))))
    name = _append(read, _NAME)
    start = _append(read, code)

    table = len(read) + -len(read) % _PAGE
    tags = {_HASH: hashes, _STRTAB: string, _STRSZ: len(_SYMBOL), _SYMTAB: symbol, _SYMENT: 24}
    tags |= {_RELA: relocations, _RELASZ: 24 * (1 + len(_ENTRIES)), _RELAENT: 24, 0: 0}
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in tags.items())
    described = table + len(dynamic)
    hooks = described + 32
    description = struct.pack("<QQQII", 0, 0, 0, _VERSION, _HOOKS) + bytes(8 * _HOOKS)
    places = {described: name} | {hooks + 8 * n: start + at for n, at in _ENTRIES.items()}

    struct.pack_into("<IBBHQQ", read, symbol + 24, 1, 0x11, 0, 1, described, len(description))
    for at, (where, what) in enumerate(places.items()):
        struct.pack_into("<QQQ", read, relocations + 24 * at, where, _RELATIVE, what)
    _head(read, table, len(dynamic), len(dynamic) + len(description))
    return bytes(read).ljust(table, b"\0") + dynamic + description


def _append(to: bytearray, what: bytes) -> int:
    """Append something on a boundary of 16 bytes, and return where."""
    to += bytes(-len(to) % 16)
    at = len(to)
    to += what
    return at


def _head(read: bytearray, table: int, dynamic: int, written: int) -> None:
    """Write the headers: what is read and run, what is written, and a stack that does not run."""
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    struct.pack_into(
        "<16sHHIQQQIHHHHHH", read, 0, ident, 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0
    )
    parts = (
        (_LOAD, _READ_RUN, 0, len(read), _PAGE),
        (_LOAD, _READ_WRITE, table, written, _PAGE),
        (_DYNAMIC, _READ_WRITE, table, dynamic, 8),
        (_STACK, _READ_WRITE, 0, 0, 16),
    )
    for number, (kind, flags, at, size, align) in enumerate(parts):
        struct.pack_into(
            "<IIQQQQQQ", read, 64 + 56 * number, kind, flags, at, at, at, size, size, align
        )
