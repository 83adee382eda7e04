"""Fake /dev, /proc, /sys, /etc and PATH trees drive the real probes."""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

import pytest

from torchlock.doctor import loose, report
from torchlock.doctor.diagnosis import HEALTHY, UNDETERMINED, judge
from torchlock.doctor.probes import children, gather, merge, programs, run_all, system
from torchlock.doctor.probes.machine import Machine

VERSION = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.35.03  Fri Aug 16 21:39:15 UTC 2024\n"
)
TABLE = """#!/bin/sh
case "$*" in
"") echo "| NVIDIA-SMI 560.35.03   Driver Version: 560.35.03   CUDA Version: 12.6 |"
    echo "|   0  NVIDIA L4    Off | 00000000:01:00.0 Off |   0 |" ;;
*) exit 1 ;;
esac
"""
# Stands for the interpreter whose torch is looked at: answers each child as a sound one would.
PYTHON = """#!/bin/sh
torch='"version": "2.7.1+cu126", "cuda": "12.6", "is_available": %(on)s, "device_count": 1'
cuda='"libcuda.so.1": {"ok": true, "path": "/usr/lib/libcuda.so.560.35.03"}'
case "$*" in
*cuInit*) echo '{"dlopen": {'"$cuda"'}, "cuInit": %(init)s}' ;;
*find_spec*) echo '{"torch": {'"$torch"'}, "cudaGetDeviceCount": 0, "maps": []}' ;;
*) echo '{"torch": {'"$torch"', "error": "%(error)s"}}' ;;
esac
"""


class Tree:
    """A fake machine under a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        self.environ = {"PATH": str(self.bin)}
        self.opener = os.open
        for directory in ("proc", "sys", "dev", "etc"):
            (root / directory).mkdir()
        self.file("proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
        self.file("etc/os-release", 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\n')
        self.program("sh-is-needed", "")
        self.python(init=0)

    def file(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def python(self, init: int, error: str = "") -> None:
        self.program(
            "python",
            PYTHON % {"init": init, "on": "true" if init == 0 else "false", "error": error},
        )

    def driver(self) -> None:
        self.file("proc/driver/nvidia/version", VERSION)
        for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
            self.file(f"dev/{name}", "")
            (self.root / "dev" / name).chmod(0o666)  # as the driver makes them, whoever asks
        self.program("nvidia-smi", TABLE)

    def gpu(self, driver: str = "", config: bytes = b"\xde\x10\x84\x26") -> None:
        base = self.root / "sys/bus/pci/devices/0000:01:00.0"
        for name, text in (("vendor", "0x10de\n"), ("device", "0x2684\n"), ("class", "0x030000\n")):
            self.file(f"sys/bus/pci/devices/0000:01:00.0/{name}", text)
        (base / "config").write_bytes(config)
        if driver:
            (self.root / "sys/bus/pci/drivers" / driver).mkdir(parents=True)
            (base / "driver").symlink_to(self.root / "sys/bus/pci/drivers" / driver)

    def machine(self) -> Machine:
        return Machine(self.root, self.environ, str(self.bin / "python"), self.opener)

    def first(self) -> str:
        return judge(gather(self.machine())).findings[0].code


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_a_sound_machine(tree):
    tree.driver()
    tree.gpu("nvidia")
    assert judge(gather(tree.machine())).status == HEALTHY


def test_no_gpu_and_no_driver(tree):
    (tree.root / "sys/bus/pci/devices").mkdir(parents=True)
    tree.program("python", '#!/bin/sh\necho \'{"dlopen": {"libcuda.so.1": {"ok": false}}}\'\n')
    assert tree.first() == "no-nvidia-gpu"


def test_nouveau_owns_the_gpu(tree):
    tree.gpu("nouveau")
    tree.python(init=100, error="No CUDA GPUs are available")
    tree.program(
        "nvidia-smi",
        '#!/bin/sh\necho "NVIDIA-SMI has failed because it couldn\'t communicate"\nexit 9\n',
    )
    assert tree.first() == "nouveau-owns-gpu"


def test_a_gpu_whose_configuration_space_is_gone(tree):
    tree.driver()
    tree.gpu("nvidia", config=b"\xff" * 64)
    tree.python(init=999)
    tree.program(
        "nvidia-smi", "#!/bin/sh\necho 'Unable to determine the device handle for GPU0'\nexit 15\n"
    )
    assert tree.first() == "xid79-fell-off-bus"


@pytest.mark.parametrize(
    ("code", "mode", "container", "right"),
    [
        (errno.EACCES, 0o660, False, "device-node-permissions"),
        (errno.EACCES, 0o666, False, "device-node-refused-by-policy"),
        (errno.EPERM, 0o666, False, "service-sandbox"),
        (errno.EPERM, 0o666, True, "cgroup-lost"),
    ],
)
def test_what_open_says_decides(tree, code, mode, container, right):
    tree.driver()
    for node in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tree.root / "dev" / node).chmod(mode)
    tree.python(init=100, error="No CUDA GPUs are available")
    tree.program("nvidia-smi", "#!/bin/sh\necho 'Failed to initialize NVML: Unknown'\nexit 255\n")
    if container:
        tree.file(".dockerenv", "")

    def refuse(path, flags):
        raise OSError(code, os.strerror(code))

    tree.opener = refuse
    evidence = gather(tree.machine())
    assert evidence.nodes["/dev/nvidiactl"].opened == errno.errorcode[code]
    assert judge(evidence).findings[0].code == right


def test_a_missing_node_is_not_a_refused_one(tree):
    tree.driver()
    (tree.root / "dev/nvidia-uvm").unlink()
    tree.file("proc/modules", "nvidia 1 0 - Live 0x0\n")
    tree.python(init=999, error="CUDA unknown error")
    assert tree.first() == "uvm-module-not-loaded"


def test_secure_boot_is_read_from_its_efi_variable(tree):
    path = tree.root / "sys/firmware/efi/efivars"
    path.mkdir(parents=True)
    (path / "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c").write_bytes(b"\x06\x00\x00\x00\x01")
    tree.gpu()
    tree.python(init=100, error="No CUDA GPUs are available")
    tree.program(
        "modinfo",
        "#!/bin/sh\necho 'filename:       /lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko'\n",
    )
    tree.program(
        "nvidia-smi",
        '#!/bin/sh\necho "NVIDIA-SMI has failed because it couldn\'t communicate"\nexit 9\n',
    )
    assert tree.first() == "secure-boot-unsigned"


def test_a_podman_container_without_gpus(tree):
    tree.file("proc/driver/nvidia/version", VERSION)
    tree.file("run/.containerenv", "")
    tree.program("python", '#!/bin/sh\necho \'{"dlopen": {"libcuda.so.1": {"ok": false}}}\'\n')
    finding = judge(gather(tree.machine())).findings[0]
    assert finding.code == "no-gpus-flag"
    assert "podman run --device nvidia.com/gpu=all" in finding.fix[0]


def test_a_slurm_job_without_gpus(tree):
    tree.driver()
    tree.environ |= {"SLURM_JOB_ID": "42", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}
    tree.python(init=100, error="No CUDA GPUs are available")
    tree.program("scontrol", "#!/bin/sh\necho '   ReqTRES=cpu=4,mem=32G,node=1'\n")
    assert tree.first() == "slurm-no-gpu-requested"


def test_a_program_that_hangs_is_killed_and_recorded(tree):
    tree.program("slow", "#!/bin/sh\nexec /bin/sleep 60\n")
    began = time.monotonic()
    run = tree.machine().run(["slow"], seconds=0.3)
    assert run.rc == 124
    assert time.monotonic() - began < 30  # far from the 60 s it would take


def test_a_probe_that_hangs_or_raises_does_not_stop_the_others(tree):
    def hangs(machine):
        time.sleep(60)

    def raises(machine):
        raise RuntimeError("broken")

    def works(machine):
        return {"cmd": {"a": "b"}}

    found = run_all((hangs, raises, works), tree.machine(), seconds=0.5)
    assert found["cmd"] == {"a": "b"}
    assert "no answer" in found["probes"]["hangs"]
    assert "broken" in found["probes"]["raises"]
    judge(loose.read(found))


def test_a_child_that_crashes_is_evidence(tree):
    tree.driver()
    tree.program("python", "#!/bin/sh\nkill -ILL $$\n")
    evidence = gather(tree.machine())
    assert evidence.grep("Illegal instruction", source="child")


ANSWERS = {
    "cuInit": """echo '{"dlopen": {"libcuda.so.1": {"ok": true, "path": "/l"}}, "cuInit": 0}'""",
    "native": """echo '{"torch": {"version": "2.7.1+cu126", "cuda": "12.6"}}'""",
    "import": "exit 1",
}


def answering(tree, **changed):
    """A machine whose driver answers, and whose torch behaves as the shell commands say."""
    tree.driver()
    answers = ANSWERS | changed
    tree.program(
        "python",
        f'#!/bin/sh\ncase "$*" in\n*cuInit*) {answers["cuInit"]} ;;\n'
        f"*find_spec*) {answers['native']} ;;\n*) {answers['import']} ;;\nesac\n",
    )
    return gather(tree.machine())


HANG = "exec /bin/sleep 60"
TRUE = """echo '{"torch": {"is_available": true}}'"""


@pytest.fixture
def impatient(monkeypatch):
    """Children are given one second."""
    run = Machine.run
    monkeypatch.setattr(
        Machine, "run", lambda self, argv, seconds=10, **more: run(self, argv, seconds=1, **more)
    )


@pytest.mark.parametrize(
    ("native", "imported", "why"),
    [
        ("exit 3", "exit 3", "status 3"),
        ("""echo '{"nativeLoad": "no libcudart"}'""", "exit 1", "nativeLoad: no libcudart"),
        ("kill -KILL $$", "exit 1", "killed by signal 9"),
        (":", "exit 1", "status 1"),
        (TRUE + "; exit 1", "exit 1", "status 1"),
    ],
)
def test_without_a_word_of_torch_nothing_is_healthy(tree, native, imported, why):
    diagnosis = judge(answering(tree, native=native, **{"import": imported}))
    assert diagnosis.status != HEALTHY
    assert any(why in line for line in diagnosis.not_judged)
    if diagnosis.status == UNDETERMINED:
        assert "not judged" in report.to_text(diagnosis)


@pytest.mark.parametrize("signal", ["SEGV", "ABRT", "BUS"])
def test_a_torch_that_crashes_is_found(tree, signal):
    kill = f"kill -{signal} $$"
    findings = judge(answering(tree, native=kill, **{"import": kill})).findings
    assert [finding.code for finding in findings] == ["torch-crashes"]
    assert findings[0].evidence[0].startswith("child: import torch: import torch: killed by signal")


def test_a_torch_that_hangs_is_found(tree, impatient):
    findings = judge(answering(tree, native=HANG, **{"import": HANG})).findings
    assert [finding.code for finding in findings] == ["torch-hangs"]


def test_an_import_that_works_outweighs_libraries_that_took_too_long(tree, impatient):
    diagnosis = judge(answering(tree, native=HANG, **{"import": TRUE}))
    assert diagnosis.status == HEALTHY
    assert "not judged:" in report.to_text(diagnosis)


def test_a_cuinit_that_hangs_is_found_and_libcuda_stays_known(tree, impatient):
    loaded = (
        """echo '{"dlopen": {"libcuda.so.1": {"ok": true, "path": "/usr/lib/libcuda.so.1"}}}'"""
    )
    evidence = answering(tree, cuInit=f"{loaded}; {HANG}", native=HANG, **{"import": HANG})
    assert evidence.libcuda.found is True
    assert evidence.libcuda.path == "/usr/lib/libcuda.so.1"
    first, *others = judge(evidence).findings
    assert (first.code, first.certainty, others) == ("cuinit-hangs", "likely", [])
    assert any(line.startswith("torch-hangs") for line in first.consequences)


def test_a_cuinit_that_crashes_is_found(tree):
    kill = "kill -SEGV $$"
    findings = judge(answering(tree, cuInit=kill, native=kill, **{"import": kill})).findings
    assert [finding.code for finding in findings] == ["cuinit-crashes"]


def test_a_torch_probe_that_never_answers_is_not_healthy():
    found = {"cuInit": 0, "probes": {"torch_native": "no answer in 40 s"}}
    diagnosis = judge(loose.read(found))
    assert diagnosis.status == UNDETERMINED
    assert "probes: torch_native: no answer in 40 s" in diagnosis.not_judged


def test_cuinit_alone_does_not_make_torch_healthy():
    diagnosis = judge(loose.read({"cuInit": 0, "dlopen": {"libcuda.so.1": {"ok": True}}}))
    assert diagnosis.status == UNDETERMINED
    assert any(line.startswith("torch: ") for line in diagnosis.not_judged)


def test_what_a_killed_program_had_said_is_kept(tree):
    tree.program("slow", f"#!/bin/sh\necho half an answer\n{HANG}\n")
    run = tree.machine().run(["slow"], seconds=1)
    assert (run.rc, run.out.splitlines()[0]) == (124, "half an answer")


def test_the_native_child_says_where_it_stopped(tmp_path):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text("__version__ = '2.7.1+cu126'\ncuda = '12.6'\n")
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    said = children.torch_native(Machine(environ=environ))
    assert said["torch"]["version"] == "2.7.1+cu126"
    assert said["nativeStage"] == "loading libtorch_python.so"
    assert said["error"].startswith("ImportError: ")


def test_memory_limits_of_both_cgroup_versions_are_read(tree):
    nested = "slurm/uid_7/job_42"
    tree.file("proc/self/cgroup", f"4:memory:/{nested}\n0::/system.slice/job.scope\n")
    for directory, limit in (("", str(2**63 - 4096)), (f"/{nested}", str(8 * 2**30))):
        tree.file(f"sys/fs/cgroup/memory{directory}/memory.limit_in_bytes", limit)
        tree.file(f"sys/fs/cgroup/memory{directory}/memory.oom_control", "oom_kill 1\n")
    tree.file("sys/fs/cgroup/system.slice/memory.max", "max\n")
    tree.file("sys/fs/cgroup/system.slice/job.scope/memory.max", "1073741824\n")
    tree.file("sys/fs/cgroup/system.slice/job.scope/memory.events", "oom_kill 2\n")
    assert system.cgroups(tree.machine())["files"] == {
        f"/sys/fs/cgroup/memory/{nested}/memory.limit_in_bytes": str(8 * 2**30),
        f"/sys/fs/cgroup/memory/{nested}/memory.oom_control": "oom_kill 1\n",
        "/sys/fs/cgroup/system.slice/job.scope/memory.max": "1073741824",
        "/sys/fs/cgroup/system.slice/job.scope/memory.events": "oom_kill 2\n",
    }


def test_a_gpu_of_another_vendor_is_named(tree):
    for name, text in (("vendor", "0x1002"), ("device", "0x744c"), ("class", "0x030000")):
        tree.file(f"sys/bus/pci/devices/0000:03:00.0/{name}", text + "\n")
    tree.program("python", '#!/bin/sh\necho \'{"dlopen": {"libcuda.so.1": {"ok": false}}}\'\n')
    first = judge(gather(tree.machine())).findings[0]
    assert first.code == "no-nvidia-gpu"
    assert "AMD" in first.cause
    assert "rocm" in first.fix[0]


DETAILS = """#!/bin/sh
[ "$*" = "-q" ] || exit 1
cat <<'END'
GPU 00000000:17:00.0
    Serial Number                         : 1650000000000
    MIG Mode
        Current                           : Disabled
    Fabric
        State                             : In Progress
        Status                            : N/A
    ECC Mode
        Current                           : Enabled
END
"""


def test_of_nvidia_smi_q_only_what_tells_a_state_is_kept(tree):
    tree.program("nvidia-smi", DETAILS)
    tree.environ["PATH"] += ":/bin:/usr/bin"
    said = programs.smi_details(tree.machine())["cmd"]["nvidia-smi -q (parts)"]
    assert [line.split() for line in said.splitlines()] == [
        ["MIG", "Mode"],
        ["Current", ":", "Disabled"],
        ["Fabric"],
        ["State", ":", "In", "Progress"],
        ["Status", ":", "N/A"],
    ]


def test_a_sound_machine_is_looked_at_in_full_where_somebody_else_judges(tree):
    tree.driver()
    tree.program("getenforce", "#!/bin/sh\necho Permissive\n")
    assert not gather(tree.machine()).grep("Permissive")
    whole = gather(tree.machine(), everything=True)
    assert whole.grep("Permissive")
    assert judge(whole).status == HEALTHY


def test_secrets_in_the_environment_are_not_gathered(tree):
    tree.environ |= {"SLURM_JWT": "s3cr3t", "NVIDIA_API_KEY": "s3cr3t", "CUDA_HOME": "/opt/cuda"}
    evidence = gather(tree.machine())
    assert "s3cr3t" not in evidence.to_json()
    assert evidence.env["CUDA_HOME"] == "/opt/cuda"


def test_an_empty_tree_can_be_looked_at(tmp_path):
    evidence = gather(Machine(tmp_path, {"PATH": ""}, sys.executable))
    assert judge(evidence).status != HEALTHY


def test_merge_joins_mappings():
    assert merge({"cmd": {"a": "1"}, "x": 1}, {"cmd": {"b": "2"}, "x": 2}) == {
        "cmd": {"a": "1", "b": "2"},
        "x": 2,
    }
