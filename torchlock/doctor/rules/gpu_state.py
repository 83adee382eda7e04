"""The GPU itself: hardware faults, states that need a reset, and who holds it."""

from __future__ import annotations

from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, POSSIBLE, Match, Rule, message_rule, rule
from torchlock.doctor.rules import facts

KIND = "gpu-state"

# Source: NVIDIA's Xid catalogue; those that a program or another rule accounts for are left out.
_FAULTS = {
    "32": "corrupted push buffer, PCIe quality", "38": "driver firmware", "46": "GPU stopped",
    "56": "display engine", "57": "memory interface", "58": "unstable memory interface",
    "61": "internal micro-controller", "62": "internal micro-controller halt",
    "69": "graphics engine class", "74": "NVLink", "109": "context switch timeout",
    "110": "security fault", "140": "unrecovered ECC", "143": "GPU initialisation",
}  # fmt: skip
# What cuBLAS and cuDNN say where the GPU has no memory for their workspace.
_NO_ROOM_FOR_A_HANDLE = (
    r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|(CUBLAS|CUDNN)_STATUS_NOT_INITIALIZED"
)
_UNKNOWN_ERROR = r"CUDA unknown error|cudaErrorUnknown|CUDA_ERROR_UNKNOWN|Error 999"


@rule(
    "xid79-fell-off-bus",
    KIND,
    cause="A GPU has fallen off the PCIe bus (power, heat, riser or slot, or a dying card).",
    shows="Xid 79 / `GPU has fallen off the bus` in the kernel log, `rev ff` in lspci, "
    "`GPU is lost`.",
    fix=(
        "power-cycle the machine (a reboot may not bring the card back)",
        "check power cables and supply, temperature (nvidia-smi -q -d TEMPERATURE), riser and slot",
        "until then use the others: export CUDA_VISIBLE_DEVICES=<indices of the healthy GPUs>",
        "if it comes back to the same card in another slot: replace the card (hardware)",
    ),
    apart=(
        "uncorrectable-ecc: the GPU answers, its memory is faulty",
        "driver-library-mismatch: nvidia-smi fails for every GPU, and says so",
    ),
)
def off_the_bus(evidence: Evidence) -> Match | None:
    """A GPU whose configuration space no longer answers."""
    lines = evidence.grep(r"Xid.*[:,] 79\b|fallen off the bus|GPU is lost|\(rev ff\)")
    gone = any(device.unreadable for device in evidence.pci or ())
    if lines or gone:
        return Match(lines + evidence.grep(r"Unable to determine the device handle"))
    handle = evidence.grep(r"Unable to determine the device handle")
    # the kernel log, where it was read, names another fault
    return Match(handle, LIKELY) if handle and not evidence.grep(r"Xid \(") else None


@rule(
    "gsp-timeout",
    KIND,
    cause="The GPU's system processor (GSP) stopped answering the driver (Xid <xid>).",
    shows="Xid 119 or 120 in the kernel log, `Timeout waiting for RPC from GSP`.",
    fix=(
        "sudo nvidia-smi --gpu-reset -i <index>    # drained; else sudo reboot",
        "upgrade the driver to the newest release of its branch",
        "if it recurs (proprietary modules only): options nvidia NVreg_EnableGpuFirmware=0",
    ),
    apart=("xid79-fell-off-bus: the PCIe link is gone, not only the firmware",),
    follows=("xid79-fell-off-bus",),
)
def gsp(evidence: Evidence) -> Match | None:
    """The GSP firmware hung."""
    lines = evidence.grep(
        r"Xid.*[:,] 1(19|20)\b|Timeout (after \S+ )?(waiting for|of waiting for) RPC .*GSP"
    )
    number = evidence.first(r"Xid.*[:,] (119|120)\b")
    return Match(lines, values={"xid": number[1] if number else "119"}) if lines else None


@rule(
    "gpu-reports-fault",
    KIND,
    cause="The driver reports a fault of the GPU, its link or its firmware (Xid <xid>: <what>).",
    shows="Xid 32, 38, 46, 56, 57, 58, 61, 62, 69, 74, 109, 110, 140 or 143 in the kernel log.",
    fix=(
        "stop every process on it, then: sudo nvidia-smi --gpu-reset -i <index>, or sudo reboot",
        "upgrade the driver to the newest release of its branch; NVLink: nvidia-smi nvlink -e",
        "if it recurs, also in another slot: sudo nvidia-bug-report.sh, and hardware service",
    ),
    apart=(
        "gpu-program-fault: Xid 13 or 31, which a program causes",
        "xid79-fell-off-bus, gsp-timeout, uncorrectable-ecc: other numbers",
    ),
    follows=("xid79-fell-off-bus", "gsp-timeout", "uncorrectable-ecc", "nvswitch-fault"),
)
def reported(evidence: Evidence) -> Match | None:
    """An Xid that no program causes."""
    number = evidence.first(rf"Xid \([^)]*\): ({'|'.join(_FAULTS)})\b")
    if not number or (evidence.torch.available is True and not evidence.error):
        return None
    lines = evidence.grep(rf"Xid \([^)]*\): {number[1]}\b")
    return Match(lines, LIKELY, {"xid": number[1], "what": _FAULTS[number[1]]})


@rule(
    "gpu-throttled",
    KIND,
    cause="The GPU slows itself down: <why>.",
    shows="A complaint about speed, with HW Thermal Slowdown, SW Thermal Slowdown or HW Power "
    "Brake Slowdown `Active` in nvidia-smi -q.",
    fix=(
        "nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE    # while the job runs",
        "heat: air flow, fans, dust, room temperature (passive data-centre cards need the "
        "chassis' fans); power brake: the server's power supplies and cap",
        "until then: sudo nvidia-smi -i <index> -pl <watts>    # a lower, steady power limit",
    ),
    apart=("xid79-fell-off-bus: it got too hot and is gone",),
)
def throttled(evidence: Evidence) -> Match | None:
    """Clocks held down by heat or power."""
    hot = evidence.grep(r"Thermal Slowdown\s*:\s*Active")
    braked = evidence.grep(r"Power Brake( Slowdown)?\s*:\s*Active")
    asked = evidence.error or evidence.grep(r"\S", source="^(observed|symptom)")
    if not asked or not (hot or braked):
        return None
    why = "it is too hot" if hot else "the machine's power supply signals a power brake"
    slow = evidence.grep(r"slow|throttl|clock", source="^(observed|symptom)")
    lines = hot + braked + slow + evidence.grep("Temp", source="nvidia-smi -q")
    return Match(lines, CERTAIN if slow else LIKELY, {"why": why})


@rule(
    "uncorrectable-ecc",
    KIND,
    cause="A memory cell of the GPU failed (uncorrectable ECC error); "
    "the row is remapped only when the GPU is reset.",
    shows="`uncorrectable ECC error`, Xid 48/63/64/94/95, volatile uncorrectable ECC above 0, "
    "or a pending row remap.",
    fix=(
        "stop the jobs on that GPU, then: sudo nvidia-smi --gpu-reset -i <index>   "
        " # or sudo reboot",
        "nvidia-smi -q -d ROW_REMAPPER,ECC",
        "if the error returns, or 'Remapping Failure Occurred: Yes': replace the card",
    ),
    apart=("gpu-program-fault: an illegal access of the program, no ECC count",),
)
def ecc(evidence: Evidence) -> Match | None:
    """Failing GPU memory."""
    lines = evidence.grep(
        r"uncorrectable ECC error|cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE"
        r"|Xid.*[:,] (48|63|64|94|95)\b|^\s*Pending\s*:\s*Yes|Remapping Failure Occurred\s*:\s*Yes"
        r"|(DRAM|Aggregate|Volatile).*Uncorrectable\s*:\s*[1-9]"
    )
    counted = any(gpu.ecc for gpu in evidence.gpus) and evidence.torch.available is not True
    if not lines and counted and not evidence.error:
        return Match(facts.gpu_lines(evidence), LIKELY)
    return Match(lines + evidence.grep(r"Uncorrectable Error\s*:\s*[1-9]")) if lines else None


@rule(
    "gpu-needs-reset",
    KIND,
    cause="The GPU is in a state that only a reset clears.",
    shows="`GPU requires reset`, `GPU Recovery Action: Reset`, ERR! in nvidia-smi.",
    fix=(
        "stop every process on it (sudo fuser -v /dev/nvidia*), then: "
        "sudo nvidia-smi --gpu-reset -i <index>",
        "or sudo reboot",
    ),
    apart=(
        "xid79-fell-off-bus: a reset does not reach it",
        "gsp-timeout, uncorrectable-ecc: the kernel log says what stopped it",
    ),
    follows=(KIND,),
)
def needs_reset(evidence: Evidence) -> Match | None:
    """A GPU that asks for a reset."""
    lines = evidence.grep(
        r"GPU requires? (a )?reset|(Reset Required|GPU Recovery Action)\s*:\s*(Yes"
        r"|(GPU )?Reset|Node Reboot)"
        r"|CUDA_ERROR_(HARDWARE_STACK|SYSTEM_NOT_READY)_RESET|^\|.*ERR!.*ERR!|GPU-reset required"
    )
    return Match(lines) if lines else None


@rule(
    "uvm-broken-after-suspend",
    KIND,
    cause="The nvidia_uvm module lost its state when the machine was suspended, so nvidia-smi "
    "works and CUDA fails with an unknown error.",
    shows="cuInit 999 with nvidia-smi, nodes and libraries fine, after suspend and resume.",
    fix=(
        "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm    # end CUDA processes first; "
        "else sudo reboot",
        "to prevent it: options nvidia NVreg_PreserveVideoMemoryAllocations=1, and "
        "sudo systemctl enable nvidia-suspend nvidia-resume nvidia-hibernate",
    ),
    apart=(
        "uvm-module-not-loaded: /dev/nvidia-uvm is missing",
        "cvd-invalid: CUDA_VISIBLE_DEVICES is malformed (cuInit 100)",
    ),
    follows=("uvm-node-missing", "uvm-module-not-loaded", "permissions"),
)
def suspend(evidence: Evidence) -> Match | None:
    """cuInit 999 on a machine that has slept."""
    unknown = evidence.libcuda.init == 999 or evidence.grep(_UNKNOWN_ERROR)
    if not unknown or evidence.container.inside:
        return None
    if facts.opened_with(evidence, "EACCES") or facts.opened_with(evidence, "EPERM"):
        return None
    if evidence.nodes is not None and "/dev/nvidia-uvm" not in evidence.nodes:
        return None
    slept = evidence.grep(
        r"PM: suspend (entry|exit)|PM: (hibernation|resume)|system(d-)?sleep|suspend(ed)? and resum"
        r"|resum(e|ed) from (suspend|sleep)|after (suspend|sleep|hibernat|resum"
        r"|waking)|lid (closed|opened)"
        r"|Entering sleep state|systemd-suspend|woke|(closing|opening) the lid"
    )
    lines = slept + evidence.grep(_UNKNOWN_ERROR)
    if slept:
        return Match(lines)
    return Match(lines, POSSIBLE) if facts.smi(evidence).works else None


@rule(
    "compute-mode-exclusive",
    KIND,
    cause="The GPU's compute mode is exclusive or prohibited (<mode>) and lets no further process "
    "in.",
    shows="`all CUDA-capable devices are busy or unavailable` (46) with compute mode "
    "Exclusive_Process or Prohibited.",
    fix=(
        "nvidia-smi --query-compute-apps=pid,name --format=csv    # who holds it; end it, or",
        "sudo nvidia-smi -i <index> -c DEFAULT",
    ),
    apart=(
        "gpu-busy: the compute mode is Default, and the GPU is unavailable for another reason",
        "gpu-memory-held: another process holds the memory, not the GPU",
    ),
)
def exclusive(evidence: Evidence) -> Match | None:
    """A GPU closed to a second process."""
    mode = evidence.first(
        r"(Exclusive[_ ]Process|Exclusive[_ ]Thread|\bE\. (?:Process|Thread)|\bProhibited\b)"
    )
    if not mode or (evidence.torch.available is True and not evidence.error):
        return None
    busy = evidence.grep(
        r"busy or unavailable|Error 46\b|cudaErrorDevicesUnavailable|CUDA_ERROR_DEVICE_UNAVAILABLE"
    )
    if busy or evidence.libcuda.init in (46, 100, 101) or "rohibited" in mode[1]:
        return Match(
            busy + evidence.grep(r"Exclusive|E\. (Process|Thread)|Prohibited"),
            values={"mode": mode[1]},
        )
    return None


@rule(
    "mps-unreachable",
    KIND,
    cause="CUDA is told to use the Multi-Process Service (MPS), and its daemon cannot be reached.",
    shows="cuInit 805-809 / `MPS client failed to connect`, CUDA_MPS_PIPE_DIRECTORY set "
    "or a stale pipe.",
    fix=(
        "unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY    # to do without MPS; or start it:",
        "nvidia-cuda-mps-control -d    # the same user and CUDA_MPS_PIPE_DIRECTORY as the jobs",
        "stale: echo quit | nvidia-cuda-mps-control; rm -rf /tmp/nvidia-mps; start it again",
        "in a container: mount the pipe directory and use --ipc=host",
    ),
    apart=("compute-mode-exclusive: no MPS at all, the GPU admits one process",),
    follows=("compute-mode-exclusive",),
)
def mps(evidence: Evidence) -> Match | None:
    """An MPS client without a server."""
    lines = evidence.grep(
        r"MPS (client|server).*(failed|not ready|unable|rejected|max)|CUDA_ERROR_MPS|cudaErrorMps"
        r"|Error 80[5-9]\b|MPS control daemon.*(not|fail)|nvidia-cuda-mps.*(defunct|not running)"
    )
    if evidence.libcuda.init in range(805, 810) or lines:
        return Match(lines + evidence.grep(r"\S", source="CUDA_MPS"))
    return None


@rule(
    "gpu-busy",
    KIND,
    cause="The GPU is there and refuses a new context (busy or unavailable).",
    shows="Error 46 with compute mode Default.",
    fix=(
        "nvidia-smi -q -d COMPUTE,PERFORMANCE; sudo fuser -v /dev/nvidia*    # who holds it",
        "end stale processes, then sudo nvidia-smi --gpu-reset -i <index>, or sudo reboot",
    ),
    apart=(
        "compute-mode-exclusive: the compute mode admits one process",
        "vgpu-unlicensed: a vGPU without a licence",
        "mps-unreachable: codes 805 to 809",
    ),
    follows=(KIND, "mig", "fabric-and-cc", "permissions", "vgpu-unlicensed"),
)
def busy(evidence: Evidence) -> Match | None:
    """Error 46 without an exclusive mode."""
    lines = evidence.grep(r"devices are busy or unavailable|Error 46\b|cudaErrorDevicesUnavailable")
    if lines or evidence.libcuda.init == 46:
        return Match(lines, POSSIBLE)
    return None


@rule(
    "gpu-memory-held",
    KIND,
    cause="Other processes hold most of the GPU's memory.",
    shows="`CUDA out of memory` while nvidia-smi or the error itself shows other "
    "processes with memory.",
    fix=(
        "nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv",
        "end what should not run: kill <pid>; no pid shown: sudo fuser -v /dev/nvidia*",
        "or choose a free GPU: export CUDA_VISIBLE_DEVICES=<index>",
    ),
    apart=("gpu-out-of-memory: this process alone holds the memory",),
)
def memory_held(evidence: Evidence) -> Match | None:
    """Out of memory, because of others."""
    out = evidence.grep(
        r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|Error 2:"
        rf"|{_NO_ROOM_FOR_A_HANDLE}"
    )
    if not out and evidence.libcuda.init != 2:
        return None
    others = evidence.grep(
        r"Process \d+ has [\d.]+ [GM]iB memory in use|^\d+,\s*\d{4,} MiB"
    ) + evidence.grep(r"^\|\s+\d+\s+(N/A\s+)?\S*\s*\d+\s+C\S*\s+.*\D\d{4,}MiB\s*\|")
    full = [m for m in (evidence.first(r"(\d+)MiB\s*/\s*(\d+)MiB"),) if m]
    nearly = bool(full) and int(full[0][1][:9]) > 0.8 * int(full[0][2][:9])
    if others or nearly or evidence.libcuda.init == 2:
        held = evidence.grep(r"\d+MiB\s*/\s*\d+MiB") if nearly else ()
        return Match(out + others + held, CERTAIN if others else LIKELY)
    return None


out_of_memory = message_rule(
    "gpu-out-of-memory",
    KIND,
    r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CUDA error: out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED",
    cause="The program needs more GPU memory than there is.",
    fix=(
        "use smaller batches, activation checkpointing or torch.autocast",
        "fragmentation (reserved much larger than allocated): "
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
    certainty=LIKELY,
    apart=("gpu-memory-held: other processes hold the memory",),
    follows=("gpu-memory-held",),
)

asleep = message_rule(
    "gpu-does-not-wake",
    KIND,
    r"Unable to change power state from D3(cold|hot) to D0|can't change power state from D3",
    cause="The GPU was powered down (D3) and does not come back.",
    needs_fault=True,
    fix=(
        "sudo reboot",
        "to prevent it: options nvidia NVreg_DynamicPowerManagement=0x00 in /etc/modprobe.d, or "
        "boot with pcie_port_pm=off",
    ),
    apart=("xid79-fell-off-bus: it was lost while at work",),
)

nvswitch = message_rule(
    "nvswitch-fault",
    KIND,
    r"SXid.*\d{5}",
    cause="An NVSwitch reports a fault (SXid), which takes the NVLink fabric down.",
    needs_fault=True,
    fix=(
        "sudo dmesg | grep SXid    # fatal or not; NVIDIA's fabric manager guide lists the numbers",
        "stop the jobs, then sudo systemctl restart nvidia-fabricmanager, or power-cycle the node",
        "if it recurs: hardware service",
    ),
    certainty=LIKELY,
    apart=("fabricmanager-not-running: the switches are sound and not set up",),
)

watchdog = message_rule(
    "kernel-time-limit",
    KIND,
    r"the launch timed out and was terminated|cudaErrorLaunchTimeout|CUDA_ERROR_LAUNCH_TIMEOUT",
    cause="A kernel ran longer than the display's watchdog allows on a GPU that drives a screen.",
    fix=(
        "run on a GPU without a display, or stop the display server (sudo systemctl isolate "
        "multi-user.target)",
        'or Option "Interactive" "0" in the Device section of xorg.conf; smaller batches',
    ),
    apart=("cuinit-hangs: nothing ends it",),
)

power = message_rule(
    "gpu-power-cable",
    KIND,
    r"power cables?.*(not|required)|insufficient (external )?power|power connector.*(not|missing)",
    cause="The GPU's extra power connectors are not, or not all, connected.",
    fix=("switch the machine off, connect every PCIe power cable of the card, and start it again",),
    apart=("xid79-fell-off-bus: it started and was lost",),
)

program_fault = message_rule(
    "gpu-program-fault",
    KIND,
    r"device-side assert triggered|illegal memory access|misaligned address"
    r"|unspecified launch failure"
    r"|an illegal instruction was encountered"
    r"|Xid.*[:,] (13|31)\b",
    cause="A kernel of the program failed on the GPU (an index out of range, or a bug in an "
    "operator); the environment is sound.",
    fix=(
        "CUDA_LAUNCH_BLOCKING=1 python <program>    # names the operation",
        "run the failing batch on the CPU to see an index error plainly",
        "compute-sanitizer python <program>    # for an illegal access",
    ),
    certainty=LIKELY,
    needs_fault=True,
    apart=("uncorrectable-ecc: the kernel log has an ECC Xid",),
    follows=("uncorrectable-ecc", "xid79-fell-off-bus", "gpu-reports-fault", "wheel-arch", "abi"),
)

RULES: tuple[Rule, ...] = (
    off_the_bus,
    gsp,
    ecc,
    reported,
    needs_reset,
    suspend,
    exclusive,
    mps,
    busy,
    memory_held,
    out_of_memory,
    asleep,
    nvswitch,
    watchdog,
    power,
    throttled,
    program_fault,
)
