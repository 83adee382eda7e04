"""One pass: ranges come out as they are in the file, and the digest is the file's, whatever."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchlock import onepass
from torchlock.artifacts import Store, UnverifiedError
from torchlock.errors import TorchlockError
from torchlock.onepass import CHUNK, OnePass
from torchlock.stamps import Reading, Stamps

CONTENT = b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(3 * CHUNK // 32 + 1))
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def kept(root: Path, content: bytes = CONTENT) -> tuple[Store, SimpleNamespace, Path]:
    """Put a file into a store under the name and digest of `CONTENT`."""
    store, artifact = Store(root), SimpleNamespace(sha256=SHA256, filename="x.whl", label="x")
    path = store.path(artifact)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    time.sleep(0.05)  # a file that has just changed is not noted
    return store, artifact, path


@settings(max_examples=60, deadline=None)
@given(
    ranges=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 300)), max_size=12),
    in_order=st.booleans(),
)
def test_ranges_in_any_order_are_the_file_s_and_so_is_the_digest(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]], in_order: bool
):
    path = tmp_path_factory.mktemp("x") / "x"
    path.write_bytes(CONTENT[:600])
    digest = hashlib.sha256()
    with pytest.MonkeyPatch.context() as patched, path.open("rb", buffering=0) as file:
        patched.setattr(onepass, "CHUNK", 64)
        opened = OnePass(path, file, digest)
        for offset, length in sorted(ranges) if in_order else ranges:
            assert opened.read(offset, length) == CONTENT[:600][offset : offset + length]
            file.seek(length)  # as zipfile does
        opened.finish()
    assert digest.hexdigest() == hashlib.sha256(CONTENT[:600]).hexdigest()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    handle = os.open(tmp_path, os.O_RDONLY)  # of a directory there is no reading
    with pytest.raises(OSError, match="directory"):
        os.read(handle, 1)
    file = SimpleNamespace(seek=lambda _: 0, readinto=lambda buffer: os.readv(handle, [buffer]))
    with pytest.raises(TorchlockError, match=f"{tmp_path} cannot be read: Is a directory"):
        list(OnePass(tmp_path, file).pieces(0, 1))
    os.close(handle)


def test_what_was_opened_is_verified_to_its_end_and_then_known(tmp_path: Path):
    store, artifact, path = kept(tmp_path)
    stamps = Stamps(tmp_path / "stamps")
    reading = Reading(stamps)
    with store.opened(artifact, reading) as opened:
        assert b"".join(map(bytes, opened.pieces(7, 5))) == CONTENT[7:12]
    assert (reading.read, reading.unchanged) == (1, 0)
    stamps.write()
    again = Reading(Stamps.read(tmp_path / "stamps"))
    with Store(tmp_path).opened(artifact, again):
        pass
    assert (again.read, again.unchanged) == (0, 1)
    reading = Reading()
    with store.opened(artifact, reading):
        pass
    assert reading.read == 0, "each artifact is hashed once per `Store`"
    path.write_bytes(bytes(len(CONTENT)))
    with pytest.raises(UnverifiedError), store.opened(artifact, Reading()):
        pass  # unless it changes
    assert store.verified(artifact) is None and not path.exists()


@pytest.mark.parametrize(
    "content", [CONTENT[:-1], CONTENT + b"?", CONTENT[:-1] + b"?", b"?" + CONTENT[1:], b""]
)
def test_another_file_is_noticed_whatever_was_read_of_it(tmp_path: Path, content: bytes):
    store, artifact, _ = kept(tmp_path, content)
    stamps = Stamps(tmp_path / "stamps")
    for _ in range(2):
        reading = Reading(stamps)
        with (
            pytest.raises(UnverifiedError, match=r"x\.whl is not what the lock says"),
            store.opened(artifact, reading) as opened,
        ):
            for _ in opened.pieces(CHUNK, CHUNK):
                pass
        assert (reading.read, reading.unchanged) == (0, 0), "nor is it known the second time"


@pytest.mark.parametrize("known", ["not", "verified", "stamped"])
def test_a_file_that_changes_behind_the_pass_is_noticed(tmp_path: Path, known: str):
    """What archives tell of themselves is read before the pass comes by."""
    store, artifact, path = kept(tmp_path)
    reading = Reading(Stamps(tmp_path / "stamps"))
    if known != "not":
        assert store.verified(artifact, reading)
    if known == "stamped":
        store = Store(tmp_path)
    with (
        pytest.raises(UnverifiedError, match="is being changed"),
        store.opened(artifact, reading) as opened,
    ):
        for _ in opened.pieces(0, len(CONTENT)):
            pass
        with path.open("r+b") as file:
            file.write(b"?")


def test_a_kept_file_that_cannot_be_opened_is_named(tmp_path: Path):
    store, artifact, path = kept(tmp_path)
    path.unlink()
    assert not store.has(artifact)
    with (
        pytest.raises(UnverifiedError, match=f"{path} cannot be read: No such file"),
        store.opened(artifact, Reading()),
    ):
        pass
