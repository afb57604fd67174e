"""What CRIU 4.2.1 says at a restore: privileges, limits, memory, and the images themselves."""

from __future__ import annotations

from typing import Final

from gpuckpt.tools.criuwords.rule import Rule

_ROOT: Final = "Restore as root, outside a container or unit that takes capabilities away."

RIGHTS: Final = (
    Rule(
        r"Unable to restore capabilities|Unable to drop capability (?P<number>\d+)|"
        r"Unable to raise ambient capability",
        "{who} had a set of capabilities that gpuckpt may not give it here",
        _ROOT,
    ),
    Rule(
        r"Unable to set (real, effective and saved|fsuid|fsgid|SECURE|PR_SET_SECUREBITS)|"
        r"Can't setgroups|Unable to set (user|group) ID|Can't set UIDs",
        "{who} could not be given its user and groups again",
        _ROOT,
    ),
    Rule(
        r"can't write lsm profile|can't render profile|apparmor LSM specified|"
        r"selinux LSM specified|aa policy|apparmor parsing failed|walking AA namespace",
        "the security label that {who} had (AppArmor or SELinux) cannot be given to it here",
        "Load the same policy on this host, and restore again.",
    ),
    Rule(
        r"Unable to set a (monotonic|boottime) clock offset: (?P<why>.+)|"
        r"Unable to create a new time namespace|Time namespaces are not supported",
        "the clocks of the job could not be set: time namespaces are missing or not allowed",
        "They need CAP_SYS_TIME and CAP_SYS_ADMIN and a kernel with CONFIG_TIME_NS.",
    ),
    Rule(
        r"Can't attach to (?P<pid>\d+): Operation not permitted",
        "{who} could not be taken over: another program traces new processes, or it ended at once",
        "Stop security agents and tracers (strace -f, perf trace, EDR), and restore again.",
    ),
    Rule(
        r"Can't (interrupt the |attach to )(?P<pid>\d+)|Can't catch all tasks",
        "{who} could not be taken over: it ended at once, or another program traces it",
        "Stop security agents and tracers, and restore again.",
    ),
    Rule(
        r"seccomp: (PR_SET_SECCOMP|SECCOMP_MODE_STRICT|SECCOMP_SET_MODE_FILTER)",
        "the seccomp filter of {who} could not be set again",
        _ROOT,
    ),
    Rule(
        r"cg: .*No space left on device",
        "the control group that the job is put into has no CPUs or memory nodes (an empty cpuset)",
        "Write cpuset.cpus and cpuset.mems of that group, and restore again: no disk is full.",
    ),
    Rule(
        r"cg: (Can't move|cgroupd: Can't move|Can't make cgroup dir|Failed (opening|writing)|"
        r"CG paths mismatch|controller .* not found|Unable to mount|Restoring)",
        "a control group of the job could not be made or entered",
        "Controllers and layout of cgroups differ from those at the dump: the lines below name it.",
    ),
    Rule(
        r"Can't restore \S+ mapping with 0xfffffffffffffff4|Can't mmap shmem .*Cannot allocate|"
        r"Can't resize shmem .*Cannot allocate",
        "{who} could not get its memory back: this host is out of memory, or of huge pages",
        "Free memory, raise the memory cgroup's limit, or reserve huge pages (vm.nr_hugepages).",
    ),
    Rule(
        r"Can't restore (?P<map>\S+) mapping with (?P<got>\S+)",
        "{who} could not get its memory back at {map}: the kernel gave {got}",
        "Compare vm.max_map_count, vm.overcommit_memory and the kernel with those of the dump.",
    ),
    Rule(
        r"Unable to reserve memory|Unable to map ANON_VMA|Unable to remap a private vma|"
        r"Can't map shmem|Can't mmap shm|Can't make file size|Unable to truncate memfd",
        "{who} could not get its memory back",
        "Free memory, and look at ulimit -v, vm.overcommit_memory and /dev/shm's size.",
    ),
    Rule(
        r"cpu: (FPU feature required|CPU (instruction )?capabilities do not match|"
        r"CPU xsave|CPU xfeatures)|x86: FPU xsave area present",
        "this CPU lacks something that the CPU of the dump had",
        "Restore on a host with the same CPU model, or a newer one of its line.",
    ),
    Rule(
        r"Can't remap AIO ring|Ring (remap|setup) failed|Ring size is not aligned",
        "the asynchronous I/O (io_setup) of {who} could not be set up again",
        "Raise fs.aio-max-nr, and restore again.",
    ),
    Rule(
        r"Can't create posix timer|Can't create timers, kernel|Can't restore posix timers|"
        r"Can't restore timerfd",
        "a timer of {who} could not be made again",
        "`gpuckpt doctor` tells whether CRIU works on this kernel.",
    ),
    Rule(
        r"hugetlb|MFD_HUGETLB",
        "the huge pages of {who} could not be had",
        "Reserve them (vm.nr_hugepages), and restore again.",
    ),
)

IMAGES: Final = (
    Rule(
        r"Unexpected EOF on (?!\(empty-image\))(?P<name>\S+)",
        "CRIU found less in {name} than it needs",
        "Check the image with `gpuckpt verify`.",
    ),
    Rule(
        r"Unexpected EOF( on \(empty-image\))?$|Can't open core data for (?P<pid>\d+)|"
        r"Img trimmed",
        "an image file that CRIU needs is missing or empty",
        "Check the image with `gpuckpt verify`.",
    ),
    Rule(
        r"Read (?P<got>-?\d+) bytes while (?P<want>\d+) expected (on|from) (?P<name>\S+):",
        "the image file {name} is cut short: {got} of {want} bytes",
        "Check the image with `gpuckpt verify`.",
    ),
    Rule(
        r"Can't read pages data|Can't read (mapping page|pagemap)|Can't read async pr bytes|"
        r"Page read err|Page entry address|Missing \S+ in parent pagemap|"
        r"Wanted to restore \d+ bytes|Out of order read completed|Reached EOF unexpectedly",
        "the memory pages of {who} are missing, cut short or unreadable",
        "Check the image with `gpuckpt verify`.",
    ),
    Rule(
        r"Not supported images version|Too old image|Images corrupted or too old criu",
        "the image was written by a CRIU that this one does not understand",
        "Restore with the CRIU version that `gpuckpt show` names, or a newer one.",
    ),
    Rule(
        r"Magic doesn't match for (?P<name>\S+)|Image corrupt|[Ii]mage corruption|"
        r"Failed unpacking object|Unknown image format|No IDS for root task|"
        r"No entry for (memfd|reg-file)|Core \w+.* data missed|No file for fd|"
        r"Images? corrupted|Bad number of sigactions",
        "the image contradicts itself: it is damaged, or of another CRIU",
        "Check the image with `gpuckpt verify`.",
    ),
)
