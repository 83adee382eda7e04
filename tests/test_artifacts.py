"""Artifacts: whatever the network and the disk do, only verified files appear in the store."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from tests.support.children import start, wait_until
from tests.support.disks import read_only, small_disk
from torchlock import download, http
from torchlock.artifacts import ArtifactError, Store, default_store, fetch
from torchlock.display import shown
from torchlock.files import sha256_of
from torchlock.lock import Package

SIZE = 400_000
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(download, "BACKOFF", 0.001)


def locked(name: str, data: bytes, url: str) -> Package:
    filename = f"{name}-1.0-py3-none-any.whl"
    return Package(
        name=name,
        version="1.0",
        manager="pip",
        platform="linux-64",
        url=f"{url}/{filename}",
        sha256=hashlib.sha256(data).hexdigest(),
        md5=None,
        dependencies={},
    )


@pytest.fixture
def data() -> bytes:
    return random.Random(1).randbytes(SIZE)


@pytest.fixture
def served(files, server, data) -> Package:
    """An artifact that the server has."""
    package = locked("demo", data, server.url)
    (files / package.filename).write_bytes(data)
    return package


def fault(*args, **kwargs) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        fetch(*args, **kwargs)
    return caught.value


def complete_files(store: Store) -> list[Path]:
    return sorted(p for p in (store.root / "sha256").rglob("*") if p.is_file())


def partials(store: Store) -> list[Path]:
    return sorted((store.root / "partial").iterdir())


def holds_only_verified(store: Store) -> bool:
    return all(sha256_of(path) == path.parent.name for path in complete_files(store))


def test_fetches_verifies_and_keeps_by_content(store, server, served, data):
    (path,) = fetch([served], store)
    assert path == store.root / "sha256" / served.sha256 / served.filename
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o444
    assert partials(store) == []
    assert fetch([served, served], Store(store.root)) == [path]
    assert server.ranges(served.filename) == [""]


def test_paths_come_in_the_order_asked_for(store, server, files):
    packages = []
    for index in range(20):
        packages.append(locked(f"p{index}", b"%d" % index, server.url))
        (files / packages[-1].filename).write_bytes(b"%d" % index)
    random.Random(0).shuffle(packages)
    assert [p.name for p in fetch(packages, store)] == [p.filename for p in packages]


def test_one_content_under_two_names_is_two_files(store, server, files):
    one, two = (locked(name, b"same", server.url) for name in ("one", "two"))
    for package in (one, two):
        (files / package.filename).write_bytes(b"same")
    fetch([one], store)
    assert all(path.read_bytes() == b"same" for path in fetch([one, two], store))


def test_a_wrong_sha256_in_the_lock_is_refused(store, served):
    error = fault([replace(served, sha256="0" * 64)], store)
    assert f"serves sha256 {served.sha256}, the lock says {'0' * 64}" in error.message
    assert "demo 1.0" in error.message
    assert served.url in error.message
    assert "git checkout conda-lock.yml" in error.hint
    assert complete_files(store) == []
    assert partials(store) == []


def test_a_corrupted_download_is_refused(store, server, served):
    server.faults.corrupt.add(served.filename)
    assert "the lock says" in fault([served], store).message
    assert complete_files(store) == []


def test_goes_on_where_a_cut_connection_stopped(store, server, served, data):
    server.faults.cut_after[served.filename] = [150_000, 100_000]
    (path,) = fetch([served], store)
    assert path.read_bytes() == data
    first, second, third = server.ranges(served.filename)
    assert first == ""
    # All but the last piece in flight is kept, and only what is missing is asked for.
    have = [int(r.removeprefix("bytes=").removesuffix("-")) for r in (second, third)]
    assert 150_000 - download.RECEIVED < have[0] <= 150_000
    assert have[0] + 100_000 - download.RECEIVED < have[1] <= have[0] + 100_000


def test_a_connection_that_keeps_breaking_is_used_as_long_as_it_gets_further(
    store, server, served, data
):
    server.faults.cut_after[served.filename] = [download.RECEIVED + 5_000] * 30
    (path,) = fetch([served], store)
    assert path.read_bytes() == data
    assert len(server.requests) > download.ATTEMPTS


def test_a_connection_that_gets_no_further_is_given_up(store, server, served):
    server.faults.cut_after[served.filename] = [100_000] + [0] * 30
    error = fault([served], store)
    assert served.url in error.message
    assert "the same command again" in error.hint
    assert len(server.requests) == download.ATTEMPTS
    server.faults.cut_after.clear()
    fetch([served], store)
    assert server.requests[-1][1].startswith("bytes=")


def test_a_server_without_ranges_sends_everything_again(store, server, served, data):
    server.faults.no_ranges = True
    server.faults.cut_after[served.filename] = [150_000]
    (path,) = fetch([served], store)
    assert path.read_bytes() == data


def test_a_file_truncated_at_the_server_is_refused(store, files, served, data):
    (files / served.filename).write_bytes(data[:-1])
    assert "the lock says" in fault([served], store).message
    assert complete_files(store) == []


def leave_partial(store: Store, package: Package, data: bytes) -> Path:
    path = store.root / "partial" / package.sha256
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def test_only_the_rest_is_asked_for(store, server, served, data):
    leave_partial(store, served, data[:123_456])
    (path,) = fetch([served], store)
    assert path.read_bytes() == data
    assert server.ranges(served.filename) == ["bytes=123456-"]


@pytest.mark.parametrize("junk", [b"x" * 1000, b"x" * SIZE, b"x" * (SIZE + 1)])
def test_a_spoilt_beginning_is_thrown_away(store, server, served, data, junk):
    leave_partial(store, served, junk)
    (path,) = fetch([served], store)
    assert path.read_bytes() == data
    assert server.ranges(served.filename) == [f"bytes={len(junk)}-", ""]


def test_a_complete_file_that_was_not_yet_published_is_not_fetched_again(
    store, server, served, data
):
    leave_partial(store, served, data).chmod(0o444)
    (path,) = fetch([served], store)
    assert path.read_bytes() == data
    assert server.requests == []


@pytest.mark.parametrize("status", [404, 410])
def test_a_vanished_file_is_named_with_the_next_command(store, server, served, status):
    server.faults.statuses[served.filename] = [status]
    error = fault([served], store)
    assert f"{served.url} is gone (HTTP {status})" in error.message
    assert "invoke lock --upgrade demo" in error.hint
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [401, 403, 451])
def test_a_refusal_points_at_credentials_and_proxy(store, server, served, status):
    server.faults.statuses[served.filename] = [status]
    error = fault([served], store)
    assert f"refuses it (HTTP {status})" in error.message
    assert ".netrc" in error.hint
    assert len(server.requests) == 1


def test_faults_that_pass_are_waited_out(store, server, served, data):
    server.faults.statuses[served.filename] = [500, 429, 503, 425]
    (path,) = fetch([served], store)
    assert path.read_bytes() == data
    assert len(server.requests) == 5


def test_faults_that_stay_are_reported(store, server, served):
    server.faults.statuses[served.filename] = [503] * 30
    error = fault([served], store)
    assert "cannot be had now (HTTP 503)" in error.message
    assert len(server.requests) == download.ATTEMPTS


def test_waits_as_long_as_the_server_asks(store, server, served):
    server.faults.statuses[served.filename] = [429]
    server.faults.retry_after = "1"
    begun = time.monotonic()
    fetch([served], store)
    assert time.monotonic() - begun >= 1


@pytest.mark.parametrize("value", ["Wed, 21 Oct 2015 07:28:00 GMT", "-1", "\xb2", "9" * 5000, ""])
def test_an_odd_wait_is_not_obeyed(value):
    answer = type("Answer", (), {"headers": {"Retry-After": value}})
    assert http.retry_after(answer) == 0


def test_no_network_and_an_empty_store(store, data):
    error = fault([locked("demo", data, NOWHERE)], store)
    assert "demo 1.0 cannot be fetched" in error.message
    assert "127.0.0.1:9" in error.message
    assert "check the network, proxy and index settings" in error.hint


def test_no_network_and_a_full_store(store, server, served, data):
    fetch([served], store)
    (path,) = fetch([replace(served, url=f"{NOWHERE}/{served.filename}")], Store(store.root))
    assert path.read_bytes() == data


def test_what_was_complete_before_a_fault_stays(store, server, served, data):
    vanished = locked("other", b"other", server.url)
    fault([served, vanished], store)
    (files,) = [complete_files(store)]
    assert holds_only_verified(store)
    assert files in ([], [store.path(served)])


def test_a_mirror_comes_first(store, server, files, served, data):
    mirror = f"{server.url}/mirror.whl"
    (files / "mirror.whl").write_bytes(data)
    fetch([served], store, mirrors=lambda _: {served.sha256: [mirror]})
    assert [name for name, _ in server.requests] == ["mirror.whl"]


def test_mirrors_are_asked_about_what_is_missing_alone(store, server, files, served):
    other = locked("other", b"other", server.url)
    (files / other.filename).write_bytes(b"other")
    fetch([served], store)
    asked = []
    fetch([served, other], store, mirrors=lambda missing: asked.append(missing) or {})
    assert asked == [[other]]
    fetch([served, other], store, mirrors=lambda missing: asked.append(missing) or {})
    assert asked == [[other]]


@pytest.mark.parametrize("mirror", ["wrong.whl", "absent.whl"])
def test_a_mirror_that_has_it_not_or_not_right_is_passed_over(
    store, server, files, served, data, mirror
):
    (files / "wrong.whl").write_bytes(b"wrong" * 50_000)
    mirrors = {served.sha256: [f"{server.url}/{mirror}"]}
    (path,) = fetch([served], store, mirrors=lambda _: mirrors)
    assert path.read_bytes() == data
    assert [name for name, _ in server.requests] == [mirror, served.filename]


def test_what_a_bad_mirror_left_does_not_spoil_the_locked_url(store, server, files, served, data):
    (files / "wrong.whl").write_bytes(b"wrong" * 50_000)
    server.faults.cut_after["wrong.whl"] = [100_000] + [0] * 30
    mirrors = {served.sha256: [f"{server.url}/wrong.whl"]}
    (path,) = fetch([served], store, mirrors=lambda _: mirrors)
    assert path.read_bytes() == data


def test_every_place_that_failed_is_named(store, server, files, served):
    (files / "wrong.whl").write_bytes(b"wrong")
    gone = replace(served, url=f"{server.url}/gone-1.0-py3-none-any.whl")
    mirrors = {served.sha256: [f"{server.url}/wrong.whl"]}
    error = fault([gone], store, mirrors=lambda _: mirrors)
    assert "wrong.whl serves sha256" in error.message
    assert "gone-1.0-py3-none-any.whl is gone" in error.message


@pytest.mark.parametrize(
    "place",
    ["{url}/gone.whl?token=sesame", "http://127.0.0.1:9/x.whl?token=sesame", "ftp://h/x?sesame",
     "http://ho st/x.whl", "http://[broken/x.whl"],
)  # fmt: skip
def test_credentials_are_never_shown(store, server, data, place):
    url = place.format(url=server.url).replace("://", "://user:sesame@", 1)
    error = fault([locked("demo", data, NOWHERE)], store, mirrors=lambda a: {a[0].sha256: [url]})
    assert "sesame" not in str(error)
    assert "user" not in error.message


@pytest.mark.parametrize(
    "place", ["{url}/t/tk-sesame/gone.whl", "http://127.0.0.1:9/t/tk-sesame/x.whl",
              "h.example/t/tk-sesame/x.whl", "ftp://h.example/t/tk-sesame/x.whl"],
)  # fmt: skip
def test_a_channels_token_is_never_shown(store, server, data, place):
    url = place.format(url=server.url)
    error = fault([locked("demo", data, NOWHERE)], store, mirrors=lambda a: {a[0].sha256: [url]})
    assert "sesame" not in str(error)
    assert "/t/<TOKEN>/" in error.message


@pytest.mark.parametrize("place", ["h.example/x.whl", "oci://h.example/x.whl", "http://[h/x.whl"])
def test_what_is_no_url_is_tried_once(store, server, data, monkeypatch, place):
    asked = []
    get = requests.Session.get
    monkeypatch.setattr(
        requests.Session, "get", lambda self, url, **k: asked.append(url) or get(self, url, **k)
    )
    gone = locked("demo", data, f"{server.url}/gone")
    error = fault([gone], store, mirrors=lambda a: {a[0].sha256: [place]})
    assert asked[0] == place
    assert len(asked) == 2
    assert f"{place}: is no URL that can be fetched" in error.message


def test_a_corrupted_file_in_the_store_is_replaced(store, server, served, data):
    (path,) = fetch([served], store)
    path.chmod(0o644)
    path.write_bytes(b"\0" + data[1:])
    (path,) = fetch([served], Store(store.root))
    assert path.read_bytes() == data
    assert len(server.requests) == 2


def test_a_file_url_is_read_from_disk(store, files, served, data):
    path = files / served.filename
    (stored,) = fetch([replace(served, url=path.as_uri())], store)
    assert stored.read_bytes() == data
    path.unlink()
    error = fault([replace(served, url=path.as_uri(), sha256="1" * 64)], store)
    assert "is gone" in error.message


def test_no_space_left(tmp_path, server, served, data):
    with small_disk(tmp_path / "disk", "300k") as disk:
        error = fault([served], Store(disk / "store"))
        assert "no space left" in error.message
        assert "demo 1.0" in error.message
        assert "TORCHLOCK_CACHE" in error.hint
        assert complete_files(Store(disk / "store")) == []
        subprocess.run(["mount", "-o", "remount,size=2m", disk], check=True)
        (path,) = fetch([served], Store(disk / "store"))
        assert path.read_bytes() == data
        assert server.requests[-1][1].startswith("bytes=")


def test_a_disk_too_full_for_directories(tmp_path, served):
    with small_disk(tmp_path / "disk", "16k") as disk:
        (disk / "fill").write_bytes(b"x" * 12_288)
        for index in range(1000):
            try:
                (disk / str(index)).write_bytes(b"x")
            except OSError:
                break
        assert str(disk) in fault([served], Store(disk / "store")).message


def test_a_full_store_that_cannot_be_written_serves(store, server, served, data):
    fetch([served], store)
    with read_only(store.root):
        (path,) = fetch([served], Store(store.root))
        assert path.read_bytes() == data


def test_a_store_that_cannot_be_written_and_lacks_something(store, server, served):
    other = replace(served, sha256="1" * 64)
    fetch([served], store)
    with read_only(store.root):
        error = fault([served, other], Store(store.root))
    assert f"{store.root} cannot be written: Read-only file system" in error.message or (
        f"{store.root} cannot be written: Permission denied" in error.message
    )
    assert "TORCHLOCK_CACHE" in error.hint
    assert len(server.requests) == 1


def test_a_spoilt_file_in_a_store_that_cannot_be_written_is_named(store, served, data):
    (path,) = fetch([served], store)
    path.chmod(0o644)
    path.write_bytes(b"\0" + data[1:])
    with read_only(store.root):
        error = fault([served], Store(store.root))
    assert str(path) in error.message
    assert "cannot be removed" in error.message


def test_a_store_that_is_a_file(tmp_path, served):
    (tmp_path / "store").touch()
    assert "cannot be written" in fault([served], Store(tmp_path / "store")).message


def test_the_store_is_where_the_variable_says(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHLOCK_CACHE", str(tmp_path / "elsewhere"))
    assert default_store().root == tmp_path / "elsewhere"
    monkeypatch.delenv("TORCHLOCK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_store().root == tmp_path / "xdg" / "torchlock"


FETCH = """
import sys
from pathlib import Path
from torchlock.artifacts import Store, fetch
from torchlock.lock import Package
url, sha256, root = sys.argv[1:]
package = Package("demo", "1.0", "pip", "linux-64", url, sha256, None, {})
try:
    print(fetch([package], Store(Path(root)))[0])
except KeyboardInterrupt:
    sys.exit(130)
"""


def downloading(served: Package, store: Store):
    """Start a child that downloads; return it once some of the file has arrived."""
    child = start(FETCH, served.url, served.sha256, store.root)
    partial = store.root / "partial" / served.sha256
    wait_until(lambda: partial.exists() and partial.stat().st_size > 0, "the download")
    return child


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_download_is_completed_by_the_next(store, server, served, data, how):
    server.faults.bytes_per_second = 400_000
    child = downloading(served, store)
    os.kill(child.pid, how)
    said = child.communicate(timeout=60)[1]
    assert child.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), said
    assert "Traceback" not in said
    assert complete_files(store) == []
    have = (store.root / "partial" / served.sha256).stat().st_size
    assert 0 < have < SIZE
    server.faults.bytes_per_second = 0
    (path,) = fetch([served], store)
    assert path.read_bytes() == data
    assert server.ranges(served.filename) == ["", f"bytes={have}-"]
    assert partials(store) == []


def test_ctrl_c_does_not_wait_for_a_server_that_stalls(store, server, served):
    server.faults.bytes_per_second = 100
    child = start(FETCH, served.url, served.sha256, store.root)
    wait_until(lambda: bool(server.requests), "the request")
    time.sleep(0.3)
    os.kill(child.pid, signal.SIGINT)
    child.communicate(timeout=25)  # less than the 30 s that a silent server is given
    assert child.returncode == 130
    assert complete_files(store) == []


def test_two_processes_download_one_artifact_once(store, server, served):
    server.faults.bytes_per_second = 1_000_000
    first = downloading(served, store)
    second = start(FETCH, served.url, served.sha256, store.root)
    for child in (first, second):
        said, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors
        assert said.strip() == str(store.path(served))
    assert server.ranges(served.filename) == [""]


def test_a_process_that_waits_goes_on_when_the_other_is_killed(store, server, served, data):
    server.faults.bytes_per_second = 400_000
    first = downloading(served, store)
    second = start(FETCH, served.url, served.sha256, store.root)
    server.faults.bytes_per_second = 0
    first.kill()
    first.communicate()
    assert second.communicate(timeout=60)[0].strip() == str(store.path(served))
    assert store.path(served).read_bytes() == data


def test_plain_progress_counts_files_not_attempts(store, server, served, capsys):
    server.faults.cut_after[served.filename] = [100_000, 100_000]
    fetch([served], store, progress=shown)
    assert capsys.readouterr().err == "fetching: 1 of 1 files, 0 MB\n"
