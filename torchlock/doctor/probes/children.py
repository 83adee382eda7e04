"""What is tried in child processes, so that no driver or library is loaded into this one.

Each child prints one JSON object; a crash or a hang of it is itself evidence.
"""

from __future__ import annotations

import json
from typing import Any

from torchlock.doctor.probes.machine import TIMED_OUT, Machine

# Loads libcuda.so.1 as the loader finds it, and asks it.
_LIBCUDA = """
import ctypes, json
said = {"dlopen": {"libcuda.so.1": {"ok": False}}}
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    said["dlopen"]["libcuda.so.1"]["error"] = str(error)
else:
    maps = open("/proc/self/maps", errors="surrogateescape")
    mapped = (line.split(None, 5)[-1].strip() for line in maps)
    paths = [path for path in mapped if "libcuda.so" in path]
    said["dlopen"]["libcuda.so.1"] = {"ok": True, "path": paths[0] if paths else ""}
    print(json.dumps(said), flush=True)
    try:
        said["cuInit"] = cuda.cuInit(0)
        print(json.dumps(said), flush=True)
        number = ctypes.c_int()
        if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
            said["cuDriverGetVersion"] = number.value
    except AttributeError as error:
        said["dlopen"]["libcuda.so.1"]["error"] = str(error)
print(json.dumps(said), flush=True)
"""

# Asks NVML what nvidia-smi would say, and in its words. Source: nvml.h.
_NVML = """
import ctypes, json
def emit(rc, lines):
    print(json.dumps({"cmd": {"NVML (libnvidia-ml.so.1)": {"rc": rc, "out": "\\n".join(lines)}}}))
    raise SystemExit
try:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
except OSError:
    raise SystemExit
said, text, number = [], ctypes.create_string_buffer(256), ctypes.c_uint()
try:
    code = nvml.nvmlInit_v2()
    if code:
        nvml.nvmlErrorString.restype = ctypes.c_char_p
        reason = (nvml.nvmlErrorString(code) or b"").decode(errors="replace")
        emit(code, [f"Failed to initialize NVML: {reason}"])
    if nvml.nvmlSystemGetDriverVersion(text, 256) == 0:
        said.append("Driver Version: " + text.value.decode(errors="replace"))
    if nvml.nvmlSystemGetCudaDriverVersion(ctypes.byref(number)) == 0:
        said.append(f"CUDA Version: {number.value // 1000}.{number.value % 1000 // 10}")
    number = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(number))
    if not number.value:
        said.append("No devices were found")
    for index in range(number.value):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            said.append(f"Unable to determine the device handle for GPU {index}")
            continue
        words = []
        for ask in (nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetUUID):
            text.value = b""
            ask(device, text, 256)
            words.append(text.value.decode(errors="replace"))
        said.append("GPU {}: {} (UUID: {})".format(index, *words))
except AttributeError as error:
    said.append(f"NVML lacks {error}")
emit(0, said)
"""

# Finds torch and loads its libraries as an import would, without the import's Python half.
_NATIVE = """
import ctypes, importlib.metadata, importlib.util, json, os, re, sys
said = {"torch": {}, "pip": {}, "cmd": {}}
emit = lambda: print(json.dumps(said), flush=True)
wanted = re.compile(r"^(torch|nvidia-|triton|pytorch|numpy|ctranslate2|onnxruntime|tensorflow|jax|"
                    r"cupy|flash.attn|xformers|bitsandbytes|deepspeed|setuptools|ninja)", re.I)
for dist in importlib.metadata.distributions():
    name = dist.metadata["Name"] or ""
    if wanted.match(name):
        said["pip"][name] = dist.version
        if name == "torch":
            lines = []
            for line in dist.requires or ():
                pin = re.match(r"([\\w.-]+)\\s*==\\s*([\\w.]+)", line)
                if pin and pin[1].startswith(("nvidia-", "triton")) and "extra ==" not in line:
                    try:
                        have = importlib.metadata.version(pin[1])
                    except importlib.metadata.PackageNotFoundError:
                        lines.append(f"torch {dist.version} requires {pin[1]}, "
                                     "which is not installed.")
                        continue
                    if have != pin[2]:
                        lines.append(f"torch {dist.version} has requirement {pin[1]}=={pin[2]}, "
                                     f"but you have {pin[1]} {have}.")
            said["cmd"]["pip check (torch only)"] = "\\n".join(lines) or "No broken requirements."
try:
    spec = importlib.util.find_spec("torch")
except (ImportError, ValueError):
    spec = None
if spec is None or not spec.origin:
    if spec is not None and spec.submodule_search_locations:
        said["torch"]["file"] = list(spec.submodule_search_locations)[0]
    said["cmd"]["python -c 'import torch'"] = "ModuleNotFoundError: No module named 'torch'"
    emit()
    raise SystemExit
said["torch"]["file"] = spec.origin
where = os.path.dirname(spec.origin)
try:
    text = open(os.path.join(where, "version.py"), errors="replace").read()
except OSError:
    text = ""
version = re.search(r"__version__ = '([^']*)'", text)
cuda = re.search(r"^cuda\\b[^=]*= (?:'([^']*)'|None)", text, re.M)
if version:
    said["torch"]["version"] = version[1]
if cuda:
    said["torch"]["cuda"] = cuda[1]
if not cuda or not cuda[1]:
    emit()
    raise SystemExit
said["nativeStage"] = "loading libtorch_python.so"
emit()
try:
    ctypes.CDLL(os.path.join(where, "lib", "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(os.path.join(where, "lib", "libtorch_python.so"))
    maps = open("/proc/self/maps", errors="surrogateescape")
    mapped = (line.split(None, 5)[-1].strip() for line in maps)
    runtime = next(path for path in mapped if "libcudart" in path)
    count = ctypes.c_int()
    said["nativeStage"] = "cudaGetDeviceCount"
    emit()
    code = ctypes.CDLL(runtime).cudaGetDeviceCount(ctypes.byref(count))
    said["torch"]["is_available"] = code == 0 and count.value > 0
    said["torch"]["device_count"] = count.value if code == 0 else 0
    said["cudaGetDeviceCount"] = code
    del said["nativeStage"]
except OSError as error:
    said["error"] = f"ImportError: {error}"
except (AttributeError, StopIteration) as error:
    said["nativeLoad"] = str(error) or "libcudart is not among the libraries torch loads"
maps = open("/proc/self/maps", errors="surrogateescape")
said["maps"] = sorted({line.split(None, 5)[-1].strip() for line in maps
                       if re.search(r"lib(cu|nv|nccl|torch|c10|stdc)[^/]*\\.so", line)})
emit()
"""

# The import itself, for what torch says when something is wrong.
_IMPORT = """
import json, sys, traceback, warnings
said = {"torch": {}}
try:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import torch
        said["torch"] = {"version": torch.__version__, "cuda": torch.version.cuda}
        said["torch"]["file"] = torch.__file__
        print(json.dumps(said), flush=True)
        said["torch"]["is_available"] = torch.cuda.is_available()
        said["torch"]["device_count"] = torch.cuda.device_count()
        said["torch"]["arch_list"] = " ".join(torch.cuda.get_arch_list())
    warned = [str(w.message) for w in caught if "UDA" in str(w.message)]
    if warned:
        said["torch"]["warning"] = "\\n".join(warned)
    if not said["torch"]["is_available"]:
        try:
            torch.cuda.init()
        except Exception as error:
            said["torch"]["error"] = f"{type(error).__name__}: {error}"
except BaseException as error:
    said["error"] = "".join(traceback.format_exception_only(type(error), error)).strip()
print(json.dumps(said), flush=True)
"""


def _child(
    machine: Machine, name: str, program: str, seconds: float, *options: str
) -> dict[str, Any]:
    """What a child said last, and how it ended."""
    run = machine.run([machine.python, *options, "-c", program], seconds=seconds)
    said: dict[str, Any] = {}
    for line in run.out.splitlines():
        if line.startswith("{"):
            try:
                said = json.loads(line)
            except ValueError:
                continue
    how = "ended well"
    if run.rc != 0:
        how = f"no answer in {seconds:g} s" if run.rc == TIMED_OUT else f"status {run.rc}"
        if run.rc < 0:
            how = "Illegal instruction" if run.rc == -4 else f"killed by signal {-run.rc}"
        how += "".join(f"\n{line}" for line in _other(run.out))
    said.setdefault("cmd", {})[f"child: {name}"] = {"rc": run.rc, "out": f"{name}: {how}"}
    return said


def _other(out: str) -> list[str]:
    """The last lines a child printed beside its JSON."""
    return [line for line in out[-2000:].splitlines() if '{"' not in line][-20:]


def libcuda(machine: Machine) -> dict[str, Any]:
    """Which libcuda.so.1 the loader picks, and what cuInit returns."""
    return _child(machine, "cuInit", _LIBCUDA, 20, "-S", "-E")


def nvml(machine: Machine) -> dict[str, Any]:
    """What NVML says, where there is no nvidia-smi to ask it."""
    if machine.has("nvidia-smi"):
        return {}
    return {"cmd": _child(machine, "NVML", _NVML, 15, "-S", "-E").get("cmd", {})}


def torch_native(machine: Machine) -> dict[str, Any]:
    """The torch of the interpreter, its wheels, and whether its libraries load and see a GPU."""
    return _child(machine, "loading torch's libraries", _NATIVE, 30)


def torch_import(machine: Machine) -> dict[str, Any]:
    """What `import torch` and torch.cuda say."""
    return _child(machine, "import torch", _IMPORT, 90)
