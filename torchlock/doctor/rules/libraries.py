"""Which CUDA library is loaded: a wheel's own, another one in front of it, or none."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchlock.doctor import parse, tables
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, POSSIBLE, Match, Rule, rule
from torchlock.doctor.rules import facts

KIND = "library-shadowing"

# Major versions of the sonames that a CUDA 12 build of torch loads.
_SONAME_12 = {
    "libcublas": "12", "libcublasLt": "12", "libcudart": "12", "libnvrtc": "12", "libcupti": "12",
    "libcusparse": "12", "libnvJitLink": "12", "libcufft": "11", "libcurand": "10",
    "libcusolver": "11",
    "libcudnn": "9", "libnccl": "2", "libcusparseLt": "0", "libcufile": "0", "libnvToolsExt": "1",
}  # fmt: skip
_SYMBOLS = (
    (r"nccl", "libnccl"), (r"_*nvJitLink", "libnvJitLink"), (r"cublasLt", "libcublasLt"),
    (r"cublas", "libcublas"), (r"cusparseLt", "libcusparseLt"), (r"cusparse", "libcusparse"),
    (r"cusolver", "libcusolver"), (r"cufft", "libcufft"), (r"curand", "libcurand"),
    (r"cudnn|_ZN5cudnn", "libcudnn"), (r"cupti", "libcupti"), (r"nvrtc", "libnvrtc"),
    (r"cuFile", "libcufile"), (r"cuda[A-Z]|__cuda", "libcudart"),
    (r"nvshmem", "libnvshmem_host"),
)  # fmt: skip
_CUDNN = (
    r"CUDNN_STATUS_(SUBLIBRARY_VERSION_MISMATCH|SUBLIBRARY_LOADING_FAILED"
    r"|VERSION_MISMATCH|NOT_INITIALIZED)"
    r"|cuDNN version incompatibility|cudnn\S* version (mismatch|\(?\d+\)? is not compatible)"
    r"|Loaded runtime CuDNN library: \S+ but source was compiled with"
    r"|Unable to load any of \{?libcudnn|Invalid handle\. Cannot load symbol cudnn"
    r"|unable to find an engine to execute this computation"
    r"|libcudnn\w*\.so\S*:? undefined symbol|Could not load library libcudnn\w+\.so\.9"
)


@dataclass(frozen=True)
class _Fault:
    """A library that is missing (`symbol` empty) or lacks a symbol; `owner` is its file."""

    soname: str
    symbol: str = ""
    owner: str = ""


def _faults(evidence: Evidence) -> list[_Fault]:
    """The CUDA libraries that the error says are missing or lack a symbol."""
    found = []
    text = "\n".join([evidence.error, *evidence.dlopen.values()])[:100_000]
    for missing in re.finditer(r"(lib[\w+-]+\.so[.\w]*): cannot open shared object file", text):
        found.append(_Fault(missing[1]))
    for missing in re.finditer(
        r"(?:load library|load dynamic library|Library) '?(lib[\w+-]+\.so[.\w]*)", text
    ):
        found.append(_Fault(missing[1]))
    for missing in re.finditer(r"(lib[\w+-]+\.so[.\w]*)(?:' )? (?:is |was )?not found", text):
        found.append(_Fault(missing[1]))
    for symbol in re.finditer(
        r"(?:(\S+\.so\S*): )?undefined symbol: ([^\s,]+)(?:, version (\S+))?", text
    ):
        by_symbol = next((lib for pattern, lib in _SYMBOLS if re.match(pattern, symbol[2])), "")
        found.append(
            _Fault(
                soname=symbol[3] or (by_symbol + ".so" if by_symbol else ""),
                symbol=symbol[2],
                owner=symbol[1] or "",
            )
        )
    for version in re.finditer(
        r"(\S*?(lib[\w+-]+\.so[.\w]*)): version [`'](lib[\w.]+)' not found", text
    ):
        found.append(_Fault(version[2], version[3], version[1]))
    for failed in re.finditer(r"failed to open (lib[\w+-]+\.so[.\w]*)", text):
        found.append(_Fault(failed[1]))
    if re.search(r"CUBLAS_STATUS_(INVALID_VALUE|NOT_SUPPORTED|NOT_INITIALIZED)", text):
        found.append(_Fault("libcublas.so.12", "CUBLAS_STATUS"))
    if re.search(_CUDNN, text):
        found.append(_Fault("libcudnn.so.9", "cudnn"))
    return [fault for fault in found if tables.is_cuda_library(fault.soname)]


def _major(soname: str) -> str:
    number = re.search(r"\.so\.(\d+)", soname)
    return number[1] if number else ""


def _torchs_own(evidence: Evidence, soname: str) -> bool:
    """Whether torch's build loads a soname of this major version."""
    wheel = facts.wheel_cuda(evidence) or (12, 6)
    major, family = _major(soname), tables.stem(soname)
    if not major:
        return True
    if family == "libcudnn":
        old = bool(facts.torch_release(evidence)) and parse.version(
            facts.torch_release(evidence)
        ) < (2, 4)
        return major == ("8" if old else "9")
    expected = _SONAME_12.get(family, major)
    if wheel[0] == 12 or expected not in ("11", "12"):
        return major == expected
    return major == str(wheel[0]) if expected == "12" else True


def _package(evidence: Evidence, soname: str) -> tuple[str, str]:
    """(wheel that carries a library for torch's CUDA, its installed version or empty)."""
    wheel = facts.wheel_cuda(evidence) or (12, 6)
    name = f"{tables.WHEEL_OF[tables.stem(soname)]}-cu{wheel[0]}"
    return name, evidence.packages.get(name, "")


def _pinned(evidence: Evidence, name: str) -> str:
    """The version of a wheel that torch asks for: from pip check, else from the table for 2.7.1."""
    said = evidence.first(rf"requirement {re.escape(name)}==([\w.]+)")
    if said:
        return said[1].rstrip(".")
    return tables.PINS_2_7_1.get(name, "") if facts.torch_release(evidence) in ("2.7.1", "") else ""


def _in_site_packages(path: str) -> bool:
    return bool(re.search(r"(site|dist)-packages/(nvidia|torch)\b|/nvidia/\w+/lib/", path))


def _outsiders(evidence: Evidence, family: str) -> list[str]:
    """Paths of a loaded library of this family that no wheel carries."""
    loaded = [lib for lib in evidence.libraries if lib.via in ("ldd", "maps")]
    return [
        lib.path
        for lib in loaded
        if lib.path and tables.stem(lib.soname) == family and not _in_site_packages(lib.path)
    ]


def _search_path(evidence: Evidence) -> tuple[str, ...]:
    """LD_LIBRARY_PATH and LD_PRELOAD lines that lead to a toolkit or another environment."""
    return evidence.grep(
        r"cuda|cudnn|nccl|tensorrt|hpc_sdk|nvidia|conda|/lib|\.so",
        source=r"^env: LD_(LIBRARY_PATH|PRELOAD)$|ld\.so\.preload",
    )


@rule(
    "stub-libcuda",
    KIND,
    cause="The loader picks the CUDA toolkit's stub libcuda (made for linking only) "
    "instead of the driver's.",
    shows="libcuda.so.1 resolves to a `stubs` directory; cuInit 34 `CUDA driver is a "
    "stub library`.",
    fix=(
        "take .../lib64/stubs out of LD_LIBRARY_PATH and /etc/ld.so.conf.d (then sudo ldconfig)",
        "for linking use LIBRARY_PATH=.../lib64/stubs or -L; remove a link stubs/libcuda.so.1",
    ),
    apart=("compat-shadows-driver: a real libcuda of another version",),
)
def stub(evidence: Evidence) -> Match | None:
    """The toolkit's link-time library."""
    lines = evidence.grep(r"Error 34\b|driver is a stub library|CUDA_ERROR_STUB_LIBRARY")
    if lines or evidence.libcuda.init == 34 or "/stubs" in evidence.libcuda.path:
        return Match(lines + evidence.grep("stubs"))
    return None


@rule(
    "nvidia-wheel-files-removed",
    KIND,
    cause="<library> is missing from disk although pip lists its wheel <package>: "
    "another nvidia-* wheel that owns the "
    "same paths was uninstalled, or an installation was cut short.",
    shows="`<library>: cannot open shared object file` from torch while pip lists the "
    "wheel; `pip check` is content.",
    fix=(
        "pip install --force-reinstall --no-deps <package>==<version>    # a plain "
        "pip install skips it",
        "several missing: reinstall every nvidia-*-cu12 wheel: pip freeze | grep ^nvidia- | "
        "xargs pip install --force-reinstall --no-deps",
    ),
    apart=(
        "nvidia-wheel-not-installed: pip does not list the wheel",
        "other-library-needs-other-cuda: the missing version is not the one torch uses",
        "nvidia-wheel-version: the file is there, in another version",
    ),
)
def removed(evidence: Evidence) -> Match | None:
    """A listed wheel without its files."""
    for fault in _faults(evidence):
        if fault.symbol or not _torchs_own(evidence, fault.soname) or _by_other_library(evidence):
            continue
        name, version = _package(evidence, fault.soname)
        if _wheels_listed(evidence) and not version:
            continue
        wanted = re.search(r"\.so\.(\d+)", fault.soname)
        if version and wanted and version.partition(".")[0] != wanted[1]:
            continue  # that wheel never had the file: it is of another major version
        absent = evidence.grep(r"cannot access|No such file", source=r"\bls\b|stat|find|RECORD")
        if (
            not version
            and not absent
            and not evidence.grep("Version:|Location:", source="pip show")
        ):
            return Match(
                _error_lines(evidence, fault),
                POSSIBLE,
                {
                    "library": fault.soname,
                    "package": name,
                    "version": _pinned(evidence, name) or "<version>",
                },
            )
        lines = (
            _error_lines(evidence, fault)
            + absent
            + evidence.grep("uninstall|killed|interrupted|No space", source="pip|log")
        )
        lines += evidence.grep(r"\S", source=rf"^pip: {name}$")
        return Match(
            lines,
            values={
                "library": fault.soname,
                "package": name,
                "version": _pinned(evidence, name) or version or "<version>",
            },
        )
    return _directory_gone(evidence)


def _wheels_listed(evidence: Evidence) -> bool:
    """Whether the list of packages at hand would show torch's wheels."""
    return any(name == "torch" or name.startswith("nvidia-") for name in evidence.packages)


def _directory_gone(evidence: Evidence) -> Match | None:
    """A listing of a wheel's directory that fails although pip lists the wheel."""
    if evidence.error or evidence.torch.available is True:
        return None
    for line in evidence.lines:
        where = re.search(r"site-packages/nvidia/(\w+)", line.source + line.text)
        if not where or not re.search("cannot access|No such file", line.text):
            continue
        for name, version in evidence.packages.items():
            if name.startswith(("nvidia-" + where[1].replace("_", "-"),)):
                return Match(
                    (str(line),),
                    LIKELY,
                    {"library": f"nvidia/{where[1]}", "package": name, "version": version},
                )
    return None


def _error_lines(evidence: Evidence, fault: _Fault) -> tuple[str, ...]:
    wanted = re.escape(fault.symbol or fault.soname)
    return (
        evidence.grep(wanted, source="error|warning|torch|dlopen|import")
        or evidence.grep(_CUDNN)
        or evidence.grep(wanted)
    )


@rule(
    "nvidia-wheel-not-installed",
    KIND,
    cause="torch needs <library>, and the wheel that carries it (<package>) is not "
    "installed (torch was installed without "
    "its dependencies, or the wheel was removed).",
    shows="`<library>: cannot open shared object file` and no such wheel in pip list.",
    fix=(
        "pip install <package>==<version>    # or reinstall torch with its "
        "dependencies: pip install --force-reinstall torch==<torch>",
    ),
    apart=("nvidia-wheel-files-removed: pip lists the wheel",),
)
def not_installed(evidence: Evidence) -> Match | None:
    """A wheel that pip does not list."""
    for fault in _faults(evidence):
        name, version = _package(evidence, fault.soname)
        if (
            fault.symbol
            or version
            or not _wheels_listed(evidence)
            or not _torchs_own(evidence, fault.soname)
            or _by_other_library(evidence)
        ):
            continue
        values = {
            "library": fault.soname,
            "package": name,
            "version": _pinned(evidence, name) or "<version>",
            "torch": facts.torch_release(evidence) or "2.7.1",
        }
        return Match(
            _error_lines(evidence, fault) + evidence.grep("not installed|--no-deps", source="pip"),
            values=values,
        )
    return None


def _by_other_library(evidence: Evidence) -> bool:
    """True where torch itself works, so that the missing library is another package's."""
    return evidence.torch.available is True or bool(
        re.search(
            r"onnxruntime|tensorflow|ctranslate2|cupy|jax|tensorrt|paddle|bitsandbytes",
            evidence.error,
            re.I,
        )
    )


_OTHERS = (
    "ctranslate2", "faster-whisper", "onnxruntime-gpu", "tensorflow", "jax", "jaxlib",
    "cupy-cuda11x", "cupy-cuda12x", "paddlepaddle-gpu", "bitsandbytes", "tensorrt", "mxnet-cu112",
    "dgl", "spacy", "whisperx", "flash-attn", "vllm", "xformers",
)  # fmt: skip


@rule(
    "other-library-needs-other-cuda",
    KIND,
    cause="Another package (<who>) needs <library>, a version that torch <torch> neither "
    "uses nor brings.",
    shows="A missing soname of another major version (cuDNN 8, CUDA 11 or 13) while "
    "torch itself works.",
    fix=(
        "upgrade that package to a build for CUDA <cuda> and cuDNN <cudnn> "
        "(ctranslate2 >= 4.5, onnxruntime-gpu >= 1.19)",
        "or install what it needs in an environment of its own and put it on that "
        "program's LD_LIBRARY_PATH only",
        "do not downgrade torch's cuDNN",
    ),
    apart=(
        "nvidia-wheel-files-removed: the missing version is torch's own",
        "other-library-search-path: the version is right, not found",
    ),
)
def other_cuda(evidence: Evidence) -> Match | None:
    """A soname torch's build never loads."""
    for fault in _faults(evidence):
        family = tables.stem(fault.soname)
        broken = [each for each in _faults(evidence) if each.symbol]
        if fault.symbol or _torchs_own(evidence, fault.soname):
            continue
        if any(tables.stem(each.soname) == family for each in broken):
            continue
        if re.search(r"site-packages/torch/lib/\S+: |import torch$", evidence.error):
            continue
        named = [name for name in _OTHERS if name in evidence.packages] or [
            name
            for name in _OTHERS
            if name.replace("-", "_") in evidence.error or name in evidence.error
        ]
        wheel = facts.wheel_cuda(evidence) or (12, 6)
        values = {
            "who": named[0] if named else "the one that raises the error",
            "library": fault.soname,
            "torch": facts.torch_release(evidence) or "2.7.1",
            "cuda": str(wheel[0]),
            "cudnn": "9",
        }
        lines = _error_lines(evidence, fault) + evidence.grep(
            r"\S", source=rf"^pip: ({'|'.join(named) or '-'})$"
        )
        return Match(lines, CERTAIN if facts.torch_release(evidence) else LIKELY, values)
    return None


@rule(
    "other-library-search-path",
    KIND,
    cause="Another package needs <library>, which is in torch's wheels but not where the "
    "loader looks for that package.",
    shows="A soname of torch's own version is missing for another package while torch works.",
    fix=(
        "import torch before that package    # it loads the libraries; "
        "onnxruntime: onnxruntime.preload_dlls()",
        "or: export LD_LIBRARY_PATH=$(python -c 'import nvidia, pathlib; "
        'print(":".join(map(str, '
        'pathlib.Path(nvidia.__path__[0]).glob("*/lib"))))\')',
    ),
    apart=("other-library-needs-other-cuda: a version torch does not have",),
    follows=("other-library-needs-other-cuda",),
)
def search_path(evidence: Evidence) -> Match | None:
    """torch's own version, not found by another package."""
    for fault in _faults(evidence):
        if not fault.symbol and _torchs_own(evidence, fault.soname) and _by_other_library(evidence):
            return Match(_error_lines(evidence, fault), LIKELY, {"library": fault.soname})
    return None


@rule(
    "nvidia-wheel-version",
    KIND,
    cause="<package> is installed in version <version>, and torch is built against "
    "<pinned>: another package changed it.",
    shows="An undefined symbol or a cuDNN version error from a library in site-packages, "
    "and a wheel that differs from "
    "the version torch pins (`pip check`).",
    fix=(
        "pip install --force-reinstall --no-deps <package>==<pinned>",
        "pip check    # names the package that wants the other version; keep it in "
        "an environment of its own",
    ),
    apart=("cuda-library-shadowed: the wheel is right, another file is loaded in its place",),
)
def wheel_version(evidence: Evidence) -> Match | None:
    """A wheel of another version than torch pins."""
    checked = evidence.grep(r"requirement nvidia-\S+==\S+.*but you have nvidia-")
    families = [tables.WHEEL_OF[tables.stem(fault.soname)] for fault in _faults(evidence)]
    owners = [
        tables.WHEEL_OF[tables.stem(f.owner.rpartition("/")[2])]
        for f in _faults(evidence)
        if tables.is_cuda_library(f.owner.rpartition("/")[2])
    ]
    for name, version in evidence.packages.items():
        pinned = _pinned(evidence, name) if name.startswith("nvidia-") else ""
        if not pinned or pinned == version:
            continue
        blamed = any(name.startswith(family + "-") for family in families + owners)
        if not blamed and (
            (evidence.error and not checked)
            or evidence.torch.available is True
            or not (checked or evidence.error)
        ):
            continue
        family = next(
            (stem for stem, wheel in tables.WHEEL_OF.items() if name.startswith(wheel + "-")), ""
        )
        if _outsiders(evidence, family):
            continue
        lines = (
            checked
            + tuple(x for f in _faults(evidence) for x in _error_lines(evidence, f))
            + evidence.grep(r"\S", source=rf"^pip: {re.escape(name)}$")
        )
        return Match(
            lines,
            CERTAIN if blamed else LIKELY,
            {"package": name, "version": version, "pinned": pinned},
        )
    blamed_pins = [
        line for line in checked if any(f"requirement {family}-" in line for family in families)
    ]
    said = (
        re.search(
            r"requirement (nvidia-\S+?)==([\w.]+).*but you have \S+ ([\w.]+?)\.?$", blamed_pins[0]
        )
        if blamed_pins
        else None
    )
    if said:
        return Match(
            tuple(blamed_pins), values={"package": said[1], "pinned": said[2], "version": said[3]}
        )
    return None


@rule(
    "cuda-library-shadowed",
    KIND,
    cause="Another <library> (<path>) is loaded in place of the one in torch's wheels.",
    shows="An undefined symbol or cuDNN version error; ldd or /proc/<pid>/maps shows the "
    "library outside site-packages, or "
    "LD_LIBRARY_PATH / LD_PRELOAD / ld.so.preload leads to a CUDA toolkit.",
    fix=(
        "unset LD_LIBRARY_PATH LD_PRELOAD    # then try again; torch's wheels "
        "bring their own CUDA libraries",
        "find who sets them: grep -n 'LD_LIBRARY_PATH\\|LD_PRELOAD' ~/.bashrc "
        "~/.profile /etc/profile.d/* /etc/environment; "
        "module list; cat /etc/ld.so.preload",
    ),
    apart=(
        "nvidia-wheel-version: the file loaded is the wheel's own",
        "other-library-needs-other-cuda: nothing is shadowed, something is missing",
    ),
)
def shadowed(evidence: Evidence) -> Match | None:
    """A library loaded from elsewhere."""
    faults = _faults(evidence)
    preload = evidence.grep(
        r"lib(nccl|cud|cublas|cusparse|nvJit|cufft|cusolver|curand|nvrtc|cupti)\S*\.so",
        source="LD_PRELOAD|ld.so.preload",
    )
    for fault in faults:
        if not fault.symbol:
            continue
        family = tables.stem(fault.soname)
        candidates = {family, "libcublas" if family == "libcublasLt" else family}
        owner_name = fault.owner.rpartition("/")[2]
        if tables.is_cuda_library(owner_name):
            candidates.add(tables.stem(owner_name))
        outside = [path for each in candidates for path in _outsiders(evidence, each)]
        if (
            tables.is_cuda_library(owner_name)
            and "/" in fault.owner
            and not _in_site_packages(fault.owner)
        ):
            outside.append(fault.owner)
        path = _search_path(evidence)
        listed = evidence.grep(
            rf"{re.escape(family)}\w*\.so.*=>|{re.escape(family)}\w*\.so",
            source="ldd|maps|LD_DEBUG|^ls|ldconfig|find",
        )
        if not outside and not path and not preload:
            if not _wheel_known_right(evidence, fault):
                return Match(
                    _error_lines(evidence, fault) + listed,
                    POSSIBLE,
                    {"library": family, "path": "see LD_LIBRARY_PATH"},
                )
            continue
        values = {
            "library": family,
            "path": outside[0] if outside else "from LD_LIBRARY_PATH or LD_PRELOAD",
        }
        return Match(
            _error_lines(evidence, fault) + path + preload + listed,
            CERTAIN if outside or preload else LIKELY,
            values,
        )
    return _loaded_outsider(evidence)


def _wheel_known_right(evidence: Evidence, fault: _Fault) -> bool:
    name, version = _package(evidence, fault.soname)
    return bool(version) and version != _pinned(evidence, name)


def _loaded_outsider(evidence: Evidence) -> Match | None:
    """A library loaded from elsewhere where torch fails without naming it."""
    if not (evidence.error or evidence.torch.available is False) or (
        evidence.torch.available and not re.search("cud|cublas|nccl", evidence.error, re.I)
    ):
        return None
    if re.search(facts.NO_GPU, evidence.error) or evidence.libcuda.init not in (None, 0):
        return None
    for library in evidence.libraries:
        family = tables.stem(library.soname)
        if (
            library.via == "maps"
            and tables.is_cuda_library(library.soname)
            and not _in_site_packages(library.path)
            and re.search(family.removeprefix("lib"), evidence.error, re.I)
        ):
            return Match(
                (f"maps: {library.path}", *_search_path(evidence)),
                LIKELY,
                {"library": family, "path": library.path},
            )
    return None


@rule(
    "local-module-shadows-torch",
    KIND,
    cause="Python imports another `<module>` in front of the installed one (a file or "
    "folder of that name, or the source "
    "checkout as working directory).",
    shows="`partially initialized module 'torch'`, `module 'torch' has no attribute`, "
    "`No module named 'torch._C'`; "
    "torch.__file__ outside site-packages.",
    fix=(
        "python -c 'import <module>; print(<module>.__file__)'    # must be in site-packages",
        "rename that file or folder (and its __pycache__), or start Python in "
        "another directory; unset PYTHONPATH",
    ),
    apart=("user-site-shadows-environment: an installed torch in ~/.local",),
)
def local_module(evidence: Evidence) -> Match | None:
    """A local file named like a module."""
    lines = evidence.grep(
        r"partially initialized module '(torch|torchvision|numpy|triton)|module "
        r"'torch' has no attribute '(cuda|__version__|Tensor|nn|tensor|_C)'"
        r"|No module named 'torch\._C'|Failed to load PyTorch C extensions|loaded "
        r"the `?torch/_C|'torch' is not a package"
    )
    file = evidence.torch.file
    outside = bool(file) and not re.search(r"(site|dist)-packages|/nix/store|^/usr/lib", file)
    if not lines and not (
        outside
        and (evidence.error or evidence.torch.available is False)
        and not evidence.torch.version
    ):
        return None
    named = re.search(r"module '(\w+)", "\n".join(lines))
    return Match(
        lines + evidence.grep("torch/__init__|torch.py"),
        CERTAIN if outside or "partially" in str(lines) else LIKELY,
        {"module": named[1] if named else "torch"},
    )


RULES: tuple[Rule, ...] = (
    stub,
    local_module,
    removed,
    not_installed,
    other_cuda,
    search_path,
    wheel_version,
    shadowed,
)
