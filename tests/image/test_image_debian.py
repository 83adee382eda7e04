"""Debian packages as files: dpkg's database, users, alternatives, and nothing executed."""

import hashlib
import io
import json
import lzma
import shutil
import subprocess
import tarfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.image.image_making import entry, make_deb
from tests.support.server import Served
from torchlock.artifacts import Store
from torchlock.formats.deb import DebError, read_deb
from torchlock.oci.layer import write_layer
from torchlock.rootfs import debversion, ldcache
from torchlock.rootfs.archive import ArchiveError, check_release, fetch_suite
from torchlock.rootfs.control import paragraphs, relations
from torchlock.rootfs.convert import ConvertError, Rootfs
from torchlock.rootfs.lock import (
    LOCK,
    REQUEST,
    Archive,
    DebPackage,
    RootfsLock,
    RootfsLockError,
    closure,
    fetch_debs,
    make_rootfs_lock,
    read_rootfs_lock,
    relock_rootfs,
    rootfs_lock_text,
)
from torchlock.rootfs.sources import apt_uris

MASTER = b"root:*:0:0:root:/root:/bin/bash\n"
BASE = [
    (entry("./usr/share/base-passwd/passwd.master"), MASTER),
    (entry("./usr/share/base-passwd/group.master"), b"root:*:0:\nshadow:*:42:\n"),
    (entry("./bin/tool", mode=0o4755), b"#!/bin/sh\n"),
    (entry("./bin/alias", tarfile.LNKTYPE, target="./bin/tool"), b""),
    (entry("./lib/link", tarfile.SYMTYPE, target="/bin/tool"), b""),
    (entry("./tmp", tarfile.DIRTYPE, 0o1777), b""),
    (entry("./etc/demo.conf"), b"conf\n"),
    (entry("./usr/share/doc/base/copyright"), b"free\n"),
    (entry("./usr/share/doc/base/changelog.gz"), b"long\n"),
    (entry("./usr/share/man/man1/tool.1.gz"), b"long\n"),
    (entry("./usr/share/ca-certificates/mozilla/A.crt"), b"CERT A\n"),
    (entry("./usr/share/ca-certificates/mozilla/B.crt"), b"CERT B"),
]
CONTROL = {
    "postinst": b"#!/bin/sh\ntouch /executed\n",
    "conffiles": b"/etc/demo.conf\n",
    "triggers": b"interest-noawait /usr/share/demo\ninterest demo-trigger\nactivate other\n",
}
EMPTY = RootfsLock("bookworm", "amd64", "2026-01-01T00:00:00Z", {}, ())


def converted(debs: list[Path]) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    rootfs, found = Rootfs(), {}
    for items in (rootfs.package_items(debs, first=True), rootfs.configuration_items(EMPTY)):
        out = io.BytesIO()
        write_layer(items, out)
        with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
            for row in archive:
                found[row.name] = (row, archive.extractfile(row).read() if row.isreg() else b"")
    return found


def test_packages_become_a_merged_usr_file_system(tmp_path: Path):
    found = converted([make_deb(tmp_path, "base", BASE, control=CONTROL)])
    assert found["bin"][0].linkname == "usr/bin" and found["lib"][0].linkname == "usr/lib"
    assert found["usr/bin/tool"][0].mode == 0o4755
    assert found["usr/bin/alias"][0].linkname == "usr/bin/tool"
    assert found["usr/lib/link"][0].linkname == "/bin/tool"
    assert found["tmp"][0].mode == 0o1777
    assert "usr/share/doc/base/copyright" in found
    assert "usr/share/doc/base/changelog.gz" not in found
    assert not any(name.startswith("usr/share/man") for name in found)


def test_the_database_says_installed_and_keeps_the_scripts_unexecuted(tmp_path: Path):
    found = converted([make_deb(tmp_path, "base", BASE, control=CONTROL)])
    status = next(paragraphs(found["var/lib/dpkg/status"][1].decode()))
    assert status["Status"] == "install ok installed"
    assert status["Version"] == "1.0"
    assert status["Conffiles"].strip() == "/etc/demo.conf b9a771b420047cfaa3543e66c78f44f6"
    assert found["var/lib/dpkg/info/base.postinst"][0].mode == 0o755
    assert b"/bin/tool\n" in found["var/lib/dpkg/info/base.list"][1]
    assert found["var/lib/dpkg/triggers/File"][1] == b"/usr/share/demo base/noawait\n"
    assert found["var/lib/dpkg/triggers/demo-trigger"][1] == b"base\n"
    assert not Path("/executed").exists()


def test_accounts_have_no_passwords(tmp_path: Path):
    found = converted([make_deb(tmp_path, "base", BASE)])
    passwd = found["etc/passwd"][1].decode().splitlines()
    assert "user:x:1000:1000:user:/home/user:/bin/bash" in passwd
    row, shadow = found["etc/shadow"]
    assert (row.mode, row.gid) == (0o640, 42)
    assert all(line.split(":")[1] == "*" for line in shadow.decode().splitlines())
    assert len(shadow.splitlines()) == len(passwd)


def test_the_certificate_bundle_joins_all(tmp_path: Path):
    found = converted([make_deb(tmp_path, "base", BASE)])
    assert found["etc/ssl/certs/ca-certificates.crt"][1] == b"CERT A\nCERT B\n"
    assert found["etc/ca-certificates.conf"][1] == b"mozilla/A.crt\nmozilla/B.crt\n"


def test_packages_without_accounts_make_no_system(tmp_path: Path):
    with pytest.raises(ConvertError, match="no locked package carries /usr/share/base-passwd/pass"):
        converted([make_deb(tmp_path, "tool", BASE[2:3])])


def test_two_packages_with_one_path_are_refused(tmp_path: Path):
    debs = [make_deb(tmp_path, "base", BASE), make_deb(tmp_path, "rival", BASE[2:3])]
    with pytest.raises(ConvertError, match=r"base_.*rival_.*usr/bin/tool"):
        converted(debs)


@pytest.mark.parametrize(
    "bad",
    [
        entry("../etc/passwd"),
        entry("/etc/passwd"),
        entry("./a/../../b"),
        entry("./dev/null", tarfile.CHRTYPE),
        entry("./pipe", tarfile.FIFOTYPE),
    ],
)
def test_unsafe_entries_are_refused(tmp_path: Path, bad: tarfile.TarInfo):
    deb = make_deb(tmp_path, "bad", [(bad, b"")])
    with pytest.raises(DebError, match=r"bad_1\.0"):
        list(read_deb(deb).files())


@pytest.mark.parametrize("cut", [5, 70, 200, -10])
def test_damaged_packages_are_refused(tmp_path: Path, cut: int):
    path = make_deb(tmp_path, "base", BASE)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DebError):
        list(read_deb(path).files())


def ar(*members: tuple[bytes, bytes]) -> bytes:
    """An `ar` archive of (name, contents)."""
    out = b"!<arch>\n"
    for name, content in members:
        out += b"%-16s%-32s%-10d`\n" % (name, b"", len(content))
        out += content + b"\n" * (len(content) % 2)
    return out


def control_tar(*names: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            archive.addfile(entry(name), io.BytesIO())
    return out.getvalue()


GOOD = ((b"debian-binary", b"2.0\n"), (b"control.tar", control_tar("control")))
DATA = (b"data.tar", control_tar())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"!<arch>!" + ar(*GOOD, DATA)[8:], "not an ar archive"),
        (ar(*GOOD[1:], DATA), "not a Debian package"),
        (b"!<arch>\n", "not a Debian package"),
        (ar(*GOOD), "0 members named data.tar, one is expected"),
        (ar(*GOOD, DATA, (b"data.tar.xz", b"")), "2 members named data.tar"),
        (ar(GOOD[0], (b"control.tar", control_tar("md5sums")), DATA), "has no control file"),
        (ar(*GOOD, DATA, DATA), "ar member data.tar is cut off or occurs twice"),
        (ar(*GOOD, DATA)[:-1], "ar member data.tar is cut off or occurs twice"),
        (ar(*GOOD, DATA) + b"x" * 59, "damaged ar header"),
        (ar(*GOOD, DATA).replace(b"`\n", b"``"), "damaged ar header"),
        (ar(*GOOD, DATA).replace(b"4         `", b"4x        `"), "damaged ar header"),
        (ar(*GOOD, (b"data.tar.lz", b"")), "data.tar.lz is compressed in a way"),
        (ar(*GOOD, (b"data.tar.xz", b"no xz")), "data.tar.xz cannot be read"),
        (ar(*GOOD, (b"data.tar.gz", b"no gzip")), "data.tar.gz cannot be read"),
    ],
)
def test_what_is_wrong_with_a_package_is_named(tmp_path: Path, content: bytes, says: str):
    assert list(read_deb(make_deb(tmp_path, "good", [])).files()) == []
    path = tmp_path / "x_1_amd64.deb"
    path.write_bytes(content)
    with pytest.raises(DebError, match=f"x_1_amd64.deb: .*{says}"):
        list(read_deb(path).files())


@pytest.mark.parametrize("compression", [".xz", ".gz", ".bz2"])
def test_damage_is_named_when_a_file_is_read_too(tmp_path: Path, compression: str):
    noise = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(40_000))
    path = make_deb(tmp_path, "big", [(entry("./big"), noise)], compression=compression)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 99] = bytes(99)
    path.write_bytes(data)
    with pytest.raises(DebError, match=f"big_.*: data.tar{compression} cannot be read"):
        for file in read_deb(path).files():
            assert len(file.read()) == len(noise)


def test_a_file_that_nobody_reads_is_passed_over(tmp_path: Path):
    path = make_deb(tmp_path, "two", [(entry("./a"), b"1" * 9999), (entry("./b"), b"2")])
    found = {f.path: f.read() for f in read_deb(path).files() if f.path == "b"}
    assert found == {"b": b"2"}


@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_fail_otherwise(tmp_path_factory, content: bytes):
    path = tmp_path_factory.mktemp("deb") / "x_1_amd64.deb"
    path.write_bytes(b"!<arch>\n" + content)
    with pytest.raises(DebError):
        read_deb(path)


@pytest.mark.parametrize("compression", ["", ".xz", ".gz", ".bz2"])
def test_every_compression_that_debian_uses_is_read(tmp_path: Path, compression: str):
    deb = read_deb(make_deb(tmp_path, "base", BASE, compression=compression))
    assert [f.path for f in deb.files()][:3] == [e.name[2:] for e, _ in BASE[:3]]


def test_versions_are_ordered_as_dpkg_orders_them():
    ordered = ["1.0~rc1", "1.0", "1.0-1", "1.0-1+deb12u1", "1.0-1+deb12u10", "1.0a", "1.0.1",
               "1.10", "2.0", "1:0.1"]  # fmt: skip
    assert sorted({*ordered}, key=debversion.key) == ordered
    assert debversion.compare("1.0", "1.0-0") == 0
    assert debversion.compare("09", "9") == 0


@given(*[st.from_regex(r"([0-9]:)?[0-9][0-9a-z.+~]{0,8}(-[0-9a-z.+~]{1,4})?", fullmatch=True)] * 2)
def test_order_is_antisymmetric(left: str, right: str):
    forth, back = debversion.compare(left, right), debversion.compare(right, left)
    assert (forth > 0) == (back < 0) and (forth == 0) == (back == 0)


def test_versions_agree_with_dpkg_itself():
    dpkg = shutil.which("dpkg")
    if dpkg is None:
        pytest.skip("dpkg is not installed")
    for left, right in [("1.0~rc1", "1.0"), ("2.36-9+deb12u14", "2.36-9+deb12u9"), ("1a", "1+")]:
        code = subprocess.run([dpkg, "--compare-versions", left, "lt", right], check=False)
        assert (code.returncode == 0) == (debversion.compare(left, right) < 0)


def row(name: str, version: str = "1", **fields: str) -> dict[str, str]:
    named = {k.replace("_", "-"): v for k, v in fields.items()}
    return {"Package": name, "Version": version, **named}


INDEX = {
    "app": [("d", row("app", Depends="lib (>= 2), awk | other")), ("d", row("app", "0.9"))],
    "lib": [("d", row("lib", "1")), ("s", row("lib", "2+deb12u1", Pre_Depends="base"))],
    "base": [("d", row("base"))],
    "gawk": [("d", row("gawk", Provides="awk"))],
    "mawk": [("d", row("mawk", Provides="awk"))],
}


def test_closure_takes_the_newest_and_follows_dependencies():
    found = closure(INDEX, ["app", "mawk"])
    assert {n: r["Version"] for n, (_, r) in found.items()} == {
        "app": "1", "lib": "2+deb12u1", "base": "1", "mawk": "1",
    }  # fmt: skip
    assert found["lib"][0] == "s"
    assert "gawk" in closure(INDEX, ["app"])


def test_what_cannot_be_met_is_named():
    with pytest.raises(RootfsLockError, match="no package nothing"):
        closure(INDEX, ["nothing"])
    index = {"aa": [("d", row("aa", Depends="bb (>= 5)"))], "bb": [("d", row("bb"))]}
    with pytest.raises(RootfsLockError, match="aa depends on"):
        closure(index, ["aa"])


def test_relations_are_parsed():
    [[a], [b, c]] = relations("aa:any (>= 1:2.3-4~), bb | cc (= 1)")
    assert (a.name, a.operator, a.version) == ("aa", ">=", "1:2.3-4~")
    assert (b.name, c.operator, c.version) == ("bb", "=", "1")


def test_apt_sources_of_both_kinds_are_read(tmp_path: Path):
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "deb [signed-by=/k arch=amd64] http://one/debian bookworm main\n"
        "# deb http://no bookworm main\ndeb-src http://no bookworm main\n"
    )
    (tmp_path / "sources.list.d" / "a.sources").write_text(
        "Types: deb\nURIs: http://two/debian/\nSuites: bookworm bookworm-updates\n"
        "Components: main contrib\n\nEnabled: no\nTypes: deb\nURIs: http://no\n"
        "Suites: bookworm\nComponents: main\n"
    )
    assert apt_uris("bookworm", tmp_path) == ["http://one/debian", "http://two/debian"]
    assert apt_uris("bookworm-updates", tmp_path) == ["http://two/debian"]
    assert apt_uris("trixie", tmp_path) == []


def test_the_lock_reads_back_as_written(tmp_path: Path):
    lock = read_rootfs_lock(LOCK)
    (tmp_path / "lock.json").write_text(rootfs_lock_text(lock))
    assert read_rootfs_lock(tmp_path / "lock.json") == lock
    assert all(p.url.startswith(lock.archives[p.archive].snapshots) for p in lock.packages)
    names = {p.name for p in lock.packages}
    assert {"gcc", "libpython3.11-dev", "openssh-server", "tini", "apt"} <= names


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 9}', '{"format": 1}'])
def test_a_damaged_lock_is_named(tmp_path: Path, text: str):
    (tmp_path / "lock.json").write_text(text)
    with pytest.raises(RootfsLockError, match="is damaged"):
        read_rootfs_lock(tmp_path / "lock.json")


@pytest.mark.parametrize(("field", "value"), [("layer", "attic"), ("sha256", "ab"), ("layer", "")])
def test_a_lock_with_a_malformed_row_is_named(tmp_path: Path, field: str, value: str):
    content = json.loads(LOCK.read_text())
    content["packages"][1][field] = value
    (tmp_path / "lock.json").write_text(json.dumps(content))
    name = content["packages"][1]["name"]
    with pytest.raises(RootfsLockError, match=f"{name} .* has a malformed layer or sha256"):
        read_rootfs_lock(tmp_path / "lock.json")


def test_a_lock_that_is_not_there_or_of_another_format_is_named(tmp_path: Path):
    with pytest.raises(RootfsLockError, match="does not exist") as refused:
        read_rootfs_lock(tmp_path / "lock.json")
    assert "invoke lock --rootfs" in refused.value.hint
    content = json.loads(LOCK.read_text())
    (tmp_path / "lock.json").write_text(json.dumps({**content, "format": 2}))
    with pytest.raises(RootfsLockError, match="format 2 is not 1"):
        read_rootfs_lock(tmp_path / "lock.json")


def test_a_package_that_is_to_be_had_nowhere_any_more_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Served
):
    monkeypatch.setattr("torchlock.download.BACKOFF", 0)
    archive = Archive(f"{server.url}/pool", f"{server.url}/snapshots", {})
    package = DebPackage(
        "base", "1.0", "amd64", "debian", "system", "b/base_1.0_amd64.deb", 7, "ab" * 32,
        f"{server.url}/snapshots/b/base_1.0_amd64.deb",
    )  # fmt: skip
    lock = RootfsLock("bookworm", "amd64", "", {"debian": archive}, (package,))
    with pytest.raises(RootfsLockError, match=r"base_1\.0_amd64\.deb") as refused:
        fetch_debs(lock, Store(tmp_path))
    assert "lock the root file system again: invoke lock --rootfs" in refused.value.hint


def test_an_archive_that_nothing_names_is_said(tmp_path: Path):
    request = {**json.loads(REQUEST.read_text()), "archives": {"attic": ["no-such-suite"]}}
    (tmp_path / "request.json").write_text(json.dumps(request))
    with pytest.raises(ArchiveError, match="nothing says where the archive of no-such-suite is"):
        make_rootfs_lock(None, tmp_path / "request.json")


@pytest.mark.slow
def test_the_archive_can_be_locked_again(tmp_path: Path):
    """Needs the Debian archive: its signature holds, and the request can be met today."""
    shutil.copy(LOCK, tmp_path / "lock.json")
    known, made = relock_rootfs(tmp_path / "lock.json")
    assert read_rootfs_lock(tmp_path / "lock.json") == made
    request = json.loads(REQUEST.read_text())
    layers = {p.name: p.layer for p in made.packages}
    assert all(layers[name] == "system" for name in request["system"])
    assert layers["g++"] == layers["libc6-dev"] == "toolchain"
    assert known is not None and made.date >= known.date
    assert {a.url for a in made.archives.values()} == {a.url for a in known.archives.values()}


@pytest.fixture
def signing(tmp_path: Path):
    """A key of our own: its keyring directory, and a function that signs a release."""
    if shutil.which("gpg") is None:
        pytest.skip("gpg is not installed")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    base = ["gpg", "--homedir", str(home), "--batch", "--quiet"]
    subprocess.run(
        [*base, "--passphrase", "", "--quick-gen-key", "test", "ed25519"],
        check=True, capture_output=True,
    )  # fmt: skip
    keys = tmp_path / "keys"
    keys.mkdir()
    public = subprocess.run([*base, "--export"], check=True, capture_output=True).stdout
    (keys / "test.gpg").write_bytes(public)

    def sign(text: str) -> bytes:
        return subprocess.run(
            [*base, "--clearsign"], input=text.encode(), check=True, capture_output=True
        ).stdout

    return keys, sign


def release(until: datetime | None = None) -> str:
    more = f"Valid-Until: {until:%a, %d %b %Y %H:%M:%S UTC}\n" if until else ""
    return (
        f"Codename: bookworm\nDate: Sat, 11 Jul 2026 10:16:37 UTC\n{more}SHA256:\n"
        f" {'ab' * 32} 12 main/binary-amd64/Packages.xz\n"
    )


def test_a_signed_release_is_believed(signing):
    keys, sign = signing
    found = check_release(sign(release()), "bookworm", keys)
    assert found.indices["main/binary-amd64/Packages.xz"] == "ab" * 32
    assert found.date == datetime(2026, 7, 11, 10, 16, 37, tzinfo=timezone.utc)


def test_releases_that_nobody_vouches_for_are_refused(signing, tmp_path: Path):
    keys, sign = signing
    signed = sign(release())
    with pytest.raises(ArchiveError, match="not signed by the archive's key"):
        check_release(signed.replace(b"ab" * 32, b"cd" * 32), "bookworm", keys)
    with pytest.raises(ArchiveError, match="not signed by the archive's key"):
        check_release(release().encode(), "bookworm", keys)
    with pytest.raises(ArchiveError, match="not signed by the archive's key"):
        check_release(signed, "bookworm")  # Debian's keys do not know ours
    with pytest.raises(ArchiveError, match="not for trixie"):
        check_release(signed, "trixie", keys)
    soon = datetime.now(timezone.utc) + timedelta(days=1)
    assert check_release(sign(release(soon)), "bookworm", keys).indices
    past = datetime.now(timezone.utc) - timedelta(days=1)
    with pytest.raises(ArchiveError, match="stale"):
        check_release(sign(release(past)), "bookworm", keys)


PACKAGES = b"Package: base\nVersion: 1\n\nPackage: other\nVersion: 2\n"


def serve_suite(files: Path, signed: bytes, index: bytes) -> None:
    """Lay out a suite as archives do: the release, and its index under its own sha256."""
    suite = files / "dists" / "bookworm"
    by_hash = suite / "main" / "binary-amd64" / "by-hash" / "SHA256"
    by_hash.mkdir(parents=True)
    (suite / "InRelease").write_bytes(signed)
    (by_hash / hashlib.sha256(lzma.compress(PACKAGES)).hexdigest()).write_bytes(index)


def signed_suite(sign, name: str = "main/binary-amd64/Packages.xz") -> bytes:
    sha256 = hashlib.sha256(lzma.compress(PACKAGES)).hexdigest()
    return sign(
        f"Suite: bookworm\nDate: Sat, 11 Jul 2026 10:16:37 UTC\nSHA256:\n {sha256} 12 {name}\n"
    )


def test_an_index_comes_from_the_first_mirror_that_answers(signing, server: Served, files: Path):
    keys, sign = signing
    serve_suite(files, signed_suite(sign), lzma.compress(PACKAGES))
    places = [f"{server.url}/nothing", server.url]
    found, rows = fetch_suite(places, "bookworm", "amd64", keys)
    assert [row["Package"] for row in rows] == ["base", "other"]
    assert (
        found.sha256
        == hashlib.sha256((files / "dists" / "bookworm" / "InRelease").read_bytes()).hexdigest()
    )


def test_a_mirror_whose_index_is_not_the_signed_one_is_refused(
    signing, server: Served, files: Path
):
    keys, sign = signing
    serve_suite(files, signed_suite(sign), lzma.compress(PACKAGES.replace(b"1", b"6")))
    with pytest.raises(ArchiveError, match=r"Packages\.xz does not have the sha256"):
        fetch_suite([server.url], "bookworm", "amd64", keys)


def test_a_release_without_the_index_is_named(signing, server: Served, files: Path):
    keys, sign = signing
    serve_suite(files, signed_suite(sign, "main/binary-arm64/Packages.xz"), b"")
    with pytest.raises(ArchiveError, match=r"lists no main/binary-amd64/Packages\.xz"):
        fetch_suite([server.url], "bookworm", "amd64", keys)


def test_mirrors_that_do_not_answer_are_all_named(server: Served):
    places = [f"{server.url}/one", f"{server.url}/two"]
    with pytest.raises(ArchiveError, match="bookworm cannot be fetched") as refused:
        fetch_suite(places, "bookworm", "amd64")
    for place in places:
        assert f"{place}/dists/bookworm: HTTPError" in refused.value.message
    assert "invoke lock --rootfs" in refused.value.hint


def test_a_release_without_a_readable_date_is_refused(signing):
    keys, sign = signing
    for date in ("", "Date: yesterday\n"):
        with pytest.raises(ArchiveError, match="no readable date"):
            check_release(sign(f"Suite: bookworm\n{date}"), "bookworm", keys)


WRITES = 'for a; do case "$a" in --output=*) echo Suite: x > "${a#--output=}";; esac; done\n'
VALID = "echo '[GNUPG:] VALIDSIG 1'\n"


@pytest.mark.parametrize(
    "script",
    [VALID, *(f"{WRITES}{VALID}echo '[GNUPG:] {bad} 2'\n"
              for bad in ("BADSIG", "EXPSIG", "EXPKEYSIG", "REVKEYSIG"))],
)  # fmt: skip
def test_a_good_signature_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
):
    """Beside a bad one, or where gpgv left no text that it is of."""
    program = tmp_path / "gpgv"
    program.write_text(f"#!/bin/sh\n{WRITES}{VALID}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ArchiveError, match="no readable date"):
        check_release(b"", "x")
    program.write_text(f"#!/bin/sh\n{script}")
    with pytest.raises(ArchiveError, match="not signed by the archive's key"):
        check_release(b"", "x")


def test_without_gpgv_nothing_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ArchiveError, match="gpgv, which checks") as refused:
        check_release(b"", "bookworm")
    assert "apt-get install gpgv" in refused.value.hint


def test_the_loader_cache_is_what_ldconfig_reads(tmp_path: Path):
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    if not Path(ldconfig).exists():
        pytest.skip("ldconfig is not installed")
    libraries = {
        "usr/lib/x86_64-linux-gnu/libb.so.2.1": "libb.so.2",
        "usr/lib/x86_64-linux-gnu/liba.so.10": "liba.so.10",
        "usr/lib/x86_64-linux-gnu/liba.so.9": "liba.so.9",
    }
    (tmp_path / "cache").write_bytes(ldcache.cache(libraries))
    said = subprocess.run(
        [ldconfig, "-C", str(tmp_path / "cache"), "-p"], capture_output=True, text=True, check=True
    ).stdout
    names = [line.split()[0] for line in said.splitlines()[1:4]]
    assert names == ["libb.so.2", "liba.so.10", "liba.so.9"]
    assert "libb.so.2 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libb.so.2" in said


def test_sonames_are_read_from_libraries():
    found = next(Path("/lib/x86_64-linux-gnu").glob("libc.so.6"), None)
    if found is None:
        pytest.skip("no glibc where Debian has it")
    assert ldcache.soname(found.read_bytes()) == "libc.so.6"
    assert ldcache.soname(b"\x7fELF") == ""
    assert ldcache.soname(b"text") == ""
