"""Stamps: what is taken for unchanged, and what is read again."""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path

import pytest

from torchlock.stamps import Reading, Stamps

CONTENTS = b"contents"
DIGEST = sha256(CONTENTS).hexdigest()


def settle() -> None:
    """Wait until a file that has just changed can be noted."""
    time.sleep(0.05)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "stamps.json"


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


@pytest.mark.parametrize("text", ["", "{", "5", "[1]", "[[1, 2, 3]]", '{"a": 1}'])
def test_damaged_notes_say_nothing(notes, file, text):
    notes.write_text(text)
    assert read(Stamps.read(notes), file) == (DIGEST, True)


def test_notes_that_cannot_be_kept_are_not(tmp_path, file):
    stamps = Stamps.read(tmp_path / "absent" / "stamps.json")
    assert read(stamps, file) == (DIGEST, True)
    stamps.write()
    assert not (tmp_path / "absent").exists()
