"""What installing again would put right, and what the user is told of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchlock.findings import Finding
from torchlock.realize.repair import damaged_packages, does_not_hold

CHANGED = Finding("changed", "torch", "torch/__init__.py", "sha256 differs")
MISSING = Finding("missing", "numpy", "numpy/__init__.py", "the file is not there")
FOREIGN = Finding("foreign", "", "mine.pth", "no locked artifact explains it")
LEFT_OVER = Finding("foreign", "setuptools", "bin/old", "left from conda's setuptools")
ALTERED = Finding("changed", "", "etc/made", "it is not as a link script left it")
VERSION = Finding("version", "numpy", "numpy-1.dist-info", "1 is installed, the lock says 2")


def test_what_installing_again_puts_right_are_files_of_packages():
    found = [CHANGED, MISSING, FOREIGN, LEFT_OVER, ALTERED]
    assert damaged_packages(found) == {"torch", "numpy"}
    assert damaged_packages([VERSION]) == {"numpy"}
    assert damaged_packages([FOREIGN, LEFT_OVER, ALTERED]) == set()


def test_packages_that_stay_damaged_are_changed_by_something():
    error = does_not_hold(Path("/pre"), [CHANGED, MISSING])
    assert "changed: torch/__init__.py (torch)" in error.message
    assert "something changes the files" in error.hint


@pytest.mark.parametrize("other", [FOREIGN, LEFT_OVER, ALTERED, VERSION])
def test_what_is_not_torchlocks_is_the_users_to_remove(other: Finding):
    error = does_not_hold(Path("/pre"), [CHANGED, other])
    assert other.path in error.message
    assert "removes nothing that it did not install" in error.hint
    assert "/pre" in error.hint
