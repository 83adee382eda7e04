"""Which paths of a conda package go when the stack has the same distribution."""

from __future__ import annotations

import pytest

from torchlock.superseded import superseded

SITE = "lib/python3.11/site-packages"
PATHS = (f"{SITE}/yaml/__init__.py", f"{SITE}/PyYAML-6.0.dist-info/METADATA", "include/yaml.h")
SCRIPTS = ("bin/yaml",)


def test_the_python_part_and_the_scripts_of_entry_points_go():
    gone = superseded([*PATHS, *SCRIPTS], SCRIPTS, {"pyyaml"}, SITE)
    assert gone == {*PATHS[:2], *SCRIPTS}


@pytest.mark.parametrize(
    ("paths", "wheels"),
    [
        (PATHS, {"yaml", "torch"}),
        (PATHS, set()),
        ((f"{SITE}/other/pyyaml-6.0.dist-info/METADATA",), {"pyyaml"}),  # within a package
        (("lib/python3.12/site-packages/pyyaml-6.0.dist-info/METADATA",), {"pyyaml"}),
        ((f"{SITE}/pyyaml-6.0.dist-info/RECORD",), {"pyyaml"}),
    ],
)
def test_what_no_wheel_replaces_stays(paths: tuple[str, ...], wheels: set[str]):
    assert superseded(paths, SCRIPTS, wheels, SITE) == frozenset()
