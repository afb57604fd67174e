"""How the ports and connections of a job stand on this host, and who has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.model import TcpPolicy
from gpuckpt.tools.addresses import ends
from gpuckpt.tools.net import PortState
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.outside import ListenerRecord
    from gpuckpt.model import Process
    from gpuckpt.tools.diag import Connection


class SeenPort(Value, frozen=True):
    """How a port that the job needs stands here, and who has it, as far as that can be seen."""

    listener: ListenerRecord
    state: PortState
    holders: tuple[Process, ...] = ()


def remains_of(
    tools: Toolbox, manifest: Manifest, ports: Iterable[SeenPort]
) -> tuple[Connection, ...]:
    """Return closed connections that are in the way, and any between the ends of the job's own."""
    held = {
        (one.listener.address, one.listener.port)
        for one in ports
        if one.listener.protocol == "tcp" and one.state is PortState.LINGERING
    }
    kept = manifest.options.tcp is TcpPolicy.ESTABLISHED
    own = set(map(ends, manifest.outside.connections)) if kept else set()
    return tools.net.remains(held, own) if held or own else ()


def talkers(tools: Toolbox, remains: Iterable[Connection]) -> dict[int, Process]:
    """Return a process for each local port of a connection that somebody has."""
    found = {one.ends[1]: tools.net.holders("tcp", one.ends[1]) for one in remains if one.inode}
    known = {port: processes(tools, pids) for port, pids in found.items()}
    return {port: processes[0] for port, processes in known.items() if processes}


def seen_port(tools: Toolbox, listener: ListenerRecord) -> SeenPort:
    """Return how a port stands, and who has it if it is taken."""
    where = (listener.protocol, listener.address, listener.port)
    state = tools.net.port(*where, dual=listener.dual)
    if state is not PortState.TAKEN:
        return SeenPort(listener, state)
    holders = tools.net.holders(listener.protocol, listener.port, listener.address)
    return SeenPort(listener, state, tuple(processes(tools, holders)))


def processes(tools: Toolbox, pids: Iterable[int]) -> list[Process]:
    """Return those that are still there."""
    return [process for pid in pids if (process := tools.proc.process(pid)) is not None]
