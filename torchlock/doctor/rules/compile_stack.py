"""What torch.compile, Triton and extension builds need: compiler, headers, toolkit, caches."""

# ruff: noqa: S108 - these paths are spoken of, not written to
from __future__ import annotations

import re

from torchlock.doctor import fixes, parse
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, Match, Rule, message_rule, rule
from torchlock.doctor.rules import facts

KIND = "compile-stack"


def _toolkit_fix(evidence: Evidence) -> tuple[str, ...]:
    wheel = facts.wheel_cuda(evidence) or (12, 6)
    version = ".".join(map(str, wheel[:2]))
    return (
        f"export CUDA_HOME=/usr/local/cuda-{version} "
        f"PATH=/usr/local/cuda-{version}/bin:$PATH    # a {wheel[0]}.x toolkit",
        "nvcc --version; which -a nvcc; ls -d /usr/local/cuda-*",
        "not installed: "
        + fixes.install(
            evidence,
            f"cuda-toolkit-{version.replace('.', '-')}",
            f"cuda-toolkit-{version.replace('.', '-')}",
        ),
    )


@rule(
    "triton-no-libcuda-link",
    KIND,
    cause="Triton links its launcher with -lcuda and finds no unversioned libcuda.so "
    "(only libcuda.so.1), so torch.compile fails while eager CUDA works.",
    shows="`cannot find -lcuda`, or `libcuda.so cannot found!`; libcuda.so.1 loads.",
    fix=lambda evidence: (
        "sudo ln -s libcuda.so.1 <dir>/libcuda.so && sudo ldconfig    # the "
        "directory of libcuda.so.1",
        "or, without root: mkdir -p ~/.local/libcuda && ln -s <dir>/libcuda.so.1 "
        "~/.local/libcuda/libcuda.so && "
        "export TRITON_LIBCUDA_PATH=~/.local/libcuda",
    ),
    apart=(
        "no-c-compiler: gcc itself is missing",
        "no-python-headers: the compiler stops at Python.h",
    ),
)
def no_link(evidence: Evidence) -> Match | None:
    """No libcuda.so to link with."""
    lines = evidence.grep(
        r"cannot find -lcuda\b|libcuda\.so cannot found|libcuda\.so cannot be found"
        r"|unable to find library -lcuda"
    )
    if not lines:
        return None
    where = evidence.libcuda.path.rpartition("/")[0] or next(
        (
            lib.path.rpartition("/")[0]
            for lib in evidence.libraries
            if lib.soname.startswith("libcuda.so")
        ),
        "/usr/lib/x86_64-linux-gnu",
    )
    return Match(
        lines + evidence.grep(r"libcuda\.so", source="ldconfig|ls|dlopen"), values={"dir": where}
    )


@rule(
    "no-c-compiler",
    KIND,
    cause="There is no C/C++ compiler, which Triton, torch.compile and extension builds need.",
    shows="`Failed to find C compiler`, `InvalidCxxCompiler`, `gcc: not found`, `[Errno "
    "2] ... 'g++'`.",
    fix=lambda evidence: (
        fixes.install(evidence, "gcc g++", "gcc gcc-c++", "gcc gcc-c++", "gcc")
        + "    # then, if it is elsewhere: export CC=<gcc> CXX=<g++>",
    ),
    apart=("no-python-headers: the compiler is there", "triton-no-libcuda-link: the linker stops"),
)
def no_compiler(evidence: Evidence) -> Match | None:
    """No compiler."""
    lines = evidence.grep(
        r"Failed to find C compiler|InvalidCxxCompiler|No working C\+\+ compiler"
        r"|(gcc|g\+\+|cc|c\+\+|cl|clang\+*)'?: (command )?not found"
        r"|No such file or directory: '\S*(gcc|g\+\+|cc|c\+\+|clang)'|(unable to "
        r"execute|command) '?\S*(gcc|g\+\+|cc|x86_64-linux-gnu-gcc)'?( failed)?: "
        r"No such file"
        r"|No (C\+\+|CMAKE_CXX)_?\w* ?(compiler|could be found)|cc1plus: .*No such "
        r"file|cannot execute '?cc1plus"
    )
    return Match(lines) if lines else None


no_headers = message_rule(
    "no-python-headers",
    KIND,
    r"Python\.h: No such file|fatal error: '?Python\.h",
    cause="Python's C headers are missing, which Triton and extension builds need.",
    fix=lambda evidence: (
        fixes.install(evidence, "python3-dev", "python3-devel", "python3-devel", "python")
        + "    # of the Python that runs: python3.11-dev",
        "or use an environment that carries them (conda, uv python install)",
    ),
    apart=("no-c-compiler: there is no compiler",),
)


@rule(
    "nvcc-differs-from-torch",
    KIND,
    cause="The CUDA toolkit found (<nvcc>) is of another major version than torch's CUDA (<cuda>).",
    shows="`The detected CUDA version (<n>) mismatches the version that was used to "
    "compile PyTorch`.",
    fix=_toolkit_fix,
    apart=(
        "nvcc-missing: no toolkit at all",
        "compiler-too-new-for-nvcc: the toolkit is right, gcc is not",
    ),
)
def nvcc(evidence: Evidence) -> Match | None:
    """A toolkit of another major."""
    said = evidence.first(r"detected CUDA version \((\d+\.\d+)\) mismatches")
    release = evidence.first(r"Cuda compilation tools, release (\d+\.\d+)")
    wheel = facts.wheel_cuda(evidence)
    lines = evidence.grep(
        r"detected CUDA version|release \d+\.\d+, V|PyTorch \(\d+\.\d+\)"
    ) + evidence.grep(r"\S", source="^env: CUDA_(HOME|PATH)$")
    found = said[1] if said else release[1] if release else ""
    if said or (
        found
        and wheel
        and parse.version(found)[0] != wheel[0]
        and re.search(r"nvcc|\.cu\b|ninja|build|extension|compil", evidence.error)
    ):
        return Match(
            lines,
            CERTAIN if said else LIKELY,
            {"nvcc": found, "cuda": ".".join(map(str, wheel)) or "see torch.version.cuda"},
        )
    return None


@rule(
    "nvcc-missing",
    KIND,
    cause="Building needs a CUDA toolkit (nvcc), which torch's wheels do not bring; none is found.",
    shows="`CUDA_HOME environment variable is not set`, `nvcc: not found`, `No such file "
    "or directory: .../bin/nvcc`.",
    fix=_toolkit_fix,
    apart=("nvcc-differs-from-torch: a toolkit is found",),
)
def no_nvcc(evidence: Evidence) -> Match | None:
    """No toolkit."""
    lines = evidence.grep(
        r"CUDA_HOME environment variable is not set|nvcc'?: (command )?not found"
        r"|No such file or directory: '?\S*nvcc|nvcc was not found|CUDA_HOME does "
        r"not exist|Could not find (nvcc|CUDA)\b|CUDA_TOOLKIT_ROOT_DIR not found"
    )
    wanted = not evidence.error or bool(
        re.search(r"nvcc|CUDA_HOME|CUDA_TOOLKIT|CUDA", evidence.error)
    )
    return (
        Match(lines + evidence.grep(r"\S", source="^env: CUDA_(HOME|PATH)$"))
        if lines
        and evidence.error
        and wanted
        and re.search(r"nvcc|CUDA_HOME|CUDA_TOOLKIT|CUDA\b.*found", evidence.error)
        else None
    )


compiler_new = message_rule(
    "compiler-too-new-for-nvcc",
    KIND,
    r"unsupported GNU version|unsupported Microsoft Visual|-- unsupported (GNU"
    r"|clang)|gcc versions later than \d+ are not supported",
    cause="The host compiler is newer than this nvcc supports.",
    fix=lambda evidence: (
        fixes.install(evidence, "gcc-12 g++-12", "gcc-toolset-12", "gcc12 gcc12-c++", "gcc12")
        + "    # CUDA 12.6 supports gcc up to 13.2",
        "export CC=gcc-12 CXX=g++-12 NVCC_PREPEND_FLAGS='-ccbin g++-12'",
    ),
    apart=("nvcc-differs-from-torch: the toolkit and torch disagree",),
)

arch_unknown = message_rule(
    "toolkit-too-old-for-gpu",
    KIND,
    r"Unsupported gpu architecture '(?P<arch>compute_\d+\w?)'|Unknown CUDA arch "
    r"\((?P<list>[\d.+a-z]+)\) or GPU not supported",
    cause="The CUDA toolkit (or torch's extension builder) does not know the GPU "
    "architecture it is asked to build for.",
    fix=(
        "use a toolkit that knows it (compute_100, compute_120: CUDA 12.8 or "
        "newer) with a torch built for that CUDA",
        "or name architectures it knows: export TORCH_CUDA_ARCH_LIST='8.0;8.6;9.0'",
    ),
    apart=("triton-too-old-for-gpu: ptxas, from torch.compile",),
)


@rule(
    "build-without-gpu",
    KIND,
    cause="An extension is built where no GPU is visible (docker build, login node), so its "
    "architectures cannot be detected.",
    shows="`No CUDA runtime is found`, or `IndexError: list index out of range` from "
    "torch.utils.cpp_extension's architecture flags.",
    fix=(
        "export TORCH_CUDA_ARCH_LIST='8.0;8.6;9.0'    # the architectures that will run it",
        "FORCE_CUDA=1 pip install --no-build-isolation <package>    # where its "
        "setup asks for a GPU",
    ),
    apart=("nvcc-missing: there is no toolkit",),
)
def no_gpu_at_build(evidence: Evidence) -> Match | None:
    """A build that looks for a GPU."""
    lines = evidence.grep(r"No CUDA runtime is found, using CUDA_HOME")
    flags = evidence.grep(r"_get_cuda_arch_flags|arch_list\[-1\]|TORCH_CUDA_ARCH_LIST")
    index = evidence.grep(r"IndexError: list index out of range")
    if (lines and evidence.error) or (flags and index):
        return Match(lines + flags + index, CERTAIN if index and flags else LIKELY)
    return None


build_memory = message_rule(
    "build-out-of-memory",
    KIND,
    r"Killed signal terminated program (cc1plus|cicc|ptxas)|(cicc|cc1plus|nvcc)\S* "
    r"died due to signal 9"
    r"|nvcc.*exit (code|status):? (137|9)\b",
    cause="The compiler was killed for want of host memory: too many compile jobs at once.",
    fix=("MAX_JOBS=2 pip install --no-build-isolation <package>    # 2 to 4 GB each", "free -g"),
    apart=("memory-limit-killed: not a compiler was killed",),
)

no_ninja = message_rule(
    "ninja-missing",
    KIND,
    r"Ninja is required to load C\+\+ extensions|No such file or directory: '?ninja"
    r"|ninja: (command )?not found",
    cause="ninja, which torch's extension builder uses, is not installed or not on PATH.",
    fix=("pip install ninja    # and activate the environment, so that its bin is on PATH",),
    apart=("no-c-compiler: the compiler is what is missing",),
)

no_setuptools = message_rule(
    "setuptools-missing",
    KIND,
    r"No module named '?(setuptools|distutils|pkg_resources|wheel)\b",
    cause="setuptools, which Triton and extension builds need at run time, is not "
    "installed (a fresh virtual environment of Python 3.12 or newer has none).",
    fix=("pip install setuptools wheel",),
    apart=("ninja-missing, no-c-compiler: the build begins and lacks a tool",),
)


@rule(
    "triton-missing",
    KIND,
    cause="torch.compile needs Triton, which is not installed, or in another version "
    "than torch <torch> asks for (<right>).",
    shows="`Cannot find a working triton installation`, `No module named 'triton'`, pip "
    "check names triton.",
    fix=("pip install --force-reinstall triton==<right>",),
    apart=("gpu-too-old-for-triton: Triton is there and the GPU is too old",),
)
def no_triton(evidence: Evidence) -> Match | None:
    """No Triton, or another release."""
    lines = evidence.grep(
        r"Cannot find a working triton|TritonMissing|No module named '?triton"
        r"|cannot import name '\w+' from 'triton|requirement triton==|module "
        r"'triton\S*' has no attribute"
    )
    if not lines:
        return None
    return Match(
        lines + evidence.grep(r"\S", source="^pip: triton$"),
        values={"right": "3.3.1", "torch": facts.torch_release(evidence) or "2.7.1"},
    )


@rule(
    "cache-not-writable",
    KIND,
    cause="The compile cache directory cannot be written (<path>).",
    shows="Permission denied, read-only file system or no home directory for ~/.triton, "
    "torchinductor, torch_extensions.",
    fix=(
        "export TRITON_CACHE_DIR=/tmp/triton-$UID "
        "TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$UID "
        "TORCH_EXTENSIONS_DIR=/tmp/torch-extensions-$UID    # a directory of this "
        "user's",
        "ls -ld <path>    # whose it is; container with an arbitrary UID: set HOME "
        "to a writable directory",
    ),
    apart=("noexec-mount: it can be written and not executed",),
)
def cache(evidence: Evidence) -> Match | None:
    """A cache that cannot be written."""
    lines = evidence.grep(
        r"(Permission ?(Error|denied)|Read-only file system|Errno 13|Errno "
        r"30).*(\.triton|torchinductor|torch_extensions|\.cache|inductor|triton)"
        r"|(\.triton|torchinductor|torch_extensions).*(Permission denied|Read-only)"
        r"|getpwuid\(\): uid not found"
    )
    path = evidence.first(r"'(/[^']*(?:triton|inductor|torch_extensions|\.cache)[^']*)'")
    return Match(lines, values={"path": path[1] if path else "~/.triton"}) if lines else None


@rule(
    "noexec-mount",
    KIND,
    cause="A library that was just built lies on a file system mounted noexec, or its "
    "mapping is forbidden.",
    shows="`failed to map segment from shared object`.",
    fix=(
        "findmnt -T <path>    # noexec?",
        "export TMPDIR=<a directory that allows execution> "
        "TRITON_CACHE_DIR=$TMPDIR/triton TORCHINDUCTOR_CACHE_DIR=$TMPDIR/inductor "
        "TORCH_EXTENSIONS_DIR=$TMPDIR/ext",
    ),
    apart=("cache-not-writable: the directory cannot be written", "executable-stack-refused"),
)
def noexec(evidence: Evidence) -> Match | None:
    """A mapping refused."""
    lines = evidence.grep(r"failed to map segment from shared object")
    path = evidence.first(r"(/\S+\.so\S*): failed to map segment")
    return (
        Match(
            lines + evidence.grep("noexec"),
            CERTAIN if evidence.grep("noexec") else LIKELY,
            {"path": path[1] if path else "/tmp"},
        )
        if lines
        else None
    )


RULES: tuple[Rule, ...] = (
    no_link,
    no_compiler,
    no_headers,
    nvcc,
    compiler_new,
    arch_unknown,
    no_nvcc,
    no_gpu_at_build,
    build_memory,
    no_ninja,
    no_setuptools,
    no_triton,
    cache,
    noexec,
)
