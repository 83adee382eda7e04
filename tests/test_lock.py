"""Reading a lock: what it means, and what is said of a damaged one."""

from __future__ import annotations

import contextlib
import copy
import random
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.locks import lock_text
from torchlock.errors import TorchlockError
from torchlock.lock import LockError, Package, fits, parse_lock

WHEEL = Package(
    name="alpha",
    version="1.0",
    manager="pip",
    platform="linux-64",
    url="https://index.example/alpha-1.0-py3-none-any.whl",
    sha256="a" * 64,
    md5=None,
    dependencies={"beta": ">=2"},
)
CONDA = Package(
    name="zlib",
    version="1.3",
    manager="conda",
    platform="linux-64",
    url="https://channel.example/linux-64/zlib-1.3-h1_0.conda",
    sha256="b" * 64,
    md5="c" * 32,
    dependencies={},
)


def test_reads_both_halves_sorted_by_name():
    beta = replace(WHEEL, name="beta", url="https://index.example/beta-1.0-py3-none-any.whl")
    lock = parse_lock(lock_text([beta, CONDA, WHEEL]))
    assert lock.wheels("linux-64") == (WHEEL, beta)
    assert lock.conda_packages("linux-64") == (CONDA,)


def test_digest_is_of_the_artifacts_alone():
    reordered = parse_lock("# a comment\n" + lock_text([CONDA, replace(WHEEL, dependencies={})]))
    assert reordered.digest == parse_lock(lock_text([WHEEL, CONDA])).digest
    changed = parse_lock(lock_text([CONDA, replace(WHEEL, sha256="d" * 64)]))
    assert changed.digest != reordered.digest


def test_digest_is_stable():
    assert parse_lock(lock_text([WHEEL, CONDA])).digest == GOLDEN_DIGEST


GOLDEN_DIGEST = "sha256:5bfe8c82b28193209395871e9c693f0adcc914669601eab9bcf1c6ba44ab1106"


@pytest.mark.parametrize("field", ["name", "version", "manager", "platform", "url", "hash"])
def test_missing_field_is_named(field):
    content = yaml.safe_load(lock_text([WHEEL]))
    del content["package"][0][field]
    with pytest.raises(LockError, match=rf"field `{field}` is missing"):
        parse_lock(yaml.safe_dump(content))


def test_wheel_without_sha256_is_refused():
    content = yaml.safe_load(lock_text([WHEEL]))
    content["package"][0]["hash"] = {"md5": "c" * 32}
    with pytest.raises(LockError, match="alpha: hash: field `sha256` is missing"):
        parse_lock(yaml.safe_dump(content))


def test_unquoted_all_digit_hash_is_named():
    text = lock_text([WHEEL]).replace("a" * 64, "1" * 64).replace("'" + "1" * 64 + "'", "1" * 64)
    with pytest.raises(LockError, match="`sha256` is a int, not a str \\(an unquoted number"):
        parse_lock(text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sha256": "A" * 64}, "not 64 lower-case hex digits"),
        ({"sha256": "a" * 63}, "not 64 lower-case hex digits"),
        ({"url": "alpha-1.0-py3-none-any.whl"}, "not the URL of a file"),
        ({"url": "ftp://index.example/alpha-1.0-py3-none-any.whl"}, "not the URL of a file"),
        ({"url": "https://me:secret@index.example/alpha-1.0-py3-none-any.whl"}, "credentials"),
        ({"url": "https://index.example/t/tk-1/alpha-1.0-py3-none-any.whl"}, "credentials"),
        ({"url": 'https://index.example/"/alpha-1.0-py3-none-any.whl'}, "no URL has"),
        ({"url": "https://index.example/alpha-1.0.tar.gz"}, "is no wheel"),
        ({"url": "https://index.example/beta-1.0-py3-none-any.whl"}, "a wheel of beta 1.0"),
        ({"url": "https://index.example/alpha-2.0-py3-none-any.whl"}, "a wheel of alpha 2.0"),
        ({"url": "https://index.example/alpha-1.0-cp312-cp312-linux_x86_64.whl"}, "does not run"),
        (
            {"url": "https://index.example/alpha-1.0-cp311-cp311-manylinux_2_28_aarch64.whl"},
            "does not run on CPython 3.11 of linux-64",
        ),
    ],
)
def test_an_artifact_that_does_not_fit_its_entry_is_refused(change, says):
    with pytest.raises(LockError, match="alpha") as caught:
        parse_lock(lock_text([replace(WHEEL, **change)]))
    assert says in caught.value.message
    assert "secret" not in says or "secret" not in str(caught.value)


def test_unknown_platform_of_the_lock():
    text = lock_text([WHEEL]).replace("linux-64", "plan9-64")
    with pytest.raises(LockError, match="unknown platform 'plan9-64'; known are linux-64"):
        parse_lock(text)


def test_platform_of_an_entry_that_the_lock_does_not_name():
    content = yaml.safe_load(lock_text([WHEEL]))
    content["package"][0]["platform"] = "osx-arm64"
    with pytest.raises(LockError, match="platform 'osx-arm64' is not among the lock's"):
        parse_lock(yaml.safe_dump(content))


def test_platform_that_is_asked_for_but_not_locked():
    with pytest.raises(LockError, match="no platform osx-arm64; it has linux-64"):
        parse_lock(lock_text([WHEEL])).wheels("osx-arm64")


def test_two_artifacts_for_one_package():
    other = replace(WHEEL, url="https://index.example/alpha-1.0-py2.py3-none-any.whl")
    with pytest.raises(LockError, match=r"two pip artifacts for alpha on linux-64: alpha-1\.0"):
        parse_lock(lock_text([WHEEL, other]))


def test_a_wheel_and_a_conda_package_of_one_name_are_two_things():
    conda = replace(CONDA, name="alpha", url="https://channel.example/linux-64/alpha-1-h_0.conda")
    assert len(parse_lock(lock_text([WHEEL, conda])).packages) == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "version: 2\n", "version: 1\n", "\x00", "a: &a [*a]"]
)
def test_what_is_no_lock(text):
    with pytest.raises(LockError):
        parse_lock(text)


@given(st.text())
def test_no_text_makes_the_parser_crash(text):
    with contextlib.suppress(TorchlockError):
        parse_lock(text)


@given(st.integers(), st.sampled_from([None, 7, [], {}, "x", True]))
def test_no_damaged_value_makes_the_parser_crash(seed, value):
    content = yaml.safe_load(lock_text([WHEEL, CONDA]))
    damaged = copy.deepcopy(content)
    spots = list(_spots(damaged))
    container, key = random.Random(seed).choice(spots)
    container[key] = value
    try:
        parse_lock(yaml.safe_dump(damaged))
    except TorchlockError as error:
        assert error.message


def _spots(node):
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        yield node, key
        if isinstance(value, (dict, list)):
            yield from _spots(value)


@pytest.mark.parametrize(
    ("tag", "runs"),
    [
        (("cp311", "cp311", "manylinux_2_28_x86_64"), True),
        (("cp37", "abi3", "manylinux2014_x86_64"), True),
        (("cp312", "abi3", "manylinux2014_x86_64"), False),
        (("cp310", "cp310", "manylinux2014_x86_64"), False),
        (("py3", "none", "any"), True),
        (("py2", "none", "any"), False),
        (("py312", "none", "any"), False),
        (("cp311", "cp311", "musllinux_1_2_x86_64"), False),
        (("cp311", "cp311", "win_amd64"), False),
    ],
)
def test_which_wheels_run(tag, runs):
    assert fits(*tag, "linux-64") is runs
