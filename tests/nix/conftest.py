"""A private Nix store for the whole run, and the two versions of nix that use it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nix.hosts import make_driver
from tests.nix.renderer import renderer_wheels
from tests.nix.runner import HERE, REPOSITORY, Nix, private_environment
from torchlock.artifacts import default_store, fetch
from torchlock.lock import read_lock
from torchlock.mirrors import index_mirrors
from torchlock.rootfs.lock import fetch_debs, read_rootfs_lock


@pytest.fixture(scope="session")
def system_nix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nix]:
    """The nix on PATH."""
    program = shutil.which("nix")
    if program is None:
        pytest.skip("no nix here: apt-get install nix-bin")
    root = tmp_path_factory.mktemp("nix")
    yield Nix(Path(program).parent, private_environment(root))
    # A store's directories are read-only, and this one is too large to leave behind.
    subprocess.run(["chmod", "-R", "u+w", root], check=True)
    shutil.rmtree(root)


@pytest.fixture(scope="session")
def newer_nix(system_nix: Nix, tmp_path_factory: pytest.TempPathFactory) -> Nix:
    """The nix of a later Debian release, over the same store."""
    if shutil.which("apt-get") is None:
        pytest.skip("no apt here, to take a newer nix from")
    directory = tmp_path_factory.mktemp("newer-nix")
    subprocess.run([HERE / "newer-nix.sh", directory], check=True)
    return Nix(directory / "bin", system_nix.environment)


@pytest.fixture(scope="session", params=["system", "newer"])
def nix(request: pytest.FixtureRequest, system_nix: Nix) -> Nix:
    """Either nix."""
    if request.param == "system":
        return system_nix
    return request.getfixturevalue("newer_nix")


@pytest.fixture(scope="session")
def real_wheels(system_nix: Nix) -> None:
    """The locked wheels, put into the Nix store where its own fetch would put them."""
    wheels = read_lock(REPOSITORY / "conda-lock.yml").wheels("linux-64")
    paths = fetch(wheels, default_store(), mirrors=index_mirrors)
    system_nix.out("--add-fixed", "sha256", *paths, program="nix-store")


@pytest.fixture(scope="session")
def image_inputs(system_nix: Nix, real_wheels: None, tmp_path_factory: pytest.TempPathFactory):
    """What the image is made from beside the wheels, put into the Nix store likewise."""
    paths = fetch(renderer_wheels(), default_store(), mirrors=index_mirrors)
    renamed = tmp_path_factory.mktemp("debs")
    for path in fetch_debs(read_rootfs_lock(), default_store()):
        safe = path.name.replace("~", "-")  # as in nix/debs.nix
        paths.append(path if safe == path.name else Path(shutil.copy(path, renamed / safe)))
    system_nix.out("--add-fixed", "sha256", *paths, program="nix-store")


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a stand-in for the driver, among libraries that are not the driver's."""
    return make_driver(tmp_path_factory.mktemp("driver"))
