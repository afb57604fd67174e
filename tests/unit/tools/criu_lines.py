"""Lines of CRIU 4.2.1, made with real jobs where this was possible, and what is to be said of them.

Each entry: a name, the lines, and what the sentence must contain. The job is process 4711.
"""

from __future__ import annotations

from gpuckpt.tools.criunames import Names

NAMES = Names(
    processes={4711: "train", 4712: "loader"},
    descriptors={
        (4711, 3): "/dev/fuse",
        (4711, 4): "127.0.0.1:5000 connected to 10.0.0.9:443",
        (4711, 5): "anon_inode:[io_uring]",
        (4711, 17): "/dev/nvidiactl",
    },
    sockets={0x15DF0C: "127.0.0.1:5000 connected to 10.0.0.9:443"},
    mappings={(4711, 0x7F00AA000000): "/SYSV00000000", (4711, 0x7F00BB000000): "/nfs/lib.so"},
    files={26: "tcp 0.0.0.0 port 8000", 0x17: "/data/state"},
    locks=("flock on /data/lock (process 4711, descriptor 6)",),
    peers=("descriptor 8 of process 4711 is a stream socket connected to process 9 (dbus)",),
)

IN_FILES = "(00.040425) Dumping opened files (pid: 4711)\n(00.040449) 4711 fdinfo {fd}: pos: 0\n"
AFTER = (
    "(00.040558) Error (criu/cr-dump.c:1545): Dump files (pid: 4711) failed with -1\n"
    "(00.040714) Error (criu/cr-dump.c:1975): Dumping FAILED.\n"
)


def _dump(line: str, fd: int = 3) -> str:
    return f"{IN_FILES.format(fd=fd)}(00.040546) Error (criu/x.c:1): {line}\n{AFTER}"


def _stop(line: str) -> str:
    return f"(00.040546) {line}\n(00.040714) Error (criu/cr-dump.c:1975): Dumping FAILED.\n"


def _again(line: str, then: str = "Unable to open fd=3 id=0x17") -> str:
    """At a restore each line bears the pid of its process, and CRIU kills the others at the end."""
    return (
        f"(00.020207)   4711: Error (criu/x.c:1): {line}\n"
        f"(00.020209)   4711: Error (criu/files.c:1221): {then}\n"
        "(00.020248) Error (criu/cr-restore.c:2331): Restoring FAILED.\n"
        "(00.020418) Error (criu/cr-restore.c:1269): 4711 killed by signal 9: Killed\n"
    )


def _pie(line: str) -> str:
    return (
        f"(00.031926) pie: 4711: Error (criu/pie/restorer.c:1): {line}\n"
        "(00.031936) pie: 4711: Error (criu/pie/restorer.c:2332): Restorer fail 4711\n"
        "(00.031959) Error (criu/cr-restore.c:2331): Restoring FAILED.\n"
    )


WHO = "process 4711 (train)"
DUMP = [
    (
        "killed while it was read",
        "(00.087043) Error (criu/parasite-syscall.c:87): si_code=2 si_pid=4711 si_status=9\n"
        "(00.087069) Error (criu/parasite-syscall.c:92): 4720 was killed by 9 unexpectedly\n"
        + AFTER,
        f"{WHO} was ended by signal 9 while it was being read",
    ),
    ("device", _dump("Can't dump file 3 of that type [20600] (chr 10:229)"), "(/dev/fuse), chr"),
    (
        "nvidia",
        _dump("Can't dump file 17 of that type [20666] (chr 195:255)", 17),
        f"{WHO} still has a GPU device open: descriptor 17 (/dev/nvidiactl)",
    ),
    (
        "anonymous",
        _dump("Can't dump file 3 of that type [600] (anon anon_inode:[userfaultfd])"),
        "anon_inode:[userfaultfd]",
    ),
    (
        "descriptor in flight",
        "(00.031875) 4799 fdinfo 21: pos: 0\n"
        + _stop("Error (x.c:1): Can't dump file 21 of that type [20600] (chr 10:229)"),
        "a descriptor that was sent over a unix socket",
    ),
    (
        "ring open",
        "(00.02) Dumping opened files (pid: 4711)\n"
        "pie: 4711: Error (criu/pie/parasite.c:588): send_fds failed (-22)\n"
        + _stop("Error (criu/parasite-syscall.c:280): Can't retrieve FDs from socket"),
        "handed on: descriptor 5 (anon_inode:[io_uring])",
    ),
    (
        "ring mapped",
        "(00.02) Collecting mappings (pid: 4711)\n"
        "(00.049463) Error (criu/proc_parse.c:502): Unknown shit 600 (anon_inode:[io_uring])\n"
        + _stop("Error (x.c:1): Can't open 4711's mapfile link 7f00aa000000: No such device"),
        f"{WHO} has an io_uring ring mapped",
    ),
    (
        "secret memory",
        "(00.02) Collecting mappings (pid: 4711)\n"
        + _stop("Error (criu/proc_parse.c:502): Unknown shit 100600 (/secretmem (deleted))"),
        "/secretmem (deleted)",
    ),
    (
        "root squash",
        _stop("Error (x.c:1): Can't open 4711's mapfile link 7f00bb000000: Permission denied"),
        f"the mapping of /nfs/lib.so of {WHO} cannot be opened (Permission denied)",
    ),
    (
        "device mapped",
        "(00.02) Collecting mappings (pid: 4711)\n"
        + _stop("Error (x.c:1): handle_device_vma plugin failed: No such file or directory"),
        f"{WHO} has a device mapped: descriptor 3 (/dev/fuse), descriptor 17 (/dev/nvidiactl)",
    ),
    (
        "ghost",
        _dump("Can't dump ghost file /tmp/a file of 3002368 size, increase limit"),
        "/tmp/a file that process 4711 (train) still has open or mapped has 3002368 bytes",
    ),
    (
        "link remap wanted",
        _dump("Can't create link remap for /dev/shm/sem.zxvnbR. Use link-remap option."),
        "/dev/shm/sem.zxvnbR",
    ),
    (
        "link remap there",
        _dump("Can't link remap to /dev/shm/sem.f0oRsO: File exists"),
        "link_remap file of another dump, beside /dev/shm/sem.f0oRsO",
    ),
    (
        "other mount",
        _dump("Can't lookup mount=24 for fd=3 path=/etc/x", 3),
        f"{WHO} uses /etc/x on a filesystem that is not mounted here",
    ),
    ("locks", _stop("Error (x.c:1): Some file locks are hold by dumping tasks!"), "/data/lock"),
    ("packet pipe", _dump("The packetized mode for pipes is not supported yet"), "packet mode"),
    ("pidfd", _dump("pidfd: pidfd pid 1 is not a part of process tree.."), "pidfd of process 1,"),
    ("tun", _dump("tun: Net namespace is required to dump tun link"), "tun or tap"),
    (
        "watch",
        _dump("fsnotify: Can't find suitable path for handle (dev 0x1b ino 0x44): -1"),
        "watches a file",
    ),
    (
        "tcp",
        _dump("inet: Connected TCP socket, consider using --tcp-established option.", 4),
        f"{WHO} has a connected TCP socket: descriptor 4 (127.0.0.1:5000 connected to 10.0.0.9",
    ),
    ("in flight", _dump("inet: In-flight connection (l) for 15e07f", 4), "waits to be accepted"),
    ("corked", _dump("inet: Can't dump corked dgram socket 15eff1", 4), "UDP socket"),
    (
        "no iptables",
        _stop("Error (criu/util.c:657): exited, status=127")
        .replace("Dumping FAILED", "x")
        .replace("(00.040714) Error (criu/cr-dump.c:1975): x.\n", "")
        + "(00.075061) Error (criu/netfilter.c:105): Iptables configuration failed\n"
        + _dump("tcp: Failed to lock TCP connection 15df0c", 4),
        "the firewall cannot be changed",
    ),
    (
        "tcp lock",
        _dump("tcp: Failed to lock TCP connection 15df0c", 4),
        "could not be held: 127.0.0.1:5000 connected to 10.0.0.9:443",
    ),
    (
        "unix outside",
        _stop("Error (x.c:1): unix: External socket is used. Consider using --ext-unix-sk option."),
        "process 9 (dbus)",
    ),
    (
        "unix half",
        _stop(
            "Error (x.c:1): unix: Can't dump half of stream unix connection. name: (null); "
            "peer name: /run/systemd/journal/stdout"
        ),
        "/run/systemd/journal/stdout",
    ),
    ("vsock", _dump("sockets: BUG! Unknown socket collected (family 40)"), "a family that CRIU"),
    ("netlink", _dump("netlink: The socket has data to read"), "netlink"),
    (
        "session",
        _stop("Error (x.c:1): The root process 4711 is not a session leader. Consider using"),
        f"{WHO} does not lead its session",
    ),
    (
        "dangling tty",
        _stop("Error (x.c:1): tty: Found dangling tty with sid 24 pgid 25 (pts) on peer fd 0."),
        "session 24",
    ),
    (
        "half a pty",
        _stop("Error (x.c:1): tty: Found slave peer index 7 without correspond master peer"),
        "/dev/pts/7",
    ),
    (
        "traced",
        "(00.0427) Warn  (compel/src/lib/infect.c:132): Unable to interrupt task: 4711 "
        "(Operation not permitted)\n"
        + _stop("Error (compel/src/lib/infect.c:417): Unable to detach from 4711: No such process"),
        f"{WHO} could not be stopped: another program traces it",
    ),
    (
        "frozen",
        "(03.07) Error (criu/cr-dump.c:1655): Timeout reached. Try to interrupt: 0\n"
        + _stop("Error (x.c:262): Unseizable non-zombie 4711 found, state D, err -1/4"),
        "frozen by its control group",
    ),
    (
        "slow",
        _stop("Error (criu/cr-dump.c:1655): Timeout reached. Try to interrupt: 0"),
        "in time",
    ),
    (
        "main thread gone",
        _stop("Error (x.c:1): zombie 4711 (comm train) found while seizing"),
        "main thread",
    ),
    (
        "namespace",
        _stop("Error (x.c:1): Can't dump nested pid namespace for 4712"),
        "process 4712 (loader) has a pid namespace of its own",
    ),
    (
        "user namespace",
        _stop("Error (criu/namespaces.c:931): Unable to convert uid or gid"),
        "container",
    ),
    (
        "sysv",
        _stop("Error (x.c): Task 4711 with SysVIPC shmem map @7f00aa000000 doesn't live in IPC ns"),
        "the mapping of /SYSV00000000",
    ),
    ("uprobes", _stop("Error (x.c:1): PID 4711 has uprobes vma. Consider"), "uprobes"),
    (
        "seccomp",
        _stop("Error (x.c:1): seccomp: Can't fetch filter on tid_real 4711 i 0: Invalid argument"),
        "seccomp",
    ),
    (
        "security label",
        "pie: 4711: Error (x.c:1): Unable to connect a transport socket: Permission denied\n"
        + _stop("Error (x.c:1): POKEDATA failed: No such process"),
        f"{WHO} may not open a unix socket",
    ),
    (
        "killed meanwhile",
        "(00.113477) Error (criu/cgroup.c:1032): cg: BUG at criu/cgroup.c:1032\n",
        "was killed",
    ),
    ("rseq", _stop("Error (x.c:1): Can't handle rseq (pid: 4711)"), "too old"),
    ("vdso", _stop("Error (x.c:1): vdso: Unexpected rt vDSO area bounds"), "too old for this"),
    (
        "guard pages",
        _stop("Error (x.c:1): Collect MADV_GUARD_INSTALL pages (pid: 4711) failed with -1 x"),
        "guard pages",
    ),
    (
        "disk full",
        "(00.02) Error (x.c:1): bfd: Error flushing image: No space left on device\n",
        "full",
    ),
    ("privileges", "(00.00) Effective capability 40 missing\n", "privileges"),
    ("kernel", "Error (x.c:1): Could not initialize kernel features detection.\n", "this kernel"),
]
RESTORE = [
    ("pid taken", _stop("Error (x.c:1): Can't fork for 4711: File exists"), "pid 4711, which"),
    (
        "pid limit",
        _stop("Error (x.c:1): Can't fork for 4711: Resource temporarily unavailable"),
        "a limit on processes",
    ),
    ("thread id taken", _pie("Unable to create a thread: -17"), f"a thread id that {WHO} had"),
    (
        "file missing",
        _again("Can't open file data/my file on restore: No such file or directory"),
        f"/data/my file, which {WHO} uses, is missing",
    ),
    ("size", _again("File data/log has bad size 4 (expect 1)"), "/data/log has 4 bytes; it had 1"),
    (
        "mode",
        _again("File data/log has bad mode 0100777 (expect 0100644)"),
        "/data/log has mode 100777; it had 100644",
    ),
    (
        "build id",
        _again("File usr/lib/libc.so.6 has bad build-ID", "`- Can't open vma"),
        "/usr/lib/libc.so.6 is another build",
    ),
    (
        "named pipe",
        _again("Can't open fake fifo 0x17 [data/ff]: No such file or directory"),
        "the named pipe /data/ff",
    ),
    ("ghost name", _again("Can't create ghost regfile: File exists"), "left-over"),
    (
        "remap gone",
        _again("Can't link dev/shm/link_remap.22 -> dev/shm/sem.X: No such file or directory"),
        "/dev/shm/sem.X of the job has no content here",
    ),
    (
        "port",
        _again("inet: Can't bind inet socket (id 26): Address already in use"),
        "in use on this host: tcp 0.0.0.0 port 8000",
    ),
    (
        "data for a peer that is not there",
        _again(
            "Can't restore not-sent send queue data (-1), want (0-948:3884032:948): Broken pipe"
        ),
        "on a TCP connection of process 4711 (train) could not be put back (Broken pipe)",
    ),
    (
        "address",
        _again("inet: Can't bind inet socket (id 26): Cannot assign requested address"),
        "does not have an address that the job listens on: tcp 0.0.0.0 port 8000",
    ),
    (
        "name of a unix socket",
        _again("unix: Can't bind id 0x1a ino 1498094 addr : Address already in use"),
        "the name of a unix socket of process 4711 (train) is in use on this host: tcp 0.0.0.0",
    ),
    (
        "name of a unix socket not allowed",
        _again("unix: Can't bind id 0x1a ino 1498094 addr : Permission denied"),
        "of process 4711 (train) could not be made again (Permission denied)",
    ),
    (
        "unix name",
        _again("unix: Can't bind id 0x1a ino 1498094 addr d/s: No such file or directory"),
        "the unix socket /d/s",
    ),
    (
        "lock",
        _again("Can not set flock!"),
        "is held by another process now: descriptor 3 (/data/state)",
    ),
    ("no tty", _again("tty: Don't have tty to inherit session from, aborting"), "terminal"),
    (
        "capabilities",
        (
            "(00.036210) pie: 4711: Error (x.c:347): Unable to restore capabilities: -1\n"
            "(00.036266) pie: 4711: Error (x.c:2292): BUG at criu/pie/restorer.c:2292\n"
            "(00.036287) Error (x.c:1750): Task stopped with 11: Segmentation fault\n"
            "(00.036308) Error (criu/cr-restore.c:2331): Restoring FAILED.\n"
        ),
        f"{WHO} had a set of capabilities",
    ),
    (
        "clock",
        _again("Unable to set a monotonic clock offset: Operation not permitted", "x"),
        "clocks",
    ),
    (
        "empty cpuset",
        _again("cg: Can't move 4711 into /job (-1/-28): No space left on device", "x"),
        "empty cpuset",
    ),
    ("cgroup", _again("cg: Can't make cgroup dir /job: Permission denied", "x"), "control group"),
    ("label", _again("can't write lsm profile -1", "x"), "security label"),
    (
        "attached",
        "(00.039201) Error (x.c:1743): Can't attach to 4711: Operation not permitted\n"
        + _stop("Error (x.c:1849): Can't interrupt the 4711 task: No such process"),
        f"{WHO} could not be taken over: another program traces new processes",
    ),
    (
        "transport",
        _again("Can't bind transport socket /crtools-fd-3-0: Address already in use", "x"),
        "another restore",
    ),
    (
        "huge pages",
        _pie("Can't restore 0x7f26a8000000 mapping with 0xfffffffffffffff4"),
        "out of memory, or of huge pages",
    ),
    (
        "memory limit",
        _again("Unable to reserve memory (174239744 bytes): Cannot allocate memory", "x"),
        "memory back",
    ),
    (
        "crash",
        (
            "(00.025907) Error (x.c:1269): 4711 killed by signal 11: Segmentation fault\n"
            "(00.025917) Error (criu/cr-restore.c:2331): Restoring FAILED.\n"
        ),
        f"{WHO} crashed (signal 11)",
    ),
    (
        "killed",
        (
            "(00.174514) Error (criu/cr-restore.c:1269): 4711 killed by signal 9: Killed\n"
            "(00.174552) Error (criu/cr-restore.c:2331): Restoring FAILED.\n"
        ),
        f"{WHO} was killed while CRIU worked on it",
    ),
    ("empty image", _stop("Error (x.c:1): Unexpected EOF on (empty-image)"), "missing or empty"),
    (
        "short image",
        _stop("Error (x.c:1): Read 7 bytes while 14 expected from pagemap-7.img: No such file"),
        "pagemap-7.img is cut short: 7 of 14 bytes",
    ),
    ("no pages", _pie("Can't read pages data (-9)"), f"the memory pages of {WHO}"),
    ("old image", _stop("Error (x.c:1): No IDS for root task."), "contradicts itself"),
    ("cpu", _stop("Error (x.c:1): cpu: FPU feature required by image is not supported"), "CPU"),
    (
        "inotify limit",
        _again("fsnotify: Can't add watch for 0x1 with 0x1: No space left on device"),
        "inotify watches",
    ),
]
