"""Binary interfaces: numpy, C++ extensions, libstdc++, glibc, companion packages."""

from __future__ import annotations

import re

from torchlock.doctor import fixes, parse, tables
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, Match, Rule, message_rule, rule
from torchlock.doctor.rules import facts

KIND = "abi"


def _numpy(evidence: Evidence) -> tuple[int, ...]:
    said = evidence.first(r"cannot be run in\s+NumPy (\d+\.\d+)")
    return parse.version(evidence.packages.get("numpy", "") or (said[1] if said else ""))


@rule(
    "numpy2-with-old-torch",
    KIND,
    cause="This torch (<torch>) was compiled for NumPy 1 and cannot use NumPy <numpy>.",
    shows="`compiled using NumPy 1.x cannot be run in NumPy 2`, `Numpy is not "
    "available`, with torch before 2.3 and NumPy 2.",
    fix=("pip install 'numpy<2'    # or upgrade torch: 2.3 and newer support NumPy 2",),
    apart=(
        "numpy2-with-old-extension: torch supports NumPy 2, another module does not",
        "numpy-missing: NumPy is not installed",
    ),
)
def old_torch(evidence: Evidence) -> Match | None:
    """NumPy 2 with a torch built for NumPy 1."""
    lines = _numpy_lines(evidence)
    release = parse.version(facts.torch_release(evidence))
    numpy = _numpy(evidence)
    if not lines or not release or release >= (2, 3) or (numpy and numpy < (2,)):
        return None
    values = {"torch": facts.torch_release(evidence), "numpy": evidence.packages.get("numpy", "2")}
    return Match(
        lines + evidence.grep(r"\S", source="^pip: (numpy|torch)$"),
        CERTAIN if numpy else LIKELY,
        values,
    )


def _numpy_lines(evidence: Evidence) -> tuple[str, ...]:
    return evidence.grep(
        r"compiled using NumPy 1\.x|_ARRAY_API not found|Numpy is not available"
        r"|numpy\.core\.multiarray failed to import|numpy\.dtype size changed"
    )


@rule(
    "numpy2-with-old-extension",
    KIND,
    cause="A module compiled for NumPy 1 is loaded with NumPy 2; torch itself supports it.",
    shows="The NumPy 1.x message with torch 2.3 or newer: the traceback names the module.",
    fix=(
        "upgrade the module that the traceback names (the last import before the message)",
        "until then: pip install 'numpy<2'",
    ),
    apart=("numpy2-with-old-torch: torch before 2.3",),
    follows=("numpy2-with-old-torch",),
)
def old_extension(evidence: Evidence) -> Match | None:
    """NumPy 2 with another module built for NumPy 1."""
    lines = evidence.grep(
        r"compiled using NumPy 1\.x|_ARRAY_API not found|numpy\.dtype size changed"
        r"|numpy\.core\.multiarray failed"
    )
    release = parse.version(facts.torch_release(evidence))
    if lines and (not release or release >= (2, 3)):
        return Match(lines + evidence.grep(r"import |\S", source="^pip: numpy$"), LIKELY)
    return None


@rule(
    "numpy-missing",
    KIND,
    cause="NumPy is not installed (torch's wheels do not require it), or failed to import.",
    shows="`Numpy is not available` and no numpy in pip list.",
    fix=("pip install numpy",),
    apart=("numpy2-with-old-torch: NumPy is installed, in version 2, with torch before 2.3",),
    follows=("numpy2-with-old-torch", "numpy2-with-old-extension"),
)
def no_numpy(evidence: Evidence) -> Match | None:
    """No NumPy."""
    lines = evidence.grep(r"Numpy is not available|No module named '?numpy")
    listed = bool(evidence.packages) and "numpy" not in evidence.packages
    return (
        Match(lines, CERTAIN if listed or evidence.grep("No module named '?numpy") else LIKELY)
        if lines and not _numpy(evidence)
        else None
    )


@rule(
    "executable-stack-refused",
    KIND,
    cause="<library> is marked as needing an executable stack, which glibc 2.41 and "
    "newer (and hardened kernels) refuse to give a library.",
    shows="`cannot enable executable stack as shared object requires`.",
    fix=(
        "clear the mark: patchelf --clear-execstack <library>    # or execstack "
        "-c; torch: upgrade to a build without it (2.6 and newer)",
        "until then: export GLIBC_TUNABLES=glibc.rtld.execstack=2",
    ),
    apart=("noexec-mount: `failed to map segment` from a file system mounted noexec",),
)
def execstack(evidence: Evidence) -> Match | None:
    """An executable stack refused."""
    lines = evidence.grep(r"cannot enable executable stack")
    name = evidence.first(r"(\S+\.so\S*): cannot enable executable stack")
    return (
        Match(
            lines + evidence.grep(r"2\.4\d|glibc", source="ldd|getconf|context"),
            values={"library": name[1] if name else "the library"},
        )
        if lines
        else None
    )


_TORCH_SYMBOL = (
    r"undefined symbol: (\w*(?:3c10|2at|5torch|6caffe2|c10_|aoti_|THP|_ZNK?\d*(?:3c10"
    r"|2at|5torch))\w*)"
)


def _extension_name(evidence: Evidence) -> str:
    said = re.search(
        r"/site-packages/([\w.-]+?)(?:\.cpython|/|\.abi3|\.so)", evidence.error
    ) or re.search(
        r"(?:^|[/\s])([\w-]+?)(?:\.cpython|\.abi3)?[\w.-]*\.so: undefined symbol", evidence.error
    )
    said = said or re.search(r"(\w+) was built (?:for|with|against)", evidence.error)
    name = said[1].lower() if said else ""
    return re.sub(r"_(2_)?cuda$", "", name) if name not in ("torch", "") else "<extension>"


@rule(
    "extension-cxx11-abi",
    KIND,
    cause="<who> was compiled with the other C++ string ABI than torch "
    "(_GLIBCXX_USE_CXX11_ABI), so torch's symbol is not found.",
    shows="`undefined symbol` of c10/at/torch whose name has a std::string of the other "
    "ABI (`Ss` against `__cxx11`); wheel name "
    "with cxx11abiFALSE against torch 2.7 (TRUE).",
    fix=(
        "install its wheel for this torch and ABI (the file name says torch2.7 and cxx11abiTRUE; "
        "python -c 'import torch; print(torch.compiled_with_cxx11_abi())')",
        "or rebuild it: pip install --no-cache-dir --no-binary :all: "
        "--no-build-isolation --force-reinstall --no-deps <who>",
    ),
    apart=("extension-built-for-other-torch: the ABI agrees, the torch release does not",),
)
def cxx11(evidence: Evidence) -> Match | None:
    """Two C++ string ABIs."""
    symbol = evidence.first(_TORCH_SYMBOL)
    named = evidence.grep(
        r"cxx11_?abi(=|\W*)?(TRUE|FALSE|True|False|0|1)|_GLIBCXX_USE_CXX11_ABI"
        r"|compiled_with_cxx11_abi"
    )
    if not symbol:
        return None
    old = (
        bool(re.search(r"(RK|^_ZN\w*E?\w*)Ss|ESs|RKSs|SsE|Ss$", symbol[1]))
        and "__cxx11" not in symbol[1]
    )
    string = old or "__cxx11" in symbol[1]
    release = parse.version(facts.torch_release(evidence))
    torch_new = not release or release >= (2, 7)
    disagrees = (old and torch_new) or ("__cxx11" in symbol[1] and not torch_new)
    wheel = evidence.first(r"cxx11_?abi(TRUE|FALSE)")
    if wheel and ((wheel[1].upper() == "TRUE") != torch_new):
        disagrees = True
    if not disagrees and not (string and named):
        return None
    lines = evidence.grep(_TORCH_SYMBOL) + named
    certainty = CERTAIN if (disagrees and named) or old else LIKELY
    return Match(lines, certainty, {"who": _extension_name(evidence)})


# xFormers and others say it themselves
_TORCH_NAMED = (
    r"PyTorch \S+ with CUDA \d+ \(you have|built (for|against|with) (py)?torch \d.*(you have|but)"
)


@rule(
    "extension-built-for-other-torch",
    KIND,
    cause="<who> was compiled for another release of torch than the installed one.",
    shows="`undefined symbol` of c10/at/torch in a package's own library.",
    fix=(
        "pip install --no-cache-dir --force-reinstall --no-deps "
        "--no-build-isolation <who>    # rebuilds it against this torch",
        "or install its wheel for this torch release; build caches: rm -rf "
        "~/.cache/torch_extensions",
    ),
    apart=("extension-cxx11-abi: the symbol differs by its string type",),
    follows=("extension-cxx11-abi", "torchvision-mismatch", "broken-installation"),
)
def other_torch(evidence: Evidence) -> Match | None:
    """A symbol of another torch."""
    lines = evidence.grep(_TORCH_SYMBOL) + evidence.grep(_TORCH_NAMED)
    return (
        Match(
            lines + evidence.grep(r"\S", source="^pip: torch$|extension"),
            CERTAIN,
            {"who": _extension_name(evidence)},
        )
        if lines
        else None
    )


@rule(
    "torchvision-mismatch",
    KIND,
    cause="<package> <version> does not belong to torch <torch>, so its operators do not register.",
    shows="`operator torchvision::nms does not exist`, `Couldn't load custom C++ ops`, "
    "pip check names the pair; undefined symbol in "
    "torchvision's or torchaudio's library.",
    fix=("pip install torch==<torch> <package>==<right>    # both from one index (same +cu tag)",),
    apart=("extension-built-for-other-torch: another package's library",),
)
def companion(evidence: Evidence) -> Match | None:
    """torchvision or torchaudio of another release."""
    lines = evidence.grep(
        r"operator torchvision::|Couldn't load custom C\+\+ ops|(torchvision"
        r"|torchaudio)\S*( [\d.]\S*)? (has requirement|requires) torch"
        r"|(torchvision|torchaudio)/\S*\.so: undefined symbol|lib(torchaudio"
        r"|torchvision)\S*: undefined symbol|torchvision.*(different|compiled "
        r"with) CUDA"
        r"|PyTorch and torchvision (were|has)|Detected that PyTorch and "
        r"(torchvision|torchaudio) were compiled with different CUDA"
    )
    release = facts.torch_release(evidence)
    for name in ("torchvision", "torchaudio"):
        version = evidence.packages.get(name, "").partition("+")[0]
        right = (
            tables.TORCHVISION.get(release, "")
            if name == "torchvision"
            else (release if release in tables.TORCHVISION else "")
        )
        differs = bool(version and right) and parse.version(version)[:2] != parse.version(right)[:2]
        about = [line for line in lines if name in line.lower()]
        tag_differs = "different CUDA" in str(about)
        if about and (differs or tag_differs or not version or not right or version != right):
            values = {
                "package": name,
                "version": version or "(see pip list)",
                "torch": release or "2.7.1",
                "right": right or "the release for it",
            }
            return Match(
                lines + evidence.grep(r"\S", source=f"^pip: (torch|{name})$"),
                CERTAIN if differs or tag_differs else LIKELY,
                values,
            )
    if lines:
        return Match(
            lines,
            LIKELY,
            {
                "package": "torchvision",
                "version": evidence.packages.get("torchvision", ""),
                "torch": release or "2.7.1",
                "right": tables.TORCHVISION.get(release, "the release for it"),
            },
        )
    return None


@rule(
    "libstdcxx-too-old",
    KIND,
    cause="The loader takes an older libstdc++ (<path>) than a library needs (<wants>).",
    shows="``version `GLIBCXX_<n>' not found`` or ``CXXABI_<n>``.",
    fix=lambda evidence: (
        *(
            (
                "unset LD_LIBRARY_PATH    # drop the system directory that comes "
                "before the environment's lib",
                "conda install -c conda-forge --force-reinstall libstdcxx-ng    # "
                "restores the link libstdc++.so.6 in $CONDA_PREFIX/lib",
            )
            if evidence.set_env("CONDA_PREFIX") or evidence.grep("conda")
            else (
                "LD_DEBUG=libs python -c 'import torch' 2>&1 | grep libstdc    # "
                "which one is taken; drop its directory from LD_LIBRARY_PATH",
                fixes.install(evidence, "libstdc++6", "libstdc++", "libstdc++6", "gcc-libs")
                + "    # or use a newer distribution or image",
            )
        ),
    ),
    apart=("glibc-too-old: GLIBC_, not GLIBCXX_: the distribution itself is too old",),
)
def glibcxx(evidence: Evidence) -> Match | None:
    """An older libstdc++ in front."""
    lines = evidence.grep(r"(GLIBCXX_|CXXABI_)[\d.]+\W? not found")
    said = evidence.first(r"(\S+libstdc\+\+\S*): version \W(\w+[\d.]+)")
    if not lines:
        return None
    values = {
        "path": said[1] if said else "see the error",
        "wants": said[2] if said else "see the error",
    }
    return Match(
        lines
        + evidence.grep(r"GLIBCXX_3|libstdc\+\+", source="strings|ls|ldd|LD_DEBUG")
        + facts.torch_path_lines(evidence),
        values=values,
    )


@rule(
    "glibc-too-old",
    KIND,
    cause="The distribution's glibc is older than the library needs (<wants>); torch's "
    "wheels need 2.28 or newer.",
    shows="``version `GLIBC_<n>' not found``.",
    fix=(
        "use a distribution or image with a newer glibc (Debian 11, Ubuntu 20.04, "
        "RHEL 8 or newer); on an old host run it in a container",
        "glibc cannot be replaced through LD_LIBRARY_PATH",
    ),
    apart=("libstdcxx-too-old: GLIBCXX_", "musl: Alpine has no glibc at all"),
)
def glibc(evidence: Evidence) -> Match | None:
    """An older glibc."""
    lines = evidence.grep(r"\WGLIBC_2[\d.]+\W? not found")
    wants = evidence.first(r"(GLIBC_2\.\d+)")
    return (
        Match(
            lines + evidence.grep(r"2\.\d+", source="ldd --version|getconf"),
            values={"wants": wants[1] if wants else "see the error"},
        )
        if lines
        else None
    )


@rule(
    "musl",
    KIND,
    cause="This system uses musl (Alpine); torch's wheels and the NVIDIA driver's "
    "libraries are built for glibc.",
    shows="Alpine, `ld-linux-x86-64.so.2: No such file`, `Error relocating`, `__..._chk: "
    "symbol not found`.",
    fix=("use a glibc-based image (python:3.11-slim, Debian, Ubuntu) instead of Alpine",),
    apart=("glibc-too-old: glibc, in an older release",),
)
def musl(evidence: Evidence) -> Match | None:
    """No glibc."""
    lines = evidence.grep(
        r"ld-linux-x86-64\.so\.2.*(no such file|not found)|Error relocating"
        r"|libc\.musl|musl libc|symbol not found"
    )
    alpine = fixes.family(evidence) == "alpine"
    refused = evidence.grep(
        r"satisfies the requirement torch|No matching distribution found for torch"
    )
    return (
        Match(lines + refused + evidence.grep("alpine"), CERTAIN if lines and alpine else LIKELY)
        if (alpine and (evidence.error or lines or refused)) or len(lines) > 1
        else None
    )


illegal = message_rule(
    "cpu-instruction-missing",
    KIND,
    r"(?<!an )Illegal instruction(?! was)|SIGILL|trap invalid opcode|does not support AVX",
    cause="The processor (or the virtual machine's CPU model) lacks an instruction that "
    "a library was compiled for, usually AVX or AVX2.",
    fix=(
        "grep -o -w -m1 -E 'avx2|avx|avx512f' /proc/cpuinfo | sort -u    # what there is",
        "virtual machine: CPU type host (QEMU/Proxmox: -cpu host); an extension "
        "compiled with -march=native elsewhere: rebuild it here",
    ),
    certainty=LIKELY,
    apart=("torch-crashes: the CPU has the instructions",),
)

other_python = message_rule(
    "extension-built-for-other-python",
    KIND,
    r"undefined symbol: _?Py\w+|\.cpython-3\d+-\S+\.so.*(not|different)|Python "
    r"version mismatch|compiled for Python|is not a supported wheel on this "
    r"platform: ?(?!torch)",
    cause="A compiled module belongs to another Python version than the one that runs.",
    fix=(
        "python -VV; python -m pip install --force-reinstall --no-cache-dir "
        "<package>    # with the Python that runs; unset PYTHONPATH",
    ),
    certainty=LIKELY,
    apart=("extension-built-for-other-torch: the Python is right, torch's symbols are missing",),
    follows=("no-wheel-for-this-python",),
)

mkl = message_rule(
    "mkl-too-new",
    KIND,
    r"undefined symbol: iJIT_NotifyEvent|libmkl_\w+\.so\S*: undefined symbol",
    cause="conda's MKL is newer than the one this torch was linked with, and lacks a symbol.",
    fix=("conda install 'mkl<2024.1'    # or use torch's own wheel, which brings its MKL",),
    apart=("system-library-missing: the library is absent, not too new",),
)

openmp = message_rule(
    "two-openmp-runtimes",
    KIND,
    r"OMP: Error #15|Initializing libiomp5\S* but found|libiomp5.*already initialized",
    cause="Two OpenMP runtimes are loaded into one process (packages from pip and conda mixed).",
    fix=(
        "take torch, numpy and scipy from one source (all wheels, or all conda)",
        "to prove it only (results may be wrong): export KMP_DUPLICATE_LIB_OK=TRUE",
    ),
    apart=("process-limit: no thread can be started",),
)


@rule(
    "extension-needs-other-torch-libraries",
    KIND,
    cause="<who> needs torch's library <library>, which this torch build does not have: "
    "it was built "
    "for another release, or for a CUDA build while a CPU build is installed.",
    shows="`libtorch_cuda*.so`, `libc10_cuda.so` or a former libtorch name: cannot open "
    "shared object file.",
    fix=(
        "python -c 'import torch; print(torch.__version__, torch.version.cuda)'",
        "pip install --no-cache-dir --force-reinstall --no-deps --no-build-isolation <who>",
        "a CPU build (+cpu) is installed: install the CUDA build of torch first",
    ),
    apart=("extension-built-for-other-torch: the library is there, a symbol in it is not",),
    follows=("cpu-wheel", "torchvision-mismatch"),
)
def torch_library(evidence: Evidence) -> Match | None:
    """One of torch's own libraries that an extension misses."""
    missing = evidence.first(r"\b(lib(?:torch|c10|caffe2)\w*\.so)\S*: cannot open shared object")
    if not missing:
        return None
    lines = evidence.grep(re.escape(missing[1]))
    return Match(lines, LIKELY, {"library": missing[1], "who": _extension_name(evidence)})


_SYSTEM = {
    "libGL.so.1": ("libgl1", "mesa-libGL"), "libgthread-2.0.so.0": ("libglib2.0-0", "glib2"),
    "libgomp.so.1": ("libgomp1", "libgomp"), "libstdc++.so.6": ("libstdc++6", "libstdc++"),
    "libgcc_s.so.1": ("libgcc-s1", "libgcc"), "libsndfile.so.1": ("libsndfile1", "libsndfile"),
    "libopenblas.so.0": ("libopenblas0", "openblas"), "libnuma.so.1": ("libnuma1", "numactl-libs"),
    "libibverbs.so.1": ("libibverbs1", "libibverbs"), "libmpi.so.40": ("libopenmpi3", "openmpi"),
    "libz.so.1": ("zlib1g", "zlib"), "libffi.so.8": ("libffi8", "libffi"),
    "libffi.so.7": ("libffi7", "libffi3.1"),
    "libSM.so.6": ("libsm6", "libSM"), "libXext.so.6": ("libxext6", "libXext"),
    "libcrypt.so.1": ("libcrypt1", "libxcrypt-compat"),
    "libatomic.so.1": ("libatomic1", "libatomic"),
    "libaio.so.1": ("libaio1", "libaio"), "libsox.so": ("libsox-dev", "sox-devel"),
}  # fmt: skip


@rule(
    "system-library-missing",
    KIND,
    cause="The system library <library> is not installed.",
    shows="`<library>: cannot open shared object file` for a library that no wheel brings.",
    fix=("<install>",),
    apart=("nvidia-wheel-files-removed: a CUDA library from a wheel",),
)
def system_library(evidence: Evidence) -> Match | None:
    """A distribution's library that is missing."""
    for missing in re.finditer(
        r"(lib[\w+.-]+?\.so[.\d]*): cannot open shared object file", evidence.error
    ):
        if missing[1] in _SYSTEM:
            command = fixes.install(evidence, *_SYSTEM[missing[1]])
            return Match(
                evidence.grep(re.escape(missing[1])),
                values={"library": missing[1], "install": command},
            )
    return None


RULES: tuple[Rule, ...] = (
    old_torch,
    old_extension,
    no_numpy,
    execstack,
    companion,
    cxx11,
    other_torch,
    glibcxx,
    glibc,
    musl,
    illegal,
    other_python,
    mkl,
    openmp,
    torch_library,
    system_library,
)
