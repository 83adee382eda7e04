"""The tree digest: the same as Nix's over the same files, and nothing but the files."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchlock.errors import TorchlockError
from torchlock.tree import (
    Entry,
    TreeConflictError,
    entry_on_disk,
    merge,
    safe_relative_path,
    tree_digest,
    tree_on_disk,
    walk,
)

# Made with Nix 2.8: `nix-store --dump DIR | sha256sum`, the same as `nix hash path DIR`.
GOLDEN = "sha256-Kec60YO5mc+cgldHal7DJj3xcdxDrMiNj3N+rcFOUZc="
GOLDEN_ONE = "sha256-tKIecHZiXvdo5uHwf+RgLn4gI0C7kV3/fHZTFAofV4I="
GOLDEN_EMPTY = "sha256-pQpattmS9VmO3ZIQUFn66az8GSmB4IvYhTTCFn6SUmo="

EXAMPLE = {
    "a/x": b"hello\n",
    "a/empty": b"",
    "a.b/eight": b"12345678",
    "a-b/z": b"z",
    "B": b"B",
    "é": b"u",
    "\N{MATHEMATICAL SCRIPT CAPITAL X}": b"p",
    "\N{REPLACEMENT CHARACTER}": b"q",
}


def entry(path: str, data: bytes = b"", *, executable: bool = False) -> Entry:
    @contextmanager
    def opens():
        yield io.BytesIO(data)

    return Entry(path, len(data), executable, hashlib.sha256(data).hexdigest(), opens=opens)


def link(path: str, target: str) -> Entry:
    return Entry(path, 0, target=target)


def example() -> list[Entry]:
    return [
        *(entry(path, data) for path, data in EXAMPLE.items()),
        entry("b/run", b"#!/bin/sh\n", executable=True),
        link("b/c/link", "../a/x"),
    ]


def write(root: Path, entries: list[Entry]) -> None:
    root.mkdir(exist_ok=True)
    for item in entries:
        path = root / item.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if item.target is not None:
            path.symlink_to(item.target)
            continue
        with item.opens() as stream:
            path.write_bytes(stream.read())
        path.chmod(0o755 if item.executable else 0o644)


def test_digest_is_the_one_nix_computes():
    assert tree_digest(example()) == GOLDEN
    assert tree_digest([entry("one", b"x")]) == GOLDEN_ONE
    assert tree_digest([]) == GOLDEN_EMPTY


def test_digest_on_disk_is_the_one_nix_computes(tmp_path):
    write(tmp_path / "tree", example())
    assert tree_digest(tree_on_disk(tmp_path / "tree")) == GOLDEN


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX"])
def test_digest_does_not_depend_on_the_locale(locale):
    code = (
        "from tests.test_tree import example\nfrom torchlock.tree import tree_digest\n"
        "print(tree_digest(example()))"
    )
    environment = {
        **os.environ,
        "LC_ALL": locale,
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == GOLDEN


def test_times_owners_and_other_mode_bits_do_not_matter(tmp_path):
    write(tmp_path / "tree", example())
    os.utime(tmp_path / "tree/B", (1, 1))
    (tmp_path / "tree/B").chmod(0o600)
    (tmp_path / "tree/b/run").chmod(0o700)
    assert tree_digest(tree_on_disk(tmp_path / "tree")) == GOLDEN


def test_execute_bit_contents_name_and_target_matter():
    base = [entry("a", b"1"), link("l", "a")]
    others = [
        [entry("a", b"1", executable=True), link("l", "a")],
        [entry("a", b"2"), link("l", "a")],
        [entry("b", b"1"), link("l", "a")],
        [entry("a", b"1"), link("l", "b")],
        [entry("a", b"1"), entry("l", b"a")],
        [entry("a", b"1")],
    ]
    assert len({tree_digest(tree) for tree in [base, *others]}) == 7


NAMES = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="/\\:"),
    min_size=1,
    max_size=5,
).filter(lambda name: name not in (".", "..") and len(name.encode()) < 200)


@st.composite
def trees(draw: st.DrawFn) -> list[Entry]:
    paths = draw(
        st.lists(st.lists(NAMES, min_size=1, max_size=3).map("/".join), max_size=8, unique=True)
    )
    free = [p for p in paths if not any(q != p and f"{q}/".startswith(f"{p}/") for q in paths)]
    return [
        link(path, draw(NAMES))
        if draw(st.integers(0, 4)) == 0
        else entry(path, draw(st.binary(max_size=40)), executable=draw(st.booleans()))
        for path in free
    ]


@given(tree=trees(), data=st.data())
def test_order_does_not_matter(tree, data):
    assert tree_digest(data.draw(st.permutations(tree))) == tree_digest(tree)


@settings(max_examples=25)
@given(tree=trees())
def test_a_written_tree_has_the_digest_of_its_entries(tree, tmp_path_factory):
    root = tmp_path_factory.mktemp("tree") / "root"
    write(root, tree)
    assert tree_digest(tree_on_disk(root)) == tree_digest(tree)
    assert sorted(path for path, _ in walk(root)) == sorted(item.path for item in tree)


def test_names_that_are_no_unicode_count_by_their_bytes(tmp_path):
    for root, name in (("one", b"\xff\xfe"), ("two", b"\xff\xff")):
        (tmp_path / root).mkdir()
        (tmp_path / root / os.fsdecode(name)).touch()
    first, second = (tree_digest(tree_on_disk(tmp_path / root)) for root in ("one", "two"))
    assert first != second


def test_a_link_to_a_directory_is_one_entry_and_not_followed(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").touch()
    (tmp_path / "root/dir").symlink_to("../elsewhere")
    assert tree_on_disk(tmp_path / "root") == [link("dir", "../elsewhere")]


def test_link_targets_are_taken_literally(tmp_path):
    (tmp_path / "l").symlink_to("./a//b/")
    assert entry_on_disk(tmp_path, "l").target == "./a//b/"


def test_a_pipe_is_no_entry_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TorchlockError, match="pipe is neither a file nor a link"):
        entry_on_disk(tmp_path, "pipe")


def test_a_path_cannot_occur_twice_or_be_file_and_directory():
    with pytest.raises(TreeConflictError, match="a occurs twice"):
        tree_digest([entry("a"), entry("a")])
    for tree in ([entry("a"), entry("a/b")], [entry("a/b"), entry("a")]):
        with pytest.raises(TreeConflictError, match=r"^a "):
            tree_digest(tree)


def test_contents_of_another_length_than_announced_are_refused():
    short = Entry("a", 5, opens=entry("a", b"1234").opens)
    with pytest.raises(TorchlockError, match="a has 4 bytes, 5 were announced"):
        tree_digest([short])


def test_merge_accepts_agreement_and_names_both_sides_of_a_conflict():
    same = entry("nvidia/__init__.py", b"")
    merged = merge({"cublas": [same, entry("z")], "cudnn": [same, entry("b")]})
    assert [e.path for e in merged] == ["b", "nvidia/__init__.py", "z"]
    for other in (entry("a", b"2"), entry("a", b"1", executable=True), link("a", "x")):
        with pytest.raises(TreeConflictError, match="one and two disagree about a: "):
            merge({"one": [entry("a", b"1")], "two": [other]})


@given(left=trees(), right=trees())
def test_merge_is_the_union_or_a_conflict(left, right):
    by_path = {e.path: e for e in left}
    clash = any(e.path in by_path and by_path[e.path] != e for e in right)
    if clash:
        with pytest.raises(TreeConflictError):
            merge({"left": left, "right": right})
    else:
        expected = {**by_path, **{e.path: e for e in right}}
        merged = merge({"left": left, "right": right})
        assert merged == [expected[path] for path in sorted(expected)]


@pytest.mark.parametrize(
    "name",
    ["", "/", "/etc/passwd", "..", "a/../b", "../a", "a/..", ".", "a/./b", "a//b", "a/", "a\\b",
     "C:/x", "c:", "a\0b", "a\nb", "a\tb", "a\rb", "a\x1fb", "a\x85b", "a\u2028b", "\udcff"],
)  # fmt: skip
def test_unsafe_paths_are_refused(name):
    with pytest.raises(TorchlockError, match="unsafe path"):
        safe_relative_path(name)


@pytest.mark.parametrize("name", ["a", "a/b.c", "..a", "a..", "...", ".a", "a b", "é/ü", "a:b"])
def test_safe_paths_are_kept(name):
    assert safe_relative_path(name) == name
