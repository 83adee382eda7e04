"""`invoke env --foundation conda`: a conda prefix from the lock, without conda."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conda.conftest import make_repository
from tests.conda.packing import SITE, bundled_version
from tests.support.children import wait_until
from tests.support.disks import small_disk
from torchlock import artifacts, download
from torchlock.artifacts import ArtifactError, Store
from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.formats.conda import CondaError
from torchlock.lock import read_lock
from torchlock.realize.marker import Marker, read_marker, write_marker

PIP = bundled_version("pip")


def run(prefix: Path, *command: str) -> str:
    done = subprocess.run(
        [prefix / "bin" / command[0], *command[1:]],
        capture_output=True, text=True, check=True,
        env={"PATH": f"{prefix}/bin:/usr/bin:/bin"},
    )  # fmt: skip
    return done.stdout.strip()


def check_it_works(prefix: Path) -> None:
    assert run(prefix, "python", "-c", "import sys; print(sys.prefix)") == str(prefix)
    assert run(prefix, "where") == f"{prefix}/share/where"
    assert run(prefix, "whereami") == f"{prefix}\n{prefix}/a:{prefix}/b"
    assert run(prefix, "pip", "--version").startswith(f"pip {PIP} ")
    assert run(prefix, "greet") == "hello from the wheel"


def with_package(lock, name: str, **changes: str):
    """Return a lock in which one package's fields differ."""
    return replace(
        lock,
        packages=tuple(replace(p, **changes) if p.name == name else p for p in lock.packages),
    )


def test_a_prefix_works_and_is_what_the_lock_says(made, world):
    assert made.installed
    assert made.conda.holds
    assert made.conda.packages == 6
    assert made.conda.superseded == ("greet",)
    assert made.verdict.holds
    assert made.verdict.tree == world.records.tree
    check_it_works(made.prefix)
    code = "import ssl, sqlite3, ctypes, sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
    assert run(made.prefix, "python", "-c", code) == f"{made.prefix}/lib"
    assert run(made.prefix, "tiny") == "tiny"
    assert not (made.prefix / "bin" / "greet-old").exists()
    assert (made.prefix / "share/where/current").readlink() == Path("data.txt")


def test_records_name_the_channel_not_the_store(made, world):
    for package in world.lock.conda_packages("linux-64"):
        (record,) = (made.prefix / "conda-meta").glob(f"{package.name}-{package.version}-*.json")
        text = record.read_text()
        assert f'"url": "{package.url}"' in text
        assert f'"sha256": "{package.sha256}"' in text
    assert (made.prefix / "conda-meta" / "history").is_file()


def test_a_full_store_needs_no_network(world, made, tmp_path):
    before = len(world.server.requests)
    assert world.make(tmp_path / "offline").installed
    assert len(world.server.requests) == before


def test_nothing_is_done_twice(world, prefix):
    assert not world.make(prefix).installed


def test_a_package_that_is_not_the_locked_one_is_refused(world, faults, tmp_path):
    faults.corrupt.add("channel/linux-64/whereami-2.1-0.conda")
    with pytest.raises(ArtifactError, match=r"whereami 2\.1 cannot be fetched.*the lock says"):
        world.make(tmp_path / "demo", store=Store(tmp_path / "store"))
    assert not (tmp_path / "demo").exists()


def test_a_truncated_package_is_refused(world, tmp_path):
    package = world.root / "channel/linux-64/whereami-2.1-0.conda"
    whole = package.read_bytes()
    package.write_bytes(whole[:1000])
    try:
        with pytest.raises(ArtifactError, match=r"whereami 2\.1 cannot be fetched.*the lock says"):
            world.make(tmp_path / "demo", store=Store(tmp_path / "store"))
    finally:
        package.write_bytes(whole)
    assert not (tmp_path / "demo").exists()


def test_a_wrong_md5_is_refused_although_the_sha256_is_right(world, tmp_path):
    lock = with_package(world.lock, "where", md5="0" * 32)
    with pytest.raises(DoesNotHold, match=r"where 1\.0 has the locked sha256, but md5"):
        world.make(tmp_path / "demo", lock)
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("name", ["where", "whereami"])
def test_a_package_that_was_locked_damaged_is_refused(world, tmp_path, name):
    package = next(p for p in world.lock.packages if p.name == name)
    half = (world.root / "channel/linux-64" / package.filename).read_bytes()[:-300]
    sha256, md5 = hashlib.sha256(half).hexdigest(), hashlib.md5(half).hexdigest()
    damaged = tmp_path / "served" / package.filename
    damaged.parent.mkdir()
    damaged.write_bytes(half)
    lock = with_package(world.lock, name, sha256=sha256, md5=md5, url=damaged.as_uri())
    with pytest.raises(CondaError, match=f"{package.filename}: damaged archive"):
        world.make(tmp_path / "demo", lock)
    assert not (tmp_path / "demo" / "bin").exists()


@pytest.mark.slow
def test_a_server_that_goes_away_half_way_is_named_and_the_next_run_goes_on(
    world, faults, tmp_path, monkeypatch
):
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    store = Store(tmp_path / "store")
    faults.cut_after[f"channel/noarch/pip-{PIP}-pyhd8ed1ab_0.conda"] = [100_000, 1000]
    with pytest.raises(ArtifactError, match=rf"pip {re.escape(PIP)} cannot be fetched"):
        world.make(tmp_path / "demo", store=store)
    assert not (tmp_path / "demo").exists()
    assert world.make(tmp_path / "demo", store=store).conda.holds


def test_a_vanished_package_is_named(world, faults, tmp_path):
    faults.statuses["channel/linux-64/where-1.0-0.tar.bz2"] = [404]
    with pytest.raises(ArtifactError, match=r"where 1\.0 cannot be fetched.*is gone"):
        world.make(tmp_path / "demo", store=Store(tmp_path / "store"))


def test_what_somebody_else_made_is_left_alone(world, tmp_path):
    prefix = tmp_path / "precious"
    prefix.mkdir()
    (prefix / "thesis.tex").write_text("years of work")
    with pytest.raises(TorchlockError, match="torchlock did not make it"):
        world.make(prefix)
    assert [p.name for p in prefix.iterdir()] == ["thesis.tex"]


def test_a_venv_is_not_turned_into_a_conda_prefix(world, tmp_path):
    write_marker(tmp_path / "venv", Marker("sha256:0", "venv", (), complete=True))
    with pytest.raises(TorchlockError, match="is a venv prefix, not a conda one"):
        world.make(tmp_path / "venv")


@pytest.mark.slow
def test_a_conda_package_that_a_wheel_replaces_is_replaced_again(world, prefix):
    (prefix / "conda-meta/greet-1.0-pyhd8ed1ab_0.json").unlink()  # it will be linked again
    (prefix / "bin/where").unlink()
    assert world.make(prefix).conda.holds
    assert run(prefix, "greet") == "hello from the wheel"
    assert not (prefix / "lib/python3.11/site-packages/greet/old.py").exists()


def test_files_of_the_user_in_our_prefix_are_named_and_kept(world, prefix):
    note = prefix / "thesis.tex"
    note.write_text("years of work")
    with pytest.raises(DoesNotHold, match=r"foreign: thesis\.tex") as fault:
        world.make(prefix)
    assert "removes nothing" in fault.value.hint
    assert note.read_text() == "years of work"


PROGRAM = """\
import pickle, sys
from pathlib import Path
from torchlock.artifacts import Store
from torchlock.realize.prefix import make_prefix
lock, records, root, prefix, options = pickle.load(open(sys.argv[1], "rb"))
make_prefix(lock, records, Path(prefix), Store(Path(root)), **options)
"""


def start(world, prefix: Path, store: Store, lock=None, **options) -> subprocess.Popen[bytes]:
    """Make a prefix in a process of its own, leader of its own process group."""
    asked = prefix.with_name(f"{prefix.name}.asked")
    asked.write_bytes(
        pickle.dumps((lock or world.lock, world.records, str(store.root), str(prefix), options))
    )
    repository = Path(artifacts.__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, asked], cwd=repository, start_new_session=True
    )


@pytest.mark.slow
def test_a_killed_run_is_completed_by_the_next(world, tmp_path):
    prefix = tmp_path / "demo"
    running = start(world, prefix, world.store)
    while running.poll() is None and not (prefix / "lib").exists():
        time.sleep(0.01)
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    marker = read_marker(prefix)
    assert marker
    assert not marker.complete
    assert world.make(prefix).conda.holds
    check_it_works(prefix)


@pytest.mark.slow
def test_a_half_made_prefix_is_completed(world, prefix):
    marker = read_marker(prefix)
    assert marker
    write_marker(prefix, replace(marker, complete=False))
    (prefix / "conda-meta" / "where-1.0-0.json").unlink()  # linked, but not yet recorded
    (prefix / "conda-meta" / "prefix_record_a1b2c3").write_text("{")
    (prefix / "conda-meta" / f".pip-{PIP}-pyhd8ed1ab_0.json.a1b2c3").write_text("{")
    (prefix / ".torchlock.json.a1b2c3").write_text("{")
    (prefix / "bin" / "whereami").unlink()
    assert world.make(prefix).conda.holds
    check_it_works(prefix)


@pytest.mark.slow
def test_another_file_system(world):
    place = Path("/dev/shm")
    if not place.is_dir() or place.stat().st_dev == world.store.root.stat().st_dev:
        pytest.skip("needs /dev/shm on a file system of its own")
    prefix = place / f"torchlock-test-{os.getpid()}"
    try:
        assert world.make(prefix).conda.holds
        check_it_works(prefix)
    finally:
        subprocess.run(["rm", "-rf", prefix], check=True)


def deep(root: Path, length: int) -> Path:
    """Return a path below `root` that is `length` bytes long."""
    path = str(root)
    while length - len(path) > 100:
        path += "/" + "d" * 49
    return Path(path + "/" + "e" * (length - len(path) - 1))


@pytest.mark.slow
def test_the_longest_prefix_that_the_packages_have_room_for(world, tmp_path):
    prefix = deep(tmp_path, 255)
    assert world.make(prefix).conda.holds
    check_it_works(prefix)


def test_a_longer_prefix_is_refused_before_anything_is_written(world, tmp_path):
    prefix = deep(tmp_path, 256)
    with pytest.raises(TorchlockError, match=r"256 bytes long; .* has room for a prefix of 255"):
        world.make(prefix)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_prefix_with_a_space_in_it(world, tmp_path):
    prefix = tmp_path / "my env"
    assert world.make(prefix).conda.holds
    check_it_works(prefix)


@pytest.mark.slow
def test_two_runs_fill_one_store_at_once(world, tmp_path):
    store = Store(tmp_path / "store")
    both = [start(world, tmp_path / name, store) for name in ("one", "two")]
    assert [running.wait() for running in both] == [0, 0]
    check_it_works(tmp_path / "one")
    check_it_works(tmp_path / "two")


def test_of_two_runs_into_one_prefix_one_is_refused(world, tmp_path_factory, tmp_path):
    slow = lock_with(world, tmp_path_factory, "slow")
    prefix = tmp_path / "demo"
    running = start(world, prefix, world.store, slow, link_scripts=True)
    try:
        wait_until((prefix / "slow-began").exists, "the link script")
        with pytest.raises(TorchlockError, match=f"another torchlock is working on {prefix}"):
            world.make(prefix, slow)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    assert world.make(prefix, slow).conda.scripted == ("slow-began",)


@pytest.mark.slow
def test_damage_is_repaired_and_does_not_spread_through_shared_files(world, tmp_path):
    store = Store(tmp_path / "store")  # its own: what is damaged here is linked into it
    prefix = world.make(tmp_path / "demo", store=store).prefix
    with (prefix / "lib/python3.11/json/decoder.py").open("r+b") as stream:  # shared with the cache
        stream.write(b"XXXX")
    (prefix / "bin/where").unlink()
    (prefix / "bin/whereami").chmod(0o644)
    (prefix / "bin/pip").write_text("#!/bin/sh\necho not pip\n")
    (prefix / "share/where/current").unlink()
    (prefix / "share/where/current").symlink_to("/etc/passwd")
    (prefix / "lib/python3.11/site-packages/greet/__init__.py").write_text("")
    made = world.make(prefix, store=store)
    assert made.installed
    assert made.conda.holds
    check_it_works(prefix)
    assert world.make(tmp_path / "fresh", store=store).conda.holds


@pytest.mark.slow
def test_a_prefix_follows_the_lock(world, prefix):
    smaller = replace(
        world.lock, packages=tuple(p for p in world.lock.packages if p.name != "where")
    )
    assert world.make(prefix, smaller).conda.packages == 5
    assert not (prefix / "bin" / "where").exists()
    assert world.make(prefix).conda.packages == 6
    check_it_works(prefix)


def lock_with(world, tmp_path_factory, name: str):
    root = tmp_path_factory.mktemp(name)
    return read_lock(make_repository(root, world.server, world.store, f"  - {name}\n").lock)


def test_too_small_a_disk_for_the_conda_half_is_refused_before_anything_is_written(world, tmp_path):
    with small_disk(tmp_path / "disk", "210m") as disk:  # the wheels alone would fit
        with pytest.raises(TorchlockError, match=f"no space for the environment .*{disk}"):
            world.make(disk / "demo")
        assert list(disk.iterdir()) == []


@pytest.fixture(scope="module")
def scripted(world, tmp_path_factory):
    return lock_with(world, tmp_path_factory, "scripted")


SCRIPT = "scripted: bin/.scripted-post-link.sh"
LEFT = ("etc/conda/activate.d/scripted.sh", f"{SITE}/scripted.pth", "share/times")


@pytest.mark.slow
def test_link_scripts_are_run_once_when_asked_for_and_their_files_reported(
    world, scripted, tmp_path
):
    said: list[str] = []
    made = world.make(tmp_path / "demo", scripted, say=said.append)
    assert made.scripts == (SCRIPT,)
    assert made.conda.scripted == ()
    assert not (tmp_path / "demo/share/times").exists()
    assert f"not run, as link scripts are only with --link-scripts: {SCRIPT}" in said
    said.clear()
    made = world.make(tmp_path / "demo", scripted, link_scripts=True, say=said.append)
    assert (made.installed, made.scripts, made.conda.scripted) == (True, (), LEFT)
    assert (
        f"written by link scripts, so no lock says what they must hold: {', '.join(LEFT)}" in said
    )
    for again in (True, False):
        made = world.make(tmp_path / "demo", scripted, link_scripts=again)
        assert (made.installed, made.scripts, made.conda.scripted) == (False, (), LEFT)
    assert (tmp_path / "demo/share/times").read_text() == "ran\n"
    check_it_works(tmp_path / "demo")


def test_what_a_link_script_wrote_is_not_to_be_altered(world, scripted, tmp_path):
    made = world.make(tmp_path / "demo", scripted, link_scripts=True)
    assert (made.scripts, made.conda.scripted) == ((), LEFT)
    (tmp_path / "demo" / LEFT[0]).write_text("export LD_PRELOAD=/tmp/x.so\n")
    (tmp_path / "demo/etc/conda/activate.d/mine.sh").write_text("")
    with pytest.raises(DoesNotHold, match="it is not as a link script left it") as fault:
        world.make(tmp_path / "demo", scripted)
    assert f"changed: {LEFT[0]}" in fault.value.message
    assert "foreign: etc/conda/activate.d/mine.sh" in fault.value.message


@pytest.mark.slow
def test_asking_for_link_scripts_again_takes_no_alteration_for_theirs(world, scripted, tmp_path):
    world.make(tmp_path / "demo", scripted, link_scripts=True)
    (tmp_path / "demo" / LEFT[0]).write_text("export LD_PRELOAD=/tmp/x.so\n")
    for _ in range(2):
        with pytest.raises(DoesNotHold, match=f"changed: {LEFT[0]}"):
            world.make(tmp_path / "demo", scripted, link_scripts=True)
    # Nor where a script is still to be run, for its package is linked again.
    (tmp_path / "demo/share/scripted.txt").unlink()
    (tmp_path / "demo" / LEFT[2]).write_text("mine\n")
    with pytest.raises(DoesNotHold, match=f"changed: {LEFT[2]}"):
        world.make(tmp_path / "demo", scripted, link_scripts=True)


def test_what_the_script_of_a_package_left_that_is_locked_no_more_is_foreign(
    world, scripted, tmp_path
):
    world.make(tmp_path / "demo", scripted, link_scripts=True)
    with pytest.raises(DoesNotHold, match=f"foreign: {LEFT[0]}"):
        world.make(tmp_path / "demo")


def test_what_a_script_left_that_cannot_be_read_any_more_is_altered(world, scripted, tmp_path):
    world.make(tmp_path / "demo", scripted, link_scripts=True)
    (tmp_path / "demo" / LEFT[0]).unlink()
    os.mkfifo(tmp_path / "demo" / LEFT[0])
    with pytest.raises(DoesNotHold, match=f"changed: {LEFT[0]}"):
        world.make(tmp_path / "demo", scripted)


@pytest.mark.parametrize("before", [1, [2]])
def test_a_damaged_note_of_what_was_there_before_scripts_is_named(world, prefix, before):
    world.make(prefix)
    content = json.loads((prefix / "torchlock.json").read_text())
    (prefix / "torchlock.json").write_text(json.dumps({**content, "before": before}))
    with pytest.raises(TorchlockError, match=r"torchlock\.json is damaged"):
        world.make(prefix)


@pytest.mark.parametrize("written", [[], "x", {"a": 1}])
def test_a_damaged_note_of_what_scripts_left_is_named(world, prefix, written):
    world.make(prefix)
    content = json.loads((prefix / "torchlock.json").read_text())
    (prefix / "torchlock.json").write_text(json.dumps({**content, "written": written}))
    if written == []:
        assert world.make(prefix).conda.scripted == ()
        return
    with pytest.raises(TorchlockError, match=r"torchlock\.json is damaged"):
        world.make(prefix)


def test_a_prefix_that_lost_its_site_packages_is_made_whole(world, prefix):
    world.make(prefix)
    shutil.rmtree(prefix / SITE)
    assert world.make(prefix).conda.holds


def test_a_package_that_is_linked_again_has_its_script_to_be_run(world, scripted, tmp_path):
    world.make(tmp_path / "demo", scripted, link_scripts=True)
    (tmp_path / "demo/share/scripted.txt").unlink()
    made = world.make(tmp_path / "demo", scripted)
    assert (made.installed, made.scripts, made.conda.scripted) == (True, (SCRIPT,), LEFT)


@pytest.mark.slow
def test_what_a_link_script_altered_is_put_back(world, tmp_path_factory, tmp_path):
    meddling = lock_with(world, tmp_path_factory, "meddling")
    said: list[str] = []
    made = world.make(tmp_path / "demo", meddling, link_scripts=True, say=said.append)
    (why,) = [line for line in said if line.startswith("linking again meddling:")]
    assert "changed: share/meddling.txt (meddling)" in why
    assert made.scripts == ("meddling: bin/.meddling-post-link.sh",)
    assert (tmp_path / "demo/share/meddling.txt").read_text() == "x\n"


@pytest.mark.slow
def test_what_is_there_when_a_run_is_killed_in_a_link_script_is_its_or_foreign(
    world, tmp_path_factory, tmp_path
):
    slow = lock_with(world, tmp_path_factory, "slow")
    prefix = tmp_path / "demo"
    world.make(prefix, slow)
    (prefix / "mine.txt").touch()
    running = start(world, prefix, world.store, slow, link_scripts=True)
    wait_until((prefix / "slow-began").exists, "the link script")
    os.killpg(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    with pytest.raises(DoesNotHold, match=r"foreign: mine\.txt") as fault:
        world.make(prefix, slow)
    assert "slow-began" not in fault.value.message
    (prefix / "mine.txt").unlink()
    made = world.make(prefix, slow)
    assert made.scripts == ("slow: bin/.slow-post-link.sh",)
    assert made.conda.scripted == ("slow-began",)
    (prefix / "later.txt").touch()
    with pytest.raises(DoesNotHold, match=r"foreign: later\.txt"):
        world.make(prefix, slow)


def test_a_link_script_that_succeeds_beside_one_that_fails_is_run_once(
    world, tmp_path_factory, tmp_path
):
    root = tmp_path_factory.mktemp("both")
    more = "  - failing\n  - scripted\n"
    both = read_lock(make_repository(root, world.server, world.store, more).lock)
    for _ in range(2):
        with pytest.raises(TorchlockError, match="link scripts failed: failing"):
            world.make(tmp_path / "demo", both, link_scripts=True)
        marker = read_marker(tmp_path / "demo")
        assert marker
        assert marker.scripts == ("scripted-0.1-0",)
        assert set(marker.written) == {*LEFT, "ran"}
    made = world.make(tmp_path / "demo", both)
    assert made.scripts == ("failing: bin/.failing-post-link.sh",)
    assert (tmp_path / "demo/share/times").read_text() == "ran\n"


def test_a_link_script_that_fails_is_an_error(world, tmp_path_factory, tmp_path):
    failing = lock_with(world, tmp_path_factory, "failing")
    for _ in range(2):  # the next run does not take it for done
        with pytest.raises(TorchlockError, match=r"link scripts failed: failing: .*post-link\.sh"):
            world.make(tmp_path / "demo", failing, link_scripts=True)
    marker = read_marker(tmp_path / "demo")
    assert marker
    assert not marker.complete
    made = world.make(tmp_path / "demo", failing)
    assert made.scripts == ("failing: bin/.failing-post-link.sh",)
    assert made.conda.scripted == ("ran",)
