"""What renders the image under Nix is what renders it elsewhere."""

from __future__ import annotations

import re

from tests.nix.renderer import LOCK, renderer_wheels
from tests.nix.runner import REPOSITORY


def test_every_wheel_is_one_that_the_requirements_pin():
    requirements = (REPOSITORY / "requirements.txt").read_text().replace("\\\n", "")
    pinned = {
        match[1]: set(re.findall(r"sha256:([0-9a-f]{64})", line))
        for line in requirements.splitlines()
        if (match := re.match(r"(\S+==\S+)", line))
    }

    wheels = renderer_wheels()

    assert "deflate" in {wheel.name for wheel in wheels}
    for wheel in wheels:
        assert wheel.sha256 in pinned[f"{wheel.name}=={wheel.version}"]


def test_the_lock_has_no_dates_which_nix_cannot_read():
    assert "upload-time" not in LOCK.read_text()
