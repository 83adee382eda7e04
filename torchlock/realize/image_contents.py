"""The image's own small files: entry point, SSH and shell configuration, notebook, tools.

They come from this repository; the layer they make is written anew in every render.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchlock.errors import TorchlockError
from torchlock.lock import PYTHON_VERSION
from torchlock.oci.layer import Item, directory_item, file_item, symlink_item
from torchlock.realize.image_wheels import PREFIX, SITE
from torchlock.rootfs.convert import USER_ID
from torchlock.rootfs.lock import RootfsLock

FILES = Path(__file__).resolve().parent.parent / "image"

TOOLS = f"{PREFIX}/share/torchlock"
"""Where the image keeps the checks that run inside it."""

_PLACES = {
    # file of `torchlock/image`: (place in the image, mode)
    "entrypoint": (f"{PREFIX}/libexec/entrypoint", 0o755),
    "health": (f"{PREFIX}/libexec/health", 0o755),
    "profile.sh": ("etc/profile.d/torchlock.sh", 0o644),
    "sshd_config": ("etc/ssh/sshd_config", 0o644),
    "jupyter_server_config.json": (f"{PREFIX}/etc/jupyter/jupyter_server_config.json", 0o644),
    "overrides.json": (f"{PREFIX}/share/jupyter/lab/settings/overrides.json", 0o644),
}

_SELFCHECK = (
    "conda-lock.yml",
    "torchlock/records/linux-64.json",
    "torchlock/records/linux-64.files",
    "torchlock/formats/__init__.py",
    "torchlock/formats/wheel.py",
    *(
        f"torchlock/{name}.py"
        for name in (
            "bytecode", "conda_meta", "console", "files", "findings", "inside", "lock",
            "recompile", "records", "repository", "selfcheck", "stamps", "superseded", "tree",
            "urls", "verify", "verify_files", "verify_foreign", "verify_scripts",
        )
    ),
)  # fmt: skip
"""`torchlock.selfcheck`, what it imports, and what it judges by."""

_PIP = """#!/bin/sh
# pip from Debian's own wheel, for the active environment or else the stack's.
for wheel in /usr/share/python-wheels/pip-*.whl; do
    exec "${{VIRTUAL_ENV:-/{prefix}}}/bin/python" "$wheel/pip" "$@"
done
"""


def contents_items(repository: Path, interpreter: Iterable[Item]) -> Iterator[Item]:
    """Yield the image's own files, sorted by path.

    `repository` is its root directory; `interpreter` is what makes the prefix an environment of
    the foundation's Python.
    """
    items = [
        *interpreter,
        *(
            file_item(place, (FILES / name).read_bytes(), mode)
            for name, (place, mode) in _PLACES.items()
        ),
        *_places_of_the_user(),
        *_tools(repository),
    ]
    yield from sorted(items, key=lambda item: item.member.path)


def debian_environment(rootfs: RootfsLock) -> Iterator[Item]:
    """Make the prefix a virtual environment of the system's Python."""
    version = next(p.version for p in rootfs.packages if p.name == f"python{PYTHON_VERSION}")
    match = re.match(r"\d+\.\d+\.\d+", version)
    if match is None:
        raise TorchlockError(f"python{PYTHON_VERSION} has the unreadable version {version}")
    config = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {match[0]}\n"
    yield file_item(f"{PREFIX}/pyvenv.cfg", config.encode())
    yield symlink_item(f"{PREFIX}/bin/python{PYTHON_VERSION}", f"/usr/bin/python{PYTHON_VERSION}")
    yield symlink_item(f"{PREFIX}/bin/python3", f"python{PYTHON_VERSION}")
    yield symlink_item(f"{PREFIX}/bin/python", f"python{PYTHON_VERSION}")
    yield file_item(f"{PREFIX}/bin/pip", _PIP.format(prefix=PREFIX).encode(), 0o755)
    # `venv --system-site-packages` looks where the system's Python does: let that see the stack.
    packages = f"usr/local/lib/python{PYTHON_VERSION}/dist-packages"
    yield file_item(f"{packages}/torchlock.pth", f"/{SITE}\n".encode())


def conda_environment() -> Iterator[Item]:
    """Make the prefix a conda environment: clients know one by its history."""
    yield file_item(f"{PREFIX}/conda-meta/history", b"")


def _places_of_the_user() -> Iterator[Item]:
    owner = {"uid": USER_ID, "gid": USER_ID}
    yield directory_item("home/user", 0o755, **owner)
    # Group 0 may write: an arbitrary UID (OpenShift, `--user 12345:0`) runs with it. An empty
    # volume takes owner and mode from here, so host keys are kept whoever starts the container.
    yield directory_item("etc/ssh/host_keys", 0o770, uid=USER_ID)
    for path in ("workspace", "workspace/notebooks"):
        yield directory_item(path, 0o775, uid=USER_ID)
    notebook = (FILES / "notebooks" / "first.ipynb").read_bytes()
    yield file_item("workspace/notebooks/first.ipynb", notebook, 0o664, uid=USER_ID)
    yield file_item(f"{PREFIX}/share/notebooks/first.ipynb", notebook)


def _tools(repository: Path) -> Iterator[Item]:
    """Carry `validation` and `torchlock.doctor`, which need the standard library only.

    And `torchlock.selfcheck`, which needs packages of the stack too, with the lock and the
    recorded trees that it judges by.
    """
    found = [repository / "torchlock" / name for name in ("__init__.py", "errors.py")]
    for pattern in (
        "validation/**/*.py",
        "validation/references/*.json",
        "torchlock/doctor/**/*.py",
        *_SELFCHECK,
    ):
        found += repository.glob(pattern)
    for path in found:
        parts = path.relative_to(repository).parts
        # What editors leave beside them (.#name.py, .ipynb_checkpoints) is no part of the tools.
        if not any(part.startswith(".") for part in parts):
            yield file_item("/".join((TOOLS, *parts)), path.read_bytes())
