"""How the program starts processes."""

from __future__ import annotations

from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import LIKELY, Match, Rule, message_rule, rule

KIND = "process-model"


@rule(
    "cuda-in-forked-process",
    KIND,
    cause="CUDA was used in the parent before it forked; a forked child cannot use CUDA again.",
    shows="`Cannot re-initialize CUDA in forked subprocess`, cuInit 3 (initialization "
    "error) in a worker while the parent works.",
    fix=(
        "start children with spawn: "
        "torch.multiprocessing.set_start_method('spawn') under if __name__ == "
        "'__main__': "
        "(DataLoader(multiprocessing_context='spawn'); gunicorn without --preload)",
        "or touch no torch.cuda in the parent before the fork: keep tensors on the "
        "CPU in Dataset and collate_fn",
    ),
    apart=("spawn-needs-main-guard: spawn is used, without the guard",),
)
def forked(evidence: Evidence) -> Match | None:
    """CUDA across a fork."""
    lines = evidence.grep(r"re-initialize CUDA in forked|forked subprocess|Poison_fork|bad fork")
    init = evidence.grep(
        r"CUDA error: initialization error|Error 3: initialization error"
        r"|CUDA_ERROR_NOT_INITIALIZED|initialization error"
    )
    forks = evidence.grep(
        r"fork\b|DataLoader worker|multiprocessing|num_workers|gunicorn|preload"
        r"|Process\(|celery|os\.fork"
    )
    if lines:
        return Match(
            lines
            + evidence.grep(
                "multiprocessing|start_method|fork|Process", source="script|observed|cmd"
            )
        )
    if init and forks and evidence.torch.available is not False:
        return Match(init + forks, LIKELY)
    return None


main_guard = message_rule(
    "spawn-needs-main-guard",
    KIND,
    r"before the current process has finished its bootstrapping phase|freeze_support\(\)",
    cause="Processes are spawned from a module without the main guard, so each child "
    "starts them again.",
    fix=("put the start of the program under: if __name__ == '__main__':",),
    apart=("cuda-in-forked-process: fork, not spawn",),
)

unpicklable = message_rule(
    "spawn-cannot-pickle",
    KIND,
    r"(Can't|cannot) (get (local )?attribute|pickle)\b|(Can't|cannot) pickle "
    r"(local )?object|attempt(ed)? to .*pickle",
    cause="An object given to a spawned process cannot be pickled (a lambda, a local "
    "function, an open handle).",
    fix=(
        "define functions and classes at the top level of a module; open files and "
        "handles inside the worker",
    ),
    certainty=LIKELY,
    apart=("spawn-needs-main-guard: the program starts itself again",),
)

ipc = message_rule(
    "cuda-ipc-refused",
    KIND,
    r"cudaIpc\w+|pidfd_(open|getfd).*(fail|not permitted|error)"
    r"|CUDA_ERROR_MAP_BUFFER_OBJECT_FAILED|invalid resource handle.*ipc"
    r"|Producer process has been terminated before all shared CUDA",
    cause="CUDA tensors cannot be shared between these processes: separate IPC or PID "
    "namespaces, or the sender ended first.",
    fix=(
        "containers: docker run --ipc=host --pid=host ... (or one container); "
        "expandable_segments across containers also needs --cap-add=SYS_PTRACE",
        "keep the sending process alive until the receiver is done; MIG and WSL2 "
        "do not support CUDA IPC",
    ),
    certainty=LIKELY,
    apart=("peer-access-unsupported: between GPUs, not processes",),
    follows=("seccomp-blocks-driver",),
)

threads = message_rule(
    "fork-after-threads",
    KIND,
    r"Terminating: fork\(\) called from a process already using GNU OpenMP"
    r"|TOKENIZERS_PARALLELISM|is multi-threaded, use of fork\(\) may lead to "
    r"deadlocks",
    cause="The program forks after threads were started, which can deadlock the children.",
    fix=(
        "use the spawn or forkserver start method, or start workers before "
        "threads; export TOKENIZERS_PARALLELISM=false",
    ),
    certainty=LIKELY,
    apart=("cuda-in-forked-process: CUDA was used before the fork",),
    follows=("cuda-in-forked-process",),
)

daemonic = message_rule(
    "daemonic-process-has-children",
    KIND,
    r"daemonic processes are not allowed to have children",
    cause="A DataLoader with workers is used inside a multiprocessing.Pool worker, which may not "
    "start children.",
    fix=("DataLoader(num_workers=0) there, or concurrent.futures.ProcessPoolExecutor",),
    apart=("spawn-needs-main-guard: a main process",),
)

RULES: tuple[Rule, ...] = (forked, main_guard, unpicklable, ipc, threads, daemonic)
