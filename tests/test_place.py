"""Where a prefix can be, and whose it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchlock.artifacts import Store
from torchlock.errors import TorchlockError
from torchlock.realize.marker import NAME, read_marker
from torchlock.realize.place import after_failure, alone, check_prefix_name, check_writable

UNUSABLE = {
    "conda": ["'", '"', "\\", ":", "\n", "\t", "\x7f", "\u2028", "\udcff"],
    "venv": ['"', "$", "`", ":", "\n", "\t", "\x7f", "\u2028", "\udcff"],
}
USABLE = {"conda": " $`#,%!*[{&;|<~=é(@", "venv": " '\\#,%!*[{&;|<~=é(@"}


@pytest.mark.parametrize("foundation", ["conda", "venv"])
def test_names_that_cannot_work(foundation):
    check_prefix_name(Path(f"/home/{USABLE[foundation]}/env"), foundation)
    for character in UNUSABLE[foundation]:
        with pytest.raises(TorchlockError, match=f"cannot be a {foundation} prefix") as caught:
            check_prefix_name(Path(f"/home/a{character}b/env"), foundation)
        assert repr(character) in caught.value.message


@pytest.mark.parametrize("target", ["link", "prefix"])
def test_a_prefix_behind_a_link_or_a_loop_of_links_is_worked_on_alone(tmp_path, target):
    (tmp_path / "link").symlink_to(target)
    store = Store(tmp_path / "store")
    another = pytest.raises(TorchlockError, match="another torchlock")
    with alone(tmp_path / "link", store), another, alone(tmp_path / target, store):
        pass


def test_what_cannot_be_read_is_not_called_damaged(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "odd" / NAME).mkdir(parents=True)
    places = {"x" * 300: "File name too long", "loop": "Too many levels", "odd": "Is a directory"}
    for name, reason in places.items():
        with pytest.raises(TorchlockError, match=f"cannot be read: {reason}") as caught:
            read_marker(tmp_path / name)
        assert caught.value.hint.startswith("choose another place")


AS_NOBODY = """
import os, sys
from pathlib import Path
from torchlock.errors import TorchlockError
from torchlock.realize.marker import read_marker
from torchlock.realize.place import check_writable
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for check in (read_marker, check_writable):
    try:
        check(Path(sys.argv[1]))
    except TorchlockError as error:
        print(error)
"""


def test_somebody_elses_directory_is_left_alone(tmp_path):
    place = tmp_path / "private" / "env"
    place.mkdir(parents=True)
    place.parent.chmod(0o000)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, place],
        cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    place.parent.chmod(0o700)
    assert f"{place}/{NAME} cannot be read: Permission denied" in done.stdout
    assert f"{place} cannot be written: Permission denied" in done.stdout
    assert "remove" not in done.stdout


def test_a_place_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TorchlockError, match="cannot be written"):
        check_writable(tmp_path / "file" / "env")
    check_writable(tmp_path / "not" / "yet")


def test_a_full_disk_is_said_to_be_one():
    assert "space" in after_failure("failed to copy: No space left on device (os error 28)")
    assert "space" in after_failure(f"write: {os.strerror(122)} (os error 122)")
    assert after_failure("something else").startswith("run the same command again")
