"""What an environment without the tool says of its own lock and files."""

import json
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.locks import lock_text, locked_wheel, records_of
from tests.support.wheels import build_wheel
from torchlock import selfcheck
from torchlock.errors import DoesNotHold
from torchlock.files import write_atomically
from torchlock.lock import PYTHON_VERSION, Package, parse_lock
from torchlock.records import write_records
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
    told, verdict = selfcheck.context(repository, Environment(prefix, "debian"))
    assert verdict.holds
    assert told["lock"]["digest"] == parse_lock(repository.lock.read_text()).digest
    assert told["lock"]["verdict"] == told["files"]["verdict"] == "holds"
    assert told["files"]["tree"] == verdict.tree
    assert told["foundation"] == "debian"


def test_a_changed_file_is_named(repository: Repository, prefix: Path):
    (site_packages(prefix) / "alpha" / "__init__.py").write_text("VALUE = 2\n")
    told, _ = selfcheck.context(repository, Environment(prefix, "debian"))
    assert told["files"]["verdict"] == "does not hold"
    assert told["files"]["evidence"].endswith("changed: lib/python3.11/site-packages/alpha/"
                                              "__init__.py")  # fmt: skip


def test_what_conda_lists_is_not_foreign_and_not_called_compared(
    repository: Repository, prefix: Path
):
    (site_packages(prefix) / "pip.py").write_text("")
    environment = Environment(prefix, "conda")
    assert selfcheck.context(repository, environment)[0]["files"]["verdict"] == "does not hold"
    (prefix / "conda-meta").mkdir()
    record = prefix / "conda-meta" / "pip-1-0.json"
    content = {"files": [f"lib/python{PYTHON_VERSION}/site-packages/pip.py"]}
    record.write_text(json.dumps({**content, "sha256": "0" * 64}))  # not a locked package's
    assert selfcheck.context(repository, environment)[0]["files"]["verdict"] == "does not hold"
    record.write_text(json.dumps({**content, "sha256": PIP.sha256}))
    files = selfcheck.context(repository, environment)[0]["files"]
    assert files["verdict"] == "holds"
    assert files["evidence"].endswith("the files of conda packages are not compared here")


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
