"""Layouts: what is damaged, in the way or not to be written is named, and left alone."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from tests.image.image_making import attach, small_layout
from tests.support.disks import read_only
from torchlock.oci.layout import MANIFEST, Document, Layout, LayoutError, document

TAG = "demo:1"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return small_layout(tmp_path / "layout", TAG)


def test_what_is_no_digest_is_no_path(layout: Layout):
    for digest in ("sha256:../../../etc/passwd", "sha256:" + "A" * 64, "md5:" + "0" * 32, ""):
        with pytest.raises(LayoutError, match="is no sha256 digest"):
            layout.blob(digest)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    with (
        read_only(tmp_path / "disk") as disk,
        pytest.raises(LayoutError, match=f"{disk}/new cannot be written: Read-only"),
    ):
        Layout(disk / "new").prepare()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LayoutError, match="file cannot be written: Not a directory"):
        Layout(tmp_path / "file").prepare()


def test_a_layout_that_cannot_be_locked_is_named(layout: Layout):
    with (
        read_only(layout.root),
        pytest.raises(LayoutError, match="cannot be written"),
        layout.alone(),
    ):
        pytest.fail("it is not alone")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_blob_or_an_index_that_cannot_be_written_is_named(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, code: int
):
    def fails(*_):
        raise OSError(code, os.strerror(code))

    says = "cannot be written" if code == errno.EIO else "no space left in"
    with pytest.raises(LayoutError, match=says):
        layout.add(fails)
    manifest = Document(MANIFEST, layout.read(layout.find(TAG)))
    before = (layout.root / "index.json").read_bytes()
    monkeypatch.setattr(Path, "write_bytes", fails)
    with pytest.raises(LayoutError, match=says):
        layout.publish("other:1", manifest)
    monkeypatch.undo()
    assert (layout.root / "index.json").read_bytes() == before
    assert not list((layout.root / "blobs").glob(".partial-*"))


def test_blobs_that_are_absent_or_damaged_are_named(layout: Layout):
    row = layout.find(TAG)
    path = layout.blob(row["digest"])
    content = path.read_bytes()
    path.write_bytes(content.replace(b"sha256", b"sha257", 1))
    assert layout.has(row["digest"], len(content)), "its size is right"
    with pytest.raises(LayoutError, match=f"blob {row['digest']} is damaged"):
        layout.manifest(row)
    path.unlink()
    assert not layout.has(row["digest"], len(content))
    with pytest.raises(LayoutError, match=f"{row['digest']}: No such file"):
        layout.manifest(row)


@pytest.mark.parametrize(
    "content",
    [
        {}, {"config": {}, "layers": []},
        {"config": {"digest": "sha256:x", "size": 1}, "layers": []},
        {"config": {"digest": "sha256:" + "0" * 64, "size": "many"}, "layers": []},
        {"config": {"digest": "sha256:" + "0" * 64, "size": 1}, "layers": [7]},
        {"config": {"digest": 7, "size": 1}, "layers": []},
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_named(layout: Layout, content):
    made = document(MANIFEST, content)
    layout.add_document(made)
    with pytest.raises(LayoutError, match=r"is no image manifest|is no sha256 digest") as refused:
        layout.manifest(made.descriptor())
    assert made.digest in refused.value.message or "sha256:x" in refused.value.message


@pytest.mark.parametrize(
    "row",
    [
        7, {}, {"digest": "a"}, {"digest": "a", "mediaType": 7}, {"digest": 7, "mediaType": "a"},
        {"digest": "a", "mediaType": "a", "annotations": [1]},
    ],
)  # fmt: skip
def test_an_index_of_other_rows_is_damaged(layout: Layout, row):
    (layout.root / "index.json").write_text(json.dumps({"manifests": [row]}))
    with pytest.raises(LayoutError, match=r"index\.json is damaged") as refused:
        layout.find(TAG)
    assert "remove it and render again" in refused.value.hint


def test_an_image_that_is_not_there_is_named(layout: Layout):
    with pytest.raises(LayoutError, match="has no image x:1") as refused:
        layout.find("x:1")
    assert refused.value.hint == f"invoke image --out {layout.root} --tag x:1"


def test_what_an_image_reaches_is_told_from_what_is_left(layout: Layout):
    attach(layout, TAG)
    assert layout.unreached() == []
    left = document("text/plain", {"left": 1})
    layout.add_document(left)
    assert layout.unreached() == [layout.blob(left.digest)]
    # An index of an index, as other tools make them, is followed.
    rows = layout.index()
    nested = document("application/vnd.oci.image.index.v1+json", {"manifests": rows})
    layout.add_document(nested)
    (layout.root / "index.json").write_text(json.dumps({"manifests": [nested.descriptor()]}))
    assert layout.unreached() == [layout.blob(left.digest)]
    # Where something cannot be followed, nothing is said to be left.
    layout.blob(rows[0]["digest"]).unlink()
    assert layout.unreached() == []
