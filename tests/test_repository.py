"""Promises of the repository itself."""

from __future__ import annotations

import re
import subprocess

import pytest

from torchlock.repository import this_repository

ROOT = this_repository().root
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```", README, re.M | re.S)


def tracked() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return listing.stdout.splitlines()


def test_readme_starts_with_two_commands_of_one_line():
    assert [block.count("\n") for block in BLOCKS[:2]] == [1, 1]
    assert BLOCKS[0].rstrip().endswith("invoke validate")
    assert 'pytest -m "not slow"' in BLOCKS[1]
    assert all(block.startswith("python3 -m venv .venv && ") for block in BLOCKS[:2])
    assert all("--require-hashes" in block for block in BLOCKS[:2])


def test_every_task_is_in_the_readme():
    source = (ROOT / "tasks.py").read_text()
    verbs = re.findall(r"^@verb\ndef (\w+)", source, re.M)
    assert verbs
    assert [verb for verb in verbs if f"`invoke {verb}" not in README] == []


HOSTS = re.compile(r"https?://(?:[\w-]+\.)*(?:pythonhosted|pypi|debian|anaconda|docker|npmjs)\.")


def test_no_registry_host_outside_lock_files_and_harvested_data():
    named = {
        path: found[0]
        for path in tracked()
        if "lock" not in path.rsplit("/", 1)[-1] and not path.startswith("tests/data/")
        if (found := HOSTS.search((ROOT / path).read_bytes().decode("utf-8", "replace")))
    }
    assert named == {}


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_the_tools_own_dependencies_are_pinned_by_hash(name):
    lines = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
    pins = [line for line in lines if line.strip() and not line.startswith("#")]
    assert pins and all("==" in pin and "--hash=sha256:" in pin for pin in pins)
