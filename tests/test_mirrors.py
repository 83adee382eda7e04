"""The user's index mirror, asked by the real uv: it may serve the locked bytes, nothing else."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace

import pytest

from tests.support.index import write_index
from tests.support.locks import locked_wheel
from tests.support.wheels import build_wheel
from torchlock import userconfig
from torchlock.artifacts import fetch
from torchlock.mirrors import index_mirrors

SETTINGS = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    for name in [n for n in os.environ if n.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    userconfig._pip_config.cache_clear()
    yield
    userconfig._pip_config.cache_clear()


@pytest.fixture
def locked(files):
    """Two wheels on the mirror, locked at a place that cannot be reached."""
    built = [build_wheel(files, "alpha", "1.0"), build_wheel(files, "beta-b", "2.0+local.1")]
    write_index(files)
    return [locked_wheel(path, "http://127.0.0.1:9") for path in built]


def test_without_a_mirror_nothing_is_asked(locked, server):
    assert index_mirrors(locked) == {}
    assert server.requests == []


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_mirror_of_uv_or_pip_serves_the_locked_wheels(
    locked, server, store, monkeypatch, setting
):
    monkeypatch.setenv(setting, f"{server.url}/simple")
    paths = fetch(locked, store, mirrors=index_mirrors)
    assert [hashlib.sha256(p.read_bytes()).hexdigest() for p in paths] == [
        package.sha256 for package in locked
    ]


def test_a_mirror_in_uvs_own_settings(locked, server, monkeypatch, tmp_path):
    (tmp_path / "uv").mkdir()
    settings = f'[[index]]\nurl = "{server.url}/simple"\ndefault = true\n'
    (tmp_path / "uv" / "uv.toml").write_text(settings)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert set(index_mirrors(locked)) == {wheel.sha256 for wheel in locked}
    (tmp_path / "uv" / "uv.toml").unlink()
    assert index_mirrors(locked) == {}
    monkeypatch.setenv("UV_INDEX", f"{server.url}/simple")
    assert set(index_mirrors(locked)) == {wheel.sha256 for wheel in locked}


def test_a_mirror_in_pips_configuration_file(locked, server, monkeypatch, tmp_path):
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {server.url}/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert index_mirrors(locked).keys() == {package.sha256 for package in locked}


def test_credentials_of_the_index_go_to_the_files_on_its_host(locked, server, monkeypatch):
    address = server.url.replace("://", "://user:sesame@")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{address}/simple")
    (urls,) = {tuple(v) for k, v in index_mirrors(locked[:1]).items()}
    assert urls == (f"{address}/{locked[0].filename}",)


def test_what_a_mirror_lacks_is_not_looked_for_there_and_the_rest_is(
    locked, server, files, monkeypatch, capfd
):
    (files / "simple/alpha/index.html").unlink()
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple")
    assert index_mirrors(locked) == {
        locked[1].sha256: [f"{server.url}/{locked[1].filename}"],
    }
    assert capfd.readouterr().err == ""


def test_another_build_on_the_mirror_is_not_the_locked_one(
    locked, server, files, store, monkeypatch
):
    build_wheel(files, "alpha", "1.0", files={"alpha.py": b"another build\n"})
    write_index(files)
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple")
    assert locked[0].sha256 not in index_mirrors(locked[:1])


@pytest.mark.parametrize("page", ["no hash", "md5", "empty", "junk"])
def test_a_mirror_of_little_worth_is_passed_over(locked, server, files, monkeypatch, page):
    path = files / "simple/alpha/index.html"
    name = locked[0].filename
    path.write_text(
        {
            "no hash": f'<!DOCTYPE html><a href="/{name}">{name}</a>',
            "md5": f'<!DOCTYPE html><a href="/{name}#md5={"0" * 32}">{name}</a>',
            "empty": "",
            "junk": "\0\0<<<",
        }[page]
    )
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple")
    # Without a hash uv reads the file and computes it.
    assert set(index_mirrors(locked[:1])) == ({locked[0].sha256} if page == "no hash" else set())


def test_a_mirror_that_does_not_answer_is_passed_over(locked, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    assert index_mirrors(locked) == {}


def test_conda_packages_are_not_asked_for(locked, server, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple")
    conda = replace(locked[0], manager="conda", url=f"{server.url}/zlib-1.3-h1_0.conda")
    assert index_mirrors([conda]) == {}
    assert server.requests == []
