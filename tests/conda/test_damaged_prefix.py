"""A conda prefix that is damaged is put right by `invoke env`, and it says what it found."""

from __future__ import annotations

import json
import py_compile
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conda.packing import SITE
from tests.conda.test_others_files import lock_with, pack
from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.realize.foundation import judge_foundation

LIBRARY = "lib/python3.11"


def works(prefix: Path) -> bool:
    code = "import json, ssl, greet; greet.main()"
    done = subprocess.run(
        [prefix / "bin/python", "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout == "hello from the wheel\n"


@pytest.mark.parametrize(
    "lost",
    ["bin/python3.11", "bin/python", f"{LIBRARY}/encodings/__init__.py", f"{LIBRARY}/json"],
)
def test_a_python_that_does_not_start_is_put_right(world, prefix, lost):
    for known in world.store.root.glob("uv/interpreter*"):
        shutil.rmtree(known)  # what uv remembers of a Python that did start
    if (prefix / lost).is_dir():
        shutil.rmtree(prefix / lost)
    else:
        (prefix / lost).unlink()
    said: list[str] = []
    made = world.make(prefix, say=said.append)
    assert (made.installed, made.conda.holds, made.verdict.holds) == (True, True, True)
    assert any(f"missing: {lost}" in line for line in said)
    assert works(prefix)


@pytest.mark.slow
def test_a_python_that_was_lost_in_a_run_that_was_broken_off(world, prefix, tmp_path):
    (prefix / "thesis.tex").write_text("years of work")
    newer = lock_with(world.lock, pack(tmp_path, "new", {"share/new.txt": "x"}))
    with pytest.raises(DoesNotHold, match=r"foreign: thesis\.tex"):
        world.make(prefix, newer)  # so that its marker says that it is not complete
    (prefix / "thesis.tex").unlink()
    (prefix / "bin/python3.11").unlink()
    said: list[str] = []
    assert world.make(prefix, newer, say=said.append).conda.holds
    assert any("missing: bin/python3.11 (python)" in line for line in said)
    assert works(prefix)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("where-1.0-0", "{}"),
        ("where-1.0-0", '{"name": "where", "version": "1.0"}'),
        ("python-", ""),
        ("python-", "[]"),
    ],
)
def test_a_damaged_record_is_found_and_put_right(world, prefix, text, name):
    (record,) = (prefix / "conda-meta").glob(f"{name}*.json")
    whole = json.loads(record.read_text())
    record.unlink()
    record.write_text(text)
    (finding,) = judge_foundation(
        world.lock, "linux-64", prefix, world.records, world.store
    ).findings
    shown = record.relative_to(prefix).as_posix()
    assert (finding.kind, finding.path) == ("changed", shown)
    assert world.make(prefix).installed
    mended = json.loads(record.read_text())
    assert {k: mended[k] for k in ("name", "version", "build", "sha256", "url")} == {
        k: whole[k] for k in ("name", "version", "build", "sha256", "url")
    }
    assert works(prefix)


def test_a_record_without_a_digest_is_not_believed(world, prefix):
    record = prefix / "conda-meta/where-1.0-0.json"
    content = json.loads(record.read_text())
    record.unlink()
    record.write_text(json.dumps({**content, "sha256": None, "md5": None}))
    (finding,) = judge_foundation(
        world.lock, "linux-64", prefix, world.records, world.store
    ).findings
    assert finding.detail == "it has no digest of what was installed"
    record.write_text(json.dumps({**content, "sha256": None}))  # conda-lock hands on md5 alone
    assert judge_foundation(world.lock, "linux-64", prefix, world.records, world.store).holds


def test_a_second_record_of_a_locked_package_is_named_and_kept(world, prefix):
    second = prefix / "conda-meta/where-2.0-0.json"
    content = json.loads((prefix / "conda-meta/where-1.0-0.json").read_text())
    second.write_text(json.dumps({**content, "version": "2.0"}))
    with pytest.raises(DoesNotHold, match=r"conda-meta/where-2\.0-0\.json .*a second record"):
        world.make(prefix)
    (prefix / "share/where/data.txt").unlink()
    with pytest.raises(DoesNotHold, match=r"did not install and the lock has not: where-2\.0-0"):
        world.make(prefix)
    assert second.exists()
    second.unlink()
    assert world.make(prefix).conda.holds


def test_a_record_that_rattler_cannot_read_is_named(world, prefix, tmp_path):
    newer = lock_with(world.lock, pack(tmp_path, "new", {"share/new.txt": "x"}))
    world.make(prefix, newer)
    (prefix / "conda-meta/new-1-0.json").write_text("{")
    with pytest.raises(TorchlockError, match=r"conda-meta/new-1-0\.json is no record"):
        world.make(prefix)
    assert (prefix / "share/new.txt").exists()


def module(text: str) -> dict[str, str]:
    return {f"{SITE}/topmod.py": text, "share/topmod/plain.py": text}


def test_byte_code_of_modules_that_a_new_lock_changes_or_has_no_more(world, prefix, tmp_path):
    world.make(prefix, lock_with(world.lock, pack(tmp_path, "mod", module("VALUE = 1\n"))))
    sources = [prefix / path for path in module("")]
    compiled = [Path(py_compile.compile(str(source), doraise=True) or "") for source in sources]
    newer = lock_with(world.lock, pack(tmp_path, "mod", module("VALUE = 22\n"), "2"))
    assert world.make(prefix, newer).conda.holds
    assert [path.exists() for path in compiled] == [False, False]
    for source in sources:
        py_compile.compile(str(source), doraise=True)
    assert world.make(prefix).conda.holds
    assert [path.exists() for path in compiled] == [False, False]


@pytest.mark.parametrize("source", [f"{LIBRARY}/json/tool.py", f"{SITE}/greet/__init__.py"])
def test_byte_code_that_is_not_what_its_source_compiles_to_is_found(
    world, prefix, tmp_path, source
):
    honest = Path(py_compile.compile(str(prefix / source), optimize=2, doraise=True) or "")
    assert not world.make(prefix).installed
    evil = tmp_path / "evil.py"
    evil.write_text("def main():\n    print('evil')\n")
    made = Path(py_compile.compile(str(evil), doraise=True) or "").read_bytes()
    honest.write_bytes(honest.read_bytes()[:16] + made[16:])
    shown = honest.relative_to(prefix).as_posix()
    for _ in range(2):  # it is somebody's doing, so it is shown, not swept away
        with pytest.raises(DoesNotHold, match=f"byte code: {shown}: its code is not what"):
            world.make(prefix)
    honest.unlink()
    assert not world.make(prefix).installed


def test_a_changed_python_is_not_asked_about_byte_code(world, prefix):
    py_compile.compile(str(prefix / LIBRARY / "json/tool.py"), optimize=2, doraise=True)
    python = prefix / "bin/python3.11"
    python.unlink()
    python.write_text(f"#!/bin/sh\ntouch {prefix}/asked\nexit 1\n")
    python.chmod(0o755)
    found = judge_foundation(
        world.lock, "linux-64", prefix, world.records, world.store, python=prefix / "bin/python"
    )
    assert [(f.kind, f.path) for f in found.findings] == [("changed", "bin/python3.11")]
    assert not (prefix / "asked").exists()
    assert world.make(prefix).conda.holds
    assert works(prefix)
