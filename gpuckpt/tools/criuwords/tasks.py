"""What CRIU 4.2.1 says at a dump of processes: stopping them, looking into them, namespaces."""

from __future__ import annotations

from typing import Final

from gpuckpt.tools.criuwords.rule import Rule

_CONTAINER: Final = "Use the container runtime's own checkpoint, or run the job outside."
_AGENT: Final = (
    "A security module or agent keeps code from being put into the process: look at its label "
    "(/proc/PID/attr/current), the audit log and the seccomp filter."
)

TASKS: Final = (
    Rule(
        r"Unseizable non-zombie (?P<pid>\d+) found, state D",
        "{who} could not be stopped: it is frozen by its control group, or waits for a disk or "
        "network filesystem",
        "Thaw the group, or wait until the disk answers, and dump again.",
    ),
    Rule(
        r"Unseizable non-zombie (?P<pid>\d+) found, state (?P<state>\w)",
        "{who} could not be stopped (state {state}): it is traced by another program, or just ends",
        "End the debugger or tracer, and dump again.",
    ),
    Rule(
        r"zombie (?P<pid>\d+) \(comm (?P<comm>.*)\) found while seizing",
        "process {pid} ({comm}) has ended, or its main thread has",
        "Dump again; a process whose main thread has ended cannot be dumped.",
    ),
    Rule(
        r"A root task is dead",
        "the job's first process ended while it was being stopped",
        "Nothing can be dumped any more: look at the job's own log.",
    ),
    Rule(
        r"The criu itself is within dumped tree",
        "CRIU itself runs inside the tree that is to be dumped",
        "Run gpuckpt from outside the job's tree.",
    ),
    Rule(
        r"Can't dump nested (?P<kind>\w+) namespace for (?P<pid>\d+)",
        "{who} has a {kind} namespace of its own inside the tree",
        "Dump the part of the tree that is inside it, or start the job without it.",
    ),
    Rule(
        r"Can't dump nested time namespace for (?P<pid>\d+)",
        "{who} has a time namespace of its own for its children",
        "Start the job without it.",
    ),
    Rule(
        r"One or more namespaces doesn't belong to the target user namespace|"
        r"Unable to convert uid or gid|Can't dump a pid namespace without the process init|"
        r"Nested mount namespaces are not supported|The root task has another root than mntns",
        "the job runs in namespaces of its own, as in a container",
        _CONTAINER,
    ),
    Rule(
        r"A session leader of (zombie process )?(?P<pid>\d+)\((?P<sid>\d+)\) is outside of its pid "
        r"namespace|Can't find a session leader for (?P<pid2>\d+)",
        "the session of a process of the job is led by a process outside its pid namespace",
        "Start such jobs with setsid inside the container.",
    ),
    Rule(
        r"Task (?P<pid>\d+) with SysVIPC shmem map @(?P<map>[0-9a-f]+) doesn't live in IPC ns",
        "{who} uses System V shared memory ({mapping}), which others outside may share",
        "Start the job without it (UCX_TLS without sysv), or in an IPC namespace of its own.",
    ),
    Rule(
        r"Sysv shmem .* not supported|SysV shmem vma|Sysv shmem .* with misordered",
        "the job uses System V shared memory in a way CRIU cannot dump",
        "Start the job without it (UCX_TLS without sysv).",
    ),
    Rule(
        r"Can't dump task (?P<pid>\d+) (running in 32-bit mode|with LDT descriptors)",
        "{who} is a 32-bit program, which this CRIU cannot dump",
        "Run its 64-bit build.",
    ),
    Rule(
        r"Can't dump the (?P<tid>\d+) thread with a pending SIGTRAP|"
        r"Individually stopped threads not supported",
        "a thread of the job is held by a debugger",
        "End the debugger or tracer, and dump again.",
    ),
    Rule(
        r"PID (?P<pid>\d+) has uprobes vma",
        "{who} is being watched by uprobes (bpftrace, perf probe)",
        "End the tracing tool, and dump again.",
    ),
    Rule(
        r"seccomp: |[Ff]ailed to suspend seccomp|couldn't suspend seccomp|"
        r"suspending seccomp failed|Dumping seccomp filters not supported|"
        r"Kernel doesn't support PTRACE_O_SUSPEND_SECCOMP",
        "the seccomp filter of {who} could not be read or put aside",
        "CAP_SYS_ADMIN is needed for that; or start the job without the filter.",
    ),
    Rule(
        r"Unable to connect a transport socket: (?P<why>.+)",
        "{who} may not open a unix socket, which CRIU needs in it ({why})",
        _AGENT,
    ),
    Rule(
        r"Can't infect \(pid: (?P<pid>\d+)\) with parasite|Can't run parasite at (?P<pid2>\d+)|"
        r"Can't inject (syscall blob|memfd args)|POKEDATA failed|Can't poke \d+|"
        r"Can't create memfd in victim|Can't map remote parasite map|"
        r"Can't switch parasite (?P<pid3>\d+) to daemon|Can't allocate memory for parasite blob",
        "the code that reads {who} from inside could not be put into it",
        _AGENT,
    ),
    Rule(
        r"Can't block signals for (?P<pid>\d+)|Can't obtain (FPU )?registers|"
        r"Can't obtain regs for thread|Waited pid mismatch|Task is still running",
        "{who} changed while it was being read: it was woken, traced or killed by somebody else",
        "See whether it runs, then dump again.",
    ),
    Rule(
        # the line after it may name another thread of the process, or one that was seen before
        r"si_code=[23] si_pid=(?P<pid>\d+) si_status=(?P<signal>\d+)",
        "{who} was ended by signal {signal} while it was being read",
        "Somebody, a watchdog or a limit on memory ends processes here: see who, and try again.",
    ),
    Rule(
        r"cg: BUG at |Child \d+ died too early|Task pid reused while suspending",
        "a process of the job was killed while it was being read",
        "See which process is gone and why: the kernel's log tells of memory shortage.",
    ),
    Rule(
        r"Can't handle rseq|Dump \d+ rseq failed|(?P<pid>\d+) has rseq but kernel lacks|"
        r"rseq: can't restore|get_rseq_conf|unsupported RSEQ ABI",
        "this kernel or this CRIU is too old for the C library of the job (rseq)",
        "Run bin/install-criu; the kernel must be 5.13 or newer for such jobs.",
    ),
    Rule(
        r"vdso: |Compatible vdso's size|Can't fixup vdso VMAs|rt vDSO area bounds",
        "this CRIU is too old for this kernel (vDSO)",
        "Run bin/install-criu, then `gpuckpt doctor`.",
    ),
    Rule(
        r"Collect MADV_GUARD_INSTALL pages|madvise\(.*MADV_GUARD_INSTALL\)|PAGE_IS_GUARD",
        "the job uses guard pages, which this kernel does not show to CRIU",
        "Dump it on a kernel from 6.16 on.",
    ),
    Rule(
        r"PAGEMAP_SCAN|Can't read (?P<pid>\d+)'s pagemap file|pagemap-cache: Failed|"
        r"should_dump_page failed",
        "the page tables of {who} could not be read",
        "`gpuckpt doctor` tells whether CRIU works on this kernel.",
    ),
    Rule(
        r"Failed obtaining futex robust list|shstk: |Shadow stack address mismatch|"
        r"Cannot (get shadow stack status|unlock CET)",
        "the state of {who} could not be read: it has a shadow stack or robust futexes in a state "
        "that CRIU does not know",
        "Start the job without shadow stacks (GLIBC_TUNABLES=glibc.cpu.x86_shstk=off).",
    ),
    Rule(
        r"Zombies with threads are not supported|Zombie with children|Zombie thread not supported",
        "a process of the job is ending: some of its threads are gone already",
        "Dump again in a moment.",
    ),
)
