"""Making the lock: a real solve over a slice of conda-forge, a real resolution over an index."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import rattler

from tests.support.index import CHANNEL, write_condarc, write_index
from tests.support.server import Served
from tests.support.wheels import build_wheel
from torchlock import relock, userconfig
from torchlock.artifacts import Store
from torchlock.check import check_lock
from torchlock.errors import TorchlockError
from torchlock.lock import read_lock
from torchlock.repository import Repository

ENVIRONMENT = """
name: small
channels: [conda-forge]
platforms: [linux-64]
dependencies:
  - python 3.11.*
  - tini
  - pip
  - pip:
      - alpha>=1
      - gamma[fast]
"""


@pytest.fixture
def repository(tmp_path: Path, files: Path, server: Served, monkeypatch) -> Repository:
    """A repository whose channel is the slice and whose index is on 127.0.0.1."""
    build_wheel(files, "alpha", "1.0", requires=("beta<3",))
    build_wheel(files, "beta", "1.0")
    build_wheel(files, "beta", "2.0")
    build_wheel(files, "beta", "3.0")
    build_wheel(files, "gamma", "1.0", requires=('delta>=1; extra == "fast"', 'nope; extra == "x"'))
    build_wheel(files, "delta", "1.5", requires=('nope; sys_platform == "win32"',))
    write_index(files)
    write_condarc(tmp_path / "condarc")
    monkeypatch.setenv("CONDARC", str(tmp_path / "condarc"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_NO_CACHE", "1")
    userconfig._pip_config.cache_clear()
    root = tmp_path / "repository"
    root.mkdir()
    (root / "environment.yml").write_text(ENVIRONMENT)
    return Repository(root)


def versions(repository: Repository) -> dict[str, str]:
    return {p.name: p.version for p in read_lock(repository.lock).wheels("linux-64")}


def test_locks_both_halves_with_canonical_urls(repository, store, server):
    rows = relock.relock(repository, store)
    lock = read_lock(repository.lock)
    assert versions(repository) == {"alpha": "1.0", "beta": "2.0", "delta": "1.5", "gamma": "1.0"}
    python = next(p for p in lock.conda_packages("linux-64") if p.name == "python")
    assert python.version.startswith("3.11.")
    assert python.url.startswith("https://") and "/conda-forge/linux-64/python-3.11." in python.url
    assert all(p.url.startswith(server.url) for p in lock.wheels("linux-64"))
    assert {r.name for r in rows} == {p.name for p in lock.packages}
    assert all(r.before == "" for r in rows)


def test_dependencies_are_noted_with_extras_and_markers_judged(repository, store):
    relock.relock(repository, store)
    noted = {p.name: dict(p.dependencies) for p in read_lock(repository.lock).wheels("linux-64")}
    assert noted == {
        "alpha": {"beta": "<3"},
        "beta": {},
        "delta": {},
        "gamma": {"delta": ">=1"},
    }


@pytest.mark.parametrize(
    ("first", "second"), [("one", "two"), ("one", "one/label/x"), ("two/label/x", "two")]
)
def test_a_name_that_stands_for_several_channels_is_all_of_them(
    repository, store, tmp_path, first, second
):
    """The first has no tini; both have every other package, and the first one's is taken."""
    for channel, wanted in ((first, lambda name: name != "tini"), (second, lambda name: True)):
        for path in CHANNEL.glob("*/repodata.json"):
            index = json.loads(path.read_text())
            for kind in ("packages", "packages.conda"):
                rows = index.get(kind, {}).items()
                index[kind] = {file: row for file, row in rows if wanted(row["name"])}
                for row in index[kind].values():
                    row["md5"] = ("1" if channel == first else "2") * 32
            (tmp_path / channel / path.parent.name).mkdir(parents=True)
            (tmp_path / channel / path.parent.name / path.name).write_text(json.dumps(index))
    urls = ", ".join((tmp_path / channel).as_uri() for channel in (first, second))
    (tmp_path / "condarc").write_text(f"custom_multichannels:\n  conda-forge: [{urls}]\n")
    relock.relock(repository, store)
    packages = read_lock(repository.lock).conda_packages("linux-64")
    assert len(packages) > 10
    assert {p.name for p in packages if p.md5.startswith("2")} == {"tini"}
    above = rattler.Channel("conda-forge").base_url
    assert {p.url.removeprefix(above).count("/") for p in packages} == {1}, "subdir and file name"


def test_again_changes_nothing(repository, store):
    relock.relock(repository, store)
    before = repository.lock.read_bytes(), repository.pylock.read_bytes()
    assert relock.relock(repository, store) == []
    assert (repository.lock.read_bytes(), repository.pylock.read_bytes()) == before


def test_what_need_not_change_is_kept_and_upgrade_moves_one(repository, store, files):
    relock.relock(repository, store)
    build_wheel(files, "beta", "2.5")
    build_wheel(files, "delta", "1.7")
    write_index(files)
    assert relock.relock(repository, store) == []
    (row,) = relock.relock(repository, store, upgrade="beta")
    assert (row.name, row.before, row.after) == ("beta", "2.0", "2.5")
    assert versions(repository)["delta"] == "1.5"


def test_an_older_conda_package_is_kept_until_upgraded(repository, store):
    repository.environment.write_text(ENVIRONMENT.replace("- tini", "- tini\n  - openssl <3.6"))
    relock.relock(repository, store)
    old = {p.name: p.version for p in read_lock(repository.lock).conda_packages("linux-64")}
    repository.environment.write_text(ENVIRONMENT)
    relock.relock(repository, store)
    kept = {p.name: p.version for p in read_lock(repository.lock).conda_packages("linux-64")}
    assert kept["openssl"] == old["openssl"]
    relock.relock(repository, store, upgrade="openssl")
    new = {p.name: p.version for p in read_lock(repository.lock).conda_packages("linux-64")}
    assert new["openssl"] != old["openssl"]


def test_upgrade_of_what_is_not_locked(repository, store):
    relock.relock(repository, store)
    with pytest.raises(TorchlockError, match="nothere is not in the lock"):
        relock.relock(repository, store, upgrade="nothere")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("alpha>=1", "alpha>=9"), "alpha"),
        (("- tini", "- no-such-tool"), "no-such-tool"),
        (("alpha>=1", "alpha @ https://index.example/alpha-1.0-py3-none-any.whl"), "names a URL"),
        (("alpha>=1", "alpha>>1"), "is no requirement"),
        (("linux-64", "plan9-64"), "unknown platform 'plan9-64'"),
        (("dependencies:", "dependenceis:"), "no list `dependencies:`"),
        (("name: small", "name: [small"), "cannot be read"),
    ],
)
def test_a_request_that_cannot_be_met_leaves_the_lock(repository, store, change, says):
    relock.relock(repository, store)
    before = repository.lock.read_bytes(), repository.pylock.read_bytes()
    repository.environment.write_text(ENVIRONMENT.replace(*change))
    with pytest.raises(TorchlockError) as caught:
        relock.relock(repository, store)
    assert says in str(caught.value)
    assert (repository.lock.read_bytes(), repository.pylock.read_bytes()) == before


def test_a_package_without_a_wheel_for_the_platform(repository, store, files):
    build_wheel(files, "onlymac", "1.0", tag="cp311-cp311-macosx_11_0_arm64")
    write_index(files)
    repository.environment.write_text(ENVIRONMENT.replace("alpha>=1", "onlymac"))
    with pytest.raises(TorchlockError, match="onlymac"):
        relock.relock(repository, store)


def test_an_unreachable_channel_is_named_with_where_to_point_it(repository, store, tmp_path):
    (tmp_path / "condarc").write_text("custom_channels:\n  conda-forge: http://127.0.0.1:9\n")
    with pytest.raises(TorchlockError, match=r"127\.0\.0\.1:9") as caught:
        relock.relock(repository, store)
    assert ".condarc" in caught.value.hint


def test_a_channels_credentials_are_neither_shown_nor_locked(repository, store, tmp_path, files):
    (tmp_path / "condarc").write_text(
        "custom_channels:\n  conda-forge: http://user:sesame@127.0.0.1:9/t/tk-sesame/base\n"
    )
    with pytest.raises(
        TorchlockError, match=r"127\.0\.0\.1:9/base/t/<TOKEN>/conda-forge"
    ) as caught:
        relock.relock(repository, store)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("secret", ["user:sesame@h.example", "h.example/t/tk-sesame"])
def test_a_channel_that_is_given_with_credentials_is_refused(repository, store, secret):
    channel = f"https://{secret}/mine"
    repository.environment.write_text(ENVIRONMENT.replace("conda-forge]", f"'{channel}']"))
    with pytest.raises(TorchlockError, match="is given with credentials") as caught:
        relock.relock(repository, store)
    assert "sesame" not in str(caught.value)
    assert not repository.lock.exists()


def test_an_index_read_with_credentials_is_locked_without(
    repository, store, tmp_path, server, files
):
    shutil.copytree(CHANNEL, files / "t" / "tk-sesame" / CHANNEL.name)
    address = server.url.removeprefix("http://")
    (tmp_path / "condarc").write_text(f"channel_alias: http://user:sesame@{address}/t/tk-sesame\n")
    relock.relock(repository, store)
    text = repository.lock.read_text()
    assert "sesame" not in text
    assert "127.0.0.1" not in text.partition("manager: pip")[0]


def faults(repository: Repository) -> dict[str, str]:
    return {c.name: c.fault for c in check_lock(repository) if c.fault}


def test_check_holds_after_lock_but_for_what_it_does_not_make(repository, store):
    relock.relock(repository, store)
    assert set(faults(repository)) == {"recorded trees", "flake.lock"}  # made by other verbs


def test_check_sees_another_request(repository, store):
    relock.relock(repository, store)
    repository.environment.write_text(ENVIRONMENT.replace("- tini", "- tini\n  - zlib"))
    assert "asks for something else" in faults(repository)["environment.yml"]


def test_check_sees_a_drifted_view(repository, store):
    relock.relock(repository, store)
    text = repository.pylock.read_text()
    repository.pylock.write_text(text.replace('version = "2.0"', 'version = "3.0"'))
    assert faults(repository)["pylock.toml"] == "pylock.toml is not the view of the lock's pip half"
    repository.pylock.unlink()
    assert "cannot be read" in faults(repository)["pylock.toml"]


def test_check_sees_a_dependency_the_lock_does_not_meet(repository, store):
    relock.relock(repository, store)
    text = repository.lock.read_text().replace("beta: <3", "beta: <2")
    repository.lock.write_text(text)
    assert faults(repository)["dependencies"] == "alpha 1.0 needs beta <2, locked is 2.0"


def test_conda_lock_itself_calls_the_lock_up_to_date(repository, store, tmp_path):
    relock.relock(repository, store)
    before = repository.lock.read_bytes()
    done = conda_lock_check(repository, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Spec hash already locked for ['linux-64']. Skipping solve." in done.stderr
    assert repository.lock.read_bytes() == before
    repository.environment.write_text(ENVIRONMENT.replace("- tini", "- tini\n  - zlib"))
    assert "Skipping solve" not in conda_lock_check(repository, tmp_path).stderr


def conda_lock_check(repository: Repository, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run the real `conda-lock lock --check-input-hash`.

    The client is a stand-in that can only say its version, so a solve would fail.
    """
    client = scratch / "conda"
    client.write_text('#!/bin/sh\n[ "$1" = --version ] && echo conda 26.7.0\n')
    client.chmod(0o755)
    mapping = scratch / "mapping.yaml"
    mapping.write_text("{}\n")
    return subprocess.run(
        [Path(sys.executable).with_name("conda-lock"), "lock", "--conda", client,
         "--check-input-hash", "--file", repository.environment,
         "--lockfile", repository.lock, "--pypi_to_conda_lookup_file", mapping.as_uri()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_stores_nothing_but_metadata_while_locking(repository, store: Store):
    relock.relock(repository, store)
    assert sorted(p.name for p in store.root.iterdir()) == ["metadata"]
