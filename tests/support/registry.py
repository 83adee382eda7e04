"""The registry of the distribution project, as Debian packages it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HTPASSWD = "me:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"
"""The user `me` with the password `secret`, as bcrypt, the one kind that the registry reads."""


@contextmanager
def real_registry_in(directory: Path, *, login: bool = False) -> Iterator[str]:
    """Serve a registry that keeps its files below `directory`; give its HOST:PORT.

    With `login` it serves `me` alone.
    """
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = directory / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {directory}/registry}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\nlog: {{level: error}}\n"
    )
    if login:
        (directory / "htpasswd").write_text(HTPASSWD)
        with config.open("a") as stream:
            stream.write(f"auth: {{htpasswd: {{realm: test, path: {directory}/htpasswd}}}}\n")
    process = subprocess.Popen(
        [program, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
