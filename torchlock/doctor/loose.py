"""The loose form of evidence, as people paste it and as the probes gather it, to the record.

Keys: `context`, `cmd` {command: output or {rc, out}}, `env`, `dev` {node: ls -l line}, `open_rw`,
`torch`, `dlopen`, `cuInit`, `cuDriverGetVersion`, `pip`, `files`, `maps`, `pod`, `script`,
`extension`, `error`, `observed`. Any may be missing or malformed; unknown keys are kept as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchlock.doctor import parse
from torchlock.doctor.evidence import (
    HERE,
    HOST,
    NODE,
    ROOT,
    Container,
    Driver,
    Evidence,
    Gpu,
    Libcuda,
    Library,
    Line,
    Node,
    PciDevice,
    Smi,
    System,
    Torch,
)

_TEXT_LIMIT = 200_000
_ERROR_LIMIT = 50_000
_LINES_LIMIT = 20_000
_LINE_LIMIT = 2_000
_NESTING_LIMIT = 8
_NOT_FOUND = 127  # a shell's status for a command that does not exist
_ERROR_KEYS = ("error", "errors", "stderr", "traceback", "exception", "message", "log")
_TORCH_KEYS = (
    ("version", ("__version__", "torch_version")),
    ("cuda", ("cuda_version", "version.cuda")),
    ("is_available", ("available", "cuda_available", "cuda.is_available")),
    ("device_count", ("devices", "cuda.device_count")),
    ("arch_list", ("archs", "cuda.get_arch_list")),
)


@dataclass(frozen=True)
class _Output:
    command: str
    text: str
    rc: int | None
    place: str


def read(value: Mapping[str, Any]) -> Evidence:
    """The record for the loose form `value`. Never raises."""
    value = _regular(value)
    outputs = tuple(_outputs(value))
    context = _mapping(value.get("context"))
    env = _env(value.get("env"), context)
    nodes = _nodes(value, outputs)
    runs = _smi(outputs, value, context)
    torch_part = _mapping(value.get("torch"))
    error = "\n".join(
        _text(part)
        for part in (
            *(value.get(key) for key in _ERROR_KEYS),
            *(torch_part.get(key) for key in ("error", "warning")),
            *_python_errors(outputs),
        )
        if part
    )
    container = _container(context, env, outputs)
    return Evidence(
        system=_system(context, outputs),
        container=container,
        driver=_driver(value, outputs),
        smi=runs,
        gpus=_gpus(runs),
        pci=_pci(outputs),
        nodes=nodes,
        libcuda=_libcuda(value, error),
        torch=_torch(torch_part, outputs),
        packages=_packages(value.get("pip"), outputs),
        env=env,
        libraries=_libraries(value, outputs),
        dlopen=_dlopen(value.get("dlopen")),
        error="\n".join(line[:_LINE_LIMIT] for line in error[:_ERROR_LIMIT].splitlines()),
        lines=tuple(_lines(value, outputs)),
    )


def _regular(value: Mapping[str, Any]) -> dict[str, Any]:
    """The other shapes in which people give `cmd`, `dev` and `torch`, as mappings."""
    given = dict(value)
    commands, nodes, torch = given.get("cmd"), given.get("dev"), given.get("torch")
    if isinstance(commands, list):
        items = [_mapping(item) for item in commands]
        named = [(item.get("cmd", item.get("command", "pasted text")), item) for item in items]
        given["cmd"] = {_text(name): item for name, item in named if item}
    if isinstance(nodes, list):
        given["dev"] = {_text(node): "present" for node in nodes}
    elif isinstance(nodes, str):
        given["dev"] = parse.ls_nodes(nodes)
    if isinstance(torch, str):
        given["torch"] = {"version": torch}
    elif isinstance(torch, dict):
        given["torch"] = dict(torch)
        for name, others in _TORCH_KEYS:
            for other in others:
                if other in torch:
                    given["torch"].setdefault(name, torch[other])
    if isinstance(given.get("cuInit"), dict):
        code = given["cuInit"]
        given["cuInit"] = code.get("code", code.get("rc", code.get("result")))
    return given


def _text(value: object) -> str:
    if isinstance(value, str):
        return value[:_TEXT_LIMIT]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)[:_TEXT_LIMIT]
    try:
        return json.dumps(value, ensure_ascii=False, default=str)[:_TEXT_LIMIT]
    except (ValueError, RecursionError):
        return ""


def _mapping(value: object) -> Mapping[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,9}\s*", value):
        return int(value)
    return value if isinstance(value, int) and abs(value) < 10**9 else None


_PLACES = (
    (HOST, r"^\W*(on )?(the )?host\b|\(on (the )?host\)|\bhost$"),
    (NODE, r"^\W*(k8s |on )?(the )?node\b(?! -)|^\W*kubelet\b"),
    (ROOT, r"^\W*sudo\s|\(as root\)|^\W*root\b"),
    ("windows", r"powershell|\.exe\b|^\W*windows\b"),
    (
        "container",
        r"\b(docker|podman|nerdctl|apptainer|singularity|kubectl|srun)\b.*\b(run|exec)\b",
    ),
)


def _place(command: str) -> str:
    for place, pattern in _PLACES:
        if re.search(pattern, command, re.I):
            return place
    return HERE


def _outputs(value: Mapping[str, Any]) -> Iterator[_Output]:
    for key in ("cmd", "files"):
        for command, given in _mapping(value.get(key)).items():
            rc, body = None, given
            if isinstance(given, dict):
                rc = _integer(given.get("rc"))
                body = given.get("out", given.get("output", given.get("stdout", "")))
                extra = given.get("err", given.get("stderr"))
                body = _text(body) + ("\n" + _text(extra) if extra else "")
            if body is not None:
                yield _Output(command, _text(body), rc, _place(command))
    if isinstance(value.get("cmd"), str):
        yield _Output("pasted text", _text(value["cmd"]), None, HERE)


def _lines(value: Mapping[str, Any], outputs: tuple[_Output, ...]) -> Iterator[Line]:
    count = 0
    for source, text, place, rc in _texts(value, outputs):
        for line in text.splitlines() or [""]:
            if count >= _LINES_LIMIT:
                return
            count += 1
            yield Line(source[:200], line[:_LINE_LIMIT], place, rc)


def _texts(
    value: Mapping[str, Any], outputs: tuple[_Output, ...]
) -> Iterator[tuple[str, str, str, int | None]]:
    for output in outputs:
        yield output.command, output.text, output.place, output.rc
    for path, given in _mapping(value.get("files")).items():
        if given is None:
            yield path, "no such file", HERE, None
    for key, given in value.items():
        if key not in ("cmd", "files"):
            yield from ((k, t, HERE, None) for k, t in _flat(str(key), given, 0))


def _flat(name: str, value: object, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth < _NESTING_LIMIT:
        for key, item in value.items():
            yield from _flat(f"{name}: {key}", item, depth + 1)
    elif isinstance(value, list) and depth < _NESTING_LIMIT and not _scalars(value):
        for item in value:
            yield from _flat(name, item, depth + 1)
    elif isinstance(value, list) and _scalars(value) and name != "error":
        yield name, ", ".join(_text(item) for item in value)
    elif value is not None:
        yield name, _text(value)


def _scalars(value: list[Any]) -> bool:
    return not any(isinstance(item, (dict, list)) for item in value)


def _python_errors(outputs: tuple[_Output, ...]) -> Iterator[str]:
    """The lines with which a Python program that was run as a command ends badly."""
    for output in outputs:
        if output.place == HERE and re.search(r"\bpython|torchrun|\.py\b|pytest", output.command):
            for line in output.text.splitlines():
                if re.match(r"(\w+\.)*\w*(Error|Warning)\b: ", line.strip()):
                    yield line.strip()


def _env(given: object, context: Mapping[str, Any]) -> dict[str, str | None]:
    env: dict[str, str | None] = {}
    for source in (_mapping(context.get("env_marker")), _mapping(given)):
        for name, item in source.items():
            env[name] = None if item is None else _text(item)
    if isinstance(given, (str, list)):
        for pair in re.finditer(r"^(?:export )?([A-Z_]\w*)=(.*)$", _text(given), re.M | re.I):
            env[pair[1]] = pair[2].strip("'\"")
    return env


def _system(context: Mapping[str, Any], outputs: tuple[_Output, ...]) -> System:
    os_name, kernel, machine, glibc = _text(context.get("os") or ""), "", "", ""
    described = collect(outputs)
    os_name = os_name or described.get("OS", "")
    kernel = _text(context.get("uname") or context.get("kernel") or "")
    machine = _text(context.get("machine") or context.get("arch") or "")
    glibc = described.get("Libc version", "")
    for output in outputs:
        if output.place not in (HERE, ROOT):
            continue
        command, text = output.command, output.text.strip()
        if command.startswith("uname"):
            release = re.search(r"\b\d+\.\d+\.\d+\S*", text)
            kernel = kernel or (release[0] if release else "")
            architecture = re.search(r"\b(x86_64|aarch64|ppc64le|armv7l|i686)\b", text)
            machine = machine or (architecture[0] if architecture else "")
        elif "os-release" in command and not os_name:
            pretty = re.search(r'PRETTY_NAME="?([^"\n]*)', text)
            os_name = pretty[1] if pretty else text.partition("\n")[0]
        elif re.search(r"GNU_LIBC|ldd --version", command):
            number = re.search(r"\b2\.\d+", text)
            glibc = glibc or (number[0] if number else "")
        elif command == "/proc/version":
            release = re.search(r"Linux version (\S+)", text)
            kernel = kernel or (release[1] if release else "")
    if not machine and (architecture := re.search(r"\b(aarch64|arm64|ppc64le)\b", os_name, re.I)):
        machine = architecture[0].lower().replace("arm64", "aarch64")
    groups = context.get("groups")
    text_groups = isinstance(groups, list)
    return System(
        os=os_name,
        kernel=kernel,
        machine=machine,
        glibc=glibc,
        uid=_integer(context.get("uid")),
        groups=tuple(_text(group) for group in groups or ()) if text_groups else None,
        wsl=bool(re.search(r"microsoft|\bwsl", f"{os_name} {kernel}", re.I)),
    )


def collect(outputs: tuple[_Output, ...]) -> dict[str, str]:
    """What any pasted `collect_env` report says."""
    said: dict[str, str] = {}
    for output in outputs:
        said |= parse.collect_env(output.text)
    return said


_ENGINES = ("podman", "apptainer", "singularity", "kubernetes", "docker", "containerd", "enroot")
_SANDBOXED = (
    r"docker desktop|desktop-linux|docker_desktop|/snap/(bin/)?docker|^snap list docker\n.*\d"
)
_INSIDE_MARKS = (
    ("apptainer", r"APPTAINER_CONTAINER|SINGULARITY_CONTAINER|\.singularity\.d"),
    ("kubernetes", r"KUBERNETES_SERVICE_HOST|kubepods"),
    ("podman", r"/run/\.containerenv|^container=podman|libpod"),
    ("docker", r"/\.dockerenv|^container=docker|docker[/-][0-9a-f]{12}"),
    ("lxc", r"^container=lxc"),
)


def _container(
    context: Mapping[str, Any], env: Mapping[str, str | None], outputs: tuple[_Output, ...]
) -> Container:
    named = _text(context.get("container") or "").lower()
    marks = "\n".join(
        [_text(context.get("files_present") or "")]
        + [f"{name}={value}" for name, value in env.items() if value]
        + [o.text for o in outputs if o.place == HERE and "cgroup" in o.command]
    )
    engine = next((each for each in (*_ENGINES, "lxc", "incus", "pod") if each in named), "")
    engine = {"singularity": "apptainer", "pod": "kubernetes", "incus": "lxc"}.get(engine, engine)
    if not engine and re.search(r"k8s|k3s|openshift|eks|gke", named):
        engine = "kubernetes"
    inside = bool(named) and not re.search(r"\bhost\b|outside|daemon", named)
    for mark, pattern in _INSIDE_MARKS:
        if re.search(pattern, marks, re.M):
            # a pod is also a containerd or docker container: the first mark names what to edit
            engine, inside = engine or mark, True
    ran = "\n".join(
        f"{o.command}\n{o.text}"
        for o in outputs
        if re.search(r"\b(docker|podman|nerdctl)\b", o.command)
    )
    if not engine and (tool := re.search(r"\b(docker|podman|nerdctl)\b", ran)):
        engine = tool[1]
    return Container(
        engine=engine,
        inside=inside and named not in ("none", "null", "no"),
        rootless="rootless" in named
        or bool(re.search(r"^\s*rootless\b(?!: *false)|rootless: true|name=rootless", ran, re.M)),
        desktop="desktop" in named or bool(re.search(_SANDBOXED, ran, re.I | re.M)),
    )


def _driver(value: Mapping[str, Any], outputs: tuple[_Output, ...]) -> Driver:
    version, flavour, loaded = "", None, None
    files = _mapping(value.get("files"))
    path = "/proc/driver/nvidia/version"
    absent = path in files and files[path] is None
    for output in outputs:
        said = re.search(r"NVRM version:.*?\s(\d{2,4}\.\d[\d.]*)", output.text)
        if said and output.place in (HERE, ROOT, HOST):
            version = version or said[1]
            flavour = "Open Kernel Module" in output.text
        if re.match(r"(sudo )?(lsmod|cat /proc/modules|/proc/modules)", output.command) and (
            output.place in (HERE, ROOT, HOST)
        ):
            loaded = (loaded or ()) + parse.modules(output.text)
        if "/sys/module/nvidia/version" in output.command and not version:
            number = re.fullmatch(r"\s*(\d{2,4}\.\d[\d.]*)\s*", output.text)
            version = number[1] if number else ""
        if path in output.command and re.search(r"no such file", output.text, re.I):
            absent = True
        if re.search(r"modinfo.*license.*nvidia\b", output.command) and output.text.strip():
            flavour = "MIT" in output.text
    return Driver(module=version, open_flavour=flavour, absent=absent, loaded=loaded)


def _smi(
    outputs: tuple[_Output, ...], value: Mapping[str, Any], context: Mapping[str, Any]
) -> dict[str, Smi]:
    runs: dict[str, Smi] = {}
    for output in outputs:
        command = output.command
        asked = bool(re.match(r"NVML\b", command))
        if not (asked or re.search(r"nvidia-smi(\.exe)?(\s|$|\s*\()", command)) or re.search(
            r"\b(which|ls|ldd|strace|grep -r|find|topo|nvlink|dmesg|journalctl)\b", command
        ):
            continue
        place = "wsl" if "/usr/lib/wsl" in command else output.place
        run = parse.smi(command, output.text, output.rc)
        known = runs.get(place)
        if asked and known and known.rc == _NOT_FOUND:
            known = None  # NVML stands in for the nvidia-smi that is not there
        runs[place] = _merge(known, run) if known else run
    stated = value.get("gpus") or value.get("gpu") or context.get("gpus") or context.get("gpu")
    if stated and not any(run.gpus for run in runs.values()):
        runs["stated"] = Smi(gpus=tuple(_stated(stated)))
    return runs


def _stated(value: object) -> Iterator[Gpu]:
    """GPUs that the evidence merely names."""
    for number, item in enumerate(value if isinstance(value, list) else [value]):
        known = _mapping(item)
        name = _text(known.get("name", known.get("model", "")) if known else item)
        capability = parse.version(_text(known.get("compute_cap", known.get("capability", ""))))
        yield Gpu(index=number, name=name[:100], capability=capability[:2] or None)


def _merge(one: Smi, two: Smi) -> Smi:
    gpus = one.gpus or two.gpus
    if one.gpus and two.gpus and len(one.gpus) == len(two.gpus):
        gpus = tuple(_merge_gpu(a, b) for a, b in zip(one.gpus, two.gpus, strict=True))
    elif len(two.gpus) > len(one.gpus):
        gpus = two.gpus
    return Smi(
        rc=one.rc if one.rc is not None else two.rc,
        driver=one.driver or two.driver,
        cuda=one.cuda or two.cuda,
        failure=one.failure or two.failure,
        gpus=gpus,
    )


def _merge_gpu(one: Gpu, two: Gpu) -> Gpu:
    return Gpu(
        index=one.index,
        name=one.name or two.name,
        uuid=one.uuid or two.uuid,
        capability=one.capability or two.capability,
        migs=one.migs or two.migs,
        mig_mode=one.mig_mode if one.mig_mode is not None else two.mig_mode,
        ecc=one.ecc if one.ecc is not None else two.ecc,
        compute_mode=one.compute_mode or two.compute_mode,
    )


def _gpus(runs: Mapping[str, Smi]) -> tuple[Gpu, ...]:
    for place in (HERE, "wsl", ROOT, "container", "stated", HOST, NODE, "windows"):
        if place in runs and runs[place].gpus:
            return runs[place].gpus
    return ()


def _pci(outputs: tuple[_Output, ...]) -> tuple[PciDevice, ...] | None:
    found: tuple[PciDevice, ...] | None = None
    for output in outputs:
        command, _, filtered = output.command.partition("|")
        if not re.match(r"(\W*host:? )?(sudo )?lspci\b", command) or "not found" in output.text:
            continue
        devices = parse.lspci(output.text)
        # an empty answer speaks of all NVIDIA devices only if the question did
        asked = not filtered or re.search(r"nvidia|10de|vga|3d|display", filtered, re.I)
        if devices or (asked and not re.search(r"\s-s\s", command)):
            found = (found or ()) + devices
    return found


def _nodes(value: Mapping[str, Any], outputs: tuple[_Output, ...]) -> dict[str, Node] | None:
    listed: dict[str, str] = {}
    looked = isinstance(value.get("dev"), dict)
    for path, line in _mapping(value.get("dev")).items():
        listed[path] = _text(line if line is not None else "")
    for output in outputs:
        if output.place == HERE and re.match(
            r"(ls|stat)\b.*(/dev/nvidia|/dev/dxg)", output.command
        ):
            looked = True
            listed = parse.ls_nodes(output.text) | listed
    nodes = {path: made for path, line in listed.items() if (made := parse.node(line))}
    opened = {path: _text(said) for path, said in _mapping(value.get("open_rw")).items()}
    for output in outputs:
        if output.place != HERE:
            continue
        for call in re.finditer(
            r'open(?:at)?\([^"\n]*"(/dev/nvidia[^"\n]*)"[^\n]*= -1 (E[A-Z]+)', output.text
        ):
            opened[call[1]] = call[2]
    for path, said in opened.items():
        name = parse.errno_name(said)
        if path in nodes:
            nodes[path] = replace(nodes[path], opened=name)
        elif name not in ("ENOENT", ""):
            nodes[path] = Node(opened=name)
            looked = True
    return nodes if looked else None


def _libcuda(value: Mapping[str, Any], error: str) -> Libcuda:
    loads = _mapping(value.get("dlopen"))
    names = sorted(name for name in loads if name.startswith("libcuda"))
    given = loads.get("libcuda.so.1", loads[names[0]] if names else None)
    found: bool | None = None
    path = error_text = ""
    if isinstance(given, dict):
        ok = given.get("ok")
        found = ok if isinstance(ok, bool) else None
        path, error_text = _text(given.get("path") or ""), _text(given.get("error") or "")
    elif isinstance(given, bool):
        found = given
    elif isinstance(given, str):
        found = not re.search(r"cannot open|no such|not found|fail", given, re.I)
        path, error_text = (given, "") if found and given.startswith("/") else ("", given)
    said = value.get("cuInit")
    number = re.search(r"\d{1,4}", said) if isinstance(said, str) else None
    init = int(number[0]) if number else _integer(said)
    version = _integer(value.get("cuDriverGetVersion"))
    # what torch says of cuInit, where it was not asked itself (docs/design.md, "cuInit")
    code = re.search(r"cudaGetDeviceCount\(\).*Error (\d{1,4})", error, re.S)
    if init is None and code:
        init = int(code[1])
    elif init is None and "CUDA unknown error - this may be due" in error:
        init = 999
    elif init is None and "CUDA driver initialization failed" in error:
        init = 3
    old = re.search(r"driver on your system is too old \(found version (\d{4,5})\)", error)
    if version is None and old:
        version = int(old[1])
    if found is None and "Found no NVIDIA driver" in error:
        found = False
    return Libcuda(found=found, path=path, error=error_text, init=init, version=version)


def _dlopen(value: object) -> dict[str, str]:
    """Libraries that did not load -> why."""
    failed = {}
    for name, given in _mapping(value).items():
        if isinstance(given, dict) and given.get("ok") is False:
            failed[name] = _text(given.get("error") or "not loaded")
    return failed


def _torch(given: Mapping[str, Any], outputs: tuple[_Output, ...]) -> Torch:
    said = collect(outputs)
    version = _text(given.get("version") or said.get("PyTorch version", ""))
    cuda = given.get("cuda", said.get("CUDA used to build PyTorch") if said else "")
    known = "cuda" in given or bool(said)
    file = _text(given.get("file") or given.get("__file__") or "")
    available = given.get("is_available")
    if not isinstance(available, bool):
        available = {"True": True, "False": False}.get(said.get("Is CUDA available", ""))
    for output in outputs:
        if output.place != HERE:
            continue
        if "torch.__file__" in output.command and not file:
            where = re.search(r"/\S*torch/__init__\.py", output.text)
            file = where[0] if where else ""
        if "torch.__version__" in output.command and not version:
            number = re.search(r"\b\d+\.\d+\.\d+\S*", output.text)
            version = number[0] if number else ""
        if "torch.version.cuda" in output.command and not known:
            number = re.search(r"(?<![.\d])\d{2}\.\d(?![\d.])|\bNone\b", output.text)
            cuda, known = (number[0] if number else ""), bool(number)
        if "is_available" in output.command and available is None:
            answer = re.search(r"\b(True|False)\b", output.text)
            available = answer[1] == "True" if answer else None
    archs = given.get("arch_list") or ""
    text = _text(cuda) if cuda not in (None, "None", "N/A", "Could not collect") else ""
    return Torch(
        version=version,
        cuda=text if known else None,
        available=available,
        devices=_integer(given.get("device_count")),
        archs=tuple(re.findall(r"(?:sm|compute)_\d+[af]?", _text(archs))),
        file=file,
    )


def _packages(given: object, outputs: tuple[_Output, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for output in outputs:
        if output.place == HERE:
            found |= parse.packages(output.command, output.text)
    if isinstance(given, dict):
        for name, version in given.items():
            if version is not None:
                found[parse.normal(str(name))] = _text(version)
    elif isinstance(given, (str, list)):
        found |= parse.packages("pip list", _text(given))
    return found


def _libraries(value: Mapping[str, Any], outputs: tuple[_Output, ...]) -> tuple[Library, ...]:
    found: list[Library] = []
    for output in outputs:
        if output.place != HERE:
            continue
        if "ldconfig" in output.command:
            found += parse.libraries(output.text, "ldconfig")
        elif re.search(r"\bldd\b", output.command):
            found += parse.libraries(output.text, "ldd")
        elif re.search(r"/maps\b|LD_DEBUG", output.command):
            found += parse.maps(output.text)
    given = value.get("maps")
    if given:
        found += parse.maps(_text(given).replace('"', " ").replace(",", " "))
    return tuple(found[:2_000])
