"""What an environment without the tool says of its own lock and files."""

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.locks import lock_text, locked_wheel, records_of
from tests.support.wheels import build_wheel
from torchlock import selfcheck
from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.files import write_atomically
from torchlock.lock import PYTHON_VERSION, Package, parse_lock
from torchlock.records import read_records, write_records
from torchlock.repository import Repository
from torchlock.selfcheck import Environment

PIP = Package(
    name="pip",
    version="1",
    manager="conda",
    platform="linux-64",
    url="http://channel.invalid/noarch/pip-1-0.conda",
    sha256="1" * 64,
    md5="2" * 32,
    dependencies={},
)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A lock of one wheel, whose tree is recorded, and one conda package."""
    made = Repository(tmp_path / "tools")
    made.records.mkdir(parents=True)
    wheel = build_wheel(tmp_path, "alpha")
    made.lock.write_text(lock_text([locked_wheel(wheel, "http://index.invalid"), PIP]))
    write_records(records_of([wheel]), made.records, write_atomically)
    return made


@pytest.fixture
def prefix(repository: Repository, tmp_path: Path) -> Path:
    """That wheel installed."""
    site = tmp_path / "prefix" / "lib" / f"python{PYTHON_VERSION}" / "site-packages"
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        archive.extractall(site)
    return tmp_path / "prefix"


def site_packages(prefix: Path) -> Path:
    return prefix / "lib" / f"python{PYTHON_VERSION}" / "site-packages"


def test_locked_files_hold_with_the_hosts_digests(repository: Repository, prefix: Path):
    told, findings = selfcheck.context(repository, Environment(prefix, "debian"))
    assert findings == ()
    assert told["lock"]["digest"] == parse_lock(repository.lock.read_text()).digest
    assert told["lock"]["verdict"] == told["files"]["verdict"] == "holds"
    assert told["files"]["tree"] == read_records(repository.records, "linux-64").tree
    assert told["foundation"] == "debian"


def test_a_changed_file_is_named(repository: Repository, prefix: Path):
    (site_packages(prefix) / "alpha" / "__init__.py").write_text("VALUE = 2\n")
    told, _ = selfcheck.context(repository, Environment(prefix, "debian"))
    assert told["files"]["verdict"] == "does not hold"
    assert told["files"]["evidence"].endswith("changed: lib/python3.11/site-packages/alpha/"
                                              "__init__.py")  # fmt: skip


SITE = f"lib/python{PYTHON_VERSION}/site-packages"


class CondaPrefix:
    """The prefix with a conda half of one package, whose files its record lists."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.record = prefix / "conda-meta" / "pip-1-0.json"
        self.record.parent.mkdir()
        (prefix / "bin").mkdir()
        (prefix / "bin" / "pip").write_text("#!/opt/torchlock/bin/python3.11\n")
        (prefix / "bin" / "pip3").symlink_to("pip")
        (prefix / SITE / "pip.py").write_text("")
        self.rows = [
            {"_path": "bin/pip", "path_type": "hardlink", "sha256": "0" * 64,
             "sha256_in_prefix": digest_of(prefix / "bin" / "pip")},
            {"_path": "bin/pip3", "path_type": "softlink", "sha256": "0" * 64},
            {"_path": f"{SITE}/pip.py", "path_type": "hardlink",
             "sha256": digest_of(prefix / SITE / "pip.py")},
        ]  # fmt: skip
        self.note(PIP.sha256)

    def note(self, sha256: str) -> None:
        self.record.write_text(json.dumps({"sha256": sha256, "paths_data": {"paths": self.rows}}))

    def findings(self, repository: Repository) -> set[tuple[str, str]]:
        told, found = selfcheck.context(repository, Environment(self.prefix, "conda"))
        assert told["files"]["verdict"] == ("does not hold" if found else "holds")
        return {(f.kind, f.path) for f in found}


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_conda_half_is_compared_with_its_records(repository: Repository, prefix: Path):
    conda = CondaPrefix(prefix)
    assert conda.findings(repository) == set()
    files = selfcheck.context(repository, Environment(prefix, "conda"))[0]["files"]
    assert files["evidence"].endswith("3 files of 1 conda packages are as conda-meta says")


@pytest.mark.parametrize(
    ("path", "contents", "kind"),
    [
        ("bin/pip", "#!/bin/false\n", "changed"),
        ("bin/pip", None, "missing"),
        ("bin/pip3", "a file", "changed"),
        (f"{SITE}/pip.py", "import evil\n", "changed"),
        (f"{SITE}/other.py", "", "foreign"),
    ],
)
def test_a_conda_file_that_is_not_what_its_record_says_is_named(
    repository: Repository, prefix: Path, path: str, contents: str | None, kind: str
):
    conda = CondaPrefix(prefix)
    (prefix / path).unlink(missing_ok=True)
    if contents is not None:
        (prefix / path).write_text(contents)
    assert conda.findings(repository) == {(kind, path)}


def test_a_link_in_the_place_of_a_conda_file_is_named(repository: Repository, prefix: Path):
    conda = CondaPrefix(prefix)
    (prefix / "bin" / "pip").unlink()
    (prefix / "bin" / "pip").symlink_to("/usr/bin/pip")
    assert conda.findings(repository) == {("not a file", "bin/pip")}


def test_a_record_of_another_package_explains_nothing(repository: Repository, prefix: Path):
    conda = CondaPrefix(prefix)
    conda.note("0" * 64)
    assert conda.findings(repository) == {("missing", "conda-meta"), ("foreign", f"{SITE}/pip.py")}


def test_what_a_wheel_replaces_is_not_condas_any_more(repository: Repository, prefix: Path):
    conda = CondaPrefix(prefix)
    for path in ("alpha/__init__.py", "alpha/gone.py", "alpha-0.9.dist-info/METADATA"):
        conda.rows.append({"_path": f"{SITE}/{path}", "path_type": "hardlink", "sha256": "1" * 64})
    (prefix / SITE / "pip.py").unlink()  # this distribution's, too
    conda.note(PIP.sha256)
    assert conda.findings(repository) == set()


def test_what_a_wheel_has_instead_is_not_called_compared(repository: Repository, prefix: Path):
    conda = CondaPrefix(prefix)
    path = f"{SITE}/alpha/__init__.py"
    conda.rows.append({"_path": path, "path_type": "hardlink", "sha256": "1" * 64})
    conda.note(PIP.sha256)
    files = selfcheck.context(repository, Environment(prefix, "conda"))[0]["files"]
    assert files["verdict"] == "holds"
    assert files["evidence"].endswith("; 3 files of 1 conda packages are as conda-meta says")


def test_a_damaged_record_is_named(repository: Repository, prefix: Path):
    conda = CondaPrefix(prefix)
    conda.record.write_text('{"sha256": "1"}')
    with pytest.raises(TorchlockError, match=r"pip-1-0\.json cannot be read"):
        conda.findings(repository)


def test_records_of_another_lock_are_refused(repository: Repository, prefix: Path, tmp_path: Path):
    other = build_wheel(tmp_path, "beta")
    repository.lock.write_text(lock_text([locked_wheel(other, "http://index.invalid")]))
    with pytest.raises(DoesNotHold, match="not those of the locked wheels"):
        selfcheck.context(repository, Environment(prefix, "debian"))


def test_faults_are_said_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(selfcheck, "this_repository", lambda: Repository(tmp_path))
    assert selfcheck.run(Environment(Path(sys.prefix), "debian"), []) == 2
    assert "conda-lock.yml does not exist" in capsys.readouterr().err


def test_wrong_arguments_cost_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(selfcheck, "context", lambda *_: pytest.fail("files were judged"))
    with pytest.raises(SystemExit) as ended:
        selfcheck.run(Environment(tmp_path, "debian"), ["--only", "nonsense"])
    assert ended.value.code == 2
