"""Limits of the host or container: memory, shared memory, files, processes, disk."""

# ruff: noqa: S108 - these paths are spoken of, not written to
from __future__ import annotations

import re

from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, Match, Rule, message_rule, rule
from torchlock.doctor.rules.nccl import shm_bytes, shm_fix

KIND = "host-limits"


@rule(
    "dataloader-shm-too-small",
    KIND,
    cause="/dev/shm is full or too small (<size>) for the DataLoader workers' batches.",
    shows="`DataLoader worker ... killed by signal: Bus error`, `insufficient shared "
    "memory (shm)`, `unable to write to file </torch_...>` or "
    "`No space left` in /dev/shm.",
    fix=lambda evidence: (
        *shm_fix(evidence),
        "or fewer workers: DataLoader(num_workers=0), or set_sharing_strategy('file_descriptor')",
    ),
    apart=(
        "memory-limit-killed: signal Killed and an oom_kill in the cgroup",
        "open-files-limit: `received 0 items of ancdata`, Too many open files",
        "nccl-shm-too-small: NCCL's own segments",
    ),
    follows=("nccl-shm-too-small",),
)
def shm(evidence: Evidence) -> Match | None:
    """Workers without shared memory."""
    lines = evidence.grep(
        r"insufficient shared memory|signal: Bus error|unable to (write to|open"
        r"|resize|allocate|mmap)\S* .*(/torch_|shared memory|shm)|No space left on "
        r"device.*(/dev/shm|torch_)|SIGBUS|Bus error \(core dumped\)"
    )
    if not lines or re.search("nccl", evidence.error, re.I):
        return None
    size = shm_bytes(evidence)
    shown = f"{size // 2**20} MB" if size is not None else "see df -h /dev/shm"
    full = evidence.grep(r"\b(9\d|100)% /dev/shm|\b(9\d|100)%", source="shm")
    large = size is not None and size > 8 * 2**30 and not full
    return Match(
        lines + evidence.grep("shm", source="df|mount|docker") + full,
        LIKELY if large or size is None else CERTAIN,
        {"size": shown},
    )


@rule(
    "open-files-limit",
    KIND,
    cause="The process ran into its limit of open files (ulimit -n <limit>): every "
    "shared tensor holds a descriptor.",
    shows="`received 0 items of ancdata`, `Too many open files`; RLIMIT_NOFILE nearly used.",
    fix=(
        "ulimit -n 65536    # lasting: '* soft nofile 65536' (and hard) in "
        "/etc/security/limits.conf; docker run --ulimit nofile=65536:65536; "
        "systemd: LimitNOFILE=65536",
        "or torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    apart=("dataloader-shm-too-small: Bus error, /dev/shm full",),
)
def files(evidence: Evidence) -> Match | None:
    """RLIMIT_NOFILE."""
    lines = evidence.grep(
        r"items of ancdata|Too many open files|Errno 24\b|EMFILE|unable to open "
        r"file.*\(24\)|eventfd.*open files"
    )
    limit = evidence.first(r"^\s*(\d+)\s*$", source=r"ulimit -S?n|nofile") or evidence.first(
        r"(?:Max open files|nofile|open files)\D+(\d+)"
    )
    return (
        Match(
            lines + evidence.grep(r"\d", source=r"ulimit -\w*n|/fd|limits|nofile"),
            values={"limit": limit[1] if limit else "see ulimit -n"},
        )
        if lines
        else None
    )


@rule(
    "memory-limit-killed",
    KIND,
    cause="The process exceeded the host-memory limit of its <what> and the kernel killed it.",
    shows="Signal Killed (9) or exit 137 with oom_kill above 0 in memory.events, "
    "`oom-kill` in the kernel log, OOMKilled.",
    fix=(
        "give the job more host memory: Slurm --mem or --mem-per-cpu; docker run "
        "--memory; Kubernetes resources.limits.memory",
        "or need less: fewer DataLoader workers, a smaller prefetch_factor and "
        "batches; stream instead of loading the data set whole",
        "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory.max    # version 1: "
        "memory/memory.oom_control, memory/memory.limit_in_bytes",
    ),
    apart=(
        "dataloader-shm-too-small: signal Bus error",
        "gpu-out-of-memory: CUDA out of memory is GPU memory",
    ),
)
def killed(evidence: Evidence) -> Match | None:
    """The OOM killer."""
    counted = evidence.grep(
        r"oom_kill [1-9]|oom_kill_disable|oom-kill:|Out of memory: Killed process"
        r"|Memory cgroup out of memory|OOMKilled|OUT_OF_MEMORY|oom_kill event"
        r"|Detected \d+ oom[-_]kill|exceeded (job |step )?memory limit"
    )
    signal = evidence.grep(
        r"signal: Killed|signal 9\b|SIGKILL|exit(ed with| code:?)?\D{0,12}137"
        r"|exitcode\s*:?\s*-9|^\s*Killed\s*$"
    )
    if (not counted and not signal) or (evidence.torch.available is False and not signal):
        return None
    if not evidence.error and not signal:
        return None
    if not signal and not re.search(
        r"kill|memory|oom|137|exited unexpectedly", evidence.error, re.I
    ):
        return None
    what = (
        "Slurm job"
        if evidence.set_env("SLURM_JOB_ID")
        else "container or pod"
        if evidence.container.inside
        else "cgroup, or of the machine"
    )
    return Match(
        signal + counted + evidence.grep(r"\d", source="memory.max|memory.limit"),
        CERTAIN if counted else LIKELY,
        {"what": what},
    )


@rule(
    "process-limit",
    KIND,
    cause="No further thread or process may be started (limit <limit>).",
    shows="`can't start new thread`, `pthread_create failed: Resource temporarily "
    "unavailable`, `fork: retry`, pids.max reached.",
    fix=(
        "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids.current; ulimit -u",
        "docker run --pids-limit=-1 ...    # Kubernetes: podPidsLimit; ulimit -u 65536",
        "or use fewer threads: export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1",
    ),
    apart=("open-files-limit: files, not processes",),
)
def processes(evidence: Evidence) -> Match | None:
    """pids.max or RLIMIT_NPROC."""
    lines = evidence.grep(
        r"can't start new thread|pthread_create\W.*(fail|Resource temporarily)"
        r"|fork: (retry|Resource)|Thread creation failed|libgomp: Thread creation"
        r"|Cannot fork|BlockingIOError.*Errno 11"
    )
    limit = evidence.first(r"^\s*(\d+)\s*$", source=r"pids\.max|ulimit -u")
    return (
        Match(
            lines + evidence.grep(r"\d", source=r"pids|ulimit -u"),
            CERTAIN,
            {"limit": limit[1] if limit else "see pids.max and ulimit -u"},
        )
        if lines
        else None
    )


@rule(
    "disk-full",
    KIND,
    cause="A file system is full (<where>).",
    shows="`No space left on device` (ENOSPC) outside /dev/shm, `Disk quota exceeded`.",
    fix=(
        "df -h; df -i; du -xsh ~/.cache /tmp    # which one, and what fills it",
        "export TMPDIR=<a large directory> PIP_CACHE_DIR=$TMPDIR/pip    # the "
        "wheels need 8 GB while installing",
    ),
    apart=("dataloader-shm-too-small, nccl-shm-too-small: /dev/shm is full",),
    follows=("dataloader-shm-too-small", "nccl-shm-too-small", "open-files-limit"),
)
def disk(evidence: Evidence) -> Match | None:
    """ENOSPC or quota."""
    lines = evidence.grep(
        r"No space left on device|Errno 28\b|Disk quota exceeded|Errno 122\b|inotify watch"
    )
    if not lines or all("/dev/shm" in line for line in lines):
        return None
    full = evidence.grep(r"\s(9[89]|100)%\s", source="df")
    where = re.search(r"%\s+(\S+)", full[0]) if full else None
    return Match(
        lines + full, CERTAIN if full else LIKELY, {"where": where[1] if where else "see df -h"}
    )


exhausted = message_rule(
    "host-memory-exhausted",
    KIND,
    r"Errno 12\] Cannot allocate memory|DefaultCPUAllocator: (not enough|can't allocate) memory",
    cause="The host (or its cgroup) has no memory left for this allocation.",
    fix=(
        "free -g; cat /sys/fs/cgroup/memory.max; cat /proc/sys/vm/overcommit_memory    # 2 refuses",
        "give the job more memory (Slurm --mem, docker --memory), or use fewer workers",
    ),
    certainty=LIKELY,
    apart=("memory-limit-killed: the process was killed", "gpu-out-of-memory: GPU memory"),
    follows=("memory-limit-killed",),
)

pinned = message_rule(
    "pinned-memory-refused",
    KIND,
    r"cudaHostAlloc.*(fail|error)|cudaErrorHostMemoryAlreadyRegistered"
    r"|pin_memory.*(out of memory|CUDA error: (invalid argument|out of memory))"
    r"|Caught \w+ in pin memory thread.*(memory|CUDA)",
    cause="The host cannot lock (pin) more memory.",
    fix=(
        "ulimit -l unlimited; free -g    # WSL2: raise memory= in .wslconfig",
        "DataLoader(pin_memory=False), or fewer prefetched batches",
    ),
    certainty=LIKELY,
    apart=("gpu-out-of-memory: memory of the GPU",),
    follows=("gpu-state",),
)

address_space = message_rule(
    "address-space-limit",
    KIND,
    r"(cannot allocate|failed to allocate|mmap).*(virtual memory|address space"
    r"|RLIMIT_AS)|ulimit -v.*\d{4,}|Cannot allocate memory.*libcu",
    cause="The limit on virtual address space (ulimit -v) is too small: CUDA reserves "
    "more than the memory of all GPUs.",
    fix=("ulimit -v unlimited    # Slurm: VSizeFactor=0; PBS: no vmem limit",),
    certainty=LIKELY,
    apart=("host-memory-exhausted: memory itself, not its addresses",),
    follows=("memory-limit-killed",),
)

RULES: tuple[Rule, ...] = (shm, files, killed, processes, disk, exhausted, pinned, address_space)
