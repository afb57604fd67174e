"""Real stores on this host, for as long as a test needs them: moto's S3 server, and an sshd."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko
import pytest

from tests.root.harness import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

# as root sshd needs a user and a folder of its own, which only its package makes: here in a mount
# namespace, for it alone
_AS_INSTALLED = """
mount --bind "$0" /etc/passwd && mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec "$@"
"""
BUCKET = "gpuckpt-test"


def free_port() -> int:
    """Return a port of this host that nobody has right now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def started(command: list[str], port: int, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the end of the context, once it answers."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    try:
        wait_for(f"{command[0]} answers", lambda: server.poll() is not None or answers(port))
        assert server.poll() is None, f"{command[0]} ended: {server.returncode}"
        yield server
    finally:
        server.kill()
        server.wait()


@contextmanager
def s3(log: Path) -> Iterator[tuple[dict[str, str], subprocess.Popen[bytes]]]:
    """Start a server that speaks S3; gives the environment that leads there, and its process."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    there = {
        "AWS_ACCESS_KEY_ID": "AKIAGPUCKPTTEST",
        "AWS_SECRET_ACCESS_KEY": "hunter2hunter2hunter2",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as out, started(command, port, stdout=out, stderr=out) as server:
        done = subprocess.run(
            [sys.executable, "-c", _MAKE_BUCKET, BUCKET], env=os.environ | there, check=False
        )
        assert done.returncode == 0
        yield there, server


_MAKE_BUCKET = """
import sys, urllib.request
from os import environ
asked = urllib.request.Request(f"{environ['AWS_ENDPOINT_URL']}/{sys.argv[1]}", method="PUT")
urllib.request.urlopen(asked).close()
"""


@contextmanager
def sftp(home: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Start an sshd; gives the environment of who may log in there, and the beginning of a URL."""
    program = shutil.which("sshd")
    if program is None:
        pytest.skip("no sshd here: make sshd")
    ssh, folder = home / ".ssh", home / "sshd"
    ssh.mkdir(parents=True)
    folder.mkdir()
    port = free_port()
    keys = {name: paramiko.ECDSAKey.generate() for name in ("host", "mine")}
    keys["host"].write_private_key_file(str(folder / "host"))
    keys["mine"].write_private_key_file(str(ssh / "id_ecdsa"))
    (folder / "known").write_text(_line(keys["mine"]))
    (ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {_line(keys['host'])}")
    (folder / "config").write_text(_config(folder, port, Path(program)))
    command = [program, "-D", "-e", "-f", str(folder / "config")]
    if os.geteuid() == 0:
        users = folder / "passwd"
        own = "sshd:x:65530:65534::/run/sshd:/usr/sbin/nologin\n"
        users.write_text(Path("/etc/passwd").read_text() + own)
        command = ["unshare", "--mount", "sh", "-c", _AS_INSTALLED, str(users), *command]
    user = pwd.getpwuid(os.geteuid()).pw_name
    log = (folder / "log").open("wb")
    with log, started(command, port, stdout=log, stderr=log):
        yield {"HOME": str(home)}, f"sftp://{user}@127.0.0.1:{port}"


def _line(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.get_base64()}\n"


def _config(folder: Path, port: int, program: Path) -> str:
    lines = [
        f"Port {port}",
        "ListenAddress 127.0.0.1",
        f"HostKey {folder}/host",
        f"AuthorizedKeysFile {folder}/known",
        f"PidFile {folder}/pid",
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "Subsystem sftp internal-sftp",
    ]
    # since OpenSSH 9.8 its parts are programs of their own, looked for where the package has them
    parts = program.parent.parent / "root/usr/lib/openssh"
    for option, part in (("SshdSessionPath", "sshd-session"), ("SshdAuthPath", "sshd-auth")):
        if (parts / part).exists():
            lines.append(f"{option} {parts / part}")
    return "\n".join(lines) + "\n"
