"""Every real failure is named right, as the first finding, also without what needs privileges."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from neighbours import NEIGHBOURS
from noise import NOISE
from unseen import SOUND_TOO, UNSEEN

from torchlock.doctor import loose
from torchlock.doctor.diagnosis import FINDINGS, HEALTHY, UNDETERMINED, judge
from torchlock.doctor.findings import POSSIBLE
from torchlock.doctor.rules import RULES

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
RIGHT = {
    "nvidia-wheel-shared-files-removed": "nvidia-wheel-files-removed",
    "fd-limit-ancdata": "open-files-limit",
    "nccl-shm-64mb": "nccl-shm-too-small",
    "numpy2-old-torch": "numpy2-with-old-torch",
    "triton-no-libcuda-so": "triton-no-libcuda-link",
    "master-port-in-use": "master-port-in-use",
    "nccl-p2p-acs-hang": "nccl-peer-access-hang",
    "volta-with-cu130": "gpu-older-than-wheel",
    "pascal-dropped-by-590": "gpu-dropped-by-driver",
    "user-site-shadows-env": "user-site-shadows-environment",
    "nouveau-owns-gpu": "nouveau-owns-gpu",
    "nvjitlink-mismatch": "cuda-library-shadowed",
    "nccl-wheel-too-old": "nvidia-wheel-version",
    "nova-owns-gpu": "nova-owns-gpu",
    "execstack-glibc241": "executable-stack-refused",
    "mig-one-instance-per-process": "mig-one-instance-per-process",
    "no-gpus-flag": "no-gpus-flag",
    "cuda-in-forked-subprocess": "cuda-in-forked-process",
    "seccomp-304": "seccomp-blocks-driver",
    "runtimeclass-missing": "runtimeclass-missing",
    "userspace-installed-in-container": "driver-in-image",
    "dkms-not-built-for-kernel": "dkms-not-built-for-kernel",
    "secure-boot-unsigned": "secure-boot-unsigned",
    "flash-attn-cxx11abi": "extension-cxx11-abi",
    "device-node-group-video": "device-node-permissions",
    "rootless-bpf-cgroup": "rootless-device-cgroup",
    "pip-cpu-wheel-cached": "cpu-wheel",
    "snap-or-desktop-docker": "container-desktop-vm",
    "cvd-invalid-all": "cvd-invalid",
    "uvm-node-missing": "uvm-node-missing",
    "no-cgroups-set-on-rootful": "no-cgroups-on-rootful",
    "wsl-linux-driver-shadows": "wsl-linux-driver-shadows",
    "confidential-compute-not-ready": "confidential-compute-not-ready",
    "torchvision-mismatch": "torchvision-mismatch",
    "open-modules-on-pascal": "open-modules-on-old-gpu",
    "bios-rebar-above4g": "bios-bar-too-small",
    "slurm-nodevfiles": "slurm-no-gpu-requested",
    "cvd-set-after-init": "cvd-set-too-late",
    "fabricmanager-version-mismatch": "fabricmanager-version-mismatch",
    "nvcc-torch-cuda-mismatch": "nvcc-differs-from-torch",
    "glibcxx-system-libstdcxx": "libstdcxx-too-old",
    "uvm-broken-after-suspend": "uvm-broken-after-suspend",
    "other-lib-needs-cudnn8": "other-library-needs-other-cuda",
    "aarch64-cpu-wheel": "cpu-wheel-aarch64",
    "ptx-unsupported-toolchain": "ptx-newer-than-driver",
    "xid79-fell-off-bus": "xid79-fell-off-bus",
    "driver-too-old-major": "driver-too-old",
    "triton-ptxas-too-old-sm121": "triton-too-old-for-gpu",
    "compat-on-geforce-804": "compat-on-unsupported-gpu",
    "dataloader-cgroup-oom": "memory-limit-killed",
    "nccl-ifname-missing": "nccl-interface-wrong",
    "apptainer-no-nv": "apptainer-without-nv",
    "compose-capabilities-gpu-only": "compute-capability-not-requested",
    "duplicate-gpu": "duplicate-gpu",
    "uncorrectable-ecc": "uncorrectable-ecc",
    "stub-libcuda-on-path": "stub-libcuda",
    "cvd-renumbered-in-container": "cvd-renumbered-in-container",
}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] + "-" + case["code"] for case in CASES])
def test_the_cause_is_the_first_finding(case):
    first = judge(loose.read(case["evidence"])).findings[0]
    assert first.code == RIGHT[case["code"]]
    assert first.certainty != POSSIBLE
    assert first.evidence
    assert first.fix
    assert "<" not in first.cause


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_advice_is_what_helped_and_not_what_did_not(case):
    first = judge(loose.read(case["evidence"])).findings[0]
    advice = " ".join([first.code, first.cause, *first.fix]).lower()
    assert all(any(word in advice for word in words) for words in case["expect"]["must"])
    assert not [word for word in case["expect"]["must_not"] if word in advice]


PRIVILEGED = [case for case in CASES if case["needs_privilege"]]


@pytest.mark.parametrize("case", PRIVILEGED, ids=[case["id"] for case in PRIVILEGED])
def test_the_cause_is_found_without_privileges(case):
    evidence = copy.deepcopy(case["evidence"])
    for name in case["needs_privilege"]:
        del evidence["cmd"][name]
    assert judge(loose.read(evidence)).findings[0].code == RIGHT[case["code"]]


@pytest.mark.parametrize(
    ("evidence", "right"),
    [pytest.param(e, right, id=f"{kind}: {what}") for kind, what, e, right in NEIGHBOURS],
)
def test_a_neighbour_gets_its_own_answer(evidence, right):
    diagnosis = judge(loose.read(evidence))
    if right is None:
        assert diagnosis.status == UNDETERMINED
        assert diagnosis.collect
    else:
        assert diagnosis.findings[0].code == right
        assert diagnosis.findings[0].evidence


@pytest.mark.parametrize(
    ("evidence", "right"),
    [pytest.param(e, right, id=f"{kind}: {what}") for kind, what, e, right in UNSEEN],
)
def test_a_failure_of_no_known_case_gets_its_cause(evidence, right):
    first = judge(loose.read(evidence)).findings[0]
    assert first.code == right
    assert first.evidence
    assert first.fix
    assert "<" not in first.cause.replace("<PyTorch wheel index>", "")


@pytest.mark.parametrize("evidence", [pytest.param(e, id=what) for what, e in SOUND_TOO])
def test_what_only_looks_like_a_failure_gives_no_finding(evidence):
    assert judge(loose.read(evidence)).findings == ()


def test_every_rule_is_told_apart_from_rules_that_exist():
    codes, kinds = {rule.code for rule in RULES}, {rule.kind for rule in RULES}
    assert [rule.code for rule in RULES if not rule.apart] == []
    named = {
        name for rule in RULES for each in rule.apart for name in each.partition(":")[0].split(", ")
    }
    assert named <= codes
    assert {name for rule in RULES for name in rule.follows} <= codes | kinds


def test_every_kind_has_two_neighbours():
    kinds = {case["kind"] for case in CASES}
    assert [k for k in kinds if sum(n[0] == k for n in NEIGHBOURS) < 2] == []


SOUND = {
    "context": {"os": "Ubuntu 22.04", "container": None, "uid": 1000, "groups": ["users"]},
    "env": {"CUDA_VISIBLE_DEVICES": "0", "LD_LIBRARY_PATH": "/usr/local/cuda/lib64"},
    "cmd": {
        "nvidia-smi": "| NVIDIA-SMI 560.35.03    Driver Version: 560.35.03   CUDA Version: 12.6 |\n"
        "|   0  NVIDIA A100 80GB PCIe   On  | 00000000:17:00.0 Off |         0 |\n"
        "| N/A   30C   P0   50W / 300W |    4MiB / 81920MiB |      0%      Default |",
        "lsmod": "Module Size Used by\nnvidia_uvm 1 0\nnvidia 2 1",
        "ulimit -n": "1024",
        "df -h /dev/shm": "tmpfs 64M 1% /dev/shm",
        "toolchain on PATH": "cc no, gcc no, nvcc no",
    },
    "files": {
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.35.03"
    },
    "dev": {
        "/dev/nvidia0": "crw-rw-rw- root root 195,0",
        "/dev/nvidiactl": "crw-rw-rw- root root 195,255",
        "/dev/nvidia-uvm": "crw-rw-rw- root root 508,0",
    },
    "open_rw": {"/dev/nvidia0": "ok", "/dev/nvidiactl": "ok", "/dev/nvidia-uvm": "ok"},
    "dlopen": {
        "libcuda.so.1": {"ok": True, "path": "/usr/lib/x86_64-linux-gnu/libcuda.so.560.35.03"}
    },
    "cuInit": 0,
    "cuDriverGetVersion": 12060,
    "torch": {"version": "2.7.1+cu126", "cuda": "12.6", "is_available": True, "device_count": 1},
    "pip": {"torch": "2.7.1", "nvidia-cudnn-cu12": "9.5.1.17", "numpy": "2.2.6"},
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"context": {"os": "Debian 12", "container": "docker"}},
        {
            "context": {"os": "Rocky 9", "container": "apptainer"},
            "env": {"SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "0"},
        },
        {
            "context": {"os": "Debian 12", "container": "kubernetes"},
            "env": {"NVIDIA_VISIBLE_DEVICES": "GPU-1"},
        },
        {"context": {"os": "NixOS 25.05"}, "dev": {"/dev/nvidia0": "crw-rw---- root video 195,0"}},
        {"env": {}},
    ],
    ids=["host", "docker", "slurm", "kubernetes", "nixos", "no variables"],
)
def test_a_fault_free_machine_gives_no_finding(change):
    diagnosis = judge(loose.read(SOUND | change))
    assert diagnosis.findings == ()
    assert diagnosis.status == HEALTHY


# These two are evidence of their own where the module is not loaded.
TELLING = {"mokutil --sb-state", "dkms status"}
TOLD = [(case["id"], case["evidence"], RIGHT[case["code"]]) for case in CASES] + [
    (what, evidence, right)
    for _, what, evidence, right in NEIGHBOURS
    if right and isinstance(evidence.get("cmd", {}), dict)
]


def test_lines_that_say_nothing_change_no_answer():
    noise = {name: text for name, text in NOISE.items() if name not in TELLING}
    changed = []
    for name, evidence, right in TOLD:
        outputs = noise | evidence.get("cmd", {})
        findings = judge(loose.read(evidence | {"cmd": outputs})).findings
        if not findings or findings[0].code != right:
            changed.append((name, right, [finding.code for finding in findings[:1]]))
    assert changed == []


def test_what_logs_and_listings_always_say_is_no_finding():
    evidence = SOUND | {"cmd": SOUND["cmd"] | NOISE}
    diagnosis = judge(loose.read(evidence))
    assert diagnosis.findings == ()
    assert diagnosis.status == HEALTHY


def test_cuda_that_works_needs_neither_nvidia_smi_nor_proc():
    evidence = SOUND | {
        "context": {"os": "Debian 12", "container": "docker"},
        "cmd": {"nvidia-smi": {"rc": 127, "out": "nvidia-smi: command not found"}, "lspci": ""},
        "files": {"/proc/driver/nvidia/version": None},
        "dev": {"/dev/nvidia0": "crw-rw-rw- root root 195,0"},
    }
    assert judge(loose.read(evidence)).status == HEALTHY


def test_a_fault_free_wsl_gives_no_finding():
    evidence = SOUND | {
        "context": {"os": "Ubuntu 24.04", "uname": "6.6.87.1-microsoft-standard-WSL2"},
        "files": {},
        "dev": {"/dev/dxg": "crw-rw-rw- root root 10,125"},
        "open_rw": {"/dev/dxg": "ok"},
        "dlopen": {"libcuda.so.1": {"ok": True, "path": "/usr/lib/wsl/drivers/x/libcuda.so.1.1"}},
    }
    assert judge(loose.read(evidence)).status == HEALTHY


def test_nothing_at_all_cannot_be_judged():
    diagnosis = judge(loose.read({}))
    assert diagnosis.status == UNDETERMINED
    assert diagnosis.collect


def test_consequences_are_folded_under_their_cause():
    case = next(case for case in CASES if case["code"] == "wsl-linux-driver-shadows")
    diagnosis = judge(loose.read(case["evidence"]))
    assert len(diagnosis.findings) == 1
    assert diagnosis.status == FINDINGS
    assert any("wsl-driver-stale" in line for line in diagnosis.findings[0].consequences)


def test_commands_carry_what_the_evidence_says():
    case = next(case for case in CASES if case["code"] == "uncorrectable-ecc")
    fix = judge(loose.read(case["evidence"])).findings[0].fix
    assert "sudo nvidia-smi --gpu-reset -i 0" in fix[0]


def test_codes_are_unique_and_follow_only_what_exists():
    codes = [rule.code for rule in RULES]
    assert len(codes) == len(set(codes))
    known = set(codes) | {rule.kind for rule in RULES}
    assert {name for rule in RULES for name in rule.follows} <= known
    mentioned = {
        part for rule in RULES for a in rule.apart for part in a.partition(":")[0].split(", ")
    }
    assert mentioned <= known


@pytest.mark.parametrize(
    ("os", "engine", "wanted"),
    [
        ("Ubuntu 22.04", None, "apt-get install linux-headers-$(uname -r)"),
        ("Fedora 41", None, "dnf install kernel-devel-$(uname -r)"),
        ("openSUSE Leap 15.6", None, "zypper install kernel-default-devel"),
        ("Arch Linux", None, "pacman -S linux-headers"),
    ],
)
def test_commands_fit_the_distribution(os, engine, wanted):
    case = next(case for case in CASES if case["code"] == "dkms-not-built-for-kernel")
    evidence = case["evidence"] | {"context": {"os": os, "container": engine}}
    assert wanted in " ".join(judge(loose.read(evidence)).findings[0].fix)


@pytest.mark.parametrize(
    ("engine", "wanted"),
    [("docker", "docker run --gpus all"), ("podman", "podman run --device nvidia.com/gpu=all")],
)
def test_commands_fit_the_engine(engine, wanted):
    case = next(case for case in CASES if case["code"] == "no-gpus-flag")
    evidence = case["evidence"] | {"context": {"os": "Debian 12", "container": engine}}
    assert wanted in judge(loose.read(evidence)).findings[0].fix[0]
