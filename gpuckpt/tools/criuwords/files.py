"""What CRIU 4.2.1 says at a dump of what processes have open or mapped."""

from __future__ import annotations

from typing import Final

from gpuckpt.tools.criuwords.rule import Rule

_CLOSE: Final = "Let the job close it, or start the job without it, and dump again."
_GPU: Final = (
    "Children forked after CUDA had started, a profiler, or a driver older than 570 with NVML in "
    "use leave such descriptors."
)

FILES: Final = (
    Rule(
        r"Can't dump file (?P<fd>\d+) of that type \[\d+\] \(chr 195:(?P<minor>\d+)\)",
        "{who} still has a GPU device open: {object}",
        _GPU,
    ),
    Rule(
        r"Can't dump file (?P<fd>-?\d+) of that type \[\d+\] \((?P<kind>chr|blk) (?P<dev>[\d:]+)\)",
        "{who} has a device open that CRIU cannot dump: {object}, {kind} {dev}",
        _CLOSE,
    ),
    Rule(
        r"Can't dump file (?P<fd>-?\d+) of that type \[\d+\] \(anon (?P<kind>.*)\)",
        "{who} has something of the kernel open that CRIU cannot dump: {object}, {kind}",
        _CLOSE,
    ),
    Rule(
        r"Can't dump file (?P<fd>-?\d+) of that type \[(?P<kind>\d+)\]",
        "{who} has something open that CRIU cannot dump: {object}, type {kind}",
        _CLOSE,
    ),
    Rule(
        r"send_fds failed \(-?\d+\)",
        "{who} has a descriptor open that cannot be handed on{rings}: that is an io_uring ring",
        "Start the job with UV_USE_IO_URING=0, or on a host with kernel.io_uring_disabled=2.",
    ),
    Rule(
        r"Unknown shit \d+ \(anon_inode:\[io_uring\]\)",
        "{who} has an io_uring ring mapped, which CRIU cannot dump",
        "Start the job with UV_USE_IO_URING=0, or on a host with kernel.io_uring_disabled=2.",
    ),
    Rule(
        r"Unknown shit \d+ \((?P<path>.*)\)",
        "{who} has something mapped that CRIU cannot dump: {path}",
        "Let the job unmap it, or start the job without it, and dump again.",
    ),
    Rule(
        r"Can't open (?P<pid>\d+)'s mapfile link (?P<map>[0-9a-f]+): (?P<why>.+)",
        "{mapping} of {who} cannot be opened ({why})",
        "On a network filesystem, let root read the file (no root_squash); else unmap it.",
    ),
    Rule(
        r"Can't open (?P<pid>\d+)/map_files/(?P<map>[0-9a-f]+)\S* on procfs: (?P<why>.+)",
        "{mapping} of {who} cannot be opened ({why})",
        "On a network filesystem, let root read the file (no root_squash); else unmap it.",
    ),
    Rule(
        r"Can't open map_files: (?P<why>.+)",
        "a file that {who} has mapped cannot be opened, not even by root ({why})",
        "On a network filesystem let root read it (no root_squash), or run the job from a local "
        "disk.",
    ),
    Rule(
        r"handle_device_vma plugin failed",
        "{who} has a device mapped{devices}: a GPU whose state was not taken away, or RDMA",
        "If it is no GPU, start the job without that transport (UCX_TLS without ib and rdma).",
    ),
    Rule(
        r"Can't handle non-regular mapping on (?P<pid>\d+)'s map (?P<map>[0-9a-f]+)",
        "{who} has something mapped that is no file: {mapping}",
        "Let the job unmap it, or start the job without it, and dump again.",
    ),
    Rule(
        r"Can't dump ghost file (?P<path>.+) of (?P<size>\d+) size, increase limit",
        "the deleted file {path} that {who} still has open or mapped has {size} bytes, more than "
        "the limit",
        "Raise --ghost-limit, or let the job close the file.",
    ),
    Rule(
        r"Can't create link remap for (?P<path>.+)\. Use link-remap option",
        "the file {path} that {who} uses has lost its name, but not its content: a semaphore, a "
        "renamed file, or one under another mount",
        "gpuckpt gives CRIU the option it needs when it sees such a file beforehand: dump again.",
    ),
    Rule(
        r"Can't link remap to (?P<path>.+): File exists",
        "a link_remap file of another dump, beside {path}, has the name that CRIU needs",
        "Wait until that dump is over. If none is at work: restore the job it belongs to first, or "
        "remove it if that image is given up.",
    ),
    Rule(
        r"Can't link remap to (?P<path>.+): (?P<why>.+)",
        "no second name could be made for {path}, which {who} uses without a name ({why})",
        "Its folder must exist and be writable for root.",
    ),
    Rule(
        r"Can't lookup mount=-?\d+ for fd=(?P<fd>-?\d+) path=(?P<path>.+)",
        "{who} uses {path} on a filesystem that is not mounted here: {object}",
        "It has mounts of its own, as in a container, or the filesystem was unmounted under it: "
        "dump it with its container runtime, or start it without.",
    ),
    Rule(
        r"Open files on overmounted mounts are not supported yet; .*fd=(?P<fd>-?\d+) "
        r"path=(?P<path>.+)",
        "another filesystem was mounted over {path}, which {who} has open: {object}",
        "Unmount what lies above, and dump again.",
    ),
    Rule(
        r"mnt: \d+:(?P<path>\S+) doesn't have a proper root mount",
        "{path} is mounted from somewhere that the job cannot see, as in a container",
        "Use the container runtime's own checkpoint, or run the job outside.",
    ),
    Rule(
        r"mnt: Mount \d+ (?P<path>\S+) .*unreachable sharing|has unreachable sharing",
        "the job's mounts share with mounts it cannot see, as in a container",
        "Use the container runtime's own checkpoint, or run the job outside.",
    ),
    Rule(
        r"Some file locks are hold by dumping tasks",
        "the job holds file locks{locks}",
        "Dump again with --file-locks.",
    ),
    Rule(
        r"Unresolved lock found pid (?P<pid>\d+) ino (?P<inode>\d+)",
        "{who} holds a lock on a file that it does not have open any more (inode {inode})",
        "Let the job give the lock back, and dump again.",
    ),
    Rule(
        r"Lease doesn't conflicts but breaks|Conflicting lease wasn't found|Can't get lease type",
        "a file lease of the job is being broken by another process",
        "Dump again in a moment, or end the process that opens the file.",
    ),
    Rule(
        r"The packetized mode for pipes is not supported yet",
        "{who} has a pipe in packet mode (O_DIRECT), which CRIU cannot dump: {object}",
        _CLOSE,
    ),
    Rule(
        r"pidfd: pidfd pid (?P<other>\d+) is not a part of process tree",
        "{who} holds a pidfd of process {other}, which is outside its tree: {object}",
        "Let the job close it, or dump the tree that holds both.",
    ),
    Rule(
        r"pidfd: PIDFD_THREAD flag is currently not supported",
        "{who} holds a pidfd of a single thread, which CRIU cannot dump: {object}",
        _CLOSE,
    ),
    Rule(
        r"fsnotify: .*Can't (dump that handle|find suitable path for handle)|"
        r"fsnotify: Unable to lookup a mount|fsnotify: Can't find (mnt_id|mount)|"
        r"irmap: Failed to resolve",
        "{who} watches a file (inotify or fanotify) that CRIU cannot find any more: {object}",
        "Let the job watch files that exist on local disks, and dump again.",
    ),
    Rule(
        r"epoll: Escaped/closed fd descriptor (?P<fd>-?\d+) on pid (?P<pid>\d+)",
        "an epoll of {who} watches a file whose descriptor {fd} was closed",
        "Let the job take it out of the epoll before it closes it.",
    ),
    Rule(
        r"Failed to check aio rings|No AIO ring at expected location|Can't submit aio iocbs|"
        r"wrong aio: tail=",
        "{who} has asynchronous I/O (io_submit) under way",
        "Dump again when the job does no such I/O.",
    ),
    Rule(
        r"tun: Net namespace is required to dump tun link|tun: Can't dump",
        "{who} has a tun or tap network device open, which CRIU cannot dump: {object}",
        _CLOSE,
    ),
    Rule(
        r"autofs not supported|[Ff]ailed to (find|access) autofs|Autofs \d+ is alive",
        "the job uses an autofs mount",
        "Run the job from a filesystem that is always mounted.",
    ),
    Rule(
        r"Too many groups in task (?P<pid>\d+)|Can't get fd=(?P<fd>\d+), pid=\d+|"
        r"Can't get file description",
        "{who} has something that CRIU cannot describe: {object}",
        "Keep the log and report it.",
    ),
)
