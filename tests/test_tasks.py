"""The verbs as a user types them: exit codes, JSON, and no traceback for foreseeable faults."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchlock.repository import this_repository

ROOT = this_repository().root


def invoke(*arguments: str, cwd: Path = ROOT, **environment: str):
    return subprocess.run(
        [sys.executable, "-m", "invoke", *arguments],
        cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the repository to damage."""
    target = tmp_path / "clone"
    ignored = shutil.ignore_patterns(".git", ".venv", "env", "tests", "__pycache__")
    shutil.copytree(ROOT, target, ignore=ignored)
    return target


def test_an_environment_from_a_full_store_needs_no_http_no_solver_and_no_display():
    """They take as long to import as the rest of the command takes to start."""
    program = (
        "import sys, tasks, torchlock.mirrors, torchlock.realize.choice, torchlock.realize.venv; "
        "print(sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(ast.literal_eval(done.stdout))
    assert {"torchlock", "invoke", "yaml"} <= loaded
    assert not loaded & {"requests", "urllib3", "truststore", "rich", "rattler", "conda_lock"}


def test_lists_every_verb():
    done = invoke("--list")
    assert done.returncode == 0
    verbs = {"compare", "doctor", "env", "image", "load", "lock", "push", "record", "validate"}
    assert verbs <= set(done.stdout.split())


def test_lock_check_holds_without_network():
    offline = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    done = invoke("lock", "--check", "--json", "-", **offline)
    assert done.returncode == 0, done.stderr
    assert [c["fault"] for c in json.loads(done.stdout)] == [""] * 6


def test_lock_check_fails_when_a_view_drifts(clone):
    (clone / "pylock.toml").write_text("lock-version = '1.0'\n")
    done = invoke("lock", "--check", cwd=clone)
    assert done.returncode == 1
    assert "pylock.toml is not the view of the lock's pip half" in done.stdout
    assert "next: invoke lock" in done.stderr


def test_lock_check_fails_when_a_wheel_is_not_the_recorded_one(clone):
    lock = clone / "conda-lock.yml"
    torch = "06eea61f859436622e78dd0cdd51dbc8f8c6d76917a9cf0555a333f9eac31ec1"
    lock.write_text(lock.read_text().replace(torch, "0" * 63 + "a"))
    done = invoke("lock", "--check", cwd=clone)
    assert done.returncode == 1
    assert "the recorded trees are not those of the locked wheels: torch" in done.stdout


def test_a_damaged_lock_cannot_be_judged(clone):
    (clone / "conda-lock.yml").write_text("version: 1\npackage: []\n")
    done = invoke("lock", "--check", cwd=clone)
    assert done.returncode == 2
    assert "field `metadata` is missing" in done.stderr
    assert "git checkout conda-lock.yml" in done.stderr
    assert "Traceback" not in done.stderr


def test_env_refuses_a_prefix_that_holds_something_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    done = invoke("env", "--prefix", str(tmp_path))
    assert done.returncode == 2
    assert f"{tmp_path} exists and torchlock did not make it" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_env_without_network_and_with_an_empty_store(tmp_path):
    done = invoke(
        "env", "--prefix", str(tmp_path / "env"),
        TORCHLOCK_CACHE=str(tmp_path / "store"),
        HTTPS_PROXY="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9",
        PIP_INDEX_URL="", UV_DEFAULT_INDEX="",
    )  # fmt: skip
    assert done.returncode == 2
    assert "the proxy cannot be reached" in done.stderr
    assert "next: check the network" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "env").exists()


def test_validate_a_prefix_that_is_none(tmp_path):
    done = invoke("validate", "--prefix", str(tmp_path))
    assert done.returncode == 2
    assert "holds no CPython 3.11 environment" in done.stderr
    assert f"invoke env --prefix {tmp_path}" in done.stderr


def test_json_to_a_place_that_cannot_be_written():
    done = invoke("lock", "--check", "--json", "/nowhere/at/all.json")
    assert done.returncode == 2
    assert "/nowhere/at/all.json cannot be written" in done.stderr


def test_doctor_judges_a_message(tmp_path):
    target = tmp_path / "findings.json"
    message = "The NVIDIA driver on your system is too old (found version 11040)"
    done = invoke("doctor", "--error", message, "--json", str(target))
    assert done.returncode == 1, done.stderr
    assert "driver" in done.stdout
    assert json.loads(target.read_text())["findings"][0]["kind"] == "driver-version"


def test_compare_what_is_no_certificate(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    done = invoke("compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "a.json" in done.stderr + done.stdout


def test_sign_needs_a_certificate_in_a_file():
    done = invoke("validate", "--sign", "key")
    assert done.returncode == 2
    assert "--sign needs the certificate in a file" in done.stderr


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python that has nothing the tool runs on, as the stack's own has not."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare" / "bin" / "python"


HAND_OVER = "from torchlock.handover import hand_over; hand_over()"


def test_another_invoke_hands_over_to_the_tools_own(bare_python, clone):
    (clone / ".venv").symlink_to(sys.prefix)
    done = subprocess.run(
        [bare_python, "-c", HAND_OVER, "--list"],
        cwd=clone, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "validate" in done.stdout


def test_another_invoke_without_the_tools_own_says_what_to_type(bare_python, clone):
    done = subprocess.run(
        [bare_python, "-c", HAND_OVER], cwd=clone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "lacks what torchlock runs on" in done.stderr
    assert "pip install --require-hashes -r requirements.txt" in done.stderr


def test_a_name_and_a_prefix_are_two_places(tmp_path):
    done = invoke("env", "--name", "pt27", "--prefix", str(tmp_path))
    assert done.returncode == 2
    assert "name two places" in done.stderr


def test_a_name_and_the_default_prefix_are_two_places():
    done = invoke("env", "--name", "pt27", "--prefix", "env")
    assert done.returncode == 2
    assert "name two places" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("env", "--name", ""), ("validate", "--prefix", ""), ("validate", "--json", ""),
     ("lock", "--nixpkgs", ""), ("verify", "", "signers")],
    ids=" ".join,
)  # fmt: skip
def test_what_an_unset_variable_gives_is_refused(words, clone):
    done = invoke(*words, cwd=clone)
    assert done.returncode == 2
    assert "is given, but empty" in done.stderr
    assert not (clone / "env").exists()


@pytest.mark.parametrize("name", ["a:b", "a\nb"])
def test_a_prefix_that_could_not_work_is_refused_before_anything_is_written(tmp_path, name):
    done = invoke("env", "--prefix", str(tmp_path / name), TORCHLOCK_CACHE=str(tmp_path / "store"))
    assert done.returncode == 2
    assert "cannot be a venv prefix" in done.stderr
    assert not any(tmp_path.iterdir())


def test_a_prefix_of_bytes_that_are_no_text_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "env", "--prefix", bytes(tmp_path) + b"/a\xff"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert b"cannot be a venv prefix: '\\udcff'" in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["env", "validate"])
def test_a_loop_of_links_is_no_place(tmp_path, verb):
    (tmp_path / "loop").symlink_to("loop")
    done = invoke(verb, "--prefix", str(tmp_path / "loop"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "next: " in done.stderr
    assert verb == "validate" or "Too many levels of symbolic links" in done.stderr


def test_a_command_to_type_next_can_be_typed(tmp_path):
    place = tmp_path / "it's a place"
    place.mkdir()
    done = invoke("validate", "--prefix", str(place))
    command = done.stderr.partition("next: make one with: ")[2].splitlines()[0]
    assert shlex.split(command) == ["invoke", "env", "--prefix", str(place)]
    done = invoke("push", "127.0.0.1:1/lab/image", "--out", str(place))
    command = done.stderr.partition("next: ")[2].splitlines()[0]
    assert shlex.split(command)[:4] == ["invoke", "image", "--out", str(place)]


def test_a_check_that_does_not_exist_is_refused_before_anything_is_read(tmp_path):
    done = invoke("validate", "--prefix", str(tmp_path), "--only", "transformer,nubmers")
    assert done.returncode == 2
    assert "there is no check 'nubmers'" in done.stderr
    assert "next: --only with some of stack,transformer,resume" in done.stderr
    assert "checking the files" not in done.stderr


def test_a_certificate_of_an_earlier_run_is_not_signed(clone, tmp_path):
    certificate = tmp_path / "c.json"
    certificate.write_text("{}")
    (clone / "torchlock" / "records" / "linux-64.json").unlink()
    prefix = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    prefix.mkdir(parents=True)
    done = invoke(
        "validate", "--prefix", str(tmp_path / "env"), "--json", str(certificate),
        "--sign", "nokey", cwd=clone,
    )  # fmt: skip
    assert done.returncode == 2
    assert certificate.read_text() == "{}"
    assert not certificate.with_name("c.json.sig").exists()


def test_an_empty_pip_section_is_no_traceback(clone):
    (clone / "environment.yml").write_text(
        "channels: [conda-forge]\nplatforms: [linux-64]\ndependencies:\n  - python\n  - pip:\n"
    )
    done = invoke("lock", "--check", cwd=clone)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_damaged_constraint_in_the_lock_is_no_traceback(clone):
    lock = clone / "conda-lock.yml"
    lock.write_text(lock.read_text().replace("anyio: '>=3.1.0'", "anyio: '=>3'", 1))
    done = invoke("lock", "--check", cwd=clone)
    assert done.returncode == 1
    assert "a version or constraint is none" in done.stdout
    assert "Traceback" not in done.stderr
