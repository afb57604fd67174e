"""A tree that connects and closes all the time is not taken for one that talks to strangers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.tools import talk

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from gpuckpt.tools.sockets import InetSocket

PID = 100
HEAD = "sl local_address rem_address st queues tr retrnsmt uid timeout inode\n"


def row(near: int, far: int, inode: int, state: int = 1, waiting: int = 0) -> str:
    """Return a line of /proc/net/tcp between ports of 127.0.0.1."""
    there = f"0100007F:{far:04X}" if far else "00000000:0000"
    queues = f"00000000:{waiting:08X}"
    return f"   0: 0100007F:{near:04X} {there} {state:02X} {queues} 00:0 00000000 0 0 {inode} 1 0\n"


def kernel(root: Path, held: dict[int, int], *rows: str) -> None:
    """Let a process hold sockets, by descriptor, and the kernel have these connections."""
    folder = root / str(PID)
    (folder / "net").mkdir(parents=True, exist_ok=True)
    (folder / "fd").mkdir(exist_ok=True)
    for old in (folder / "fd").iterdir():
        old.unlink()
    for fd, inode in held.items():
        (folder / "fd" / str(fd)).symlink_to(f"socket:[{inode}]")
    (folder / "net" / "tcp").write_text(HEAD + "".join(rows))


LISTENER = row(80, 0, 1, state=10)
PAIR = (row(80, 900, 2), row(900, 80, 3))


def looked(
    root: Path, monkeypatch: pytest.MonkeyPatch, inodes: set[int], *later: str
) -> tuple[InetSocket, ...]:
    """Look while the kernel goes on to have these connections, and the process all their ends."""
    held = {fd: fd for fd in range(1, 10)}
    monkeypatch.setattr(talk.time, "sleep", lambda _: kernel(root, held, *later))
    return talk.talk(root, (PID,), inodes)


def test_what_is_whole_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel(tmp_path, {}, LISTENER, *PAIR)
    assert len(looked(tmp_path, monkeypatch, {1, 2, 3})) == 3
    assert talk.talk(tmp_path, (PID,), set()) == ()


def test_an_end_that_was_made_between_two_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptor was not there yet; then others are made and closed in the same way."""
    kernel(tmp_path, {}, LISTENER, *PAIR)
    new = row(901, 80, 4), row(80, 901, 0)
    waiting = row(80, 0, 1, state=10, waiting=1)
    found = looked(tmp_path, monkeypatch, {1, 3}, waiting, *PAIR, *new)
    assert [(one.inode, one.peer, one.waiting) for one in found] == [
        (1, 0, 0),
        (2, 3, 0),
        (3, 2, 0),
    ]


def test_what_is_still_so_a_moment_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer outside, and a client that nobody accepts."""
    lines = (row(80, 0, 1, state=10, waiting=1), row(80, 900, 2), row(900, 80, 77))
    kernel(tmp_path, {}, *lines)
    found = looked(tmp_path, monkeypatch, {1, 2}, *lines)
    assert [(one.inode, one.peer, one.waiting) for one in found] == [(1, 0, 1), (2, 77, 0)]
