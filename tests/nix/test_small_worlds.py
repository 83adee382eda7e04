"""The functions below nix/ with small wheels: what they refuse, and what the wrapper does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.nix.hosts import PATH, host_driver, on_a_host_with, run
from tests.nix.runner import REPOSITORY, Nix
from tests.support.locks import lock_of, locked_wheel
from tests.support.wheels import build_wheel
from torchlock.artifacts import default_store, fetch
from torchlock.lock import Package, read_lock
from torchlock.mirrors import index_mirrors
from torchlock.pylock import render_pylock
from torchlock.records import record, write_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

Evaluate = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def evaluate(nix: Nix, tmp_path: Path) -> Evaluate:
    """Evaluate nix/lock.nix over the text of a pylock.toml."""

    def run(pylock: str, system: str = "x86_64-linux") -> subprocess.CompletedProcess[str]:
        (tmp_path / "pylock.toml").write_text(pylock)
        expression = (
            f"import {REPOSITORY}/nix/lock.nix "
            f'{{ pylock = {tmp_path}/pylock.toml; system = "{system}"; }}'
        )
        return nix.run("eval", "--impure", "--json", "--expr", expression)

    return run


def pylock_of(*rows: tuple[str, str, list[str]], environment: str | None = None) -> str:
    """A pylock.toml of (name, version, wheel file names)."""
    marker = environment or "sys_platform == 'linux' and platform_machine == 'x86_64'"
    text = f'lock-version = "1.0"\nenvironments = ["{marker}"]\n'
    for name, version, wheels in rows:
        text += f'[[packages]]\nname = "{name}"\nversion = "{version}"\n'
        for wheel in wheels:
            text += (
                f'[[packages.wheels]]\nname = "{wheel}"\nurl = "file:///nowhere/{wheel}"\n'
                f'hashes = {{ sha256 = "{"0" * 64}" }}\n'
            )
    return text


def test_the_lock_is_read_as_torchlock_reads_it(evaluate):
    done = evaluate((REPOSITORY / "pylock.toml").read_text())

    wheels = read_lock(REPOSITORY / "conda-lock.yml").wheels("linux-64")
    assert json.loads(done.stdout) == {
        w.name: {
            "name": w.name,
            "version": w.version,
            "filename": w.filename,
            "url": w.url,
            "sha256": w.sha256,
        }
        for w in wheels
    }


def test_two_wheels_for_one_package_are_named(evaluate):
    wheels = ["nvidia_nvtx_cu12-12.6-a.whl", "nvidia_nvtx_cu12-12.6-b.whl"]

    done = evaluate(pylock_of(("nvidia-nvtx-cu12", "12.6", wheels)))

    assert done.returncode != 0
    assert "nvidia-nvtx-cu12: pylock.toml has 2 wheels for it" in done.stderr
    assert ", ".join(wheels) in " ".join(done.stderr.split())


def test_the_renderers_own_lock_is_named_with_what_makes_it(system_nix, tmp_path):
    lock = tmp_path / "pylock.renderer.toml"
    url = "https://nowhere/deflate-{}-py3-none-any.whl"
    rows = [f'{{ url = "{url.format(v)}", hashes = {{ sha256 = "{"0" * 64}" }} }}' for v in (1, 2)]
    lock.write_text(
        'lock-version = "1.0"\n[[packages]]\nname = "deflate"\nversion = "1"\n'
        f"wheels = [{', '.join(rows)}]\n"
    )

    done = system_nix.build(
        f"(import {REPOSITORY}/nix/renderer.nix {{ inherit pkgs; inherit (small {{ }}) wheels "
        f"wheelhouse; pylock = {lock}; }}).variables.PYTHONPATH",
        tmp_path / "link",
    )

    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "deflate: pylock.renderer.toml has 2 wheels for it (deflate-1-py3-none-any.whl, " in said
    assert "make it again with: .ci/requirements" in said


def test_a_package_locked_twice_is_named(evaluate):
    rows = [("torch", version, [f"torch-{version}.whl"]) for version in ("2.7.0", "2.7.1")]

    done = evaluate(pylock_of(*rows))

    assert done.returncode != 0
    assert "torch: pylock.toml has it 2 times, in versions 2.7.0 and 2.7.1" in done.stderr


def test_a_package_without_wheels_is_named(evaluate):
    done = evaluate(pylock_of(("torch", "2.7.1", [])))

    assert done.returncode != 0
    assert "torch: pylock.toml has 0 wheels for it" in done.stderr


def test_a_malformed_hash_is_named(evaluate):
    text = pylock_of(("torch", "2.7.1", ["torch-2.7.1.whl"])).replace("0" * 64, "0" * 63)

    done = evaluate(text)

    assert done.returncode != 0
    assert "torch-2.7.1.whl: pylock.toml has no sha256" in done.stderr


@pytest.mark.parametrize("system", ["aarch64-linux", "aarch64-darwin", "riscv64-linux"])
def test_a_system_without_wheels_is_named(evaluate, system):
    done = evaluate(pylock_of(("torch", "2.7.1", ["torch-2.7.1.whl"])), system)

    assert done.returncode != 0
    assert f"{system}: pylock.toml has no wheels for it" in done.stderr


def test_another_version_of_the_format_is_refused(evaluate):
    done = evaluate(pylock_of().replace('"1.0"', '"2.0"'))

    assert done.returncode != 0
    assert "pylock.toml is no PEP 751 lock of version 1.0" in done.stderr


@pytest.fixture(scope="module")
def packaging(system_nix: Nix) -> tuple[Package, Path]:
    """The locked wheel of `packaging`, which the builders themselves need."""
    wheels = read_lock(REPOSITORY / "conda-lock.yml").wheels("linux-64")
    [wheel] = [w for w in wheels if w.name == "packaging"]
    [path] = fetch([wheel], default_store(), mirrors=index_mirrors)
    system_nix.out("--add-fixed", "sha256", path, program="nix-store")
    return wheel, path


def small_world(
    directory: Path,
    packaging: tuple[Package, Path],
    wheels: Mapping[Path, Package],
    recorded: Mapping[Path, Package] | None = None,
) -> str:
    """Lock wheels and record trees; return the arguments of nix/default.nix."""
    lock = lock_of([packaging[0], *wheels.values()])
    (directory / "pylock.toml").write_text(render_pylock(lock))
    held = [packaging, *((p, path) for path, p in (recorded or wheels).items())]
    records = record(held, "linux-64")
    write_records(records, directory, lambda path, data: path.write_bytes(data) and None)
    return (
        f"{{ pylock = {directory}/pylock.toml; "
        f'records = builtins.toFile "records" (builtins.readFile {directory}/linux-64.json); }}'
    )


def local(*paths: Path) -> dict[Path, Package]:
    return {path: locked_wheel(path, path.parent.as_uri()) for path in paths}


def test_a_wrong_hash_names_the_wheel(system_nix, tmp_path, packaging):
    wheel = build_wheel(tmp_path, "alpha")
    locked = {wheel: replace(locked_wheel(wheel, tmp_path.as_uri()), sha256="1" * 64)}
    world = small_world(tmp_path, packaging, locked)

    done = system_nix.build(f"(small {world}).site-packages", tmp_path / "link")

    assert done.returncode != 0
    assert "hash mismatch in fixed-output derivation" in done.stderr
    assert f"{wheel.name}.drv" in done.stderr


def test_wheels_that_disagree_about_a_path_are_named(system_nix, tmp_path, packaging):
    one = build_wheel(tmp_path, "one", files={"shared/__init__.py": b"1\n"})
    two = build_wheel(tmp_path, "two", files={"shared/__init__.py": b"2\n"})
    # No records can be made of them: these are those of wheels that agree.
    sound = tmp_path / "sound"
    sound.mkdir()
    locked = local(one, two)
    recorded = {build_wheel(sound, wheel.name): wheel for wheel in locked.values()}
    world = small_world(tmp_path, packaging, locked, recorded)

    done = system_nix.build(f"(small {world}).site-packages", tmp_path / "link")

    assert done.returncode != 0
    assert f"{one.name} and {two.name} disagree about shared/__init__.py" in done.stderr


def test_a_wheel_that_contradicts_its_record_is_named(system_nix, tmp_path, packaging):
    claimed = {"alpha/__init__.py": "sha256=" + "A" * 43}
    wheel = build_wheel(tmp_path, "alpha", record=claimed)
    (tmp_path / "sound").mkdir()
    sound = build_wheel(tmp_path / "sound", "alpha")
    locked = local(wheel)
    world = small_world(tmp_path, packaging, locked, recorded={sound: locked[wheel]})

    done = system_nix.build(f"(small {world}).site-packages", tmp_path / "link")

    assert done.returncode != 0
    assert f"{wheel.name}: alpha/__init__.py has sha256" in done.stderr


def test_a_tree_that_is_not_the_recorded_one_is_refused(system_nix, tmp_path, packaging):
    wheel = build_wheel(tmp_path, "alpha")
    world = small_world(tmp_path, packaging, local(wheel))
    path = tmp_path / "linux-64.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tree": f"sha256-{'A' * 43}="}))

    done = system_nix.build(f"(small {world}).site-packages", tmp_path / "link")

    assert done.returncode != 0
    assert "hash mismatch in fixed-output derivation" in done.stderr
    assert "-site-packages-" in done.stderr


def test_records_of_other_wheels_are_named(system_nix, tmp_path, packaging):
    wheel, other = build_wheel(tmp_path, "alpha"), build_wheel(tmp_path, "beta")
    world = small_world(tmp_path, packaging, local(wheel), recorded=local(other))

    done = system_nix.build(f"(small {world}).site-packages", tmp_path / "link")

    assert done.returncode != 0
    assert "the recorded trees are not those of the locked wheels: alpha, beta" in done.stderr


def test_scripts_that_disagree_are_named(system_nix, tmp_path, packaging):
    entry = "[console_scripts]\ngreet = {}:main\n"
    one = build_wheel(tmp_path, "one", entry_points=entry.format("one"))
    two = build_wheel(tmp_path, "two", entry_points=entry.format("two"))
    world = small_world(tmp_path, packaging, local(one, two))

    done = system_nix.build(f"(small {world}).environment", tmp_path / "link")

    assert done.returncode != 0
    assert f"{one.name} and {two.name} disagree about the script greet" in done.stderr


@pytest.fixture(scope="module")
def environment(
    system_nix: Nix, tmp_path_factory: pytest.TempPathFactory, packaging: tuple[Package, Path]
) -> Path:
    """An environment of two small wheels that share one identical file."""
    directory = tmp_path_factory.mktemp("small")
    greet = b"import sys\n\ndef main():\n    print('greeting', sys.prefix)\n    return 3\n"
    alpha = build_wheel(
        directory,
        "alpha",
        files={
            "alpha/__init__.py": greet,
            "alpha/template.py": b"this is {{ no }} python\n",
            "shared/__init__.py": b"",
            "alpha-1.0.data/scripts/hello": b"#!python\nprint('hello')\n",
            "alpha-1.0.data/data/share/alpha/figure.txt": b"figure\n",
            "alpha-1.0.data/headers/alpha.h": b"#define ALPHA 1\n",
        },
        entry_points="[console_scripts]\ngreet = alpha:main [extra]\n",
    )
    beta = build_wheel(directory, "beta", files={"shared/__init__.py": b"", "beta.py": b"X = 1\n"})
    world = small_world(directory, packaging, local(alpha, beta))
    link = directory / "environment"
    done = system_nix.build(f"(small {world}).environment", link)
    assert done.returncode == 0, done.stderr
    return link.resolve()


def test_entry_point_runs_in_the_environment_and_hands_on_its_code(environment):
    done = run(environment / "bin" / "greet")

    assert (done.returncode, done.stdout) == (3, f"greeting {environment}\n")


def test_data_files_lie_where_an_installer_puts_them(environment):
    assert run(environment / "bin" / "hello").stdout == "hello\n"
    assert (environment / "share/alpha/figure.txt").read_bytes() == b"figure\n"
    header = environment / "include/site/python3.11/alpha/alpha.h"
    assert header.read_bytes() == b"#define ALPHA 1\n"


def test_modules_come_with_byte_code_and_nothing_is_written(environment):
    code = "import alpha, argparse; print(alpha.__cached__); print(argparse.__cached__)"

    done = run(environment / "bin" / "python", "-v", "-c", code)

    for cached in done.stdout.split():
        assert cached.startswith(str(environment / "lib/pycache"))
        assert f"matches {cached}" not in done.stderr  # never checked against the source
        assert f"code object from '{cached}'" in done.stderr
    assert "wrote" not in done.stderr


def test_files_that_differ_are_repaired_by_nix(environment, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "validate", "--prefix", environment, "--only", "gpu"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert f"{environment} is not what the lock says" in done.stderr
    assert f"next: nix store repair --recursive {environment}\n" in done.stderr


def test_a_file_that_is_no_python_has_no_byte_code(environment):
    site = environment / "lib/python3.11/site-packages"
    compiled = environment / "lib/pycache" / str(site)[1:] / "alpha"

    assert [path.name for path in compiled.iterdir()] == ["__init__.cpython-311.pyc"]


def test_child_processes_are_the_same_python_with_the_callers_library_path(environment):
    code = (
        "import os, subprocess, sys; print(sys.prefix, flush=True); "
        "subprocess.run([sys.executable, '-c', "
        "'import os, sys; print(sys.prefix, os.environ[\"LD_LIBRARY_PATH\"])'], check=True)"
    )

    done = run(environment / "bin" / "python", "-c", code, LD_LIBRARY_PATH="/the/callers")

    assert done.stdout == f"{environment}\n{environment} /the/callers\n"


LOAD = "import ctypes, os; ctypes.CDLL('libcuda.so.1').cuInit(0); "
LOAD += "print(os.environ.get('TRITON_LIBCUDA_PATH'))"


def test_the_loader_finds_libstdcxx_and_libgcc(environment):
    code = "import ctypes; ctypes.CDLL('libstdc++.so.6'); ctypes.CDLL('libgcc_s.so.1')"

    done = run(environment / "bin" / "python", "-c", code, LD_DEBUG="libs")

    assert done.returncode == 0, done.stderr
    for library in ("libstdc++.so.6", "libgcc_s.so.1"):
        found = re.search(rf"calling init: (\S+)/lib/{re.escape(library)}", done.stderr)
        assert found is not None
        assert found[1].endswith("-host-libraries")


def test_compilers_are_the_environments_unless_the_caller_names_others(environment):
    code = "import os; print(os.environ['CC'], os.environ['CXX'], os.environ['TRITON_PTXAS_PATH'])"
    python = environment / "bin" / "python"

    own = run(python, "-c", code).stdout.split()
    named = run(python, "-c", code, CC="mine", CXX="yours", TRITON_PTXAS_PATH="ours").stdout

    assert [Path(path).name for path in own] == ["cc", "c++", "ptxas"]
    assert all(os.access(path, os.X_OK) for path in own)
    assert named == "mine yours ours\n"


def test_without_a_driver_python_starts_and_says_nothing(environment, tmp_path):
    done = run(environment / "bin" / "python", "-c", "print(1)", HOME=str(tmp_path))

    assert (done.stdout, done.stderr) == ("1\n", "")
    assert list(tmp_path.iterdir()) == []


def test_nixos_driver_is_used_where_it_lies(environment, driver, tmp_path):
    mounts = f"mount -t tmpfs none /run; mkdir /run/opengl-driver; ln -s {driver} "
    mounts += "/run/opengl-driver/lib"

    done = on_a_host_with(
        mounts, environment / "bin" / "python", "-c", LOAD, HOME=str(tmp_path), PATH=PATH
    )

    assert done.stdout == "/run/opengl-driver/lib\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_wsl_driver_is_used_where_it_lies(environment, driver, tmp_path):
    (tmp_path / "lib" / "wsl").mkdir(parents=True)
    (tmp_path / "lib" / "wsl" / "lib").symlink_to(driver)
    mounts = f"mount -t overlay none -o lowerdir={tmp_path}/lib:/usr/lib /usr/lib"
    home = tmp_path / "home"
    home.mkdir()

    done = on_a_host_with(
        mounts, environment / "bin" / "python", "-c", LOAD, HOME=str(home), PATH=PATH
    )

    assert done.stdout == "/usr/lib/wsl/lib\n", done.stderr
    assert list(home.iterdir()) == []


def test_host_driver_is_linked_without_its_neighbours(environment, driver, tmp_path):
    python = environment / "bin" / "python"

    done = on_a_host_with(host_driver(driver), python, "-c", LOAD, HOME=str(tmp_path), PATH=PATH)

    links = Path(done.stdout.strip())
    assert links.is_relative_to(tmp_path / ".cache/torchlock/driver"), done.stderr
    assert sorted(path.name for path in links.iterdir()) == [
        "libcuda.so",
        "libcuda.so.1",
        "libcuda.so.570.86",
        "libnvidia-ml.so.1",
        "libnvidia-nvvm.so.570.86",
    ]
    assert all(path.exists() for path in links.iterdir())


def test_an_updated_host_driver_gets_links_of_its_own(environment, driver, tmp_path):
    python = environment / "bin" / "python"
    updated = tmp_path / "updated"
    updated.mkdir()
    for path in driver.glob("lib*"):
        name = path.name.replace("570.86", "575.51")
        if path.is_symlink():
            (updated / name).symlink_to("libcuda.so.575.51")
        else:
            (updated / name).write_bytes(path.read_bytes())
    command = (python, "-c", LOAD)
    before = on_a_host_with(host_driver(driver), *command, HOME=str(tmp_path), PATH=PATH)
    swap = f"mount --bind {updated} {driver}; {host_driver(driver)}"

    after = on_a_host_with(swap, *command, HOME=str(tmp_path), PATH=PATH)

    assert before.returncode == after.returncode == 0, after.stderr
    names = sorted(path.name for path in Path(after.stdout.strip()).iterdir())
    assert "libcuda.so.575.51" in names
    assert not [name for name in names if "570.86" in name]


def test_processes_that_start_at_once_share_one_directory(environment, driver, tmp_path):
    start = f'for i in 1 2 3 4 5 6; do {environment}/bin/python -c "{LOAD}" & done; wait'

    done = on_a_host_with(host_driver(driver), "bash", "-c", start, HOME=str(tmp_path), PATH=PATH)

    links = done.stdout.split()
    assert (len(links), len(set(links)), done.stderr) == (6, 1, "")
    assert list((tmp_path / ".cache/torchlock/driver").iterdir()) == [Path(links[0])]


def test_links_that_cannot_be_made_are_said_to_be_missing(environment, driver, tmp_path):
    (tmp_path / ".cache").write_text("a file in the way")

    done = on_a_host_with(
        host_driver(driver), environment / "bin" / "python", "-c", "print(1)",
        HOME=str(tmp_path), PATH=PATH,
    )  # fmt: skip

    assert done.stdout == "1\n"
    assert f"torchlock: {tmp_path}/.cache/torchlock/driver cannot be written" in done.stderr
    assert "CUDA will not be found" in done.stderr
