"""Lay out a virtual environment around a `site-packages`: `python environment.py SETTINGS OUT`.

SETTINGS is a JSON file with `wheelhouse`, `site`, `bytecode` (`site`, `stdlib`), `scripts` (where
the shell templates lie) and `values` (what the templates' `@name@` stand for). OUT gets what an
installer would write beside `site-packages`: the interpreter, console scripts and the wheels'
`.data`. Runs in a Nix build: standard library and `packaging`.
"""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from torchlock.errors import TorchlockError
from torchlock.formats.wheel import Wheel, hashed_files, read_wheel
from torchlock.tree import Entry, merge, safe_relative_path

TRITON_TOOLS = ("ptxas", "cuobjdump", "nvdisasm")

ENTRY_POINT = """\
#!{python}
import sys
from {module} import {first}

if __name__ == "__main__":
    sys.exit({attribute}())
"""


def environment(settings: Mapping[str, Any], out: Path) -> None:
    """Write the environment. Raises `TorchlockError` when two wheels disagree about a file."""
    write_interpreter(settings, out)
    with ExitStack() as stack:
        paths = sorted(Path(settings["wheelhouse"]).iterdir())
        wheels = [stack.enter_context(read_wheel(path)) for path in paths]
        write_data(wheels, out)
        write_entry_points(wheels, out)


def write_interpreter(settings: Mapping[str, Any], out: Path) -> None:
    """Write the wrapped interpreter, the tools Triton starts, and the links to all modules."""
    site = out / "lib/python3.11/site-packages"
    site.parent.mkdir(parents=True)
    site.symlink_to(settings["site"])
    for root, compiled in ((site, "site"), (Path(sysconfig.get_path("stdlib")), "stdlib")):
        link = out / "lib/pycache" / root.relative_to("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(settings["bytecode"][compiled])
    home = Path(settings["values"]["python"]).parent
    version = ".".join(map(str, sys.version_info[:3]))
    (out / "pyvenv.cfg").write_text(
        f"home = {home}\ninclude-system-site-packages = false\nversion = {version}\n"
    )
    templates = Path(settings["scripts"])
    values = {**settings["values"], "out": str(out), "site": settings["site"]}
    write_script(out / "bin/python3.11", (templates / "python.sh").read_text(), values)
    for name in ("python", "python3"):
        (out / "bin" / name).symlink_to("python3.11")
    for tool in TRITON_TOOLS:
        template = (templates / "tool.sh").read_text()
        write_script(out / "libexec" / tool, template, {**values, "tool": tool})


def write_script(path: Path, template: str, values: Mapping[str, str]) -> None:
    """Write an executable file with every `@name@` of `template` replaced."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(re.sub(r"@([a-z]+)@", lambda found: values[found[1]], template))
    path.chmod(0o555)


def write_data(wheels: Iterable[Wheel], out: Path) -> None:
    """Write the wheels' `.data` files: scripts, data and headers."""
    for entry in merge({wheel.path.name: data_entries(wheel) for wheel in wheels}):
        if entry.opens is None:
            continue
        with entry.opens() as stream:
            contents = stream.read()
        if entry.path.startswith("bin/") and contents.startswith(b"#!python"):
            contents = f"#!{out}/bin/python3.11".encode() + contents[len(b"#!python") :]
        path = out / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
        path.chmod(0o555 if entry.executable else 0o444)


def data_entries(wheel: Wheel) -> list[Entry]:
    """Return a wheel's files outside `site-packages`, relative to the environment's root."""
    places = {
        "scripts": "bin",
        "data": ".",
        "headers": f"include/site/python3.11/{wheel.name}",
    }
    outside = tuple(file for file in wheel.files if file.scheme in places)
    return [
        replace(file.entry, path=str(PurePosixPath(places[file.scheme], file.entry.path)))
        for file in hashed_files(replace(wheel, files=outside))
    ]


def write_entry_points(wheels: Iterable[Wheel], out: Path) -> None:
    """Write the console scripts. Raises `TorchlockError` when two wheels disagree about one."""
    written: dict[str, tuple[str, str]] = {}
    for wheel in wheels:
        for name, target in wheel.entry_points:
            owner, other = written.setdefault(name, (wheel.path.name, target))
            if other != target:
                raise TorchlockError(
                    f"{owner} and {wheel.path.name} disagree about the script {name}: "
                    f"{other} and {target}"
                )
    for name, (_, target) in written.items():
        module, _, attribute = target.partition(":")
        path = out / "bin" / safe_relative_path(name)
        path.write_text(
            ENTRY_POINT.format(
                python=out / "bin/python3.11",
                module=module.strip(),
                first=attribute.strip().partition(".")[0],
                attribute=attribute.strip(),
            )
        )
        path.chmod(0o555)


if __name__ == "__main__":
    try:
        environment(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    except TorchlockError as error:
        sys.exit(f"torchlock: {error}")
