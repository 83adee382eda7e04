"""Text that tools print, as records. Every function takes any text and never raises."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from torchlock.doctor.evidence import Gpu, Library, Node, PciDevice, Smi

# | 0  NVIDIA A100 80GB PCIe   Off | 00000000:17:00.0 Off |   1 |   (nvidia-smi's table)
_ROW = re.compile(
    r"^\|\s+(\d+)\s+(\S.*?)\s+(?:On|Off|N/A)\s*\|\s*[0-9A-Fa-f]+:[0-9A-Fa-f:.]+\s+(?:On|Off)"
    r"\s*\|\s*(\S+)"
)
_LIST = re.compile(r"^GPU (\d+):\s*([^(]*)(?:\(UUID:\s*(GPU-[^)]*)\))?")
_MIG = re.compile(r"^\s*MIG\s.*?\(UUID:\s*(MIG-[^)]*)\)")
_FAILURE = re.compile(
    r"(NVIDIA-SMI has failed[^\n]*|Failed to initialize NVML[^\n]*|No devices (?:were )?found[^\n]*"
    r"|Unable to determine the device handle[^\n]*|couldn't find libnvidia-ml[^\n]*"
    r"|command not found|No such file or directory|GPU access blocked[^\n]*"
    r"|Driver/library version mismatch|Insufficient Permissions|Segmentation fault)",
    re.I,
)
_PATH_LIMIT = 4096
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z]")


def smi(command: str, text: str, rc: int | None) -> Smi:
    """What one run of nvidia-smi says: its table, its -L list or its CSV query."""
    driver = re.search(r"Driver Version:\s*(\d[\d.]*)", text)
    cuda = re.search(r"CUDA Version:\s*([\d.]+|N/A)", text)
    failure = _FAILURE.search(text)
    failed = failure[0] if failure else ("failed" if rc not in (None, 0) else "")
    gpus = tuple(_listed(text)) or tuple(_queried(command, text))
    if failed and gpus and rc in (None, 0):
        failed = ""
    return Smi(
        rc=rc,
        driver=driver[1] if driver else _queried_driver(command, text),
        cuda=cuda[1] if cuda else "",
        failure=failed,
        gpus=gpus,
    )


def _listed(text: str) -> Iterator[Gpu]:
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if row := _ROW.match(line):
            below = "\n".join(lines[number + 1 : number + 3])
            mode = re.search(r"\b(E\. Process|E\. Thread|Prohibited|Default)\b", below)
            mig = re.search(r"\|\s*(Enabled|Disabled)\*?\s*\|?\s*$", below, re.M)
            yield Gpu(
                index=int(row[1][:6]),
                name=row[2],
                ecc=int(row[3][:9]) if row[3].isdecimal() else None,
                compute_mode=mode[1] if mode else "",
                # with MIG on, the ECC column says so
                mig_mode=mig[1] == "Enabled" if mig else (row[3] == "On" or None),
            )
        elif item := _LIST.match(line.strip()):
            migs = []
            for below in lines[number + 1 :]:
                mig_line = _MIG.match(below)
                if not mig_line:
                    break
                migs.append(mig_line[1])
            yield Gpu(
                index=int(item[1][:6]),
                name=item[2].strip(),
                uuid=item[3] or "",
                migs=tuple(migs),
                mig_mode=True if migs else None,
            )


def _fields(command: str) -> list[str]:
    query = re.search(r"--query-gpu[= ]([\w.,]+)", command)
    return query[1].split(",") if query else []


def _rows(command: str, text: str) -> Iterator[dict[str, str]]:
    names = _fields(command)
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if names and len(cells) == len(names) and cells[0] not in (names[0], ""):
            yield dict(zip(names, cells, strict=True))


def _queried(command: str, text: str) -> Iterator[Gpu]:
    for number, row in enumerate(_rows(command, text)):
        capability = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", row.get("compute_cap", ""))
        mig = row.get("mig.mode.current", "")
        index = row.get("index", "")
        yield Gpu(
            index=int(index[:6]) if index.isdecimal() else number,
            name=row.get("name", row.get("gpu_name", "")),
            uuid=row.get("uuid", row.get("gpu_uuid", "")),
            capability=(int(capability[1]), int(capability[2])) if capability else None,
            mig_mode={"Enabled": True, "Disabled": False}.get(mig),
            compute_mode=row.get("compute_mode", ""),
        )


def _queried_driver(command: str, text: str) -> str:
    for row in _rows(command, text):
        if re.fullmatch(r"\d[\d.]*", row.get("driver_version", "")):
            return row["driver_version"]
    return ""


def lspci(text: str) -> tuple[PciDevice, ...]:
    """The NVIDIA devices of a (verbose or plain) lspci listing, sound and USB functions left out.

    Source of the format: lspci(8), `-nnk`.
    """
    found: list[PciDevice] = []
    current: PciDevice | None = None
    for line in text.splitlines():
        head = re.match(r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\s+(.*)", line)
        if head:
            current = None
            if re.search(r"nvidia|\[10de:", head[2], re.I) and not re.search(
                r"audio|usb|serial bus|bridge", head[2], re.I
            ):
                current = PciDevice(
                    slot=head[1], text=head[2], unreadable="(rev ff)" in head[2].lower()
                )
                found.append(current)
        elif current:
            driver = re.match(r"\s+Kernel driver in use:\s*(\S+)", line)
            modules = re.match(r"\s+Kernel modules:\s*(.*)", line)
            unreadable = "Unknown header type 7f" in line
            if driver or modules or unreadable:
                current = PciDevice(
                    current.slot,
                    current.text,
                    driver[1] if driver else current.driver,
                    tuple(re.split(r",\s*", modules[1])) if modules else current.modules,
                    current.unreadable or unreadable,
                )
                found[-1] = current
    return tuple(found)


def modules(text: str) -> tuple[str, ...]:
    """Module names from lsmod or /proc/modules."""
    names = (line.split()[0] for line in text.splitlines() if len(line.split()) >= 3)
    return tuple(name for name in names if name != "Module")


def errno_name(text: str) -> str:
    """`ok`, or the errno name in `text`, given by its name or by its message."""
    name = re.search(r"\bE[A-Z]{3,12}\b", text)
    if name:
        return name[0]
    for message, errno in (
        ("operation not permitted", "EPERM"),
        ("permission denied", "EACCES"),
        ("no such file", "ENOENT"),
        ("no such device or address", "ENXIO"),
        ("no such device", "ENODEV"),
        ("input/output error", "EIO"),
    ):
        if message in text.lower():
            return errno
    return "ok" if re.search(r"\b(ok|success|true|0|[3-9])\b", text, re.I) else ""


def node(text: str) -> Node | None:
    """A device node from the mode, owner and group of an `ls -l` line; None where it is absent."""
    if re.search(r"no such file|absent|missing|^\s*$|not found|^null$|^false$", text, re.I):
        return None
    listed = re.search(r"([bcd?-][rwxsStT?-]{9})[.+]?\s+(?:\d+\s+)?(\S+)\s+(\S+)", text)
    if not listed:
        return Node(mode=text.strip()[:80])
    number = re.search(r"\s(\d{1,4}),\s*\d", text)
    major = int(number[1]) if number else None
    return Node(mode=listed[1], owner=listed[2], group=listed[3], major=major)


def ls_nodes(text: str) -> dict[str, str]:
    """Node path -> `ls -l` line, from a listing of /dev."""
    found = {}
    for line in text.splitlines():
        path = re.search(r"(/dev/\S+)\s*$", line)
        if path and re.match(r"[bcd][rwxsStT-]{9}", line):
            found[path[1]] = line
        elif name := re.match(r"[bcd][rwxsStT-]{9}.*\s(nvidia\S*|dxg)\s*$", line):
            found["/dev/" + name[1]] = line
    return found


def libraries(text: str, via: str) -> tuple[Library, ...]:
    """Libraries and their paths from ldd or `ldconfig -p` (`a.so => /b/a.so`)."""
    found = []
    for line in text.splitlines():
        arrow = re.search(r"(\S+\.so[\w.]*)\s*(?:\([^)]*\))?\s*=>\s*(/\S+|not found)", line)
        if arrow:
            path = "" if arrow[2] == "not found" else arrow[2]
            found.append(Library(arrow[1].rpartition("/")[2], path, via))
    return tuple(found)


def maps(text: str) -> tuple[Library, ...]:
    """Libraries from /proc/self/maps, or from a plain list of paths."""
    words = (word for word in text.split() if word.startswith("/") and len(word) < _PATH_LIMIT)
    paths = dict.fromkeys(word for word in words if re.search(r"\.so(\.[\w.]+)?$", word))
    return tuple(Library(path.rpartition("/")[2], path, "maps") for path in paths)


def packages(command: str, text: str) -> dict[str, str]:
    """Installed packages from pip list, pip freeze, pip show, conda list or collect_env."""
    found: dict[str, str] = {}
    if re.search(r"\b(pip3?|uv pip)\s+show\b", command):
        asked = command.rsplit(maxsplit=1)[-1]
        version = re.search(r"^Version:\s*(\S+)", text, re.M)
        name = re.search(r"^Name:\s*(\S+)", text, re.M)
        if version:
            found[normal(name[1] if name else asked)] = version[1]
        return found
    if re.search(r"\b(pip3?\b.*\b(list|freeze)|(conda|mamba)\b.*\blist|uv tree)\b", command):
        for line in text.splitlines():
            pair = re.match(r"\s*(?:[├└│─ ]+)?([A-Za-z0-9][\w.-]*)(?:==|\s+v?)(\d\S*)", line)
            if pair and not re.search(r"^\s*#", line):
                found[normal(pair[1])] = pair[2]
    for pair in re.finditer(r"^\[(?:pip3?|conda)\]\s+([\w.-]+)(?:==|\s+)(\d\S*)", text, re.M):
        found.setdefault(normal(pair[1]), pair[2])
    return found


def normal(name: str) -> str:
    """A distribution's name as PEP 503 spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def collect_env(text: str) -> Mapping[str, str]:
    """The `key: value` pairs of `python -m torch.utils.collect_env`; empty for other text."""
    if "PyTorch version:" not in text:
        return {}
    return {
        key.strip(): value.strip()
        for key, colon, value in (line.partition(":") for line in text.splitlines())
        if colon
    }


def version(text: str) -> tuple[int, ...]:
    """The leading dotted number of `text` as integers; () where there is none.

    `+local` and pre-release parts are ignored: this orders drivers and releases, not PEP 440.
    """
    numbers = re.match(r"\s*v?(\d{1,9}(?:\.\d{1,9})*)", text)
    return tuple(int(number) for number in numbers[1].split(".")) if numbers else ()


def looks_like_uuid(entry: str) -> bool:
    """True for a GPU or MIG UUID, also an abbreviated one, as CUDA_VISIBLE_DEVICES takes them."""
    return bool(_UUID.match(entry))
