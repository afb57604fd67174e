"""What CRIU 4.2.1 says at a dump of sockets, terminals and the network lock."""

from __future__ import annotations

from typing import Final

from gpuckpt.tools.criuwords.rule import Rule

_TREE: Final = "Dump the tree that holds both ends, or end the connection."
_ALONE: Final = "Start such jobs with setsid, their input and output in files."

SOCKETS: Final = (
    Rule(
        r"inet: Connected TCP socket, consider using",
        "{who} has a connected TCP socket: {object}",
        "It was made after the job had been looked at. Dump again, or say what becomes of such "
        "connections: --tcp established keeps them, --tcp close does not.",
    ),
    Rule(
        r"inet: In-flight connection",
        "a client waits to be accepted on a TCP port of {who}: {object}",
        "Dump again when the job has accepted it, or let it go with --tcp close.",
    ),
    Rule(
        r"inet: (Unsupported proto (?P<proto>\d+)|Can't dump \d+ inet socket|Unknown inet socket|"
        r"Unsupported socket (family|type)|For Go programs)",
        "{who} has an internet socket of a kind that CRIU cannot dump: {object}",
        "Multipath TCP is the usual one: start Go programs with GODEBUG=multipathtcp=0.",
    ),
    Rule(
        r"inet: Can't dump corked dgram socket (?P<ino>[0-9a-f]+)",
        "{who} has a UDP socket that holds back data (UDP_CORK): {object}",
        "Dump again when the job has sent it.",
    ),
    Rule(
        r"TCP_REPAIR can't be enabled for half-closed sockets|"
        r"tcp: libsoccr_save\(\) failed|inet: Wrong socket in listen state",
        "a TCP connection of {who} is just being opened or closed: {object}",
        "Dump again in a moment, or with --tcp close.",
    ),
    Rule(
        r"[Ii]ptables configuration failed|Locking network failed|Locking connection failed|"
        r"nft command error|Can't create nftables table",
        "the job's TCP connections could not be held: the firewall cannot be changed here",
        "The kernel must have nftables and this process CAP_NET_ADMIN; or dump with --tcp close.",
    ),
    Rule(
        r"tcp: Failed to lock TCP connection (?P<ino>[0-9a-f]+)",
        "a TCP connection of {who} could not be held: {socket}",
        "The kernel must have nftables and this process CAP_NET_ADMIN; or dump with --tcp close.",
    ),
    Rule(
        r"Unable to set TCP_REPAIR|TCP_REPAIR isn't available|Can't turn TCP repair mode ON",
        "the state of a TCP connection of {who} cannot be read: {object}",
        "CAP_NET_ADMIN is missing; or dump with --tcp close.",
    ),
    Rule(
        r"unix: External socket is used|unix: Can't dump name-less external socket",
        "the job is connected to a process outside its tree through a unix socket{peers}",
        _TREE,
    ),
    Rule(
        r"unix: Can't dump half of stream unix connection. name: (?P<name>.*); "
        r"peer name: (?P<peer>.*)",
        "the job is connected to a process outside its tree through a unix socket ({peer}){peers}",
        _TREE,
    ),
    Rule(
        r"unix: (Found a closed in-flight socket|In-flight connection on|Non-empty write queue)",
        "a unix connection of the job is not accepted yet",
        "Dump again in a moment.",
    ),
    Rule(
        r"unix: (Unix socket (?P<inode>\d+) (without peer|with unreachable peer)|"
        r"Wrong shutdown/peer state|FATAL: Peer)",
        "a unix socket of {who} has a peer that CRIU cannot find: {object}{peers}",
        _TREE,
    ),
    Rule(
        r"unix: Unsupported type \((?P<kind>\d+)\)|unix: Unknown state",
        "{who} has a unix socket of a kind that CRIU cannot dump: {object}",
        "Let the job close it, and dump again.",
    ),
    Rule(
        r"sockets: BUG! Unknown socket collected \(family (?P<family>\d+)\)|"
        r"sockets: Unknown pair family (?P<other>\d+)",
        "{who} has a socket of a family that CRIU does not know: {object}",
        "Let the job close it: vsock (40) and AF_ALG (38) are the usual ones.",
    ),
    Rule(
        r"sockets: Sockets \(family (?P<family>\d+) proto (?P<proto>\d+)\) are not collected|"
        r"sockets: Diag module missing",
        "the kernel does not tell of sockets of family {family}: a diagnosis module is missing",
        "Load inet_diag, tcp_diag, udp_diag, unix_diag and netlink_diag, and dump again.",
    ),
    Rule(
        r"net: Unable to dump a socket from an external network namespace",
        "{who} has a socket of another network namespace: {object}",
        "Dump the tree that lives in that namespace as a whole, or close the socket.",
    ),
    Rule(
        r"netlink: The socket has data to read",
        "{who} has not read all that the kernel sent to a netlink socket: {object}",
        "Dump again in a moment, or let the job read or close it.",
    ),
    Rule(
        r"netlink: (The netlink socket|Groups above)|packet: (Multiple MC|Unknown mc|No packet)",
        "{who} has a netlink or packet socket in a state that CRIU cannot dump: {object}",
        "Let the job close it, and dump again.",
    ),
    Rule(
        r"skqueue: (Control messages in queue|Unsupported scm|More than 1 SCM|Unexpected 2nd)",
        "a socket of {who} has a message in its queue that CRIU cannot dump: {object}",
        "Dump again when the job has read it.",
    ),
    Rule(
        r"The root process (?P<pid>\d+) is not a session leader",
        "{who} does not lead its session: its terminal or session belongs to a process outside",
        _ALONE,
    ),
    Rule(
        r"tty: Found dangling tty with sid (?P<sid>\d+) pgid \d+ \((?P<kind>\w+)\) "
        r"on peer fd (?P<fd>\d+)",
        "the terminal of the job (descriptor {fd}) belongs to session {sid} outside its tree",
        _ALONE,
    ),
    Rule(
        r"tty: Found slave peer index (?P<index>\d+) without correspond(ing)? master",
        "the job uses the terminal /dev/pts/{index}, whose other side is outside its tree",
        _ALONE,
    ),
    Rule(
        r"tty: (Too many external terminals|Only one slave external|The master for)",
        "the job uses more than one terminal of processes outside its tree",
        _ALONE,
    ),
    Rule(
        r"tty: The tty .* queued data overflow|Managed to open locked pty",
        "a terminal of the job has more input waiting than CRIU takes",
        "Dump again when the job has read it.",
    ),
)
