"""The checks in the real stack: what holds, what must be found, and under which conditions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from validation import lane

from .conftest import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

VALIDATION = REPOSITORY / "validation"


@pytest.fixture(scope="session")
def validate(in_stack, tmp_path_factory):
    """Runs the command line in the stack; gives the exit code, the certificate and the words."""

    def run(*arguments, **options):
        directory = tmp_path_factory.mktemp("away")
        done = in_stack(VALIDATION, *arguments, "--json", "-", cwd=directory, **options)
        assert "Traceback" not in done.stderr, done.stderr
        certificate = json.loads(done.stdout) if done.stdout else None
        return done.returncode, certificate, done.stderr

    return run


needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="a namespace with its own mounts or host name takes root"
)


def row(certificate, name):
    return next(check for check in certificate["checks"] if check["name"] == name)


def test_every_check_holds_and_the_bits_are_the_recorded_ones(validate):
    code, certificate, said = validate("--device", "cpu")
    verdicts = {check["name"]: check["verdict"] for check in certificate["checks"]}
    judged = ("stack", "transformer", "resume", "ddp", "neighbours", "compile", "reference")
    assert {name: verdicts[name] for name in judged} == dict.fromkeys(judged, "holds"), said
    assert code == 0
    assert "identical to the reference of class" in row(certificate, "reference")["evidence"]
    assert verdicts["gpu"] == "not judged"
    assert certificate["lane"]["reported"] == {
        "aten": "AVX2",
        "threads": "1",
        "mkl": "COMPATIBLE",
        "onednn": "Intel AVX2",
    }
    libraries = {library["name"]: library["from"] for library in certificate["libraries"]}
    assert libraries["libtorch_cpu.so"] == "environment"
    assert libraries["libcudnn.so.9"] == "environment"
    assert libraries["libc.so.6"] == "foundation"


CONDITIONS = {
    "variables preset by the user": {
        "env": {
            "OMP_NUM_THREADS": "2",
            "MKL_CBWR": "AVX512",
            "ATEN_CPU_CAPABILITY": "default",
            "DNNL_MAX_CPU_ISA": "SSE41",
            "MKL_NUM_THREADS": "2",
            "KMP_AFFINITY": "disabled",
        }
    },
    "locale, time zone and hash seed": {
        "env": {"LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "77"}
    },
    "one core, low priority": {"prefix": ["taskset", "-c", "0", "nice", "-n", "19"]},
    "few files and little stack": {
        "prefix": ["bash", "-c", 'ulimit -n 256 -s 4096 -c 0; exec "$@"', "bash"]
    },
}


def test_two_ranks_and_a_resumed_run_give_the_recorded_bits_on_one_core(validate):
    code, certificate, said = validate(
        "--device", "cpu", "--only", "resume", "ddp", prefix=["taskset", "-c", "0"]
    )
    assert code == 0, said
    assert row(certificate, "reference")["verdict"] == "holds"


@needs_root
def test_a_full_disk_leaves_the_checks_without_a_judgement(validate):
    script = 'mount -t tmpfs -o size=40k none "$0" && TMPDIR="$0" exec "$@"'
    with tempfile.TemporaryDirectory() as small:
        code, certificate, said = validate(
            "--only", "resume", prefix=["unshare", "--mount", "bash", "-c", script, small]
        )
    assert code == 2, said
    assert "No space left on device" in row(certificate, "resume")["evidence"]


@pytest.mark.parametrize("name", CONDITIONS)
def test_the_bits_do_not_depend_on(validate, name):
    code, certificate, said = validate(
        "--device", "cpu", "--only", "transformer", "neighbours", **CONDITIONS[name]
    )
    assert code == 0, said
    assert row(certificate, "reference")["verdict"] == "holds"


def test_what_the_user_preset_is_named(validate):
    _, certificate, said = validate(
        "--only", "stack", env={"OMP_NUM_THREADS": "2", "MKL_CBWR": "AVX512"}
    )
    assert certificate["lane"]["overridden"] == {"MKL_CBWR": "AVX512", "OMP_NUM_THREADS": "2"}
    assert "overridden for the checks: OMP_NUM_THREADS=2" in said


def test_a_gpu_that_was_asked_for_and_is_not_there_is_not_judged(validate):
    if Path("/dev/nvidia0").exists():
        pytest.fail("this test is for a machine without a GPU")
    code, certificate, _ = validate("--device", "cuda")
    assert (code, row(certificate, "gpu")["evidence"]) == (2, "no device")


def test_a_module_that_shadows_a_locked_one_is_found_with_its_path(validate, tmp_path):
    shadow = tmp_path / "numpy"
    shadow.mkdir()
    (shadow / "__init__.py").write_text("__version__ = '2.9'\nbool_ = int\n")
    code, certificate, said = validate(
        "--only", "stack", env={"PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    )
    assert code == 1
    assert row(certificate, "stack")["verdict"] == "does not hold"
    assert str(shadow / "__init__.py") in said


def test_a_stack_library_from_elsewhere_is_found_with_its_path(validate, tmp_path, stack_python):
    """LD_LIBRARY_PATH beats the RUNPATH of NVIDIA's wheels."""
    find = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    done = subprocess.run([stack_python, "-c", find], capture_output=True, text=True, check=True)
    own = Path(done.stdout.strip()) / "nvidia" / "nvjitlink" / "lib" / "libnvJitLink.so.12"
    shutil.copy(own, tmp_path)
    code, certificate, said = validate("--only", "stack", env={"LD_PRELOAD": tmp_path / own.name})
    assert code == 1
    places = {(lib["name"], lib["from"]) for lib in certificate["libraries"]}
    assert (own.name, "elsewhere") in places
    assert str(tmp_path / own.name) in said


def test_the_prefix_is_left_as_it_was(validate, stack_python):
    prefix = Path(stack_python).parent.parent
    before = _listing(prefix)
    validate("--only", "neighbours")
    assert _listing(prefix) == before


def _listing(prefix):
    return {path: path.stat().st_mtime_ns for path in prefix.rglob("*") if not path.is_symlink()}


def test_the_guard_refuses_an_unfused_optimizer_and_lets_clipping_pass(in_stack):
    done = in_stack(
        "-c",
        "import torch\n"
        "from validation import training\n"
        "from validation.guard import NotPortableError, PortableGuard\n"
        "from validation.model import SMALL\n"
        "def refused(work):\n"
        "    try:\n"
        "        with PortableGuard():\n"
        "            work()\n"
        "    except NotPortableError as error:\n"
        "        return 'fused=True' in str(error)\n"
        "    return False\n"
        "def optimizer(**options):\n"
        "    p = torch.nn.Parameter(torch.ones(8)); p.grad = torch.ones(8)\n"
        "    return torch.optim.AdamW([p], **options).step\n"
        "x = torch.rand(32)\n"
        "assert refused(lambda: training.train(training.start(SMALL, 'fp32', fused=False), 1))\n"
        "assert refused(optimizer(foreach=True))\n"
        "assert refused(optimizer(foreach=False))\n"
        "assert refused(x.sqrt) and refused(lambda: x ** 0.5) and refused(lambda: x ** -0.5)\n"
        "assert refused(torch.optim.RMSprop([torch.nn.Parameter(x)]).step) is False\n"
        "assert not refused(lambda: training.train(training.start(SMALL, 'fp32'), 1))\n"
        "assert not refused(lambda: x.norm() + torch.nn.functional.layer_norm(x, (32,)).sum())\n"
        "assert not refused(lambda: x ** 2)\n"
        "assert not refused(lambda: torch.ones(3, dtype=torch.bfloat16).sqrt())\n",
        env=lane.PORTABLE,
    )
    assert done.returncode == 0, done.stderr


def test_the_gpus_code_runs_as_far_as_a_cpu_takes_it(in_stack):
    """The same functions with the device set to cpu and a small size."""
    done = in_stack(
        "-c",
        "import dataclasses, json, sys\n"
        "from pathlib import Path\n"
        "from validation.checks import Settings, gpu\n"
        "from validation.model import SMALL\n"
        "outcome = gpu.judge('cpu', SMALL, Settings(Path('.')))\n"
        "json.dump(dataclasses.asdict(outcome), sys.stdout)\n",
        env=lane.PORTABLE,
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["verdict"] == "holds", outcome["evidence"]
    assert set(outcome["digests"]) == {"fp32", "bf16", "fp16"}
    table = outcome["details"]["table"]
    assert set(table) == {"fp32", "TF32", "fp16 AMP", "bf16 AMP"}
    assert all(int(mode["tokens per second"]) > 0 for mode in table.values())
    assert table["fp32"]["peak memory MiB"] == "not judged"


def test_ddp_over_two_nodes_gives_the_bits_of_one(stack_python, tmp_path):
    """Two launchers, as on two machines; the recorded bits are those of two ranks on one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [stack_python, str(VALIDATION), "--only", "ddp", "--json", "-"]
    command += ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    nodes = [
        subprocess.Popen(
            [*command, "--node-rank", str(rank)],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for node in nodes:
        output, errors = node.communicate(timeout=600)
        assert node.returncode == 0, errors
        certificate = json.loads(output)
        assert "2 ranks on 2 nodes equal one process" in row(certificate, "ddp")["evidence"]
        assert row(certificate, "reference")["verdict"] == "holds"


@needs_root
def test_ddp_needs_no_host_name_that_resolves(validate):
    renamed = ["unshare", "--uts", "bash", "-c", 'hostname no.such.host; exec "$@"', "bash"]
    code, certificate, said = validate("--only", "ddp", prefix=renamed)
    assert code == 0, said
    assert row(certificate, "ddp")["verdict"] == "holds"


def test_a_taken_port_is_said_and_does_not_hang(validate):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        code, certificate, said = validate(
            "--only", "ddp", "--nnodes", "2", "--rdzv-endpoint", endpoint
        )
    assert code == 2
    assert "address already in use" in row(certificate, "ddp")["evidence"], said


@needs_root
def test_a_small_shared_memory_is_enough_and_a_full_one_is_said(validate):
    def mounted(fill):
        script = f'mount -t tmpfs -o size=64m none /dev/shm && {fill} exec "$@"'
        return ["unshare", "--mount", "bash", "-c", script, "bash"]

    code, _, said = validate("--only", "ddp", "neighbours", prefix=mounted(""))
    assert code == 0, said
    full = "dd if=/dev/zero of=/dev/shm/full bs=1M count=70 2>/dev/null;"
    code, certificate, said = validate("--only", "ddp", "neighbours", prefix=mounted(full))
    assert code == 2
    assert row(certificate, "ddp")["verdict"] == "holds", said
    assert "/dev/shm has 0 KiB free" in row(certificate, "neighbours")["evidence"]


def test_without_a_compiler_compile_is_not_judged(validate, tmp_path):
    code, certificate, said = validate("--only", "compile", env={"CXX": "no-such-compiler"})
    assert code == 0, said
    assert row(certificate, "compile")["verdict"] == "not judged"
    assert "no C++ compiler (no-such-compiler)" in row(certificate, "compile")["evidence"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_it_leaves_no_process_and_no_scratch_directory(stack_python, tmp_path, number):
    process = subprocess.Popen(
        [stack_python, str(VALIDATION), "--only", "ddp"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = ""
    while not line.startswith("ddp"):
        line = process.stderr.readline()
        assert line
    deadline = 60
    while not list(tmp_path.rglob("first")) and deadline:
        deadline -= 1
        subprocess.run(["sleep", "0.5"], check=True)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []
    ranks = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False)
    assert ranks.stdout == b""


def test_this_pythons_own_validation_imports_without_torch():
    """compare, sign, report and the certificate run under the tool's python."""
    modules = "certificate, compare, sign, report, references, running, canonical"
    code = f"from validation import {modules}; import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)
