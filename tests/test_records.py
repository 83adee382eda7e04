"""Recorded trees: written and read back, and never trusted when they contradict themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.locks import locked_wheel, records_of
from tests.support.wheels import build_wheel
from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.files import write_atomically
from torchlock.formats.wheel import WheelError, read_wheel
from torchlock.records import (
    RecordedFile,
    RecordedWheel,
    Records,
    check_records,
    read_records,
    record,
    tree_of,
    write_records,
)
from torchlock.tree import TreeConflictError, tree_digest

# Made with Nix 2.8 over the unzipped wheels, less RECORD, .data and byte code.
GOLDEN = {
    "whole": "sha256-8laghaxqxp9zehMMQO1l5Ph4RG/ge/KiVDzwzwHNkGk=",
    "alpha": "sha256-2neVoZeyVPC4w8sgwGjm9dzltqHJvkSz25AuTs36ASw=",
    "beta": "sha256-VQymnLEFjrM2U/x8X4MrbEf9Rs+6e+G+JPMhRPLfo8A=",
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> list[Path]:
    directory = tmp_path_factory.mktemp("wheels")
    return [
        build_wheel(
            directory,
            "alpha",
            files={
                "alpha/__init__.py": b"x = 1\n",
                "alpha/tool": b"#!/bin/sh\n",
                "shared/__init__.py": b"",
                "alpha/__pycache__/x.cpython-311.pyc": b"",
                "alpha-1.0.data/scripts/run": b"#!python\n",
                "alpha-1.0.data/data/share/ü.txt": b"u",
            },
            executable=frozenset({"alpha/tool"}),
            entry_points="[console_scripts]\nalpha = alpha:main\n",
        ),
        build_wheel(directory, "beta", files={"beta.py": b"", "shared/__init__.py": b""}),
    ]


@pytest.fixture(scope="module")
def records(wheels) -> Records:
    return records_of(wheels)


@pytest.fixture
def written(records, tmp_path) -> Path:
    write_records(records, tmp_path, write_atomically)
    return tmp_path


def test_what_is_recorded_is_what_the_wheel_carries(records, wheels):
    alpha = records.wheels["alpha"]
    with read_wheel(wheels[0]) as wheel:
        assert alpha.tree == tree_digest(wheel.tree())
    assert alpha.scripts == (("alpha", "alpha:main"),)
    assert alpha.wheel_size == wheels[0].stat().st_size
    by_path = {(f.scheme, f.path): f for f in alpha.files}
    assert by_path["site", "alpha/tool"].executable
    assert by_path["scripts", "run"].executable
    assert by_path["data", "share/ü.txt"].size == 1
    assert not by_path["site", "alpha/__pycache__/x.cpython-311.pyc"].counts
    assert not by_path["site", "alpha-1.0.dist-info/RECORD"].counts
    assert not by_path["scripts", "run"].counts
    assert by_path["site", "alpha-1.0.dist-info/METADATA"].counts


def test_digests_stay_what_they_are(records):
    found = {"whole": records.tree, **{name: w.tree for name, w in records.wheels.items()}}
    assert found == GOLDEN


def test_a_shared_file_counts_once_in_the_whole(records):
    paths = [e.path for entries in tree_of(records.wheels.values()).values() for e in entries]
    assert paths.count("shared/__init__.py") == 2


def test_written_and_read_back(records, written):
    assert read_records(written, "linux-64") == records


def test_the_files_are_the_same_whoever_writes_them(records, written, tmp_path_factory):
    again = tmp_path_factory.mktemp("again")
    shuffled = replace(records, wheels=dict(reversed(records.wheels.items())))
    write_records(shuffled, again, write_atomically)
    for name in ("linux-64.json", "linux-64.files"):
        assert (again / name).read_bytes() == (written / name).read_bytes()


def test_what_is_known_is_kept(records, wheels, monkeypatch):
    pairs = [(locked_wheel(path, "http://localhost"), path) for path in wheels]
    assert record(pairs, "linux-64", records) is records
    alone = record(pairs[:1], "linux-64", records)
    assert alone.wheels == {"alpha": records.wheels["alpha"]}
    assert alone.tree == records_of(wheels[:1]).tree


def test_wheels_that_disagree_about_a_file_are_refused(tmp_path):
    wheels = [
        build_wheel(tmp_path, name, files={"shared/__init__.py": name.encode()})
        for name in ("alpha", "beta")
    ]
    with pytest.raises(TreeConflictError, match="alpha and beta disagree about shared/__init__"):
        records_of(wheels)


def test_a_wheel_that_contradicts_itself_is_refused(tmp_path):
    lying = build_wheel(tmp_path, "alpha", record={"alpha/__init__.py": "sha256=" + "A" * 43})
    with pytest.raises(WheelError, match="its RECORD says"):
        records_of([lying])


def test_no_records_name_the_command(tmp_path):
    with pytest.raises(TorchlockError, match="no recorded trees for linux-64") as caught:
        read_records(tmp_path, "linux-64")
    assert caught.value.hint == "make them with: invoke record"


def test_a_changed_listing_is_not_believed(written):
    path = written / "linux-64.files"
    listing = path.read_bytes()
    assert b"alpha/tool" in listing
    path.write_bytes(listing.replace(b"alpha/tool", b"alpha/evil"))
    with pytest.raises(TorchlockError, match="listing of alpha is not the recorded one"):
        read_records(written, "linux-64")


@pytest.mark.parametrize("name", ["linux-64.json", "linux-64.files"])
@pytest.mark.parametrize("damage", ["empty", "cut", "junk"])
def test_damaged_records_are_named(written, name, damage):
    path = written / name
    data = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "junk": b"\xff" * 99}[damage])
    with pytest.raises(TorchlockError, match="damaged") as caught:
        read_records(written, "linux-64")
    assert "git checkout torchlock/records" in caught.value.hint


def change(written: Path, edit) -> None:
    path = written / "linux-64.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(edit(summary)))


@pytest.mark.parametrize(
    "edit",
    [lambda s: [], lambda s: None, lambda s: 5, lambda s: {}, lambda s: {**s, "format": 2},
     lambda s: {**s, "wheels": []}, lambda s: {**s, "wheels": {"alpha": 1}},
     lambda s: {**s, "wheels": {"alpha": {}}},
     lambda s: {**s, "wheels": {**s["wheels"], "more": s["wheels"]["alpha"]}}],
)  # fmt: skip
def test_summaries_of_another_shape_are_damage(written, edit):
    change(written, edit)
    with pytest.raises(TorchlockError, match="damaged"):
        read_records(written, "linux-64")


def test_the_records_must_be_of_the_locked_wheels(records, wheels):
    locked = [locked_wheel(path, "http://localhost") for path in wheels]
    check_records(records, locked)
    other = replace(locked[0], sha256="0" * 64)
    for packages, named in (
        ([other, locked[1]], "alpha"),
        (locked[:1], "beta"),
        ([*locked, replace(locked[0], name="gamma")], "gamma"),
    ):
        with pytest.raises(DoesNotHold, match=f"not those of the locked wheels: {named}\n"):
            check_records(records, packages)


def test_many_differences_are_counted(records, wheels):
    locked = locked_wheel(wheels[0], "http://localhost")
    many = [replace(locked, name=f"p{index}") for index in range(9)]
    with pytest.raises(DoesNotHold, match="alpha, beta, p0, p1, p2 and 6 more"):
        check_records(records, many)


PATHS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=12)
FILES = st.builds(
    RecordedFile,
    scheme=st.sampled_from(["site", "scripts", "data", "headers"]),
    path=PATHS,
    size=st.integers(0, 2**40),
    executable=st.booleans(),
    sha256=st.binary(min_size=32, max_size=32).map(bytes.hex),
)


@settings(max_examples=10)
@given(
    wheels=st.dictionaries(
        st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)*", fullmatch=True),
        st.tuples(
            st.lists(FILES, max_size=5, unique_by=lambda f: (f.scheme, f.path)),
            st.dictionaries(PATHS, PATHS, max_size=2),
        ),
        max_size=4,
    )
)
def test_any_records_are_read_back(wheels, tmp_path_factory):
    records = Records(
        "linux-64",
        "sha256-x",
        {
            name: RecordedWheel(
                name=name,
                version="1",
                wheel="0" * 64,
                wheel_size=1,
                tree="sha256-y",
                scripts=tuple(scripts.items()),
                files=tuple(sorted(files, key=lambda f: (f.scheme, f.path))),
            )
            for name, (files, scripts) in wheels.items()
        },
    )
    directory = tmp_path_factory.getbasetemp() / "records"
    write_records(records, directory, lambda path, data: path.write_bytes(data))
    assert read_records(directory, "linux-64") == records
