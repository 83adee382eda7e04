"""CUDA_VISIBLE_DEVICES and device indices: GPUs that work and are hidden or misnamed."""

from __future__ import annotations

import re

from torchlock.doctor import parse
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, Match, Rule, rule
from torchlock.doctor.rules import facts

KIND = "visibility-env"
_NAME = "CUDA_VISIBLE_DEVICES"
_LINE = f"^env: {_NAME}$"


def _value(evidence: Evidence) -> str | None:
    return evidence.env.get(_NAME)


def _entries(value: str) -> list[str]:
    return [entry.strip() for entry in value.split(",")]


def _in_slurm(evidence: Evidence) -> bool:
    return bool(evidence.set_env("SLURM_JOB_ID"))


def _count(evidence: Evidence) -> int:
    """GPUs that exist here: as nvidia-smi lists them, else as the nodes show."""
    return len(evidence.gpus) or len(facts.gpu_nodes(evidence))


def _hidden(evidence: Evidence) -> bool:
    """True where torch finds no GPU, or fewer than there are; also where nothing contradicts it."""
    if evidence.torch.available is True:
        return evidence.torch.devices is not None and evidence.torch.devices < _count(evidence)
    return evidence.libcuda.init != 0 or evidence.torch.available is False


@rule(
    "cvd-hides-all",
    KIND,
    cause="CUDA_VISIBLE_DEVICES=<value> hides every GPU.",
    shows="CUDA_VISIBLE_DEVICES is empty or -1; nvidia-smi lists GPUs, torch none.",
    fix=(
        "unset CUDA_VISIBLE_DEVICES    # or export CUDA_VISIBLE_DEVICES=0",
        "find who sets it: grep -rn CUDA_VISIBLE_DEVICES ~/.bashrc ~/.profile "
        "/etc/environment /etc/profile.d "
        "<service or compose file>",
    ),
    apart=(
        "slurm-no-gpu-requested: Slurm hides them because the job has none",
        "cvd-invalid: a value CUDA cannot parse",
    ),
    follows=("slurm",),
)
def hides_all(evidence: Evidence) -> Match | None:
    """An empty or negative list."""
    value = _value(evidence)
    if value is None or _entries(value)[0] not in ("", "-1") or not _hidden(evidence):
        return None
    if evidence.torch.cuda == "":
        return None
    return Match(evidence.grep("", source=_LINE), values={"value": repr(value)})


@rule(
    "cvd-invalid",
    KIND,
    cause="CUDA_VISIBLE_DEVICES=<value> is not a list of different indices or UUIDs; CUDA ignores "
    "everything from the first entry it cannot use (`<bad>`), and everything where one stands "
    "twice.",
    shows="CUDA_VISIBLE_DEVICES holds a word such as `all`, quotes or brackets, or an entry "
    "twice; nvidia-smi works, cuInit 100.",
    fix=(
        "unset CUDA_VISIBLE_DEVICES    # or indices: export CUDA_VISIBLE_DEVICES=0,1",
        "`all`, `none` and `void` are values of NVIDIA_VISIBLE_DEVICES (the "
        "container toolkit) only",
    ),
    apart=(
        "slurm-no-gpu-requested: NoDevFiles is Slurm's word for a job without GPUs",
        "cvd-out-of-range: well-formed, but there is no such GPU",
    ),
    follows=("slurm",),
)
def invalid(evidence: Evidence) -> Match | None:
    """A word where an index belongs."""
    value = _value(evidence)
    if not value or value == "NoDevFiles" or not _hidden(evidence):
        return None
    entries = _entries(value)
    bad = next(
        (
            e
            for number, e in enumerate(entries)
            if e in entries[:number]
            or (not re.fullmatch(r"-?\d+", e) and not parse.looks_like_uuid(e))
        ),
        None,
    )
    if bad is None:
        return None
    return Match(evidence.grep("", source=_LINE), values={"value": value, "bad": bad})


def _missing_index(evidence: Evidence) -> str | None:
    """The first index that no GPU has; None where all exist or the count is not known."""
    value, count = _value(evidence), _count(evidence)
    if not value or not count:
        return None
    for entry in _entries(value):
        if re.fullmatch(r"\d{1,6}", entry) and int(entry) >= count:
            return entry
    return None


@rule(
    "cvd-renumbered-in-container",
    KIND,
    cause="CUDA_VISIBLE_DEVICES=<value> uses the host's numbers, but inside the "
    "container the <count> GPU(s) it was "
    "given are renumbered from 0.",
    shows="Inside a container with some of the host's GPUs: the index is not below the "
    "number of GPUs nvidia-smi lists there.",
    fix=(
        "unset CUDA_VISIBLE_DEVICES    # in the container; --gpus or "
        "NVIDIA_VISIBLE_DEVICES already chose the GPU",
        "or number from 0: export CUDA_VISIBLE_DEVICES=0; or use the UUID that "
        "nvidia-smi -L prints",
    ),
    apart=("cvd-out-of-range: the same outside a container",),
    follows=("slurm",),
)
def renumbered(evidence: Evidence) -> Match | None:
    """Host indices in a container."""
    missing = _missing_index(evidence)
    if missing is None or not evidence.container.inside or not _hidden(evidence):
        return None
    lines = (
        evidence.grep("", source=f"{_LINE}|^env: NVIDIA_VISIBLE_DEVICES$")
        + facts.gpu_lines(evidence)
        + evidence.grep("--gpus|--device|device=")
    )
    return Match(lines, values={"value": _value(evidence) or "", "count": str(_count(evidence))})


@rule(
    "cvd-out-of-range",
    KIND,
    cause="CUDA_VISIBLE_DEVICES=<value> names GPU <missing>, and there are only <count> "
    "(0 to <last>); CUDA ignores "
    "everything from there on.",
    shows="An index in CUDA_VISIBLE_DEVICES that is not below the number of GPUs.",
    fix=("nvidia-smi -L    # the indices that exist", "export CUDA_VISIBLE_DEVICES=0"),
    apart=("cvd-renumbered-in-container: the index is right on the host",),
    follows=("slurm",),
)
def out_of_range(evidence: Evidence) -> Match | None:
    """An index no GPU has."""
    missing = _missing_index(evidence)
    if missing is None or evidence.container.inside or not _hidden(evidence):
        return None
    count = _count(evidence)
    values = {
        "value": _value(evidence) or "",
        "missing": missing,
        "count": str(count),
        "last": str(count - 1),
    }
    return Match(evidence.grep("", source=_LINE) + facts.gpu_lines(evidence), values=values)


@rule(
    "cvd-unknown-uuid",
    KIND,
    cause="CUDA_VISIBLE_DEVICES names the UUID <uuid>, which no GPU or MIG instance here has.",
    shows="A UUID in CUDA_VISIBLE_DEVICES that `nvidia-smi -L` does not list.",
    fix=(
        "nvidia-smi -L    # the UUIDs that exist; MIG UUIDs change when instances are made anew",
        "export CUDA_VISIBLE_DEVICES=<a UUID from the list>",
    ),
    apart=("cvd-out-of-range: indices",),
)
def unknown_uuid(evidence: Evidence) -> Match | None:
    """A stale UUID."""
    value = _value(evidence)
    known = [gpu.uuid for gpu in evidence.gpus if gpu.uuid] + [
        m for gpu in evidence.gpus for m in gpu.migs
    ]
    if not value or not known or not _hidden(evidence):
        return None
    for entry in _entries(value):
        if parse.looks_like_uuid(entry) and not any(
            uuid.rstrip("…").startswith(entry) or entry.startswith(uuid.rstrip("…"))
            for uuid in known
        ):
            return Match(
                evidence.grep("", source=_LINE) + evidence.grep("UUID:"), values={"uuid": entry}
            )
    return None


@rule(
    "cvd-set-too-late",
    KIND,
    cause="CUDA_VISIBLE_DEVICES is set in the program after CUDA was first asked; CUDA "
    "reads it once.",
    shows="A script that assigns os.environ['CUDA_VISIBLE_DEVICES'] after a torch.cuda "
    "call (or after importing a "
    "module that makes one); all GPUs stay visible.",
    fix=(
        "export it before Python starts: CUDA_VISIBLE_DEVICES=<n> python <program>",
        "or set it in the first lines, before import torch",
        "or leave it and choose in the program: torch.cuda.set_device(<n>)",
    ),
    apart=("cvd-out-of-range: it is set in time, to a GPU that does not exist",),
)
def too_late(evidence: Evidence) -> Match | None:
    """An assignment after first use."""
    used = False
    for line in evidence.lines:
        if (
            not re.match(r"script|observed|cmd|pasted|notebook|source|code", line.source)
            and ".py" not in line.source
        ):
            continue
        assigned = re.search(
            r"environ(\[|\.update|\.setdefault)\W*.*CUDA_VISIBLE_DEVICES"
            r"|putenv\(.CUDA_VISIBLE_DEVICES",
            line.text,
        )
        if assigned and used:
            return Match(
                evidence.grep(
                    r"torch\.cuda|\.cuda\(|\.to\(|CUDA_VISIBLE_DEVICES",
                    source=re.escape(line.source),
                )
            )
        if re.search(r"torch\.cuda\.|\.cuda\(\)|\.to\(\W*(device|cuda)|device=.cuda", line.text):
            used = True
    imported = False
    for line in evidence.lines:
        if line.source.startswith("script"):
            if (
                re.search(r"environ.*CUDA_VISIBLE_DEVICES", line.text)
                and imported
                and (evidence.torch.devices or 0) > 1
            ):
                return Match(evidence.grep("import|CUDA_VISIBLE_DEVICES", source="script"), LIKELY)
            imported = imported or bool(
                re.search(r"^\s*(import|from) ", line.text)
                and not re.search(r"import os\b", line.text)
            )
    return None


@rule(
    "invalid-device-ordinal",
    KIND,
    cause="The program asks for a GPU index that this process does not see (it sees <count>).",
    shows="`invalid device ordinal` (101) with an index not below torch.cuda.device_count().",
    fix=(
        "python -c 'import torch; print(torch.cuda.device_count())'",
        "count from 0 among the visible GPUs: with CUDA_VISIBLE_DEVICES=2 the only "
        "device is cuda:0",
        "loading a checkpoint from another machine: torch.load(..., "
        "map_location='cuda:0'); torchrun: "
        "--nproc-per-node no larger than the count",
    ),
    apart=("slurm-task-sees-one-gpu: one GPU per Slurm task", "mig-one-instance-per-process: MIG"),
    follows=(
        "xid79-fell-off-bus",
        "gsp-timeout",
        "slurm",
        "mig",
        "cvd-out-of-range",
        "cvd-invalid",
        "cvd-renumbered-in-container",
        "cvd-unknown-uuid",
    ),
)
def ordinal(evidence: Evidence) -> Match | None:
    """An index beyond the visible devices."""
    lines = evidence.grep(
        r"invalid device ordinal|Attempting to deserialize object on CUDA device \d"
        r"|device >= 0 && device < num_gpus|CUDA_ERROR_INVALID_DEVICE\b"
    )
    if not lines and evidence.libcuda.init != 101:
        return None
    devices = evidence.torch.devices
    count = str(devices) if devices is not None else "fewer"
    return Match(
        lines + evidence.grep("", source=_LINE),
        CERTAIN if devices is not None else LIKELY,
        {"count": count},
    )


@rule(
    "device-order",
    KIND,
    cause="CUDA numbers GPUs fastest first, nvidia-smi by PCI bus, so the same index "
    "names another card.",
    shows="Different GPU models, CUDA_DEVICE_ORDER unset, and work on another card than "
    "nvidia-smi's index says.",
    fix=("export CUDA_DEVICE_ORDER=PCI_BUS_ID    # before Python starts",),
    apart=("cvd-set-too-late: the choice is ignored, work lands on GPU 0",),
    follows=("cvd-set-too-late",),
)
def order(evidence: Evidence) -> Match | None:
    """Two numberings of unlike GPUs."""
    names = {gpu.name for gpu in evidence.gpus if len(gpu.name) > 3}
    told = evidence.grep(
        r"wrong (gpu|card|device)|other (gpu|card)|not the (gpu|card)|order"
        r"|instead of|different (gpu|card)|although nvidia-smi|nvidia-smi (shows|lists|says)",
        source="observed|error|symptom",
    )
    picked = evidence.grep(r"get_device_name|cuda:\d")
    if (
        len(names) > 1
        and evidence.torch.available
        and not evidence.set_env("CUDA_DEVICE_ORDER")
        and (told or picked)
        and not evidence.error
    ):
        return Match(told + facts.gpu_lines(evidence), LIKELY)
    return None


RULES: tuple[Rule, ...] = (
    hides_all,
    invalid,
    renumbered,
    out_of_range,
    unknown_uuid,
    too_late,
    ordinal,
    order,
)
