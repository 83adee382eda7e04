"""The wrong torch: a CPU build, another environment's, another platform's, or none."""

from __future__ import annotations

import re

from torchlock.doctor import fixes
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, Match, Rule, message_rule, rule

KIND = "build-variant"
_NOT_COMPILED = (
    r"Torch not compiled with CUDA enabled|not compiled with CUDA|PyTorch was compiled "
    r"without CUDA|\+cpu\b|Torch is not able to use GPU"
)


def _cpu_build(evidence: Evidence) -> bool:
    version = evidence.torch.version or evidence.packages.get("torch", "")
    if "+cu" in version or re.search(r"\+(rocm|xpu)", version):
        return False
    return (
        evidence.torch.cuda == ""
        or "+cpu" in version
        or bool(re.search("Torch not compiled with CUDA", evidence.error))
    )


def _cpu_lines(evidence: Evidence) -> tuple[str, ...]:
    return (
        evidence.grep(_NOT_COMPILED)
        + evidence.grep(r"\S", source=r"^torch: version$|torch\.version|torch\.__version__")
        + evidence.grep("^torch: cuda")
    )


def _prefix(evidence: Evidence) -> str:
    return evidence.set_env("VIRTUAL_ENV") or evidence.set_env("CONDA_PREFIX")


@rule(
    "user-site-shadows-environment",
    KIND,
    cause="A torch in the user's site-packages (~/.local, from pip --user) is imported "
    "instead of the environment's.",
    shows="torch.__file__ lies under ~/.local while a conda or virtual environment is active.",
    fix=(
        "export PYTHONNOUSERSITE=1    # conda: conda env config vars set PYTHONNOUSERSITE=1",
        "or remove it: python -m pip uninstall torch torchvision torchaudio    # "
        "outside the environment, until ~/.local has none",
    ),
    apart=(
        "cpu-wheel: the environment's own torch is the CPU build",
        "other-environment: torch comes from another environment",
    ),
)
def user_site(evidence: Evidence) -> Match | None:
    """torch from ~/.local in an environment."""
    local = evidence.grep(
        r"\.local/lib/python[\d.]+/site-packages/(torch|nvidia|numpy|triton)", source=""
    )
    wrong = evidence.torch.available is False or bool(evidence.error) or evidence.torch.cuda == ""
    if not local or not wrong or evidence.set_env("PYTHONNOUSERSITE"):
        return None
    if not _prefix(evidence) and not evidence.grep(
        r"envs?/|venv|conda", source="python|conda|which|context|env"
    ):
        return None
    lines = (
        local
        + evidence.grep(r"\S", source="^env: (CONDA_PREFIX|VIRTUAL_ENV)")
        + evidence.grep("torch", source="conda list|pip")
    )
    return Match(
        lines,
        CERTAIN
        if ".local" in evidence.torch.file or evidence.grep(r"\.local", source="torch")
        else LIKELY,
    )


@rule(
    "other-environment",
    KIND,
    cause="torch is imported from <where>, not from the active environment <prefix>.",
    shows="torch.__file__ outside VIRTUAL_ENV / CONDA_PREFIX (PYTHONPATH, another "
    "Python, a Jupyter kernel of another environment).",
    fix=(
        "which python; python -c 'import sys; print(sys.prefix, sys.path)'; unset PYTHONPATH",
        "Jupyter: python -m ipykernel install --user --name <environment>    # and "
        "choose that kernel",
        "use python -m pip, so that pip belongs to the Python that runs",
    ),
    apart=("user-site-shadows-environment: it comes from ~/.local",),
    follows=("user-site-shadows-environment",),
)
def other_environment(evidence: Evidence) -> Match | None:
    """torch from somewhere else."""
    prefix, file = _prefix(evidence).rstrip("/"), evidence.torch.file
    wrong = evidence.torch.available is False or bool(evidence.error)
    if not prefix or not file.startswith("/") or file.startswith(prefix + "/") or not wrong:
        return None
    if not _cpu_build(evidence) and not evidence.error:
        return None
    return Match(
        evidence.grep(r"torch/__init__", source="")
        + evidence.grep(r"\S", source="^env: (CONDA_PREFIX|VIRTUAL_ENV|PYTHONPATH)"),
        LIKELY,
        {"where": file, "prefix": prefix},
    )


@rule(
    "cpu-wheel-aarch64",
    KIND,
    cause="This torch has no CUDA: on aarch64 the Python package index serves CPU-only wheels.",
    shows="uname -m is aarch64, torch.version.cuda is None, no nvidia-* wheels.",
    fix=(
        "pip install --force-reinstall torch --index-url <PyTorch wheel "
        "index>/cu128    # CUDA wheels for aarch64 (SBSA)",
        "install packages that depend on torch afterwards, with a constraint, so "
        "that they do not bring the CPU wheel back",
        "Jetson: NVIDIA's wheels for its JetPack release instead",
    ),
    apart=("cpu-wheel: x86-64, where the index's own wheel has CUDA",),
    follows=("user-site-shadows-environment", "jetson-generic-wheel", "macos-has-no-cuda"),
)
def aarch64(evidence: Evidence) -> Match | None:
    """A CPU wheel on ARM."""
    if not _cpu_build(evidence) or evidence.system.machine not in ("aarch64", "arm64"):
        return None
    return Match(_cpu_lines(evidence) + evidence.grep("aarch64"))


@rule(
    "cpu-build-conda",
    KIND,
    cause="conda chose a CPU build of PyTorch.",
    shows="conda list shows pytorch with a `cpu_` build string, cpuonly or pytorch-mutex cpu.",
    fix=(
        "conda install -c conda-forge 'pytorch=*=cuda*' 'cuda-version=12.6'    # "
        "conda remove cpuonly first",
        "solved on a machine without a GPU: export CONDA_OVERRIDE_CUDA=12.6 before the command",
    ),
    apart=("cpu-wheel: torch came from pip",),
    follows=("user-site-shadows-environment",),
)
def conda_cpu(evidence: Evidence) -> Match | None:
    """A conda CPU build."""
    lines = evidence.grep(
        r"^\s*(pytorch|libtorch|pytorch-mutex|cpuonly)\s.*cpu|^\s*cpuonly\b|pytorch-\d\S*-\S*cpu_"
    )
    if not lines or evidence.torch.cuda not in ("", None):
        return None
    return (
        Match(lines + _cpu_lines(evidence))
        if _cpu_build(evidence) or evidence.torch.available is False
        else None
    )


@rule(
    "cpu-wheel",
    KIND,
    cause="The installed torch (<version>) is built without CUDA.",
    shows="torch.version.cuda is None, `+cpu` in the version, `Torch not compiled with "
    "CUDA enabled`.",
    fix=lambda evidence: (
        "pip uninstall -y torch torchvision torchaudio",
        fixes.torch_wheel("cu126").replace("pip install", "pip install --no-cache-dir")
        + "    # a plain pip install keeps the CPU build (already satisfied, or cached)",
        "uv: uv pip install --reinstall torch --torch-backend=cu126; look for +cpu "
        "in requirements, constraints and PIP_INDEX_URL / PIP_EXTRA_INDEX_URL",
    ),
    apart=(
        "cpu-wheel-aarch64: no CUDA wheel on the Python package index for this machine",
        "user-site-shadows-environment: the CUDA build is installed and another is imported",
        "driver-not-installed: the build has CUDA",
    ),
    follows=(
        "user-site-shadows-environment",
        "cpu-wheel-aarch64",
        "cpu-build-conda",
        "other-environment",
        "rocm-build",
        "jetson-generic-wheel",
        "no-nvidia-gpu",
        "local-module-shadows-torch",
        "macos-has-no-cuda",
    ),
)
def cpu_wheel(evidence: Evidence) -> Match | None:
    """A build without CUDA."""
    if not _cpu_build(evidence):
        return None
    lines = _cpu_lines(evidence) + evidence.grep(
        r"cpu|cached|already satisfied", source="pip|uv|require|index|env: (PIP|UV)"
    )
    version = (
        evidence.torch.version or evidence.packages.get("torch", "") or "see torch.__version__"
    )
    sure = (
        evidence.torch.cuda == ""
        or "+cpu" in version
        or bool(evidence.grep("not compiled with CUDA"))
    )
    return Match(lines, CERTAIN if sure else LIKELY, {"version": version})


@rule(
    "rocm-build",
    KIND,
    cause="The installed torch (<version>) is built for another vendor's GPUs (ROCm or XPU).",
    shows="`+rocm` or `+xpu` in torch's version while the machine has an NVIDIA GPU.",
    fix=lambda evidence: (
        "pip uninstall -y torch torchvision torchaudio pytorch-triton-rocm",
        fixes.torch_wheel("cu126"),
    ),
    apart=("cpu-wheel: no GPU support at all",),
)
def rocm(evidence: Evidence) -> Match | None:
    """A ROCm or XPU build."""
    version = evidence.torch.version or evidence.packages.get("torch", "")
    if re.search(r"\+(rocm|xpu)", version) and evidence.torch.available is not True:
        return Match(evidence.grep(r"\+(rocm|xpu)"), values={"version": version})
    return None


@rule(
    "jetson-generic-wheel",
    KIND,
    cause="This is a Jetson (Tegra), whose integrated GPU generic wheels do not support.",
    shows="A tegra kernel, /etc/nv_tegra_release or an Orin/Xavier GPU with a torch that "
    "is not NVIDIA's Jetson wheel.",
    fix=(
        "install NVIDIA's torch wheel for this JetPack release (cat "
        "/etc/nv_tegra_release), or use its L4T PyTorch container",
    ),
    apart=("cpu-wheel-aarch64: an ARM server with a PCIe or SXM GPU",),
)
def jetson(evidence: Evidence) -> Match | None:
    """A Tegra system."""
    lines = evidence.grep(r"\btegra|\bL4T\b|jetson|JetPack|nvgpu\b|\bOrin\b")
    bad = evidence.torch.available is False or _cpu_build(evidence)
    return (
        Match(lines, LIKELY)
        if lines
        and bad
        and (evidence.system.machine in ("aarch64", "") or "tegra" in evidence.system.kernel)
        else None
    )


@rule(
    "broken-installation",
    KIND,
    cause="The installation of torch is damaged: two copies share a directory, or files "
    "are left from an interrupted change.",
    shows="`Ignoring invalid distribution ~orch`, two torch .dist-info directories, "
    "torch from pip and conda at once.",
    fix=(
        "make a fresh environment; or: pip uninstall -y torch (until none is "
        "left), rm -rf <site-packages>/~orch* <site-packages>/torch*, install again",
        "conda: use either the conda package or the wheel, not both",
    ),
    apart=(
        "other-environment: two whole installations",
        "installed-file-damaged: one file is cut short",
    ),
    follows=("user-site-shadows-environment", "local-module-shadows-torch"),
)
def broken(evidence: Evidence) -> Match | None:
    """Remains of two installations."""
    lines = evidence.grep(r"invalid distribution.*~\w*orch|~orch")
    infos = {
        m for line in evidence.lines for m in re.findall(r"\btorch-\d[\w.+]*\.dist-info", line.text)
    }
    both = evidence.grep(r"^\s*pytorch\s+\d", source="conda list") and evidence.grep(
        r"^\s*torch\s+\d.*pypi", source="conda list"
    )
    if lines or len(infos) > 1 or both:
        if evidence.torch.available is True and not evidence.error:
            return None
        return Match(lines + evidence.grep(r"torch-\d\S*dist-info|^\s*(py)?torch\s+\d"), LIKELY)
    return None


not_there = message_rule(
    "torch-not-installed",
    KIND,
    r"No module named '?torch'?\s*$|ModuleNotFoundError: .*'torch'$|Package\(s\) "
    r"not found: torch\s*$",
    cause="torch is not installed in the Python that runs.",
    fix=(
        "python -c 'import sys; print(sys.executable)'    # the Python meant?",
        "python -m pip install torch==2.7.1",
    ),
    apart=("other-environment: torch is installed, in another environment",),
    follows=(
        "local-module-shadows-torch",
        "no-wheel-for-this-python",
        "torch-in-other-python",
        "wrong-package-name",
    ),
)


@rule(
    "package-index-unreachable",
    KIND,
    cause="The package index is not reached: a proxy, a certificate the system does not trust, or "
    "no network.",
    shows="pip, uv or conda say CERTIFICATE_VERIFY_FAILED, ProxyError, NewConnectionError or "
    "`Temporary failure in name resolution`.",
    fix=(
        "python -m pip config list; env | grep -i proxy    # the index and the proxy in use",
        "a company's certificate: export PIP_CERT=<its CA bundle> SSL_CERT_FILE=<its CA bundle>",
        "no network: carry a store of wheels there and install with --no-index --find-links",
    ),
    apart=("no-wheel-for-this-python: the index answers, and has none that fits",),
)
def index_unreachable(evidence: Evidence) -> Match | None:
    """An installer without its index."""
    broken = (
        r"CERTIFICATE_VERIFY_FAILED|SSLError|ProxyError|Tunnel connection failed|ConnectTimeout"
        r"|NewConnectionError|name resolution|Could not fetch URL|CondaHTTPError"
    )
    lines = evidence.grep(broken, source=r"\b(pip3?|uv|conda|mamba)\b")
    lines += evidence.grep(rf"({broken}).*/simple/|CondaHTTPError|Could not fetch URL \S+/simple/")
    return Match(tuple(dict.fromkeys(lines))) if lines else None


@rule(
    "no-wheel-for-this-python",
    KIND,
    cause="There is no torch wheel for this Python version or platform.",
    shows="`No matching distribution found for torch`, `is not a supported wheel on this "
    "platform`.",
    fix=(
        "python -VV; python -c 'import platform; print(platform.machine(), platform.libc_ver())'",
        "torch 2.7.1 has wheels for CPython 3.9 to 3.13, glibc >= 2.28 (no "
        "musl/Alpine), 64-bit: make an environment with CPython 3.11",
        "a local version such as +cu126 is only on the PyTorch wheel index: "
        "--index-url <PyTorch wheel index>/cu126; python -m pip install --upgrade "
        "pip",
    ),
    apart=(
        "wrong-package-name: the name is pytorch",
        "wheel-hash-mismatch: there is a wheel, and another one than the lock's",
    ),
    follows=("package-index-unreachable", "musl"),
)
def no_wheel(evidence: Evidence) -> Match | None:
    """pip finds no wheel."""
    lines = evidence.grep(
        r"(No matching distribution found for|satisfies the requirement) torch\b"
        r"|torch\S*\.whl is not a supported wheel|torch\S* has no wheels with a "
        r"matching"
    )
    return Match(lines, LIKELY) if lines else None


@rule(
    "macos-has-no-cuda",
    KIND,
    cause="This is macOS, for which CUDA does not exist; torch has Apple's Metal (MPS) there.",
    shows="A Darwin kernel or macOS in the evidence, a torch without CUDA.",
    fix=(
        "use device 'mps' (torch.backends.mps.is_available()) or 'cpu' in the program",
        "CUDA needs a Linux or Windows machine with an NVIDIA GPU",
    ),
    apart=("cpu-wheel-aarch64: Linux on ARM, for which builds with CUDA exist",),
)
def macos(evidence: Evidence) -> Match | None:
    """Apple's system."""
    if not re.search(
        r"darwin|macos|mac os", f"{evidence.system.os} {evidence.system.kernel}", re.I
    ):
        return None
    if evidence.torch.available is True:
        return None
    return Match(evidence.grep(r"darwin|mac ?os", source="context|uname") + _cpu_lines(evidence))


@rule(
    "torch-in-other-python",
    KIND,
    cause="torch is installed, in another Python than the one that runs: pip or conda belongs to "
    "another interpreter, or its environment is not active.",
    shows="`No module named 'torch'` while `pip show`, `pip list` or `conda list` knows torch.",
    fix=(
        "which -a python pip; pip --version; python -c 'import sys; print(sys.executable)'",
        "python -m pip install torch==2.7.1    # python -m pip is the pip of that Python",
        "or run the other Python; activate its environment",
    ),
    apart=("torch-not-installed: no Python has it", "other-environment: the wrong one is imported"),
    follows=("local-module-shadows-torch", "broken-installation"),
)
def other_python(evidence: Evidence) -> Match | None:
    """pip knows torch and Python does not."""
    missing = evidence.grep(r"No module named '?torch'?\s*$")
    known = evidence.grep(r"^(Version|Location): ", source=r"^pip3? show.*\btorch\b")
    known += evidence.grep(r"^torch\s+\d", source=r"^pip3? (list|freeze)")
    known += evidence.grep(r"^(pytorch|torch)\s+\d", source=r"^(conda|mamba|micromamba) list")
    where = evidence.grep(
        r"\S", source=r"^(which|type|command -v)\b.*(pip|python)|^pip3? --version"
    )
    return Match(missing + known + where, LIKELY) if missing and known else None


wrong_name = message_rule(
    "wrong-package-name",
    KIND,
    r'You tried to install "pytorch"|The package named for PyTorch is "torch"',
    cause="The Python package index has PyTorch under the name torch; pytorch is a placeholder "
    "that refuses.",
    fix=("python -m pip install torch==2.7.1    # the name in requirements too",),
    apart=("no-wheel-for-this-python: the name is right and no wheel fits",),
)

conda_virtual = message_rule(
    "conda-cannot-see-cuda",
    KIND,
    r"nothing provides __cuda|__cuda\W.*(missing|not available|is missing on the system)",
    cause="conda's solver sees no CUDA driver on this machine (__cuda), so it refuses CUDA builds.",
    fix=(
        "export CONDA_OVERRIDE_CUDA=12.6    # then solve again; for a machine without a GPU",
        "nvidia-smi    # on a machine that should have one",
    ),
    apart=("cpu-build-conda: the solve succeeded with a CPU build",),
)

damaged = message_rule(
    "installed-file-damaged",
    KIND,
    r"(?!lib(cuda|nvidia-ml)\.)\b(?P<file>[\w+.-]+\.so[\w.]*)'?:? (file too short|invalid ELF "
    r"header|ELF load command past end)|BadZipFile|Bad CRC-32 for|zlib\.error|bad magic number in"
    r"|incomplete (download|wheel)",
    cause="A file of the installation is cut short or damaged (an interrupted download or copy, a "
    "full disk, a quota).",
    fix=(
        "df -h . ~/.cache /tmp; quota -s    # room for it? the wheels need 8 GB while installing",
        "pip cache purge    # uv: uv cache clean",
        "python -m pip install --force-reinstall --no-cache-dir torch==2.7.1    # or the lock "
        "anew: it names each wheel's sha256",
    ),
    apart=(
        "libcuda-empty-file: the driver's library in an image",
        "wheel-hash-mismatch: the installer refused the file",
    ),
    follows=("libcuda-empty-file", "disk-full"),
)

wrong_bytes = message_rule(
    "wheel-hash-mismatch",
    KIND,
    r"DO NOT MATCH THE HASHES|Hash mismatch for|hashes? do(es)? not match",
    cause="The file that was served is not the one the lock names by sha256 (another index's build "
    "of the same version, a damaged cache, or a proxy that rewrites).",
    fix=(
        "pip cache purge    # uv: uv cache clean; then install again",
        "take the wheel from the index the lock was made with; seven nvidia packages have two "
        "different wheels for one version",
    ),
    apart=("installed-file-damaged: it was installed and is damaged",),
)

RULES: tuple[Rule, ...] = (
    user_site,
    other_environment,
    rocm,
    jetson,
    aarch64,
    conda_cpu,
    macos,
    broken,
    cpu_wheel,
    other_python,
    wrong_name,
    not_there,
    index_unreachable,
    no_wheel,
    conda_virtual,
    damaged,
    wrong_bytes,
)
