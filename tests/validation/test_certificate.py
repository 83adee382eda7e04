from __future__ import annotations

import getpass
import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validation import canonical, certificate
from validation.outcome import DOES_NOT_HOLD, HOLDS, NOT_JUDGED, ValidationError

from .examples import issued

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_canonical_json_keeps_its_value_and_its_text(value):
    text = canonical.dump(value)
    assert json.loads(text) == value
    assert canonical.dump(json.loads(text)) == text
    assert text.isascii()


def test_canonical_json_does_not_depend_on_the_order_of_keys():
    assert canonical.digest({"a": 1, "b": 2}) == canonical.digest({"b": 2, "a": 1})


def test_canonical_json_has_this_digest_everywhere():
    assert canonical.digest({"é": [1, None, True]}) == (
        "sha256:06e9b133af17ba374061c406dbc89f1e23636d72f06a9022d66eff2b05fdeca4"
    )


@pytest.mark.parametrize("value", [1.0, [0.5], {"a": {"b": 2.0}}])
def test_a_float_has_no_canonical_text(value):
    with pytest.raises(TypeError):
        canonical.dump(value)


def test_a_certificate_is_read_back_as_it_was_written(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(canonical.dump(issued()))
    assert certificate.load(path) == issued()
    assert issued()["verdict"] == HOLDS


def test_no_names_and_no_paths_are_in_a_certificate_unless_asked_for():
    host, user = socket.gethostname(), getpass.getuser()
    evidence = f"module torch comes from /home/{user}/lib/torch/__init__.py on {host}"
    text = canonical.dump(issued(evidence=evidence))
    assert f"/home/{user}" not in text
    assert host not in text.replace("torchlock", "")
    assert "[path]/__init__.py" in text
    asked = issued(evidence=evidence, identify=True)
    assert asked["identity"] == {"host": host, "user": user}
    assert evidence in canonical.dump(asked)


@pytest.mark.parametrize(
    ("evidence", "shown"),
    [
        ("read /home/ann/a b/torch/x.py", None),
        ("cannot open '/home/ann/my files/x.py': no such file", "cannot open '[path]/x.py'"),
        ('from "/srv/lab of ann/lib.so" it is', 'from "[path]/lib.so" it is'),
        ("index file:///home/ann/wheels/torch.whl", "index file://[path]/torch.whl"),
        ("PATH=/home/ann/bin:/usr/local/bin", "PATH=[path]/bin:[path]/bin"),
        ("/dev/shm has 0 KiB free", "/dev/shm has 0 KiB free"),
        ("1/2 of it", "1/2 of it"),
        ("https://example.org/a/b", "https://example.org/a/b"),
    ],
)
def test_paths_with_spaces_quotes_and_urls_are_taken_out(evidence, shown, monkeypatch, tmp_path):
    if shown is None:  # a directory of the run itself, unquoted and with a space
        place = tmp_path / "a b"
        place.mkdir()
        monkeypatch.chdir(place)
        evidence, shown = f"read {place}/torch/x.py", "read [path]/x.py"
    assert shown in canonical.dump(issued(evidence=evidence)).replace('\\"', '"')


@pytest.mark.parametrize("name", ["transformer", "holds", "ddp"])
def test_a_host_called_like_a_check_or_a_verdict_changes_no_name(name, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    certificate_ = issued(evidence=f"seen on {name} today")
    assert [check["name"] for check in certificate_["checks"]] == [
        check["name"] for check in issued(identify=True)["checks"]
    ]
    assert certificate_["verdict"] == HOLDS
    assert "seen on [name] today" in canonical.dump(certificate_)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-20],
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace('"format": 1', '"format": 9'),
        lambda text: text.replace("torchlock certificate", "marriage certificate"),
        lambda text: text.replace('"checks"', '"cheques"'),
        lambda text: text + " ",
        lambda text: json.dumps(json.loads(text)),
        lambda text: text.replace('"milliseconds": 900', '"milliseconds": 900.5'),
    ],
)
def test_a_damaged_certificate_is_refused_with_a_sentence(tmp_path, damage):
    path = tmp_path / "c.json"
    path.write_text(damage(canonical.dump(issued())))
    with pytest.raises(ValidationError, match=r"c\.json"):
        certificate.load(path)


def test_a_certificate_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "c.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValidationError, match=r"c\.json"):
        certificate.load(path)


def write_context(tmp_path, value):
    path = tmp_path / "context.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_what_the_parent_judged_is_taken_over(tmp_path):
    files = {"verdict": DOES_NOT_HOLD, "tree": "sha256-x", "evidence": "changed: torch/a.py"}
    value = {"lock": {"digest": "sha256:l", "verdict": HOLDS}, "files": files}
    context = certificate.read_context(write_context(tmp_path, value))
    lock, judged = certificate.context_outcomes(context)
    assert (lock.verdict, lock.evidence) == (HOLDS, "sha256:l")
    assert (judged.verdict, judged.evidence) == (DOES_NOT_HOLD, "changed: torch/a.py")


def test_without_a_parent_lock_and_files_are_not_judged():
    outcomes = certificate.context_outcomes(certificate.Context())
    assert [outcome.verdict for outcome in outcomes] == [NOT_JUDGED, NOT_JUDGED]


@pytest.mark.parametrize(
    "value", ["", "[]", "{", {"files": 3}, {"lock": []}, {"files": {"verdict": "perhaps"}}]
)
def test_a_damaged_context_gives_a_sentence(tmp_path, value):
    if value == {"lock": []}:  # an empty list is an empty object to dict()
        value = {"lock": ["digest"]}
    with pytest.raises(ValidationError, match="context"):
        certificate.read_context(write_context(tmp_path, value))
