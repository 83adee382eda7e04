"""Stamps: what is taken for unchanged, and what is read again."""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path

import pytest

from torchlock import stamps as stamps_module
from torchlock.stamps import Reading, Stamps

CONTENTS = b"contents"
DIGEST = sha256(CONTENTS).hexdigest()


def settle() -> None:
    """Wait until a file that has just changed can be noted."""
    time.sleep(0.05)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "stamps"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "file"
    path.parent.mkdir()
    path.write_bytes(CONTENTS)
    settle()
    return path


def read(stamps: Stamps, path: Path) -> tuple[str, bool]:
    """Return a file's digest as one pass learns it, and whether the file was read for it."""
    reading = Reading(stamps)
    digest = reading.sha256(path, path.stat())
    assert reading.read + reading.unchanged == 1
    return digest, bool(reading.read)


def noted(notes: Path, path: Path) -> Stamps:
    """Read a file in one run, and return the stamps of the next."""
    stamps = Stamps.read(notes)
    assert read(stamps, path) == (DIGEST, True)
    stamps.write()
    return Stamps.read(notes)


def edit(path: Path) -> None:
    """Change a file in place, keeping its size, and put its time of modification back."""
    status = path.stat()
    with path.open("r+b") as stream:
        stream.write(b"C")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    settle()


def test_an_unchanged_file_is_read_once(notes, file):
    assert read(noted(notes, file), file) == (DIGEST, False)


@pytest.mark.parametrize("seconds", [-(1 << 31), -1, 0, 14_000_000_000])  # 1901 to 2413
def test_a_file_may_be_of_any_time(notes, file, seconds):
    os.utime(file, ns=(seconds * 10**9, seconds * 10**9))
    settle()
    assert read(noted(notes, file), file) == (DIGEST, False)


def test_without_stamps_everything_is_read(file):
    reading = Reading()
    for _ in range(2):
        assert reading.sha256(file, file.stat()) == DIGEST
    assert (reading.read, reading.unchanged) == (2, 0)
    assert reading.told == "2 read, 0 unchanged since they were read"


@pytest.mark.parametrize("change", ["edit", "replace", "touch", "mode", "link"])
def test_a_touched_file_is_read_again(notes, file, change, tmp_path):
    stamps = noted(notes, file)
    if change == "edit":
        edit(file)
    elif change == "replace":
        file.rename(tmp_path / "old")
        file.write_bytes(b"Contents")
    elif change == "touch":
        file.touch()
    elif change == "mode":
        file.chmod(0o600)
    else:
        (tmp_path / "link").hardlink_to(file)
    assert read(stamps, file) == (sha256(file.read_bytes()).hexdigest(), True)


def test_a_file_that_changed_a_moment_ago_is_not_noted(notes, file):
    file.write_bytes(CONTENTS)
    assert read(noted(notes, file), file)[1]


def test_a_link_to_an_unchanged_file_is_not_read(notes, file, tmp_path):
    stamps = noted(notes, file)
    stamps.before_linking(file.parent)
    (tmp_path / "linked").hardlink_to(file)
    settle()
    assert read(stamps, tmp_path / "linked") == (DIGEST, False)
    stamps.write()
    assert read(Stamps.read(notes), file) == (DIGEST, False)


def test_what_was_edited_before_linking_is_read(notes, file, tmp_path):
    stamps = noted(notes, file)
    edit(file)
    stamps.before_linking(file.parent)
    (tmp_path / "linked").hardlink_to(file)
    digest, was_read = read(stamps, tmp_path / "linked")
    assert was_read
    assert digest != DIGEST


def test_what_is_written_after_linking_is_read(notes, file, tmp_path):
    stamps = noted(notes, file)
    stamps.before_linking(file.parent)
    (tmp_path / "linked").hardlink_to(file)
    file.write_bytes(b"Contents")
    assert read(stamps, tmp_path / "linked")[1]


def test_links_are_followed_no_longer_than_asked(notes, file, tmp_path):
    stamps = noted(notes, file)
    stamps.before_linking(file.parent)
    stamps.after_linking()
    (tmp_path / "linked").hardlink_to(file)
    assert read(stamps, file)[1]


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_notes_that_others_could_write_are_not_believed(notes, file, mode):
    noted(notes, file)
    notes.chmod(mode)
    assert read(Stamps.read(notes), file)[1]


def test_notes_of_another_user_are_not_believed(notes, file, monkeypatch):
    noted(notes, file)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert read(Stamps.read(notes), file)[1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"[[1, 2, 3, 4, 5, 6]]",
        lambda data: data[:-1],
        lambda data: data.replace(b"stamps 1", b"stamps 2", 1),
    ],
)
def test_damaged_notes_say_nothing(notes, file, damage):
    noted(notes, file)
    notes.write_bytes(damage(notes.read_bytes()))
    assert read(Stamps.read(notes), file) == (DIGEST, True)


def test_the_notes_have_the_format_that_is_described(notes, file):
    noted(notes, file)
    status = file.stat()
    numbers = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    row = b"".join(n.to_bytes(8, "little") for n in numbers) + bytes.fromhex(DIGEST)
    assert notes.read_bytes() == b"torchlock stamps 1\n" + row


def test_a_file_that_changed_has_one_row(notes, file):
    stamps = noted(notes, file)
    edit(file)
    assert read(stamps, file)[1]
    stamps.write()
    assert notes.stat().st_size == len("torchlock stamps 1\n") + 72
    assert not read(Stamps.read(notes), file)[1]


def test_the_latest_rows_are_kept(notes, file, monkeypatch):
    monkeypatch.setattr(stamps_module, "LIMIT", 1)
    other = file.with_name("other")
    other.write_bytes(CONTENTS)
    settle()
    stamps = noted(notes, file)
    assert read(stamps, other)[1]
    stamps.write()
    assert read(Stamps.read(notes), file)[1]
    assert not read(Stamps.read(notes), other)[1]


def test_a_run_that_settles_notes_what_it_has_just_linked(notes, file, tmp_path):
    stamps = noted(notes, file)
    stamps.before_linking(file.parent)
    (tmp_path / "linked").hardlink_to(file)
    with stamps.settling():
        pass
    assert not read(stamps, tmp_path / "linked")[1]
    stamps.write()
    assert not read(Stamps.read(notes), file)[1]


def replaced_by_a_file(path: Path) -> None:
    path.rename(path.with_name("old"))  # its inode stays taken
    path.write_bytes(CONTENTS)


def replaced_by_a_pipe(path: Path) -> None:
    path.rename(path.with_name("old"))
    os.mkfifo(path)


@pytest.mark.parametrize("replace", [replaced_by_a_file, replaced_by_a_pipe])
def test_what_is_read_is_what_was_looked_at(file, replace):
    status = file.stat()
    replace(file)
    with pytest.raises(OSError, match="it was replaced while it was looked at"):
        Reading().sha256(file, status)


def test_what_is_noted_is_what_was_read(notes, file):
    stamps = Stamps.read(notes)
    status = file.stat()
    edit(file)  # after it was looked at: of the stamp only the inode stays true
    Reading(stamps).sha256(file, status)
    stamps.write()
    digest, was_read = read(Stamps.read(notes), file)
    assert (digest, was_read) == (sha256(b"Contents").hexdigest(), False)


def test_notes_that_cannot_be_kept_are_not(tmp_path, file):
    stamps = Stamps.read(tmp_path / "absent" / "stamps")
    assert read(stamps, file) == (DIGEST, True)
    stamps.write()
    assert not (tmp_path / "absent").exists()
