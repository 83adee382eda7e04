"""Verification: whatever differs from the lock is found, and its package and file are named."""

from __future__ import annotations

import _imp
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.locks import records_of
from tests.support.wheels import build_wheel
from torchlock import bytecode
from torchlock.console import script_fault
from torchlock.errors import TorchlockError
from torchlock.findings import Finding, Site, find_site
from torchlock.formats.wheel import read_wheel
from torchlock.realize.interpreter import find_interpreter
from torchlock.stamps import Reading, Stamps
from torchlock.tree import entry_on_disk, tree_digest, walk
from torchlock.verify import Verdict, verify

SITE = "lib/python3.11/site-packages"
SOURCE = b"def answer():\n    return 42\n"
SCRIPT = """#!{prefix}/bin/python
# -*- coding: utf-8 -*-
import sys
from numpy.core import main
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit(main())
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> list[Path]:
    directory = tmp_path_factory.mktemp("wheels")
    return [
        build_wheel(
            directory,
            "numpy",
            files={
                "numpy/__init__.py": b"VALUE = 1\n",
                "numpy/core.py": SOURCE,
                "numpy/fast.cpython-311-x86_64-linux-gnu.so": b"\x7fELF fast",
                "numpy/bin/tool": b"#!/bin/sh\n",
                "numpy_config.py": b"",
                "nvidia/__init__.py": b"",
                "numpy-1.0.data/scripts/np-run": b"#!python\nprint(1)\n",
                "numpy-1.0.data/data/share/np/config.json": b"{}",
                "numpy-1.0.data/headers/np.h": b"",
            },
            executable=frozenset({"numpy/bin/tool"}),
            entry_points="[console_scripts]\nnp = numpy.core:main\n",
        ),
        build_wheel(
            directory,
            "torch",
            files={"torch/__init__.py": b"import numpy\n", "nvidia/__init__.py": b""},
        ),
    ]


@pytest.fixture(scope="module")
def records(wheels):
    return records_of(wheels)


@pytest.fixture
def site(tmp_path, wheels) -> Site:
    """Install the wheels by hand, the way an installer lays them out."""
    prefix = tmp_path / "env"
    (prefix / SITE).mkdir(parents=True)
    (prefix / "bin").mkdir()
    site = find_site(prefix)
    for path in wheels:
        with read_wheel(path) as wheel:
            for file in wheel.files:
                target = site.root(file.scheme, wheel.name) / file.entry.path
                target.parent.mkdir(parents=True, exist_ok=True)
                with file.entry.opens() as stream:
                    data = stream.read()
                if file.scheme == "scripts":
                    data = data.replace(b"#!python", f"#!{prefix}/bin/python".encode())
                target.write_bytes(data)
                target.chmod(0o755 if file.entry.executable else 0o644)
            (site.site_packages / wheel.dist_info / "INSTALLER").write_text("uv")
            (site.site_packages / wheel.dist_info / "REQUESTED").touch()
    (prefix / "bin/np").write_text(SCRIPT.format(prefix=prefix))
    (prefix / "bin/np").chmod(0o755)
    return site


def only(verdict: Verdict) -> Finding:
    assert not verdict.holds
    assert len(verdict.findings) == 1, verdict.findings
    return verdict.findings[0]


def found(verdict: Verdict) -> set[tuple[str, str, str]]:
    return {(f.kind, f.package, f.path) for f in verdict.findings}


def there(site: Site, records) -> str:
    """The NAR digest of the locked paths as they are on disk."""
    paths = {f.path for w in records.wheels.values() for f in w.files if f.counts}
    present = dict(walk(site.site_packages))
    return tree_digest(entry_on_disk(site.site_packages, p) for p in paths if p in present)


def flip(path: Path) -> None:
    """Change one byte, and neither size nor time."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_an_untouched_installation_holds(site, records):
    verdict = verify(site, records)
    assert verdict.findings == ()
    assert verdict.holds
    assert verdict.tree == records.tree == there(site, records)
    assert verdict.trees == {name: w.tree for name, w in records.wheels.items()}
    assert verdict.files == 16
    assert verdict.bytecode == 0


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_the_verdict_does_not_depend_on_the_number_of_workers(site, records, workers):
    flip(site.site_packages / "numpy/core.py")
    (site.site_packages / "torch/__init__.py").unlink()
    assert verify(site, records, workers=workers) == verify(site, records, workers=3)


@pytest.mark.parametrize("name", ["core.py", "fast.cpython-311-x86_64-linux-gnu.so"])
def test_one_changed_byte_is_found_whatever_size_and_time_say(site, records, name):
    flip(site.site_packages / "numpy" / name)
    verdict = verify(site, records)
    finding = only(verdict)
    assert (finding.kind, finding.package) == ("changed", "numpy")
    assert finding.path == f"{SITE}/numpy/{name}"
    assert "the lock says" in finding.detail
    assert verdict.tree == there(site, records) != records.tree
    assert verdict.trees["numpy"] != records.wheels["numpy"].tree
    assert verdict.trees["torch"] == records.wheels["torch"].tree


def made_executable(path: Path) -> None:
    path.chmod(0o755)


def made_a_link(path: Path) -> None:
    path.rename(path.with_name("kept.txt"))
    path.symlink_to("kept.txt")


@pytest.mark.parametrize("fault", [flip, made_executable, made_a_link])
def test_what_is_wrong_is_found_by_stamps_too_each_time(site, records, tmp_path, fault):
    fault(site.site_packages / "numpy/core.py")
    time.sleep(0.05)  # until it can be noted
    fully = verify(site, records)
    assert not fully.holds
    stamps = Stamps.read(tmp_path / "stamps")
    first, second = Reading(stamps), Reading(stamps)
    assert verify(site, records, reading=first) == fully
    assert verify(site, records, reading=second) == fully
    assert second.unchanged == first.read
    assert second.read == 0


def test_the_digest_of_a_changed_wheel_is_that_of_what_is_there(site, records):
    flip(site.site_packages / "numpy/core.py")
    (site.site_packages / "numpy/bin/tool").unlink()
    paths = [f.path for f in records.wheels["numpy"].files if f.counts]
    present = [p for p in paths if p != "numpy/bin/tool"]
    assert verify(site, records).trees["numpy"] == tree_digest(
        entry_on_disk(site.site_packages, p) for p in present
    )


def test_another_size(site, records):
    with (site.site_packages / "numpy/core.py").open("ab") as stream:
        stream.write(b"\n")
    assert only(verify(site, records)).detail == "29 bytes, the lock says 28"


@pytest.mark.parametrize(
    ("scheme", "path"),
    [("site", "numpy/core.py"), ("site", "numpy-1.0.dist-info/METADATA"),
     ("data", "share/np/config.json"), ("headers", "np.h"), ("scripts", "np-run"),
     ("scripts", "np")],
)  # fmt: skip
def test_a_missing_file(site, records, scheme, path):
    (site.root(scheme, "numpy") / path).unlink()
    finding = only(verify(site, records))
    assert (finding.kind, finding.package) == ("missing", "numpy")
    assert (site.prefix / finding.path) == site.root(scheme, "numpy") / path


@pytest.mark.parametrize(
    ("path", "mode", "said"),
    [
        (f"{SITE}/numpy/core.py", 0o755, "executable, the lock says not"),
        (f"{SITE}/numpy/bin/tool", 0o644, "not executable, the lock says it is"),
        ("share/np/config.json", 0o744, "executable, the lock says not"),
        ("bin/np-run", 0o644, "not executable, the lock says it is"),
        ("bin/np", 0o644, "not executable"),
    ],
)
def test_a_changed_mode(site, records, path, mode, said):
    (site.prefix / path).chmod(mode)
    finding = only(verify(site, records))
    assert (finding.kind, finding.package, finding.path) == ("mode", "numpy", path)
    assert finding.detail == said


def test_other_mode_bits_are_the_users(site, records):
    (site.site_packages / "numpy/core.py").chmod(0o600)
    assert verify(site, records).holds


@pytest.mark.parametrize(
    "path", [f"{SITE}/numpy/core.py", "bin/np-run", "bin/np", "share/np/config.json"]
)
@pytest.mark.parametrize("bit", [stat.S_ISUID, stat.S_ISGID])
def test_a_file_that_would_run_as_somebody_else(site, records, path, bit):
    place = site.prefix / path
    place.chmod(place.stat().st_mode | bit)
    (finding,) = verify(site, records).findings
    assert (finding.kind, finding.path) == ("mode", path)
    assert "set-user-ID or set-group-ID" in finding.detail


@pytest.mark.parametrize(
    "path", [f"{SITE}/numpy/core.py", "bin/np-run", "bin/np", "share/np/config.json"]
)
@pytest.mark.parametrize("kind", ["link", "dangling", "directory", "pipe"])
def test_something_else_in_the_place_of_a_file(site, records, tmp_path, path, kind):
    place = site.prefix / path
    place.rename(tmp_path / "copy")
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
        (place / "below").touch()
    else:
        place.symlink_to(tmp_path / ("copy" if kind == "link" else "nothing"))
    findings = verify(site, records).findings
    named = [f for f in findings if f.path == path]
    assert [f.package for f in named] == ["numpy"]
    assert named[0].kind == "not a file"


def test_a_directory_replaced_by_a_link_to_the_same_contents(site, records, tmp_path):
    (site.site_packages / "numpy").rename(tmp_path / "numpy")
    (site.site_packages / "numpy").symlink_to(tmp_path / "numpy")
    verdict = verify(site, records)
    assert ("shadows", "numpy", f"{SITE}/numpy") in found(verdict)
    assert ("missing", "numpy", f"{SITE}/numpy/core.py") in found(verdict)
    assert verdict.trees["numpy"] != records.wheels["numpy"].tree
    assert verdict.tree != records.tree


@pytest.mark.parametrize(
    "path",
    ["numpy.py", "numpy.so", "numpy.cpython-311-x86_64-linux-gnu.so", "numpy.abi3.so",
     "torch.py", "numpy_config.so"],
)  # fmt: skip
def test_a_module_beside_a_locked_one_shadows_it(site, records, path):
    (site.site_packages / path).touch()
    finding = only(verify(site, records))
    assert (finding.kind, finding.path) == ("shadows", f"{SITE}/{path}")
    assert finding.package.split("_")[0].split(".")[0] in ("numpy", "torch")
    assert verify(site, records).tree == records.tree


@pytest.mark.parametrize(
    "path",
    ["numpy_config/__init__.py", "numpy/core/__init__.py", "numpy/core.abi3.so",
     "numpy/__init__.cpython-311-x86_64-linux-gnu.so", "numpy/extra.py",
     "numpy-1.0.dist-info/extra", "mine/__init__.py", "mine-1.0.dist-info/METADATA",
     "numpy/vendor/torch-9.dist-info/METADATA", "numpy/a\nb", "numpy/\udcff"],
)  # fmt: skip
def test_a_foreign_file_is_found_wherever_it_lies(site, records, path):
    full = site.site_packages / path
    full.parent.mkdir(parents=True, exist_ok=True)
    full.touch()
    finding = only(verify(site, records))
    assert (finding.kind, finding.path) == ("foreign", f"{SITE}/{path}")


@pytest.mark.parametrize("name", ["evil.pth", "sitecustomize.py", "usercustomize.so"])
def test_what_python_runs_at_start_is_called_so(site, records, name):
    (site.site_packages / name).touch()
    finding = only(verify(site, records))
    assert (finding.kind, finding.path) == ("foreign", f"{SITE}/{name}")
    assert finding.detail == "Python runs it at every start"


def test_a_sitecustomize_package_is_found(site, records):
    (site.site_packages / "sitecustomize").mkdir()
    (site.site_packages / "sitecustomize/__init__.py").touch()
    assert only(verify(site, records)).path == f"{SITE}/sitecustomize/__init__.py"


@pytest.mark.parametrize("value", ["true", "True", " TRUE "])
def test_a_venv_that_lets_in_the_hosts_packages_is_found(site, records, value):
    (site.prefix / "pyvenv.cfg").write_text(f"home = /usr\nInclude-System-Site-Packages={value}\n")
    assert only(verify(site, records)).path == "pyvenv.cfg"
    (site.prefix / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    assert verify(site, records).holds


def test_another_version_is_named_first(site, records):
    old = site.site_packages / "numpy-0.9.dist-info"
    old.mkdir()
    for name in ("METADATA", "RECORD", "INSTALLER"):
        (old / name).touch()
    flip(site.site_packages / "numpy/core.py")
    first, second = verify(site, records).findings
    assert (first.kind, first.package, first.path) == (
        "version", "numpy", f"{SITE}/numpy-0.9.dist-info",
    )  # fmt: skip
    assert first.detail == "0.9 is installed, the lock says 1.0"
    assert second.path == f"{SITE}/numpy/core.py"


def test_two_other_versions_are_both_named(site, records):
    for version in ("0.8", "0.9"):
        (site.site_packages / f"numpy-{version}.dist-info").mkdir()
        (site.site_packages / f"numpy-{version}.dist-info/METADATA").touch()
    assert {f.detail[:3] for f in verify(site, records).findings} == {"0.8", "0.9"}


def test_what_something_else_explains_is_not_foreign(site, records):
    (site.site_packages / "conda.py").touch()
    assert verify(site, records, explained=lambda path: path == "conda.py").holds


def test_a_file_two_wheels_carry_counts_for_both(site, records):
    (site.site_packages / "nvidia/__init__.py").write_text("x")
    verdict = verify(site, records)
    assert only(verdict).path == f"{SITE}/nvidia/__init__.py"
    assert all(verdict.trees[n] != records.wheels[n].tree for n in ("numpy", "torch"))


@pytest.mark.parametrize(
    "first",
    ["#!{prefix}/bin/python", "#!/bin/sh\n'''exec' \"{prefix}/bin/python\" \"$0\" \"$@\"\n' '''"],
)
def test_the_first_line_of_a_script_may_be_rewritten_and_nothing_else(site, records, first):
    script = site.prefix / "bin/np-run"
    first = first.format(prefix=site.prefix)
    script.write_text(f"{first}\nprint(1)\n")
    assert verify(site, records).holds
    script.write_text(f"{first}\nprint(2)\n")
    finding = only(verify(site, records))
    assert (finding.kind, finding.path) == ("changed", "bin/np-run")


CONSOLE = {
    "pip": "#!/p/bin/python\n# -*- coding: utf-8 -*-\nimport re\nimport sys\n"
    "from a.b import c\nif __name__ == '__main__':\n"
    "    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])\n"
    "    sys.exit(c.d())\n",
    "new pip": "#!/p/bin/python\nimport sys\nfrom a.b import c\nif __name__ == '__main__':\n"
    "    sys.argv[0] = sys.argv[0].removesuffix('.exe')\n    sys.exit(c.d())\n",
    "uv": SCRIPT.replace("numpy.core import main", "a.b import c").replace("main()", "c.d()"),
    "conda": "#!/p/bin/python\n# -*- coding: utf-8 -*-\nimport re\nimport sys\n\n"
    "from a.b import c\n\nif __name__ == '__main__':\n"
    "    sys.argv[0] = re.sub(r'(-script\\.pyw?|\\.exe)?$', '', sys.argv[0])\n"
    "    sys.exit(c.d())\n",
}


@pytest.mark.parametrize("installer", CONSOLE)
def test_console_scripts_of_every_installer_are_known(installer):
    text = CONSOLE[installer]
    assert script_fault(text, ["x:y", "a.b:c.d"]) == ""
    assert "runs a.b:other" in script_fault(text, ["a.b:other"])
    for poison in ("import os\n", "os.system('x')\n", "    sys.exit(0)\n", "import sys; evil()\n"):
        for position in range(1, text.count("\n") + 1):
            lines = text.splitlines(keepends=True)
            assert script_fault(
                "".join([*lines[:position], poison, *lines[position:]]), ["a.b:c.d"]
            )


def test_a_console_script_that_runs_something_else_is_found(site, records):
    script = site.prefix / "bin/np"
    script.write_text(script.read_text().replace("numpy.core", "evil"))
    finding = only(verify(site, records))
    assert (finding.kind, finding.package, finding.path) == ("changed", "numpy", "bin/np")


def test_a_console_script_of_a_venv_starts_the_venvs_python(site, records):
    (site.prefix / "pyvenv.cfg").touch()
    assert verify(site, records).holds
    (site.prefix / "bin/np").write_text(SCRIPT.format(prefix="/elsewhere"))
    finding = only(verify(site, records))
    assert finding.path == "bin/np"
    assert "starts /elsewhere/bin/python" in finding.detail


# Byte code


@pytest.fixture(scope="session")
def python311() -> Path:
    return find_interpreter().program


def compiled(python311: Path, site: Site, mode: str = "timestamp", optimize: int = 0) -> Path:
    """Let a real CPython 3.11 compile numpy/core.py."""
    code = (
        "import py_compile, sys; print(py_compile.compile(sys.argv[1], doraise=True, "
        "optimize=int(sys.argv[3]), "
        "invalidation_mode=py_compile.PycInvalidationMode[sys.argv[2]]))"
    )
    done = subprocess.run(
        [python311, "-I", "-c", code, site.site_packages / "numpy/core.py", mode.upper(),
         str(optimize)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Path(done.stdout.strip())


@pytest.mark.parametrize("optimize", [0, 1, 2])
@pytest.mark.parametrize("mode", ["timestamp", "checked_hash", "unchecked_hash"])
def test_byte_code_of_a_real_interpreter_is_explained(site, records, python311, mode, optimize):
    compiled(python311, site, mode, optimize)
    verdict = verify(site, records)
    assert verdict.findings == ()
    assert verdict.bytecode == 1


def test_byte_code_of_a_real_import_is_explained(site, records, python311):
    code = f"import sys; sys.path.insert(0, {str(site.site_packages)!r}); import torch, numpy.core"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    subprocess.run([python311, "-c", code], env=environment, check=True)
    verdict = verify(site, records)
    assert verdict.findings == ()
    assert verdict.bytecode == 3


def stale(site: Site, records, path: Path) -> str:
    finding = only(verify(site, records))
    assert (finding.kind, site.prefix / finding.path) == ("byte code", path)
    return finding.detail


def header(path: Path, offset: int, value: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[offset : offset + len(value)] = value
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("offset", "value", "said"),
    [
        (0, b"\xa7\x0e", "magic number"),
        (4, b"\x04", "flags"),
        (8, b"\0\0\0\0", "another time"),
        (12, b"\0\0\0\0", "another size"),
    ],
)
def test_byte_code_whose_header_is_not_the_sources(site, records, python311, offset, value, said):
    path = compiled(python311, site)
    header(path, offset, value)
    assert said in stale(site, records, path)


@pytest.mark.parametrize("mode", ["checked_hash", "unchecked_hash"])
def test_byte_code_with_the_hash_of_another_source(site, records, python311, mode):
    path = compiled(python311, site, mode)
    header(path, 8, b"\0")
    header(path, 15, b"\xff")
    assert "another source" in stale(site, records, path)


def test_byte_code_without_its_source(site, records, python311):
    path = compiled(python311, site)
    orphan = path.with_name("gone.cpython-311.pyc")
    path.rename(orphan)
    assert "source numpy/gone.py does not exist" in stale(site, records, orphan)


@pytest.mark.parametrize(
    "name",
    ["numpy/core.pyc", "numpy.pyc", "core.pyo", "numpy/__pycache__/core.cpython-312.pyc",
     "numpy/__pycache__/core.pyc", "numpy/__pycache__/core.cpython-311.opt-9.pyc"],
)  # fmt: skip
def test_byte_code_where_no_locked_source_leads(site, records, python311, name):
    path = site.site_packages / name
    compiled(python311, site).rename(path)
    assert "another Python, or without its source" in stale(site, records, path)


@pytest.mark.parametrize("contents", [b"", b"\xa7\r\r\n", b"x" * 100])
def test_byte_code_that_is_none(site, records, contents):
    path = site.site_packages / "numpy/__pycache__/core.cpython-311.pyc"
    path.parent.mkdir()
    path.write_bytes(contents)
    assert "magic number" in stale(site, records, path)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_byte_code_that_is_no_file_is_not_followed_nor_waited_for(
    site, records, python311, tmp_path, kind
):
    path = compiled(python311, site)
    path.rename(tmp_path / "code")
    if kind == "link":
        path.symlink_to(tmp_path / "code")
    else:
        os.mkfifo(path)
    assert "link or another kind" in stale(site, records, path)


def test_byte_code_of_a_changed_source_is_stale_too(site, records, python311):
    path = compiled(python311, site)
    (site.site_packages / "numpy/core.py").write_bytes(SOURCE + b"evil = 1\n")
    assert {f.kind for f in verify(site, records).findings} == {"changed", "byte code"}
    assert path.exists()


@given(data=st.binary(max_size=200))
def test_the_source_hash_is_siphash_1_3(data):
    # Made with CPython 3.11: _imp.source_hash(int.from_bytes(MAGIC, "little"), source).
    assert bytecode.source_hash(b"").hex() == GOLDEN_HASHES[0]
    assert bytecode.source_hash(SOURCE).hex() == GOLDEN_HASHES[1]
    if sys.version_info >= (3, 11):  # older ones hash with SipHash-2-4
        key = int.from_bytes(bytecode.MAGIC, "little")
        assert bytecode.source_hash(data) == _imp.source_hash(key, data)


GOLDEN_HASHES = ("738d9cd5d5e87f73", "4e2006d4eb1f9c00")


# Byte code whose header is right and whose code is not


def poisoned(path: Path, python311: Path, source: str) -> None:
    """Put the code of another source behind the header."""
    code = (
        "import marshal, sys; code = compile(sys.argv[1], sys.argv[2], 'exec'); "
        "sys.stdout.buffer.write(marshal.dumps(code))"
    )
    body = subprocess.run(
        [python311, "-I", "-c", code, source, "core.py"], capture_output=True, check=True
    ).stdout
    path.write_bytes(path.read_bytes()[:16] + body)


@pytest.mark.parametrize("optimize", [0, 1, 2])
@pytest.mark.parametrize("mode", ["timestamp", "unchecked_hash"])
def test_genuine_byte_code_is_what_its_source_compiles_to(site, records, python311, mode, optimize):
    compiled(python311, site, mode, optimize)
    verdict = verify(site, records, python=python311)
    assert verdict.findings == ()
    assert verdict.bytecode == 1


@pytest.mark.parametrize(
    "source",
    ["def answer():\n    return 43\n", "def answer():\n    return 42.0\n", "", "import os\n",
     "def answer():\n    return (lambda: 42)()\n", "def answer(x=0):\n    return 42\n"],
)  # fmt: skip
def test_other_code_behind_a_genuine_header_is_found(site, records, python311, source):
    path = compiled(python311, site)
    poisoned(path, python311, source)
    assert verify(site, records).holds  # the header alone does not tell
    verdict = verify(site, records, python=python311)
    finding = only(verdict)
    assert (finding.kind, site.prefix / finding.path) == ("byte code", path)
    assert "not what this Python makes of its source" in finding.detail
    assert verdict.bytecode == 0


@pytest.mark.parametrize("body", [b"", b"i\0\0\0\0", b"\xff" * 50, b"(" * 9000])
def test_no_code_behind_a_genuine_header_is_found(site, records, python311, body):
    good = compiled(python311, site)
    (site.site_packages / "numpy/__pycache__").mkdir(exist_ok=True)
    good.write_bytes(good.read_bytes()[:16] + body)
    assert site.prefix / only(verify(site, records, python=python311)).path == good


def test_what_ends_the_interpreter_is_named_and_the_rest_judged(site, records, python311, tmp_path):
    paths = [compiled(python311, site, optimize=level) for level in (0, 1, 2)]
    poisoned(paths[2], python311, "import os\n")
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f"#!{python311}\nimport os, sys\ncode = sys.argv[-1].replace('def same(path):',\n"
        "    'def same(path):\\n    if b\"opt-1\" in path: os._exit(9)')\nexec(code)\n"
    )
    wrapper.chmod(0o755)
    findings = verify(site, records, python=wrapper, workers=1).findings
    assert [(Path(f.path).name, f.detail[:7]) for f in findings] == [
        ("core.cpython-311.opt-1.pyc", "reading"),
        ("core.cpython-311.opt-2.pyc", "its cod"),
    ]


@pytest.mark.parametrize("program", ["/nowhere/python", "/bin/false"])
def test_byte_code_is_not_judged_without_an_interpreter(site, records, python311, program):
    compiled(python311, site)
    with pytest.raises(TorchlockError, match=program):
        verify(site, records, python=Path(program))


# What cannot be read


def test_a_prefix_that_is_none_names_the_command(tmp_path):
    with pytest.raises(TorchlockError, match="holds no CPython") as caught:
        find_site(tmp_path)
    assert caught.value.hint == f"make one with: invoke env --prefix {tmp_path}"


JUDGE = """
import json, pickle, sys
from pathlib import Path
from torchlock.errors import TorchlockError
from torchlock.findings import find_site
from torchlock.verify import verify
records = pickle.loads(Path(sys.argv[2]).read_bytes())
try:
    findings = verify(find_site(Path(sys.argv[1])), records).findings
    print(json.dumps([[f.kind, f.package, f.path, f.detail] for f in findings]))
except TorchlockError as error:
    print(json.dumps(error.message))
"""


def judged_without_privilege(site: Site, records, tmp_path):
    """Verify in a process that may not read what its mode forbids, even as root."""
    (tmp_path / "records").write_bytes(pickle.dumps(records))
    command = [sys.executable, "-c", JUDGE, str(site.prefix), str(tmp_path / "records")]
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("setpriv (util-linux) takes away root's right to read everything")
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path.cwd())
    return json.loads(done.stdout)


def test_an_unreadable_file_is_a_finding(site, records, python311, tmp_path):
    code = compiled(python311, site, "checked_hash")
    (site.site_packages / "numpy/core.py").chmod(0)
    (site.prefix / "bin/np").chmod(0o111)
    assert judged_without_privilege(site, records, tmp_path) == [
        ["unreadable", "numpy", f"{SITE}/numpy/core.py", "Permission denied"],
        ["unreadable", "numpy", "bin/np", "Permission denied"],
        ["byte code", "", str(code.relative_to(site.prefix)),
         "it or its source cannot be read: Permission denied"],
    ]  # fmt: skip


def test_an_unreadable_directory_cannot_be_judged(site, records, tmp_path):
    (site.site_packages / "numpy").chmod(0)
    said = judged_without_privilege(site, records, tmp_path)
    (site.site_packages / "numpy").chmod(0o755)
    assert said == f"{site.site_packages}/numpy cannot be read: Permission denied"


def test_verify_writes_nothing(site, records, python311):
    compiled(python311, site)
    flip(site.site_packages / "numpy/core.py")
    (site.site_packages / "torch/__init__.py").unlink()

    def state():
        return {
            str(p): (s.st_ino, s.st_size, s.st_mode, s.st_mtime_ns, s.st_ctime_ns)
            for p in [site.prefix, *site.prefix.rglob("*")]
            if (s := p.lstat())
        }

    before = state()
    verify(site, records)
    assert state() == before


def test_a_wheels_script_that_starts_another_python_is_found(site, records):
    (site.prefix / "pyvenv.cfg").touch()
    path = site.prefix / "bin/np-run"
    path.write_text(path.read_text().replace(str(site.prefix), "/old/place"))
    finding = only(verify(site, records))
    assert (finding.kind, finding.path) == ("changed", "bin/np-run")
    assert "it starts /old/place/bin/python" in finding.detail
