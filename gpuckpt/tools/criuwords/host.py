"""What CRIU 4.2.1 says of this host: privileges, kernel, disk, memory, and its own stream."""

from __future__ import annotations

from typing import Final

from gpuckpt.tools.criuwords.rule import Rule

_DOCTOR: Final = "`gpuckpt doctor` tells what is missing on this host."

HOST: Final = (
    Rule(
        r"You need to be root|needs to have the CAP_SYS_ADMIN|Effective capability \d+ missing",
        "CRIU lacks privileges",
        "Run gpuckpt as root, outside a container that takes capabilities away.",
    ),
    Rule(
        r"Could not initialize kernel features detection|failed when initializing kerndat",
        "CRIU cannot work on this kernel",
        _DOCTOR,
    ),
    Rule(
        r"Unable to set socket SO_SNDBUFFORCE/SO_RCVBUFFORCE: (?P<why>.+)",
        "CRIU lacks a privilege over the network (CAP_NET_ADMIN)",
        "Run gpuckpt as root, outside a container that takes capabilities away.",
    ),
    Rule(
        r"Unable to open directory (?P<path>.+): |Unable to read the libraries directory",
        "CRIU's folder for plugins cannot be read",
        "The state folder (GPUCKPT_STATE_DIR) was removed or filled up meanwhile: run it again.",
    ),
    Rule(
        r"Missing required plugin: (?P<plugin>.+)",
        "the image was made with CRIU's plugin {plugin}, which gpuckpt does not use",
        "Restore it with the tool that made it.",
    ),
    Rule(
        r"Corrupted plugin|Can't load plugin|Failed in init\(",
        "a plugin of CRIU cannot be used",
        _DOCTOR,
    ),
    Rule(
        r"Can't create log file (?P<path>.+): (?P<why>.+)|Can't initiate log",
        "CRIU cannot write its log ({path})",
        "Its folder is under the state folder (GPUCKPT_STATE_DIR): see that it can be written.",
    ),
    Rule(
        r"page-xfer: Unable to spice data: Broken pipe|image streamer|page-xfer: A pipe was closed|"
        r"Error (reading|flushing).*Broken pipe|bfd: Error flushing image: (Broken pipe|Bad file)",
        "the stream between CRIU and gpuckpt broke",
        "Run it again; if it happens again, keep the log and report it.",
    ),
    Rule(
        r"page-xfer: (Unable to spice data|Splice failed|vmsplice): (?P<why>.+)|"
        r"page-pipe: (splice|tee): (?P<why2>.+)|process_vm_readv failed: (?P<why3>.+)|"
        r"vmsplice: Failed to splice",
        "the memory of {who} could not be read",
        "See whether the job runs, then try again.",
    ),
    Rule(
        r"unrecognized option|invalid argument for|Unknown option",
        "this CRIU does not know an option that gpuckpt needs",
        "GPUCKPT_CRIU must name CRIU 4.2 or newer itself, not a wrapper with options of its own.",
    ),
)

# what remains when no cause was recognised: the consequence, or the kernel's own reason
WEAK: Final = (
    Rule(
        r"Unable to interrupt task: (?P<pid>\d+) \(Operation not permitted\)",
        "{who} could not be stopped: another program traces it, its main thread has ended, or "
        "CAP_SYS_PTRACE is missing",
        "End the debugger or tracer, and dump again; `gpuckpt doctor` tells of privileges.",
    ),
    Rule(
        r"Unable to (interrupt task: |detach from )(?P<pid>\d+)",
        "{who} could not be stopped: it has ended, or another program traces it",
        "See whether it runs; end the debugger or tracer, and dump again.",
    ),
    Rule(
        r"Timeout reached\. Try to interrupt",
        "the job's processes could not all be stopped in time",
        "A frozen control group, a disk that hangs, or many thousands of processes: look at them, "
        "and dump again.",
    ),
    Rule(
        r"(?P<pid>\d+) (was )?killed by (signal )?(?P<signal>11|7|4|8|6)\b",
        "{who} crashed (signal {signal}) while it was being restored: this CRIU does not fit the "
        "job's C library or this kernel, or the CPU lacks something",
        "`gpuckpt doctor` restores a small process: if that works, keep the log and report it.",
    ),
    Rule(
        r"(?P<pid>\d+) (was )?killed by (signal )?9\b",
        "{who} was killed while CRIU worked on it",
        "Somebody, a watchdog or a limit on memory ends processes here: see who, and try again.",
    ),
    Rule(
        r"(?P<pid>\d+) (was )?(killed|stopped) by (signal )?(?P<signal>\d+)",
        "{who} was ended or stopped by signal {signal} while CRIU worked on it",
        "See who sends it, and try again.",
    ),
    Rule(
        r"Dumped with --allow-uprobes",
        "the job was being traced by uprobes when it was dumped",
        "Restore it with the CRIU it was dumped with.",
    ),
    Rule(
        r"BUG at (?P<where>\S+)",
        "CRIU met something that it holds for impossible, at {where}",
        "Keep the log and report it; `gpuckpt verify` tells whether the image is whole.",
    ),
    Rule(
        r": (?P<why>No space left on device|Disk quota exceeded)$",
        "a filesystem or a limit of the kernel is full",
        "Free some space where the lines below point to, and try again.",
    ),
    Rule(
        r": Cannot allocate memory$|Not enough memory|Can't allocate",
        "this host ran out of memory",
        "Free memory, or raise the limit of the memory cgroup, and try again.",
    ),
    Rule(
        r": Too many open files( in system)?$",
        "a limit on open files was reached",
        "Raise RLIMIT_NOFILE (ulimit -n) for gpuckpt, and try again.",
    ),
    Rule(
        r": Read-only file system$",
        "a filesystem that must be written is read-only",
        "The lines below name it: mount it writable, and try again.",
    ),
    Rule(
        r": (?P<why>Operation not permitted|Permission denied)$",
        "CRIU was not allowed to do something it needs ({why})",
        _DOCTOR,
    ),
    Rule(
        r": (?P<why>Input/output error|Stale file handle|Transport endpoint is not connected)$",
        "a disk or network filesystem failed ({why})",
        "The lines below name what was read: see that it answers, and try again.",
    ),
)
