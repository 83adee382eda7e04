"""NCCL and torch.distributed: rendezvous, interfaces, shared memory, peer access."""

# ruff: noqa: S108 - these paths are spoken of, not written to
from __future__ import annotations

import re

from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, POSSIBLE, Match, Rule, message_rule, rule

KIND = "nccl-ddp"

_SIZE = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def shm_bytes(evidence: Evidence) -> int | None:
    """The size of /dev/shm; None where it was not looked at."""
    for line in evidence.lines:
        if "shm" not in line.source and "/dev/shm" not in line.text:
            continue
        size = re.search(
            r"^(?:shm|tmpfs|none|\S*shm)\s+(\d+(?:\.\d+)?)([KMGTB]?)\b", line.text.strip()
        )
        if size:
            unit = size[2]
            number = float(size[1][:12]) * _SIZE[unit]
            return int(number * 1024) if not unit else int(number)
        option = re.search(r"size=(\d{1,12})([kmg]?)\b", line.text)
        if option and "shm" in line.text:
            return int(option[1]) * _SIZE[option[2].upper()]
    return None


def shm_fix(evidence: Evidence) -> tuple[str, ...]:
    """How to give the container more shared memory."""
    if evidence.container.engine == "kubernetes":
        return (
            "in the pod spec: volumes: [{name: shm, emptyDir: {medium: Memory}}], "
            "volumeMounts: [{name: shm, mountPath: /dev/shm}]",
        )
    tool = evidence.container.engine if evidence.container.engine in ("podman",) else "docker"
    return (
        f"{tool} run --shm-size=8g ...    # or --ipc=host; compose: shm_size: 8g",
        "without a container: sudo mount -o remount,size=8g /dev/shm",
    )


@rule(
    "nccl-shm-too-small",
    KIND,
    cause="/dev/shm is too small (<size>) for NCCL's shared-memory transport.",
    shows="NCCL: `Error while creating shared memory segment`, `No space left on device` "
    "in /dev/shm, with a /dev/shm of 64 MB.",
    fix=shm_fix,
    apart=(
        "dataloader-shm-too-small: a DataLoader worker dies of SIGBUS",
        "nccl-peer-access-hang: no error, a hang",
    ),
)
def shm(evidence: Evidence) -> Match | None:
    """NCCL without room in /dev/shm."""
    lines = evidence.grep(
        r"(creating|attach\w*|extend|open\w*) shared memory segment"
        r"|/dev/shm/nccl\S*.*(No space|size|fail|error)|shmutils?\.cc.*(WARN|fail"
        r"|error)|posix_fallocate.*failed"
    )
    size = shm_bytes(evidence)
    small = size is not None and size <= 512 * 2**20
    hung = (
        bool(re.search(r"nccl|NCCL", evidence.error))
        and small
        and bool(
            re.search(
                r"unhandled system error|No space left|shm|Bus error", evidence.error + str(lines)
            )
        )
    )
    if not ((lines and (small or size is None or evidence.grep("No space left"))) or hung):
        return None
    shown = f"{size // 2**20} MB" if size else "see df -h /dev/shm"
    return Match(
        lines + evidence.grep("shm", source="df|mount|findmnt|docker|error"),
        CERTAIN if small else LIKELY,
        {"size": shown},
    )


@rule(
    "master-port-in-use",
    KIND,
    cause="The rendezvous port <port> is taken, by another job or by a process left from "
    "an earlier run.",
    shows="`EADDRINUSE`, `address already in use` when the process group is made.",
    fix=(
        "ss -ltnp | grep :<port>    # who has it; end a stale process: kill <pid>",
        "or choose another: torchrun --master-port=<free port> ... (one node: "
        "torchrun --standalone ...), export MASTER_PORT=<free port>",
    ),
    apart=("rendezvous-unreachable: connection refused or timed out, nobody listens",),
)
def port(evidence: Evidence) -> Match | None:
    """A port already bound."""
    lines = evidence.grep(r"EADDRINUSE|address already in use|errno: 98\b|Errno 98")
    said = evidence.first(
        r"(?:port:? |port=|\[::\]:|0\.0\.0\.0:|127\.0\.0\.1:|MASTER_PORT=)(\d{2,5})"
    )
    number = said[1] if said else evidence.set_env("MASTER_PORT") or "29500"
    return (
        Match(lines + evidence.grep("LISTEN", source="ss|netstat|lsof"), values={"port": number})
        if lines
        else None
    )


@rule(
    "duplicate-gpu",
    KIND,
    cause="Two ranks use the same GPU; NCCL needs one GPU for each rank.",
    shows="`Duplicate GPU detected : rank i and rank j both on CUDA device <n>`.",
    fix=(
        "in each rank, before the first collective: "
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
        "no more ranks per node than GPUs: torchrun --nproc-per-node=<GPUs>; check "
        "that CUDA_VISIBLE_DEVICES gives each rank its own",
    ),
    apart=("mig-one-instance-per-process: the ranks are on instances of one GPU",),
    follows=("mig",),
)
def duplicate(evidence: Evidence) -> Match | None:
    """Two ranks on a GPU."""
    lines = evidence.grep(
        r"Duplicate GPU detected|ranks? .*(both|share|same) (on|the same)?.*(CUDA device|GPU)"
    )
    if not lines and evidence.grep("ncclInvalidUsage|invalid usage") and evidence.grep(r"NCCL"):
        guess = evidence.grep("ncclInvalidUsage|invalid usage")
        return Match(guess, POSSIBLE)
    return (
        Match(
            lines
            + evidence.grep("LOCAL_RANK|set_device|nproc|CUDA_VISIBLE", source="env|script|cmd")
        )
        if lines
        else None
    )


def _interface_fix(evidence: Evidence) -> tuple[str, ...]:
    return (
        "ip -br addr    # the interface with the address the other nodes reach",
        "export NCCL_SOCKET_IFNAME=<name> GLOO_SOCKET_IFNAME=<name>    # that interface, on every "
        "node; ^docker,br-,virbr,lo excludes; unset a wrong one",
    )


@rule(
    "nccl-interface-wrong",
    KIND,
    cause="NCCL or Gloo cannot use the network interface it was told or chose (<interface>).",
    shows="`Bootstrap : no socket interface found`, NCCL_SOCKET_IFNAME names no "
    "interface of `ip addr`, or a virtual one (docker0, virbr0, lo) was chosen.",
    fix=_interface_fix,
    apart=(
        "rendezvous-unreachable: the master's port is not reached before any interface is chosen",
        "hostname-resolves-to-loopback: Gloo offers 127.0.x.1",
    ),
)
def interface(evidence: Evidence) -> Match | None:
    """An interface that is not there, or cannot reach the others."""
    none = evidence.grep(
        r"no socket interface found|Bootstrap\s*:.*no.*interface|Unable to find "
        r"(address|interface) for|No such device.*ifname|unable to find interface"
    )
    asked = evidence.set_env("NCCL_SOCKET_IFNAME") or evidence.set_env("GLOO_SOCKET_IFNAME")
    known = {
        m
        for line in evidence.lines
        if re.search(r"\bip\b|ifconfig|/sys/class/net", line.source)
        for m in re.findall(
            r"(?:^|\d+:\s*)([a-zA-Z][\w.@-]*?)(?:@\S+)?:?\s+(?:<|UP|DOWN|UNKNOWN|flags|inet|mtu)",
            line.text,
        )
    }
    listed = " ".join(x.text for x in evidence.lines if "/sys/class/net" in x.source).split()
    known |= {name.rpartition("/")[2] for name in listed}
    names = [name for name in asked.lstrip("=^").split(",") if name]
    absent = (
        bool(names and known)
        and not asked.startswith("^")
        and not any(have.startswith(name) for name in names for have in known)
    )
    virtual = evidence.grep(
        r"NCCL INFO (Bootstrap|NET/Socket)\s*:\s*Using.*\b(docker|virbr|veth|br-"
        r"|lo:|lo\b|cni|flannel|tailscale|wg\d)"
    )
    failing = bool(
        re.search(r"connect|timeout|timed out|refused|unreachable|nccl|gloo", evidence.error, re.I)
    ) or bool(evidence.grep("hang|stuck|timed out", source="observed"))
    if not none and not (absent and (evidence.error or failing)) and not (virtual and failing):
        return None
    lines = (
        none
        + virtual
        + evidence.grep(
            r"\S", source=r"^env: (NCCL|GLOO|TP)_SOCKET_IFNAME$|^ip\b|ifconfig|/sys/class/net"
        )
    )
    used = re.search(
        r"\b(docker\d*|virbr\d*|veth\w*|br-\w+|lo|cni\d|tailscale\d)\b", " ".join(virtual)
    )
    return Match(
        lines,
        CERTAIN if none or absent else LIKELY,
        {"interface": asked or (used[1] if used else "none found")},
    )


@rule(
    "hostname-resolves-to-loopback",
    KIND,
    cause="The host name resolves to a loopback address, which the other nodes cannot reach.",
    shows="Gloo `connectFullMesh failed`, connection refused to 127.0.0.1 or 127.0.1.1 "
    "from another node; /etc/hosts maps the host name to 127.0.1.1.",
    fix=(
        "export GLOO_SOCKET_IFNAME=<interface> NCCL_SOCKET_IFNAME=<interface>",
        "or correct /etc/hosts: the host's name on its real address, not 127.0.1.1",
    ),
    apart=("nccl-interface-wrong: a wrong interface rather than a wrong name",),
)
def loopback(evidence: Evidence) -> Match | None:
    """127.0.1.1 offered to peers."""
    failed = evidence.grep(
        r"connectFullMesh|Connection refused.*127\.0\.[01]\.1"
        r"|127\.0\.[01]\.1\S*.*(refused|failed|timed out)|remote=\[?127\.0\.[01]\.1"
    )
    mapped = evidence.grep(
        r"^\s*127\.0\.1\.1\s+\S", source="hosts|getent|hostname"
    ) + evidence.grep(r"^127\.0\.[01]\.1\b", source="hostname|getent")
    if failed and (mapped or "127.0" in str(failed)) and not evidence.grep("EADDRINUSE"):
        return Match(failed + mapped, CERTAIN if mapped else LIKELY)
    return None


@rule(
    "nccl-peer-access-hang",
    KIND,
    cause="GPU peer-to-peer traffic over PCIe does not arrive: ACS or an IOMMU redirects "
    "it, so collectives hang (or data is wrong).",
    shows="A hang at 100 % utilisation on one node without NVLink; NCCL_P2P_DISABLE=1 "
    "cures it; ACSCtl with ReqRedir+, IOMMU active.",
    fix=(
        "export NCCL_P2P_DISABLE=1    # at once, slower",
        "boot with iommu=pt (or the IOMMU off), and disable ACS on the PCIe "
        "bridges in the firmware or with setpci -s <bridge> ECAP_ACS+0x6.w=0000",
        "virtual machine: ACS cannot be disabled inside; keep NCCL_P2P_DISABLE=1 "
        "or pass the GPUs through behind one switch",
    ),
    apart=(
        "nccl-interface-wrong: hangs between nodes, before the first collective",
        "collective-mismatch: one rank never calls the collective",
    ),
    follows=("nccl-shm-too-small", "nvls-unavailable"),
)
def p2p(evidence: Evidence) -> Match | None:
    """Peer traffic redirected."""
    cured = evidence.grep(
        r"NCCL_P2P_DISABLE=1.*(complet|work|succe|fix|finish|pass|help|ok|runs)"
        r"|(with|setting) NCCL_P2P_DISABLE"
    )
    acs = evidence.grep(
        r"ACSCtl:.*(ReqRedir|SrcValid|CmpltRedir)\+|NCCL.*Missing .?iommu=pt|ACS (is )?enabled"
    )
    iommu = evidence.grep(
        r"(amd|intel)_iommu=on|iommu=(on|force)|DMAR: IOMMU enabled|AMD-Vi"
        r"|^\s*(ivhd|dmar)\d|p2pBandwidthLatency.*(fail|hang)"
    )
    hangs = evidence.grep(
        r"hang|stuck|100 ?%|never (return|complet|finish)|all_?reduce|timeout|timed out",
        source="observed|error|py-spy|symptom",
    )
    if evidence.set_env("NCCL_P2P_DISABLE") == "1" or re.search(
        r"Illegal|Duplicate|refused|EADDR", evidence.error
    ):
        return None
    seen_hanging = [line for line in hangs if not line.startswith("error: ")]
    over_pcie = evidence.grep(r"\b(PHB|PIX|PXB|NODE|SYS)\b", source="topo")
    suspect = iommu and "iommu=pt" not in str(iommu) and seen_hanging and over_pcie
    if cured or (acs and hangs):
        certainty = CERTAIN if cured and (acs or iommu) else LIKELY
        return Match(cured + acs + iommu + hangs, certainty)
    if suspect:
        return Match(iommu + over_pcie + hangs, POSSIBLE)
    return None


@rule(
    "nccl-memlock-limit",
    KIND,
    cause="RDMA needs more locked memory than the limit (ulimit -l <limit>) allows.",
    shows="`ibv_reg_mr ... Cannot allocate memory`, `ibv_create_cq failed`, max locked "
    "memory of 64 kB.",
    fix=(
        "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK ...    # Kubernetes: "
        "securityContext.capabilities.add: [IPC_LOCK]",
        "host: '* soft memlock unlimited' and hard in /etc/security/limits.conf; "
        "Slurm: LimitMEMLOCK=infinity in slurmd.service, "
        "PropagateResourceLimitsExcept=MEMLOCK",
        "at once, over TCP: export NCCL_IB_DISABLE=1",
    ),
    apart=("nccl-ib-unusable: RDMA fails for another reason",),
)
def memlock(evidence: Evidence) -> Match | None:
    """Locked memory for RDMA."""
    lines = evidence.grep(
        r"ibv_(reg_mr\w*|create_(cq|qp)|alloc_pd)\S*.*(Cannot allocate|failed|error|ENOMEM)"
    )
    limit = evidence.first(
        r"(?:max locked memory|memlock|locked memory)\D*(\d+|unlimited)"
    ) or evidence.first(r"^\s*(\d+|unlimited)\s*$", source=r"ulimit -l")
    if lines and not (limit and limit[1] == "unlimited"):
        return Match(
            lines + evidence.grep(r"locked|\d", source="ulimit -l|limits|memlock"),
            CERTAIN if limit else LIKELY,
            {"limit": limit[1] if limit else "?"},
        )
    return None


@rule(
    "nccl-ib-unusable",
    KIND,
    cause="NCCL fails over InfiniBand/RoCE (wrong HCA, GID or link state).",
    shows="`NET/IB : Got completion ... error 12`, `ibv_modify_qp failed`, `transport "
    "retry counter exceeded`.",
    fix=(
        "ibstat; show_gids    # port Active, and the RoCE v2 GID of the right address",
        "export NCCL_IB_HCA=<mlx5_0,...> NCCL_IB_GID_INDEX=<index of RoCE v2>    # on every node",
        "to prove it, over TCP: export NCCL_IB_DISABLE=1",
    ),
    apart=(
        "nccl-memlock-limit: the adapter works, memory cannot be locked",
        "nccl-interface-wrong: TCP interfaces",
    ),
    follows=("nccl-memlock-limit",),
)
def infiniband(evidence: Evidence) -> Match | None:
    """RDMA errors."""
    lines = evidence.grep(
        r"NET/IB.*(error|fail|warn|unable)|ibv_\w+.*(fail|error)|retry counter "
        r"exceeded|Got completion.*(status|error)|No usable IB|No device "
        r"found.*NCCL_IB_HCA"
    )
    return Match(lines, LIKELY) if lines else None


@rule(
    "nccl-versions-differ",
    KIND,
    cause="The ranks do not run the same NCCL or torch version.",
    shows="`Mismatched NCCL version detected`, `NCCL version` lines that differ between ranks.",
    fix=(
        "python -c 'import torch; print(torch.__version__, "
        "torch.cuda.nccl.version())'    # on every node; use the same lock "
        "everywhere",
        "unset LD_PRELOAD LD_LIBRARY_PATH on every node",
    ),
    apart=("nvidia-wheel-version: one environment whose wheels disagree",),
)
def versions(evidence: Evidence) -> Match | None:
    """Ranks of different versions."""
    said = evidence.grep(r"Mismatched NCCL version|mismatch.*NCCL version")
    seen = {
        m for line in evidence.lines for m in re.findall(r"NCCL version (\d+\.\d+\.\d+)", line.text)
    }
    if said or (len(seen) > 1 and evidence.error):
        return Match(said + evidence.grep(r"NCCL version \d"), CERTAIN if said else LIKELY)
    return None


@rule(
    "rendezvous-unreachable",
    KIND,
    cause="A rank cannot reach the master at <where>: nobody listens there, a firewall "
    "drops it, or the address is wrong.",
    shows="`Connection refused`, `timed out`, `No route to host` or name resolution "
    "errors from TCPStore/c10d/rendezvous.",
    fix=(
        "on the master: ss -ltnp | grep <port>; on the other node: nc -vz <address> <port>",
        "the same MASTER_ADDR (an address the others reach, not localhost) and "
        "MASTER_PORT on all nodes; rank 0 must run there",
        "open the port and the nodes' traffic to each other in the firewall; in "
        "containers: --network=host",
    ),
    apart=(
        "master-port-in-use: the master cannot bind",
        "nccl-interface-wrong: the rendezvous succeeds, NCCL's own connections fail",
    ),
    follows=("master-port-in-use", "nccl-interface-wrong", "hostname-resolves-to-loopback"),
)
def rendezvous(evidence: Evidence) -> Match | None:
    """No way to the master."""
    lines = evidence.grep(
        r"(TCPStore|c10d|rendezvous|MASTER|socket\.cpp|DistStore|torchelastic"
        r"|client socket).*(refused|timed out|timeout|No route|failed to connect"
        r"|unreachable|resolve|Name or service)"
        r"|(failed to connect|has timed out|Connection refused|No route to "
        r"host).*(:\d{4,5}|TCPStore|\[.*\]:\d+)|socketStartConnect.*(refused|No "
        r"route|failed)|RendezvousConnectionError|Call to connect returned "
        r"(Connection refused|No route|Connection timed out)"
    )
    if not lines:
        return None
    said = evidence.first(r"\[?([\w.-]+)\]?[:,] ?(?:port )?(\d{4,5})\b")
    port_number = said[2] if said else evidence.set_env("MASTER_PORT") or "29500"
    address = evidence.set_env("MASTER_ADDR") or (said[1] if said else "MASTER_ADDR")
    return Match(
        lines + evidence.grep("", source="^env: MASTER"),
        LIKELY,
        {"where": f"{address}:{port_number}", "port": port_number, "address": address},
    )


no_peer_access = message_rule(
    "peer-access-unsupported",
    KIND,
    r"doesn't support faster communication broadband via P2P"
    r"|peer access is not supported between these two devices",
    cause="These GPUs cannot access each other's memory (GeForce cards without P2P, or slots on "
    "different root complexes), and the program asks for it.",
    fix=("export NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1    # NCCL then goes through host memory",),
    apart=("nccl-peer-access-hang: peer access is offered and does not arrive",),
)

no_env = message_rule(
    "rendezvous-variables-missing",
    KIND,
    r"environment variable (?P<name>RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
    r"|LOCAL_RANK) expected, but not set|KeyError: '(LOCAL_RANK|RANK|WORLD_SIZE)'",
    cause="The program was started without the variables that torch.distributed reads.",
    fix=(
        "torchrun --standalone --nproc-per-node=<GPUs> <program>    # sets RANK, "
        "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT",
    ),
    apart=("rendezvous-unreachable: they are set and nobody answers",),
)


@rule(
    "collective-mismatch",
    KIND,
    cause="The ranks did not all call the same collective in time: one crashed, left "
    "early or took another path; the environment is sound.",
    shows="`Watchdog caught collective operation timeout` and no fault of the network or "
    "of peer access in evidence.",
    fix=(
        "read the log of the rank that is not waiting; its own error comes first",
        "export TORCH_DISTRIBUTED_DEBUG=DETAIL TORCH_NCCL_TRACE_BUFFER_SIZE=2000 "
        "NCCL_DEBUG=INFO    # names the collective that differs",
        "a slow rank (checkpoint, data): init_process_group(timeout=...)",
    ),
    apart=(
        "nccl-peer-access-hang: the first collective hangs, on every rank",
        "rendezvous-unreachable: the ranks never met",
    ),
    follows=(KIND, "fabric-and-cc", "gpu-state", "host-limits"),
)
def collective(evidence: Evidence) -> Match | None:
    """A collective that timed out."""
    lines = evidence.grep(
        r"Watchdog caught collective operation timeout|Timeout\(ms\)=\d+"
        r"|monitoredBarrier|Detected mismatch between collectives|ran for \d+ "
        r"milliseconds before timing out"
    )
    return Match(lines, POSSIBLE) if lines else None


@rule(
    "nccl-error-unexplained",
    KIND,
    cause="NCCL failed, and only its own log says why.",
    shows="`ncclUnhandledCudaError`, `ncclSystemError`, `ncclInternalError`, "
    "`ncclRemoteError` without a line that names the cause.",
    fix=(
        "run again with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV and give "
        "the log to this doctor (--evidence)",
        "ncclRemoteError: another rank failed first; read its log",
    ),
    apart=(
        "nccl-interface-wrong, nccl-shm-too-small, nccl-ib-unusable: NCCL's log names the cause",
    ),
    follows=(
        KIND,
        "fabric-and-cc",
        "gpu-state",
        "host-limits",
        "mig",
        "library-shadowing",
        "wheel-arch",
        "container-access",
        "visibility-env",
    ),
)
def unexplained(evidence: Evidence) -> Match | None:
    """An NCCL error without a reason."""
    lines = evidence.grep(
        r"nccl(UnhandledCuda|System|Internal|Remote)Error|NCCL error "
        r"in:.*(unhandled|internal|remote)"
    )
    return Match(lines, POSSIBLE) if lines else None


RULES: tuple[Rule, ...] = (
    shm,
    port,
    duplicate,
    interface,
    loopback,
    memlock,
    infiniband,
    versions,
    p2p,
    no_peer_access,
    no_env,
    rendezvous,
    collective,
    unexplained,
)
