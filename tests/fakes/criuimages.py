"""Just enough of CRIU's images for a tree: valid headers, pstree, files, inventory and pages."""

from __future__ import annotations

import struct
from socket import inet_aton
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.model import Tree
    from gpuckpt.tools.sockets import InetSocket

IMAGE, SERVICE = 0x54564319, 0x55105940
ADDRESS = 0x10000  # where the pages of every process are
PSTREE, FILES, PAGEMAP, INVENTORY = 0x50273030, 0x56303138, 0x56084025, 0x58313116


def names(pids: Iterable[int]) -> tuple[str, ...]:
    """Return the names of the images that `of_tree` makes, in the order a restore asks."""
    each = [f"{kind}-{pid}.img" for pid in pids for kind in ("pagemap", "pages")]
    return ("inventory.img", "pstree.img", "files.img", *each)


def of_tree(tree: Tree, pages: bytes, sockets: Iterable[InetSocket] = ()) -> dict[str, bytes]:
    """Return CRIU's images of a tree by name, in the order a dump sends them."""
    images = {"files.img": _image(FILES, *map(_socket, sockets))}
    for process in tree.processes:
        count = len(pages) // 4096
        head = _field(1, process.pid)
        entry = _field(1, ADDRESS) + _field(4, 4) + _field(5, count)
        images[f"pagemap-{process.pid}.img"] = _image(PAGEMAP, head, entry)
        images[f"pages-{process.pid}.img"] = pages[: count * 4096]
    images["pstree.img"] = _image(
        PSTREE,
        *(
            b"".join(
                (
                    _field(1, one.pid),
                    _field(2, one.ppid),
                    _field(3, one.pgid),
                    _field(4, one.sid),
                    *(_field(5, tid) for tid in one.threads),
                )
            )
            for one in tree.processes
        ),
    )
    images["inventory.img"] = struct.pack("<I", INVENTORY) + _record(_field(1, 2))
    return images


def _socket(one: InetSocket) -> bytes:
    """Return a connected IPv4 socket as files.img has it (file_entry, inet_sk_entry)."""
    near, far = (struct.unpack("<I", inet_aton(end))[0] for end in (one.local, one.remote))
    fields = {3: 2, 4: 1, 5: 6, 6: one.state, 7: one.local_port, 8: one.remote_port}
    body = b"".join(_field(number, value) for number, value in fields.items())
    body += _field(11, near) + _field(12, far)
    inner = _field(1, one.inode) + _field(2, one.inode) + body
    return _field(2, one.inode) + _varint(4 << 3 | 2) + _varint(len(inner)) + inner


def _image(magic: int, *records: bytes) -> bytes:
    return struct.pack("<II", IMAGE, magic) + b"".join(map(_record, records))


def _record(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def _field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
