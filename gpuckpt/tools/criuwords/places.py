"""What CRIU 4.2.1 says at a restore: numbers, ports, locks, terminals, files."""

from __future__ import annotations

from typing import Final

from gpuckpt.tools.criuwords.rule import Rule

_AS_IT_WAS: Final = "Put it back as it was when the job was dumped, and restore again."
_TERMINAL: Final = "Run the restore in a terminal, with that terminal as its standard input."

TAKEN: Final = (
    Rule(
        r"Can't fork for (?P<pid>\d+): File exists",
        "pid {pid}, which the job had, is taken on this host",
        "End whatever uses it (it may be a zombie that its parent has not waited for), and restore "
        "again.",
    ),
    Rule(
        r"Can't fork for (?P<pid>\d+): (?P<why>Resource temporarily .*|Cannot allocate .*)",
        "{who} could not be made: a limit on processes or memory is reached ({why})",
        "Raise pids.max of the control group, RLIMIT_NPROC or the memory limit, and restore again.",
    ),
    Rule(
        r"Can't fork for (?P<pid>\d+): (?P<why>.+)",
        "{who} could not be made with its old pid ({why})",
        "It needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN, and a kernel with clone3.",
    ),
    Rule(
        r"Unable to create a thread: -17",
        "a thread id that {who} had is taken on this host",
        "Restore again in a moment; `gpuckpt show` lists the ids the job needs.",
    ),
    Rule(
        r"Unable to create a thread: -(?P<errno>\d+)",
        "a thread of {who} could not be made (errno {errno}): a limit on processes or memory",
        "Raise pids.max of the control group, RLIMIT_NPROC or the memory limit, and restore again.",
    ),
    Rule(
        r"Current (sid|gid) (?P<number>\d+) intersects with",
        "the session or group {number} of gpuckpt itself is one that the job had",
        "Run the restore from another shell (setsid gpuckpt restore ...).",
    ),
    Rule(
        r"Pid (?P<pid>\d+) do not match expected|Setting PID failed|Conflict with a dead task|"
        r"First PID in a PID namespace",
        "the job's process ids could not be given to it",
        "Restore again; `gpuckpt show` lists the ids the job needs.",
    ),
    Rule(
        r"Can't restore sid \((?P<number>\d+)\)|Can't restore pgid|Requested sid \d+ doesn't match",
        "the job's session or process group could not be made again",
        "Run the restore from another shell (setsid gpuckpt restore ...).",
    ),
    Rule(
        r"Can't bind inet socket \(id (?P<id>\d+)\): Address already in use|"
        r"Can't bind inet socket back: Address already in use",
        "a port of the job is in use on this host: {file}",
        "End whatever listens there, or wait a minute for closed connections (TIME_WAIT).",
    ),
    Rule(
        r"Can't bind inet socket \(id (?P<id>\d+)\): Cannot assign requested address|"
        r"Can't bind inet socket back: Cannot assign",
        "this host does not have an address that the job listens on: {file}",
        "Give the address to an interface of this host, and restore again.",
    ),
    Rule(
        r"Can't bind inet socket (\(id (?P<id>\d+)\)|back): (?P<why>.+)",
        "a socket of the job could not be bound again ({why}): {file}",
        "The address or port must be free and allowed on this host.",
    ),
    Rule(
        r"Can't connect inet socket back: (?P<why>.+)|tcp: Unable to shutdown the socket",
        "a TCP connection of {who} could not be made again: {object}",
        "Its address must be on this host and free; dump with --tcp close to come back without.",
    ),
    Rule(
        r"Can't restore (not-sent )?(send|recv|receive|write) queue data .*: (?P<why>.+)",
        "what was on its way on a TCP connection of {who} could not be put back ({why}): {object}",
        "Its other end is not there, or has given it up; --tcp close at the dump does without.",
    ),
    Rule(
        r"inet: Connected TCP socket in image|Need to set the --tcp-close options",
        "the image holds TCP connections, and the restore was not told what to do with them",
        "The image was made by another tool: restore it with that one.",
    ),
    Rule(
        r"Can't bind transport socket (?P<path>.+): Address already in use",
        "another restore is under way in this network namespace",
        "Wait until it has ended, and restore again.",
    ),
    Rule(
        # 4.2.1 shows a name that is no path as nothing
        r"unix: (ghost: )?Can't bind (on socket )?id (?P<xid>0x[0-9a-f]+) .*addr : "
        r"Address already in use",
        "the name of a unix socket of {who} is in use on this host: {file}",
        "End whatever has it, as a copy of this job, and restore again.",
    ),
    Rule(
        r"unix: (ghost: )?Can't bind (on socket )?id (?P<xid>0x[0-9a-f]+) .*addr : (?P<why>.+)",
        "{file} of {who} could not be made again ({why})",
        "Names that are no paths must be free in the network namespace of gpuckpt.",
    ),
    Rule(
        r"unix: (ghost: )?Can't bind (on socket )?id (?P<xid>0x[0-9a-f]+) .*addr (?P<path>.+): "
        r"(?P<why>.+)",
        "the unix socket {path} of {who} could not be made again ({why})",
        "Its folder must exist, and nothing else may have its name.",
    ),
    Rule(
        r"unix: External socket found in image|unix: Can't connect (?P<id>\d+) socket",
        "a unix socket of the job led to a process outside, which is not there",
        "Start that service again before the restore.",
    ),
    Rule(
        r"Can not set (flock|posix lock|ofd lock)",
        "a file lock that {who} held is held by another process now: {object}",
        "End that process, and restore again.",
    ),
    Rule(
        r"Don't have tty to inherit session",
        "the job needs a terminal and there is none here",
        _TERMINAL,
    ),
    Rule(
        r"tty: Failed to set (group|sid) \d+ on \d+|tty: Can't set sid on terminal",
        "the job's terminal could not be given to it",
        _TERMINAL,
    ),
    Rule(
        r"tty: (No task found with sid (?P<sid>\d+)|Unable to open (?P<path>\S+)|"
        r"Can't (open|change mode|set tty|setup uid|generate)|ctty inheritance)",
        "a terminal of the job could not be made again",
        _TERMINAL,
    ),
)

PLACES: Final = (
    Rule(
        r"Can't open file (?P<path>.+?) on restore: No such file",
        "{path}, which {who} uses, is missing on this host",
        _AS_IT_WAS,
    ),
    Rule(
        r"Can't open file (?P<path>.+?) on restore: Text file busy",
        "{path}, which {who} writes, is being executed by a process of this host",
        "End that process, and restore again.",
    ),
    Rule(
        r"Can't open file (?P<path>.+?) on restore: (?P<why>.+)",
        "{path}, which {who} uses, cannot be opened on this host ({why})",
        _AS_IT_WAS,
    ),
    Rule(
        r"File (?P<path>.+) has bad size (?P<now>\d+) \(expect (?P<then>\d+)\)",
        "{path} has {now} bytes; it had {then} when the job was dumped",
        _AS_IT_WAS,
    ),
    Rule(
        r"File (?P<path>.+) has bad mode 0(?P<now>\d+) \(expect 0(?P<then>\d+)\)",
        "{path} has mode {now}; it had {then} when the job was dumped",
        "chmod it back, and restore again.",
    ),
    Rule(
        r"File (?P<path>.+) has bad build-ID",
        "{path} is another build than the one the job had mapped",
        "Install the package version the job was dumped with, and restore again.",
    ),
    Rule(
        r"Can't open fake fifo \S+ \[(?P<path>.+)\]: (?P<why>.+)|"
        r"Can't open fifo \S+ \[(?P<path2>.+)\]: (?P<why2>.+)",
        "the named pipe {path} of {who} cannot be opened ({why})",
        "Make it again (mkfifo), and restore again.",
    ),
    Rule(
        r"Can't open mapped \[(?P<path>.+)\]: (?P<why>.+)|Can't open file (?P<path2>[^:]+): "
        r"(?P<why2>.+)",
        "{path}, which {who} uses, cannot be opened on this host ({why})",
        _AS_IT_WAS,
    ),
    Rule(
        r"Can't create ghost regfile: File exists",
        "a left-over of an earlier restore has the name under which a deleted file of {who} is "
        "made again",
        "Remove the files *.cr.*.ghost in the folders of the job, and restore again.",
    ),
    Rule(
        r"Can't create (ghost|(a )?dir)|Can't transfer data to ghost|Can't open ghost original|"
        r"Ghost file size mismatch|(Can't|Unable to) set (perms|access and modification).*ghost|"
        r"Can't re-create deleted",
        "a deleted file of {who} could not be made again",
        "Its folder must exist, be writable and have room; the lines below name the reason.",
    ),
    Rule(
        r"Can't link (?P<from>.+) -> (?P<path>.+): No such file",
        "{path} of the job has no content here: it was in the file {from}, which is missing",
        "It was left beside it by the dump: put it back, or restore on the host of the dump before "
        "it is rebooted.",
    ),
    Rule(
        r"Can't link (?P<from>.+) -> (?P<path>.+): (?P<why>.+)",
        "{path} of the job could not be given its name again ({why})",
        "Remove what has its name, and restore again.",
    ),
    Rule(
        r"Couldn't unlink remap (?P<path>.+): (?P<why>.+)|Failed to unlink the remap file: "
        r"(?P<why2>.+)",
        "the left-over {path} could not be removed ({why})",
        "Its filesystem must be writable.",
    ),
    Rule(
        r"Can't open cwd|Can't chdir|Can't change cwd|Can't restore EXE link|Can't change root",
        "the working folder, root folder or program of {who} is not as it was",
        _AS_IT_WAS,
    ),
    Rule(
        r"fsnotify: Can't create inotify.*: Too many open files",
        "the limit on inotify instances is reached",
        "Raise fs.inotify.max_user_instances, and restore again.",
    ),
    Rule(
        r"fsnotify: Can't add watch.*: No space left on device",
        "the limit on inotify watches is reached",
        "Raise fs.inotify.max_user_watches, and restore again.",
    ),
    Rule(
        r"fsnotify: (Can't add watch|Adding fanotify|Can't init fanotify|Unable to open "
        r"(?P<path>[^:]+))",
        "a file that {who} watches cannot be watched here",
        _AS_IT_WAS,
    ),
)
