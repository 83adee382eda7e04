"""Whether the wheel has code for the GPU's generation."""

from __future__ import annotations

import re

from torchlock.doctor import fixes, tables
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, Match, Rule, rule
from torchlock.doctor.rules import facts

KIND = "wheel-arch"
_NO_IMAGE = (
    r"no kernel image is available|cudaErrorNoKernelImageForDevice"
    r"|CUDA_ERROR_NO_BINARY_FOR_GPU|is not compatible with the current PyTorch "
    r"installation|Error 209\b"
)


def _archs(evidence: Evidence) -> tuple[str, ...]:
    """The build's architectures: as torch or its warning says, else by the table of builds."""
    if evidence.torch.archs:
        return evidence.torch.archs
    warned = evidence.first(r"supports? CUDA capabilities ((?:(?:sm|compute)_\d+[af]? ?)+)")
    if warned:
        return tuple(warned[1].split())
    cuda = facts.wheel_cuda(evidence)
    tag = f"cu{cuda[0]}{cuda[1]}" if len(cuda) > 1 else ""
    known = tables.archs_of(facts.torch_release(evidence), tag)
    if known:
        return tuple(f"sm_{n}" for n in known)
    if not cuda:
        return ()
    newest = ("sm_100", "sm_120") if cuda >= (12, 8) else ()
    oldest = (
        ("sm_75",)
        if cuda >= (13,)
        else ("sm_50", "sm_60", "sm_70", "sm_75")
        if cuda < (12, 8)
        else ("sm_70", "sm_75")
    )
    if cuda < (12,):
        oldest = ("sm_37", *oldest)
    return (*oldest, "sm_80", "sm_86", "sm_90", *newest)


def _uncovered(evidence: Evidence) -> list[tuple[str, tuple[int, ...]]]:
    archs = _archs(evidence)
    if not archs:
        return []
    return [
        (name, capability)
        for name, capability in facts.capabilities(evidence)
        if not tables.runs_on(archs, capability)
    ]


def _numbers(archs: tuple[str, ...]) -> list[tuple[int, int]]:
    found = [re.fullmatch(r"(?:sm|compute)_(\d{1,3})(\d)[af]?", arch) for arch in archs]
    return [(int(m[1]), int(m[2])) for m in found if m]


def _lines(evidence: Evidence) -> tuple[str, ...]:
    return (
        evidence.grep(_NO_IMAGE)
        + evidence.grep(r"capabilit|sm_\d+", source="arch|torch|warning|error|cap")
        + facts.gpu_lines(evidence)
    )


def _values(evidence: Evidence, name: str, capability: tuple[int, ...]) -> dict[str, str]:
    dotted = ".".join(map(str, capability))
    return {
        "gpu": f"{name.strip() or 'the GPU'} ({tables.generation(capability)}, {dotted})",
        "archs": " ".join(_archs(evidence)),
    }


@rule(
    "gpu-older-than-wheel",
    KIND,
    cause="This torch build has no code for <gpu>: it was dropped (<archs>).",
    shows="`no kernel image is available` and a compute capability below the build's "
    "lowest; CUDA 13 builds begin at 7.5.",
    fix=lambda evidence: (
        fixes.torch_wheel("cu126")
        + "    # CUDA 12.6 builds have sm_50 to sm_90; a newer driver runs them",
        "Kepler (3.x): torch 1.12 or older, or build from source",
    ),
    apart=(
        "gpu-newer-than-wheel: the capability is above the build's highest",
        "extension-without-gpu-code: torch's own build covers the GPU",
    ),
)
def older(evidence: Evidence) -> Match | None:
    """A GPU below the build's lowest architecture."""
    return _outside(evidence, newer=False)


@rule(
    "gpu-newer-than-wheel",
    KIND,
    cause="This torch build has no code for <gpu>: it is older than the GPU (<archs>, no "
    "PTX for it).",
    shows="`no kernel image is available`, or the warning `sm_<n> is not compatible with "
    "the current PyTorch installation`, "
    "with a capability above the build's highest (Blackwell with a CUDA 12.6 build).",
    fix=lambda evidence: (
        fixes.torch_wheel("cu128")
        + "    # CUDA 12.8 builds have sm_100 and sm_120 (driver 570 or newer)",
    ),
    apart=(
        "gpu-older-than-wheel: the GPU is too old",
        "triton-too-old-for-gpu: torch runs, torch.compile does not",
    ),
)
def newer(evidence: Evidence) -> Match | None:
    """A GPU above the build's highest architecture."""
    return _outside(evidence, newer=True)


def _outside(evidence: Evidence, *, newer: bool) -> Match | None:
    numbers = _numbers(_archs(evidence))
    said = bool(evidence.grep(_NO_IMAGE))
    known = bool(evidence.torch.archs)
    if not numbers or not (said or (evidence.torch.available is True and not evidence.error)):
        return None
    if re.search("ptxas|gpu-name", evidence.error):
        return None
    for name, capability in _uncovered(evidence):
        if (capability > max(numbers)) is newer:
            certainty = CERTAIN if said or known else LIKELY
            # what was new to an old wheel is in every CUDA 12.6 build, up to Hopper
            fix = (fixes.torch_wheel("cu126"),) if newer and capability < (10, 0) else ()
            return Match(_lines(evidence), certainty, _values(evidence, name, capability), fix)
    return None


@rule(
    "triton-too-old-for-gpu",
    KIND,
    cause="Triton's bundled assembler (ptxas) does not know the GPU's architecture "
    "<arch>; torch itself runs.",
    shows="`ptxas fatal: Value '<arch>' is not defined for option 'gpu-name'` from "
    "torch.compile or a Triton kernel.",
    fix=(
        "export TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas    # of a CUDA toolkit "
        "that knows it (sm_120: 12.8, sm_121: 12.9 or 13.0)",
        "or upgrade torch and triton to a release that supports the GPU",
        "until then: TORCHDYNAMO_DISABLE=1",
    ),
    apart=(
        "gpu-newer-than-wheel: torch's own kernels fail too",
        "toolkit-too-old-for-gpu: nvcc, building an extension",
    ),
)
def triton(evidence: Evidence) -> Match | None:
    """ptxas without the GPU's name."""
    lines = evidence.grep(
        r"ptxas\W.*(fatal|error).*|is not defined for option 'gpu-name'"
        r"|Unsupported target 'sm_|'sm_\w+' is not a recognized processor"
    )
    arch = evidence.first(
        r"\b(sm_\d+[af]?)\b.*(?:gpu-name|not defined|recognized|Unsupported)"
        r"|(?:Unsupported target|Value) '(sm_\w+)'"
    )
    if not lines or not (arch or evidence.grep(r"ptxas.*Unsupported \.version")):
        return None
    return Match(
        lines + evidence.grep("triton|ptxas", source="pip|cmd|which"),
        values={"arch": (arch[1] or arch[2]) if arch else "(PTX version)"},
    )


@rule(
    "gpu-too-old-for-triton",
    KIND,
    cause="Triton supports compute capability 7.0 and newer; this GPU is older, so "
    "torch.compile cannot use it.",
    shows="`is too old to be supported by the triton GPU compiler`.",
    fix=(
        "torch.compile(..., backend='eager') or backend='cudagraphs', or export "
        "TORCHDYNAMO_DISABLE=1",
    ),
    apart=("triton-too-old-for-gpu: the GPU is newer than Triton",),
)
def too_old_for_triton(evidence: Evidence) -> Match | None:
    """A GPU Triton never supported."""
    lines = evidence.grep(
        r"too old to be supported by the triton|GPUTooOldForTriton|Triton only "
        r"supports devices of CUDA Capability"
    )
    return Match(lines + facts.gpu_lines(evidence)) if lines else None


@rule(
    "extension-without-gpu-code",
    KIND,
    cause="torch's own build covers this GPU; an extension (<who>) has no code for it.",
    shows="`no kernel image is available` although the GPU's capability is in "
    "torch.cuda.get_arch_list().",
    fix=(
        "rebuild it for this GPU: TORCH_CUDA_ARCH_LIST=<capability> pip install "
        "--no-cache-dir --no-build-isolation --force-reinstall --no-deps <who>",
        "or install a release of it with code for this GPU",
    ),
    apart=("gpu-newer-than-wheel, gpu-older-than-wheel: torch's own kernels fail too",),
)
def extension(evidence: Evidence) -> Match | None:
    """An extension built for other GPUs."""
    lines = evidence.grep(_NO_IMAGE)
    known = facts.capabilities(evidence)
    if not lines or not known or not _archs(evidence) or _uncovered(evidence):
        return None
    named = evidence.first(
        r"(flash[_-]attn|xformers|bitsandbytes|apex|deepspeed|mmcv|detectron2"
        r"|pytorch3d|nerfacc|gsplat|vllm|causal[_-]conv1d|mamba[_-]ssm|exllama\w*"
        r"|auto[_-]gptq|spconv|torch_scatter)"
    )
    values = {
        "who": named[1].replace("_", "-") if named else "<extension>",
        "capability": ".".join(map(str, known[0][1])),
    }
    return Match(lines + _lines(evidence), CERTAIN if named else LIKELY, values)


RULES: tuple[Rule, ...] = (triton, too_old_for_triton, older, newer, extension)
