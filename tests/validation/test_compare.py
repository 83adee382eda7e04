from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from validation import canonical, compare

from .examples import CPU_CLASS, A, B, issued


@pytest.fixture
def write(tmp_path):
    def written(name, **changes):
        path = tmp_path / name
        path.write_text(canonical.dump(issued(**changes)))
        return str(path)

    return written


def test_two_machines_with_the_same_bits_are_the_same(write, capsys):
    other = write("b.json", cpu="Intel Xeon", kernel="6.8", milliseconds=5)
    assert compare.main([write("a.json"), other]) == 0
    assert "the same (1 digests)" in capsys.readouterr().out


def test_another_c_library_is_no_difference():
    ours = [{"name": "libc.so.6", "from": "foundation"}]
    theirs = [{"name": "libc-2.28.so", "from": "foundation"}]
    result = compare.compare(issued(libraries=ours), issued(libraries=theirs))
    assert result.first is None


GPU = {"name": "cuda 9.0, 132 multiprocessors", "torch": "2.7.1+cu126"}
HIJACKED = [
    {"name": "libtorch.so", "from": "environment"},
    {"name": "libcudnn.so.9", "from": "elsewhere"},
]
# In the order of the comparison; each entry's change is seen only if none before it is made.
CHANGES = [
    ("lock", {"lock": B}, B),
    ("files", {"tree": "sha256-x", "wheels": {"torch": "sha256-torch"}}, "numpy"),
    ("libraries", {"libraries": HIJACKED}, "libcudnn.so.9: absent / elsewhere"),
    ("lane", {"reported": {"aten": "AVX512"}}, "aten: AVX2 / AVX512"),
    ("class", {"classes": {"cpu": {**CPU_CLASS, "torch": "2.8"}}}, "torch: 2.7.1+cu126 / 2.8"),
    ("numbers", {"digests": {"fp32": B}, "losses": ["0x1.0p+0", "0x1.9p-1"]}, "part at step 2"),
]


@pytest.mark.parametrize(("what", "change", "evidence"), CHANGES)
def test_a_difference_is_named_with_what_each_side_has(what, change, evidence):
    first = compare.compare(issued(), issued(**change)).first
    assert first is not None
    assert first.what == what
    assert evidence in first.evidence
    assert first.reading


@pytest.mark.parametrize("place", range(len(CHANGES)))
def test_the_first_difference_in_the_order_is_the_one_that_is_named(place):
    later = {}
    for _, change, _ in CHANGES[place:]:
        later.update(change)
    first = compare.compare(issued(), issued(**later)).first
    assert first is not None
    assert first.what == CHANGES[place][0]


def test_numbers_that_differ_between_cpus_name_both_cpus():
    other = issued(digests={"fp32": B}, cpu="Intel Xeon")
    first = compare.compare(issued(), other).first
    assert first is not None
    assert "CPU: AMD EPYC / Intel Xeon" in first.evidence


def test_other_gpus_are_another_class():
    ours = issued(classes={"cpu": CPU_CLASS, "gpu": GPU})
    theirs = issued(classes={"cpu": CPU_CLASS, "gpu": {**GPU, "name": "cuda 8.0, 108"}})
    first = compare.compare(ours, theirs).first
    assert first is not None
    assert first.what == "class"


def test_what_only_one_side_judged_is_said_and_never_the_same(write, capsys):
    assert compare.main([write("a.json"), write("b.json", lock=None, tree=None)]) == 0
    assert "not judged on both sides: lock, files" in capsys.readouterr().out
    assert compare.main([write("a.json"), write("c.json", digests={})]) == 2
    assert "no numbers in common" in capsys.readouterr().out


def test_any_number_of_certificates_is_compared_with_the_first(write, capsys):
    paths = [write("a.json"), write("b.json"), write("c.json", digests={"fp32": B})]
    assert compare.main([*paths, "--json", "-"]) == 1
    results = json.loads(capsys.readouterr().out)
    assert [(r["b"], r["verdict"], r["differs"]) for r in results] == [
        ("b.json", "holds", None),
        ("c.json", "does not hold", "numbers"),
    ]
    assert A in results[1]["evidence"]


def test_a_damaged_certificate_or_a_missing_one_cannot_be_judged(write, tmp_path, capsys):
    (tmp_path / "broken.json").write_text("{")
    assert compare.main([write("a.json"), str(tmp_path / "broken.json")]) == 2
    assert "broken.json" in capsys.readouterr().err
    assert compare.main([write("a.json"), str(tmp_path / "none.json")]) == 2
    assert compare.main([write("a.json")]) == 2


def _places(value, path=()):
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _places(item, (*path, key))


PLACES = [path for path in _places(issued()) if path]


@settings(deadline=None)
@given(st.sampled_from(PLACES), st.none() | st.integers() | st.text() | st.just([]) | st.just({}))
def test_whatever_stands_in_a_certificate_there_is_a_sentence_and_no_traceback(place, other):
    changed = json.loads(canonical.dump(issued()))
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = other
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory, name) for name in ("a.json", "b.json")]
        for path, value in zip(paths, (issued(), changed), strict=True):
            path.write_text(canonical.dump(value))
        assert compare.main([str(path) for path in paths]) in (0, 1, 2)
        assert compare.main([str(path) for path in paths[::-1]]) in (0, 1, 2)


def test_files_of_others_among_the_same_tree_are_a_difference():
    ours, theirs = issued(), issued()
    ours["files"]["verdict"], theirs["files"]["verdict"] = "holds", "does not hold"
    first = compare.compare(ours, theirs).first
    assert first is not None
    assert (first.what, first.evidence) == ("files", "verdict: holds / does not hold")
