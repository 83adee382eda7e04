"""This repository's flake with the real wheels, over the stand-in for nixpkgs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nix.hosts import PATH, host_driver, on_a_host_with
from tests.nix.runner import REPOSITORY, STUB, Nix
from torchlock.lock import read_lock
from torchlock.oci.layout import Layout, image_config, image_manifest
from torchlock.realize.image import DEFAULT_TAG
from torchlock.records import read_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TREE = read_records(REPOSITORY / "torchlock" / "records", "linux-64").tree


def test_flake_lock_is_the_one_flake_nix_asks_for(nix):
    done = nix.run("flake", "metadata", "--no-update-lock-file", "--json", REPOSITORY)

    assert done.returncode == 0, done.stderr
    locked = json.loads(done.stdout)["locks"]["nodes"]["nixpkgs"]["locked"]
    assert locked["rev"] in (REPOSITORY / "flake.nix").read_text()


def test_stale_flake_lock_is_refused(nix, tmp_path):
    text = (REPOSITORY / "flake.nix").read_text()
    revision = json.loads((REPOSITORY / "flake.lock").read_text())["nodes"]["nixpkgs"]["locked"]
    (tmp_path / "flake.nix").write_text(text.replace(revision["rev"], "0" * 40))
    shutil.copy(REPOSITORY / "flake.lock", tmp_path)

    done = nix.run("flake", "metadata", "--no-update-lock-file", f"path:{tmp_path}")

    assert done.returncode != 0


@pytest.mark.usefixtures("real_wheels")
def test_site_packages_has_the_recorded_tree_digest(nix, tmp_path):
    link = tmp_path / "site-packages"

    done = nix.flake("build", "site-packages", "--out-link", link)

    assert done.returncode == 0, done.stderr
    assert nix.out("hash", "path", link.resolve()) == TREE


def test_both_versions_mean_the_same_store_path(system_nix, newer_nix):
    paths = {
        nix.flake("eval", "packages.x86_64-linux.default.outPath", "--raw").stdout
        for nix in (system_nix, newer_nix)
    }

    assert len(paths) == 1
    assert paths.pop().endswith("-torchlock-environment")


@pytest.mark.usefixtures("image_inputs")
def test_flake_check_holds(nix):
    done = nix.flake("flake check")

    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("image_inputs")
def test_image_is_the_one_that_invoke_image_renders(nix, tmp_path):
    link = tmp_path / "image"

    done = nix.flake("build", "image", "--out-link", link)

    assert done.returncode == 0, done.stderr
    assert Layout(link).find(DEFAULT_TAG)["digest"] == invoke("image", "--digest").strip()


def invoke(*arguments: str) -> str:
    """What a task of this repository prints."""
    command = [sys.executable, "-m", "invoke", *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def other_image(tmp_path: Path) -> Layout:
    """A layout with an image of the same name, without layers."""
    layout = Layout(tmp_path / "layout")
    layout.prepare()
    config = image_config(created="2026-01-01", architecture="amd64", run={}, layers=[])
    manifest = image_manifest(config, [], {})
    for document in (config, manifest):
        layout.add_document(document)
    layout.publish(DEFAULT_TAG, manifest)
    return layout


@pytest.mark.usefixtures("image_inputs")
def test_image_digest_check_names_both_digests(system_nix, other_image, tmp_path):
    done = judge_image(system_nix, other_image, tmp_path / "link")

    assert done.returncode != 0
    found, recorded = other_image.find(DEFAULT_TAG)["digest"], invoke("image", "--digest").strip()
    assert f"holds {found}, the recorded layers give {recorded}" in done.stderr


@pytest.mark.usefixtures("image_inputs")
def test_image_digest_check_reads_every_blob(system_nix, other_image, tmp_path):
    config = other_image.manifest(other_image.find(DEFAULT_TAG))["config"]["digest"]
    damaged = other_image.blob(config)
    damaged.write_bytes(damaged.read_bytes().replace(b"amd64", b"arm64"))

    done = judge_image(system_nix, other_image, tmp_path / "link")

    assert done.returncode != 0
    assert f"{config} has contents of digest sha256:" in done.stderr


def judge_image(nix: Nix, layout: Layout, link: Path) -> subprocess.CompletedProcess[str]:
    """Run the flake's check of the image over another layout."""
    image = f'builtins.path {{ name = "layout"; path = {layout.root}; }}'
    return nix.build(
        f"(import {REPOSITORY}/nix/checks.nix {{ inherit pkgs; inherit (small {{ }}) renderer "
        f"environment site-packages; source = {REPOSITORY}; image = {image}; }}).image-digest",
        link,
    )


@pytest.mark.usefixtures("image_inputs")
def test_image_of_two_locks_is_refused(system_nix, tmp_path):
    head, *packages = (REPOSITORY / "pylock.toml").read_text().split("[[packages]]\n")
    without = [package for package in packages if not package.startswith('name = "tqdm"')]
    (tmp_path / "pylock.toml").write_text("[[packages]]\n".join([head, *without]))

    done = system_nix.build(
        f"(small {{ pylock = {tmp_path}/pylock.toml; }}).image", tmp_path / "link"
    )

    assert done.returncode != 0
    assert "conda-lock.yml names tqdm-" in done.stderr
    assert "which pylock.toml does not" in done.stderr


@pytest.mark.usefixtures("real_wheels")
def test_python_and_jupyter_run(nix):
    python = nix.flake("run", "python", "--", "-c", "import sys; print(sys.prefix)")
    jupyter = nix.flake("run", "jupyter", "--", "--version")

    assert python.stdout.strip().endswith("-torchlock-environment"), python.stderr
    [locked] = [w for w in read_lock(REPOSITORY / "conda-lock.yml").wheels("linux-64")
                if w.name == "jupyterlab"]  # fmt: skip
    assert jupyter.stdout.strip() == locked.version, jupyter.stderr


def test_fmt_starts_the_formatter(nix):
    done = nix.run("fmt", "--override-input", "nixpkgs", f"path:{STUB}", "--no-write-lock-file")

    assert done.returncode == 0, done.stderr
    assert "the formatter" in done.stdout


@pytest.mark.usefixtures("real_wheels")
def test_triton_finds_the_driver_and_builds_against_it(system_nix, driver, tmp_path):
    link = tmp_path / "environment"
    assert system_nix.flake("build", "", "--out-link", link).returncode == 0
    source = tmp_path / "launcher.c"
    source.write_text(LAUNCHER)
    code = (
        "import ctypes; from triton.backends.nvidia.driver import libcuda_dirs; "
        "from triton.runtime.build import _build; dirs = libcuda_dirs(); print(*dirs); "
        f"built = _build('launcher', '{source}', '{tmp_path}', dirs, [], ['cuda']); "
        "print(ctypes.CDLL(built).start())"
    )

    done = on_a_host_with(
        host_driver(driver), link / "bin" / "python", "-c", code, HOME=str(tmp_path), PATH=PATH
    )

    [where, returned] = done.stdout.split()
    assert Path(where).is_relative_to(tmp_path / ".cache/torchlock/driver"), done.stderr
    assert returned == "0"


LAUNCHER = """
#include <Python.h>
extern int cuInit(unsigned flags);
int start(void) { return cuInit(0); }
"""


@pytest.mark.usefixtures("real_wheels")
def test_develop_gives_the_locked_torch_and_no_library_path(nix):
    code = "import torch, os, sys; print(torch.__version__, sys.prefix, dict(os.environ))"

    done = nix.flake("develop", "", "-c", "python", "-c", code)

    assert done.returncode == 0, done.stderr
    version, prefix, environment = done.stdout.split(maxsplit=2)
    assert version == "2.7.1+cu126"
    assert prefix.startswith(nix.environment["NIX_STORE_DIR"])
    assert "LD_LIBRARY_PATH" not in environment


@pytest.mark.usefixtures("real_wheels")
def test_develop_has_the_console_scripts(nix):
    for script, said in (("torchrun", "nproc-per-node"), ("jupyter", "jupyter")):
        done = nix.flake("develop", "", "-c", script, "--help")
        assert done.returncode == 0, done.stderr
        assert said in done.stdout


@pytest.mark.usefixtures("real_wheels")
def test_validate_gives_the_bits_of_a_venv(system_nix, tmp_path):
    python = os.environ.get("TORCHLOCK_STACK_PYTHON")
    if python is None:
        pytest.skip("no TORCHLOCK_STACK_PYTHON: the interpreter of a venv to compare with")
    inside, outside = tmp_path / "nix.json", tmp_path / "venv.json"
    only = ["--only", "transformer", "neighbours", "--json"]

    done = system_nix.flake("run", "validate", "--", *only, inside)
    subprocess.run([python, REPOSITORY / "validation", *only, outside], check=True)

    certificate = json.loads(inside.read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert certificate["files"]["tree"] == TREE
    assert certificate["foundation"] == "nix"
    assert digests(certificate) == digests(json.loads(outside.read_text()))
    assert digests(certificate).keys() == {"transformer", "neighbours"}


@pytest.mark.usefixtures("real_wheels")
def test_invoke_validate_judges_what_nix_built(system_nix, tmp_path):
    link, found = tmp_path / "result", tmp_path / "prefix.json"
    assert system_nix.flake("build", "", "--out-link", link).returncode == 0

    invoke("validate", "--prefix", str(link), "--only", "stack", "--json", str(found))

    certificate = json.loads(found.read_text())
    assert certificate["foundation"] == "nix"
    assert certificate["files"]["verdict"] == "holds"
    assert certificate["files"]["tree"] == TREE


@pytest.mark.usefixtures("real_wheels")
def test_invoke_validate_inside_judges_the_shells_environment(system_nix, tmp_path):
    found = tmp_path / "inside.json"
    command = ["invoke", "validate", "--only", "neighbours", "--json", found]

    done = system_nix.flake("develop", "", "-c", *command)

    assert done.returncode == 0, done.stdout + done.stderr
    certificate = json.loads(found.read_text())
    assert certificate["foundation"] == "nix"
    assert certificate["files"]["tree"] == TREE


@pytest.mark.usefixtures("real_wheels")
def test_invoke_validate_of_the_tree_alone_says_what_to_give(system_nix, tmp_path):
    link = tmp_path / "site-packages"
    assert system_nix.flake("build", "site-packages", "--out-link", link).returncode == 0

    done = subprocess.run(
        [sys.executable, "-m", "invoke", "validate", "--prefix", link],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert f"{link} holds no CPython 3.11 environment" in done.stderr
    assert "invoke validate --prefix $(nix build" in done.stderr


def digests(certificate: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The digests of the checks that leave some."""
    return {c["name"]: c["digests"] for c in certificate["checks"] if c.get("digests")}


@pytest.mark.usefixtures("real_wheels")
def test_environment_and_byte_code_are_the_same_built_again(system_nix):
    assert system_nix.flake("build", "", "--no-link").returncode == 0
    derivation = system_nix.flake("eval", "packages.x86_64-linux.default.drvPath", "--raw").stdout
    needed = system_nix.out("-qR", derivation, program="nix-store").splitlines()
    again = [path for path in needed if path.endswith(("-bytecode.drv", "-environment.drv"))]

    # One core here, all of them the first time: the order of work must not show.
    options = ["--check", "--option", "cores", "1"]
    done = system_nix.run("--realise", *options, *again, program="nix-store")

    assert len(again) == 3
    assert done.returncode == 0, done.stderr


def test_a_system_without_wheels_is_named(nix):
    done = nix.flake("build", "packages.aarch64-linux.default")

    assert done.returncode != 0
    assert "packages.aarch64-linux.default" in done.stderr
