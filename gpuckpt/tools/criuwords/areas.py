"""Where CRIU 4.2.1 failed, when no rule knows why: its modules put their name before a message."""

from __future__ import annotations

from typing import Final

from gpuckpt.tools.criuwords.rule import Rule

_THINGS: Final = {
    r"tty": "a terminal",
    r"unix": "a unix socket",
    r"(inet|tcp)": "an internet socket",
    r"(sockets|skqueue)": "a socket",
    r"(netlink|packet|tun)": "a network socket or device",
    r"(fsnotify|irmap)": "a file watch",
    r"(epoll|eventfd|timerfd|pidfd)": "a descriptor of the kernel's own",
    r"(mnt|mnt-v2)": "a mounted filesystem",
    r"(net|nf)": "the network namespace or firewall",
    r"(cg|cg-prop)": "a control group",
    r"(seccomp|cpu|x86)": "a task's state",
    r"(page-xfer|page-pipe|pagemap-cache|uffd|lazy-pages)": "memory",
    r"(sfd|bfd|uns)": "its own files",
}
AREAS: Final = tuple(
    Rule(
        rf"^{name}: ",
        f"CRIU failed at {thing} of {{who}}, in a way that gpuckpt does not know: {{text}}",
        "The lines below are all it said of it; keep the log if you report this.",
    )
    for name, thing in _THINGS.items()
)
