from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from validation import canonical, sign

from .examples import issued


@pytest.fixture
def key(tmp_path):
    return _make_key(tmp_path / "key")


def _make_key(path):
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed (openssh-client)")
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def signers(tmp_path, key):
    path = tmp_path / "signers"
    public = key.with_suffix(".pub").read_text()
    path.write_text(f"lab@example.org {public}")
    return path


@pytest.fixture
def paper(tmp_path):
    path = tmp_path / "certificate.json"
    path.write_text(canonical.dump(issued()))
    return path


def verify(paper, signers):
    return sign.main(["verify", str(paper), "--signers", str(signers)])


def test_a_signed_certificate_names_its_signer(paper, key, signers, capsys):
    assert sign.main(["sign", str(paper), "--key", str(key)]) == 0
    assert verify(paper, signers) == 0
    assert "signed by lab@example.org" in capsys.readouterr().out


def test_signing_again_replaces_the_signature(paper, key, signers):
    sign.sign(paper, key)
    paper.write_text(canonical.dump(issued(cpu="Intel")))
    sign.sign(paper, key)
    assert sign.verify(paper, signers) == "lab@example.org"


def test_a_signing_that_fails_keeps_the_signature_there_was(paper, key, signers, tmp_path):
    sign.sign(paper, key)
    broken = tmp_path / "broken"
    broken.write_text("no key")
    assert sign.main(["sign", str(paper), "--key", str(broken)]) == 2
    assert sign.verify(paper, signers) == "lab@example.org"


@pytest.mark.parametrize(
    ("change", "verdict", "signer", "code"),
    [
        (lambda paper: None, "holds", "lab@example.org", 0),
        (lambda paper: paper.write_text(paper.read_text() + " "), "does not hold", "", 1),
        (lambda paper: paper.unlink(), "not judged", "", 2),
    ],
)
def test_the_verdict_on_a_signature_as_json(
    paper, key, signers, tmp_path, change, verdict, signer, code
):
    sign.sign(paper, key)
    change(paper)
    said = tmp_path / "verdict.json"
    arguments = ["verify", str(paper), "--signers", str(signers), "--json", str(said)]
    assert sign.main(arguments) == code
    value = json.loads(said.read_text())
    assert (value["verdict"], value["signer"]) == (verdict, signer)


def test_one_changed_byte_breaks_the_signature(paper, key, signers, capsys):
    sign.sign(paper, key)
    paper.write_text(paper.read_text().replace("holds", "holdz", 1))
    assert verify(paper, signers) == 1
    assert "not good" in capsys.readouterr().err


def test_a_signature_by_somebody_else_does_not_hold(paper, signers, tmp_path, capsys):
    sign.sign(paper, _make_key(tmp_path / "other"))
    assert verify(paper, signers) == 1
    assert "nobody" in capsys.readouterr().err


def test_a_signature_made_for_another_purpose_does_not_hold(paper, key, signers):
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", "file", str(paper)]
    subprocess.run(command, check=True, capture_output=True)
    assert verify(paper, signers) == 1


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_signature_does_not_hold(paper, key, signers, damage):
    signature = sign.sign(paper, key)
    signature.write_bytes(signature.read_bytes()[:-90] if damage is None else damage)
    assert verify(paper, signers) == 1


def test_what_is_missing_cannot_be_judged_and_is_named(paper, key, signers, tmp_path, capsys):
    assert verify(paper, signers) == 2
    assert "certificate.json.sig" in capsys.readouterr().err
    assert sign.main(["sign", str(paper), "--key", str(tmp_path / "none")]) == 2
    assert sign.main(["sign", str(tmp_path / "none"), "--key", str(key)]) == 2


def test_without_ssh_keygen_the_package_is_named(paper, key, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert sign.main(["sign", str(paper), "--key", str(key)]) == 2
    assert "openssh-client" in capsys.readouterr().err
