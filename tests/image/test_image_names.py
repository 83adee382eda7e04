"""Names of images: taken as they are, or refused with the reason."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from invoke.context import Context

import tasks
from torchlock.oci.reference import ImageNameError, Reference, parse_name, parse_reference


@pytest.mark.parametrize("text", ["demo", "lab/demo", "lab/demo:1", "localhostile/x"])
def test_references_without_a_registry_are_refused(text: str):
    with pytest.raises(ImageNameError, match="does not say which registry"):
        parse_reference(text)


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("host.example/Lab/Img:1", "'Lab/Img' is no name", "lab/img"),
        ("host.example/lab/demo@sha256:" + "a" * 64, "by its digest", "NAME:TAG"),
        ("h:1/a:b:c", "'b:c' is no tag", "128"),
        ("host.example/lab/demo:", "'' is no tag", "128"),
        ("host.example/lab/demo:.x", "'.x' is no tag", "128"),
        ("host.example/lab/demo:" + "x" * 129, "is no tag", "128"),
        ("", "'' is no name", "lower-case"),
        ("lab//demo:1", "'lab//demo' is no name", "'/' between"),
        ("a..b:1", "'a..b' is no name", "lower-case"),
        ("a___b:1", "is no name", "'__'"),
        ("-a:1", "is no name", "lower-case"),
        ("BAD tag/..:x y", "'x y' is no tag", "128"),
        ("bad host.example/x:1", "'bad host.example' is no host", "HOST"),
        ("https://host.example/x:1", "'https:' is no host", "HOST"),
        ("host.example/" + "a" * 243 + ":1", "longer than 255", ""),
    ],
)
def test_names_that_nobody_takes_are_refused(text: str, says: str, hint: str):
    for parse in (parse_name, parse_reference):
        with pytest.raises(ImageNameError) as refused:
            parse(text)
        assert says in refused.value.message
        assert hint in refused.value.hint


def test_a_name_here_has_a_tag():
    with pytest.raises(ImageNameError, match="'nocolon' has no tag") as refused:
        parse_name("nocolon")
    assert "nocolon:latest" in refused.value.hint
    with pytest.raises(ImageNameError, match="has no tag"):
        parse_name("localhost:5000/demo")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pytorch_cuda_v2.7:latest", ("", "pytorch_cuda_v2.7", "latest")),
        ("lab/a__b--c/d:V_1.2-x", ("", "lab/a__b--c/d", "V_1.2-x")),
        ("localhost/demo:1", ("localhost", "demo", "1")),
        ("host.example/" + "a" * 242 + ":1", ("host.example", "a" * 242, "1")),
        ("[::1]:5000/demo:1", ("[::1]:5000", "demo", "1")),
        ("registry.example:5000/team/image:v1.2", ("registry.example:5000", "team/image", "v1.2")),
    ],
)
def test_names_are_parsed(text: str, found: tuple[str, str, str]):
    assert parse_name(text) == Reference(*found)


def test_references_are_parsed():
    found = parse_reference("registry.example:5000/team/image:v1.2")
    assert found == Reference("registry.example:5000", "team/image", "v1.2")
    assert found.base == "https://registry.example:5000"
    assert parse_reference("localhost:5000/x").base == "http://localhost:5000"
    assert parse_reference("[::1]:5000/x").base == "http://[::1]:5000"
    assert parse_reference("host.example/x").tag == "latest"
    assert parse_reference("docker.io/me/x").base == parse_reference("registry-1.docker.io/x").base


def test_names_without_a_host_are_docker_s_own_to_containerd():
    assert parse_name("demo:1").full == "docker.io/library/demo:1"
    assert parse_name("lab/demo:1").full == "docker.io/lab/demo:1"
    assert parse_name("localhost:5000/demo:1").full == "localhost:5000/demo:1"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "next: invoke load, or: invoke push HOST/NAME:latest"),
        ({"out": "my dir", "tag": "lab/demo:v1"},
         "next: invoke load --out 'my dir' --tag lab/demo:v1, or: "
         "invoke push HOST/NAME:v1 --out 'my dir' --tag lab/demo:v1"),
    ],
)  # fmt: skip
def test_what_to_type_next_finds_the_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options, says: str
):
    made = SimpleNamespace(digest="sha256:0")
    monkeypatch.setattr("torchlock.realize.image_plan.image_source", lambda *_: None)
    monkeypatch.setattr("torchlock.realize.image.render", lambda *_, **__: (made, {}))
    with pytest.raises(SystemExit, match="0"):
        tasks.image(Context(), **options)
    said = capsys.readouterr()
    assert said.out == "sha256:0\n"
    assert said.err == f"  {says}\n"


@pytest.mark.parametrize("tag", ["BAD tag/..:x y", "nocolon", "Demo:1", "demo@sha256:" + "a" * 64])
def test_a_tag_that_no_engine_takes_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, tag: str
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torchlock.realize.image_plan.image_source", lambda *_: None)
    with pytest.raises(SystemExit, match="2"):
        tasks.image(Context(), out="made", tag=tag)
    assert repr(tag) in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
