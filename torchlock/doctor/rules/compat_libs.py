"""Forward compatibility: NVIDIA's cuda-compat libcuda in place of the driver's own."""

from __future__ import annotations

import re

from torchlock.doctor import fixes, parse, tables
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, POSSIBLE, Match, Rule, message_rule, rule
from torchlock.doctor.rules import facts

KIND = "compat-libs"

_COMPAT_DIR = re.compile(r"/compat(\b|/|\.)|cuda-compat", re.I)


def _compat_lines(evidence: Evidence) -> tuple[str, ...]:
    return evidence.grep(
        r"/compat\b|cuda-compat", source="dlopen|env|ldconfig|LD_|dpkg|ls|maps|ldd|conf"
    )


def _without_compat(evidence: Evidence) -> tuple[str, ...]:
    return (
        "remove the cuda-compat directory from LD_LIBRARY_PATH (or unset it) and from "
        "/etc/ld.so.conf.d, then ldconfig",
        fixes.remove(evidence, "'cuda-compat-*'") + "    # in an image: rebuild it without them",
        *_newer_driver(evidence),
    )


def _newer_driver(evidence: Evidence) -> tuple[str, ...]:
    wheel, driver = facts.wheel_cuda(evidence), parse.version(facts.driver_version(evidence))
    floor = tables.DRIVER_FLOOR.get(wheel[0] if wheel else 12, "")
    if driver and driver >= parse.version(floor):
        return (f"the driver itself runs this torch: it needs {floor} or newer",)
    return (fixes.driver(evidence, "570") + "    # then compat is not needed at all",)


@rule(
    "compat-on-unsupported-gpu",
    KIND,
    cause="A forward-compatibility libcuda (cuda-compat) is loaded, which runs only on data-centre "
    "GPUs; this GPU is <gpu>.",
    shows="cuInit 804 with libcuda.so.1 from a compat directory and a GeForce, TITAN or "
    "workstation GPU.",
    fix=_without_compat,
    apart=(
        "compat-driver-combination: 804 on a data-centre GPU: the driver branch is not covered",
        "compat-shadows-driver: 803, the compat library is older than the driver",
    ),
)
def compat_804(evidence: Evidence) -> Match | None:
    """804 on a GPU without forward compatibility."""
    lines = evidence.grep(r"Error 804\b|forward compatibility was attempted|COMPAT_NOT_SUPPORTED")
    if (not lines and evidence.libcuda.init != 804) or _on_data_centre(evidence):
        return None
    name = next((gpu.name for gpu in evidence.gpus), "not known here, but not one of them")
    lines += _compat_lines(evidence) + facts.gpu_lines(evidence)
    return Match(lines, values={"gpu": name})


def _on_data_centre(evidence: Evidence) -> bool:
    return bool(evidence.gpus) and all(tables.is_data_centre(gpu.name) for gpu in evidence.gpus)


@rule(
    "compat-driver-combination",
    KIND,
    cause="cuda-compat is loaded on a data-centre GPU, and this pair of driver branch "
    "(<driver>) and "
    "compat version is not supported.",
    shows="cuInit 804 on a data-centre GPU with libcuda.so.1 from a compat directory.",
    fix=lambda evidence: (
        fixes.driver(evidence, "570"),
        "or remove cuda-compat: a driver of 525.60.13 or newer runs CUDA 12 wheels without it",
        "or use the cuda-compat release that lists this branch in NVIDIA's compatibility table",
    ),
    apart=("compat-on-unsupported-gpu: the GPU itself is not covered",),
)
def compat_pair(evidence: Evidence) -> Match | None:
    """804 on a data-centre GPU."""
    lines = evidence.grep(r"Error 804\b|forward compatibility was attempted|COMPAT_NOT_SUPPORTED")
    if (not lines and evidence.libcuda.init != 804) or not _on_data_centre(evidence):
        return None
    driver = facts.driver_version(evidence) or "see nvidia-smi"
    return Match(
        lines + _compat_lines(evidence) + facts.driver_lines(evidence), LIKELY, {"driver": driver}
    )


@rule(
    "compat-shadows-driver",
    KIND,
    cause="A cuda-compat libcuda (<library>) is found before the driver's own and does not fit the "
    "kernel driver (<driver>).",
    shows="cuInit 803 (or another failure) with libcuda.so.1 resolved to a compat directory.",
    fix=_without_compat,
    apart=("driver-library-mismatch: the mismatched libcuda is the system's own",),
)
def compat_803(evidence: Evidence) -> Match | None:
    """A stray compat library."""
    if not _COMPAT_DIR.search(evidence.libcuda.path) or evidence.libcuda.init in (0, 804):
        return None
    if evidence.libcuda.init is None and not evidence.grep(
        r"Error 803|mismatch|unsupported display driver"
    ):
        return None
    values = {
        "library": facts.library_version(evidence) or evidence.libcuda.path,
        "driver": facts.driver_version(evidence) or "see nvidia-smi",
    }
    certainty = CERTAIN if evidence.libcuda.init == 803 else LIKELY
    lines = evidence.grep(r"Error \d+:|mismatch") + _compat_lines(evidence)
    return Match(lines + facts.driver_lines(evidence), certainty, values)


compat_error_only = message_rule(
    "compat-suspected",
    KIND,
    r"Error 803\b",
    cause="libcuda.so.1 and the kernel driver do not fit each other: a stray cuda-compat on the "
    "library path, or a driver upgraded without a reboot.",
    fix=(
        "python3 -c \"import ctypes; ctypes.CDLL('libcuda.so.1'); "
        "print(*{l.split()[-1] for l in open('/proc/self/maps') if 'libcuda' in l})\"",
        "a path with compat: take it out of LD_LIBRARY_PATH; else: sudo reboot",
    ),
    certainty=POSSIBLE,
    apart=(
        "compat-shadows-driver: the path of libcuda is known",
        "driver-library-mismatch: the versions are known",
    ),
    follows=(KIND, "driver-library-mismatch"),
)


RULES: tuple[Rule, ...] = (compat_803, compat_804, compat_pair, compat_error_only)
