"""Pushing: to a registry that fails in every way it can, and to the real one."""

import base64
import hashlib
import json
import shutil
import socket
import ssl
import stat
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.image.image_making import attach, small_layout
from tests.support.registry import real_registry_in
from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.oci import push as pushing
from torchlock.oci.credentials import Credentials, credentials
from torchlock.oci.layout import Layout, document, image_config, image_manifest, referrer_manifest
from torchlock.oci.push import PushError, push
from torchlock.oci.reference import parse_reference

TAG = "demo:1"


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    for variable in ("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "none"))
    made = small_layout(tmp_path / "layout", TAG)
    attach(made, TAG)
    return made


class Registry(ThreadingHTTPServer):
    """A registry in memory; `plan` maps (method, what) to faults for the first requests."""

    daemon_threads = True

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__((host, 0), Handler)
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.uploads: dict[str, bytearray] = {}
        self.faults: dict[str, list[str]] = {}
        self.asked: Counter[str] = Counter()
        self.authorizations: list[str | None] = []
        self.scopes: list[list[str]] = []
        self.login = ""
        self.lies = False
        self.storage = ""

    @property
    def name(self) -> str:
        return f"{self.server_address[0]}:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Registry
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_any(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = "blob" if "/blobs/sha256" in url.path else "".join(url.path.split("/")[4:5])
        what = f"{self.command} {'token' if url.path == '/token' else kind}"
        self.server.asked[what] += 1
        self.server.authorizations.append(self.headers.get("Authorization"))
        wants_login = self.server.login and url.path != "/token"
        if wants_login and self.headers.get("Authorization") != "Bearer T":
            realm = f'Bearer realm="http://{self.server.name}/token",service="reg"'
            return self.answer(401, WWW_Authenticate=realm)
        if self.server.faults.get(what):
            fault, _, pause = self.server.faults[what].pop(0).partition(" after ")
            if fault == "drop":  # half of the body arrived, then the connection broke
                if self.command == "PATCH":
                    self.server.uploads[url.path] += body[: len(body) // 2]
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return None
            if fault == "lose":  # all was done, and the answer does not arrive
                self.answer = lambda *_, **__: None
                self.on_put(url, body)
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return None
            if fault == "forget":
                self.server.uploads.clear()
                return self.answer(404)
            if fault == "no token":
                return self.answer(200, b'{"expires_in": 300}')
            more = {"Retry_After": pause} if pause else {}
            return self.answer(int(fault), b'{"errors":[{"message":"on purpose"}]}', **more)
        if url.path == "/token":
            return self.on_token(parse_qs(url.query or body.decode()))
        return getattr(self, f"on_{self.command.lower()}")(url, body)

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = handle_any  # noqa: N815

    def on_token(self, query):
        good = self.headers.get("Authorization") == self.server.login
        if self.command == "POST":  # OAuth2, with an identity token
            assert query["grant_type"] == ["refresh_token"] and query["client_id"]
            good = query["refresh_token"] == [self.server.login]
            query["scope"] = query["scope"][0].split()
        self.server.scopes.append(query["scope"])
        return self.answer(200, b'{"token": "T"}') if good else self.answer(401)

    def on_head(self, url, _):
        self.answer(200 if url.path.rpartition("/")[2] in self.server.blobs else 404)

    def on_post(self, url, _):
        query = parse_qs(url.query)
        if query.get("from") == ["lab/base"] and query["mount"][0] in self.server.blobs:
            return self.answer(201)
        place = f"/v2/lab/demo/blobs/uploads/{len(self.server.uploads)}-{time.monotonic_ns()}"
        self.server.uploads[place] = bytearray()
        return self.answer(202, Location=f"{self.server.storage}{place}?state=1")

    def on_patch(self, url, body):
        upload = self.server.uploads.get(url.path)
        if upload is None:
            return self.answer(404)
        if int(self.headers["Content-Range"].split("-")[0]) != len(upload):
            return self.answer(416, Range=f"0-{len(upload) - 1}", Location=self.path)
        upload += body
        return self.answer(202, Location=self.path, Range=f"0-{len(upload) - 1}")

    def on_get(self, url, _):
        if url.path in self.server.uploads:
            upload = self.server.uploads[url.path]
            return self.answer(204, Location=self.path, Range=f"0-{max(len(upload) - 1, 0)}")
        if "/uploads/" in url.path:
            return self.answer(404)
        content = self.server.manifests.get(url.path.rpartition("/")[2])
        if content is None:
            return self.answer(404)
        return self.answer(200, content + b" " if self.server.lies else content)

    def on_put(self, url, body):
        name = url.path.rpartition("/")[2]
        if "/manifests/" in url.path:
            self.server.manifests[name] = body
            return self.answer(201)
        digest = parse_qs(url.query)["digest"][0]
        if url.path not in self.server.uploads:
            return self.answer(404, b'{"errors":[{"message":"upload unknown"}]}')
        content = bytes(self.server.uploads.pop(url.path))
        if "sha256:" + hashlib.sha256(content).hexdigest() != digest:
            return self.answer(400, b'{"errors":[{"message":"digest mismatch"}]}')
        self.server.blobs[digest] = content
        return self.answer(201)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pushing, "CHUNK", 50_000)
    with Registry() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def send(layout: Layout, registry: Registry, **more):
    reference = parse_reference(f"{registry.name}/lab/demo:v1")
    return push(layout, TAG, reference, pause=0.001, **more)


def check(layout: Layout, registry: Registry) -> None:
    digest = layout.find(TAG)["digest"]
    assert registry.manifests["v1"] == layout.blob(digest).read_bytes()
    for row in json.loads(registry.manifests["v1"])["layers"]:
        assert registry.blobs[row["digest"]] == layout.blob(row["digest"]).read_bytes()


def test_everything_is_sent_once(layout: Layout, registry: Registry):
    first = send(layout, registry)
    check(layout, registry)
    assert first.sent > 200_000 and first.present == 0
    assert registry.asked["HEAD blob"] == len(registry.blobs), "nothing is looked for twice"
    second = send(layout, registry)
    assert second.sent == 0 and second.present == first.sent
    assert second.digest == first.digest == layout.find(TAG)["digest"]


def test_the_bill_of_materials_is_attached_by_tag_where_there_is_no_api(
    layout: Layout, registry: Registry
):
    digest = send(layout, registry).digest
    index = json.loads(registry.manifests[digest.replace(":", "-")])
    [row] = index["manifests"]
    assert row["artifactType"] == "application/vnd.cyclonedx+json"
    assert json.loads(registry.manifests[row["digest"]])["subject"]["digest"] == digest


def test_what_others_attached_by_tag_stays(layout: Layout, registry: Registry):
    tag = send(layout, registry).digest.replace(":", "-")
    index = json.loads(registry.manifests[tag])
    signature = {"digest": "sha256:" + "5" * 64, "mediaType": "x", "size": 1}
    index["manifests"].append(signature)
    registry.manifests[tag] = json.dumps(index).encode()
    send(layout, registry)
    assert json.loads(registry.manifests[tag])["manifests"] == index["manifests"]
    registry.manifests[tag] = b"[]"
    with pytest.raises(PushError, match=f"{tag} is no index"):
        send(layout, registry)


def test_an_image_keeps_what_is_attached_when_another_gets_a_name(
    layout: Layout, registry: Registry
):
    other = image_manifest(
        image_config(created="2026-01-02T00:00:00Z", architecture="amd64", run={}, layers=[]),
        [], {},
    )  # fmt: skip
    more = document("application/vnd.cyclonedx+json", {"bomFormat": "other"})
    referrer, empty = referrer_manifest(other, more)
    for content in (other, more, referrer, empty):
        layout.add_document(content)
    layout.publish("other:1", other, [referrer])
    assert [row["digest"] for row in layout.referrers(other.digest)] == [referrer.digest]
    done = send(layout, registry)
    assert done.attached == 1
    index = json.loads(registry.manifests[done.digest.replace(":", "-")])
    assert json.loads(registry.manifests[index["manifests"][0]["digest"]])["subject"]
    # What nothing names any more goes, and what is attached to it.
    layout.publish(TAG, other, [referrer])
    assert layout.referrers(done.digest) == []
    assert len(layout.index()) == 3


def test_blobs_are_mounted_from_another_repository(layout: Layout, registry: Registry):
    send(layout, registry)
    registry.manifests.clear()
    kept = dict(registry.blobs)

    class Empty(dict):  # lab/demo has none of them; lab/base has
        def __contains__(self, digest):
            return False

    on_head = Handler.on_head
    Handler.on_head = lambda self, url, body: self.answer(404)
    try:
        done = send(layout, registry, mount_from="lab/base")
    finally:
        Handler.on_head = on_head
    assert done.sent == 0 and done.mounted == sum(map(len, kept.values()))


@pytest.mark.parametrize(
    "faults",
    [
        {"PATCH blobs": ["drop", "drop", "500"]},
        {"PATCH blobs": ["drop"], "GET blobs": ["forget"]},
        {
            "PATCH blobs": ["429 after 0", "503"],
            "POST blobs": ["502", "408"],
            "PUT manifests": ["425"],
        },
        {"PUT blobs": ["lose", "502"]},
        {"PATCH blobs": ["416"]},
        {"HEAD blob": ["500", "drop"], "GET manifests": ["503"], "PUT blobs": ["500"]},
    ],
)
def test_passing_faults_are_outlived(layout: Layout, registry: Registry, faults):
    registry.faults = {k: list(v) for k, v in faults.items()}
    send(layout, registry)
    check(layout, registry)
    assert not any(registry.faults.values()), "every planned fault happened"


def test_a_broken_transfer_is_resumed_not_repeated(layout: Layout, registry: Registry):
    registry.faults = {"PATCH blobs": ["drop"]}
    done = send(layout, registry)
    total = sum(len(b) for b in registry.blobs.values())
    assert done.sent <= total
    assert registry.asked["POST blobs"] == len(registry.blobs)


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"PUT manifests": ["500"] * 9}, "answers HTTP 500, 5 times"),
        ({"PATCH blobs": ["drop"] * 20}, "broke 5 times"),
        ({"PUT manifests": ["400"]}, "HTTP 400 to PUT .*on purpose"),
        ({"POST blobs": ["403"]}, "does not let this user push to lab/demo"),
        ({"PUT blobs": ["404"]}, "HTTP 404 to PUT .*on purpose"),
        ({"HEAD blob": ["404", "418"]}, "HTTP 418 to HEAD .*blobs/sha256:"),
    ],
)
def test_lasting_faults_are_named(layout: Layout, registry: Registry, faults, says):
    registry.faults = faults
    with pytest.raises(PushError, match=says):
        send(layout, registry)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, in seconds, which take no time here."""
    pauses: list[float] = []
    monkeypatch.setattr("torchlock.oci.push.time.sleep", pauses.append)
    return pauses


@pytest.mark.parametrize("what", ["PATCH blobs", "POST blobs", "PUT manifests", "GET token"])
def test_a_registry_says_how_long_to_wait(
    layout: Layout, registry: Registry, tmp_path: Path, waited: list[float], what: str
):
    log_in(registry, tmp_path)
    registry.faults = {what: ["429 after 17", "429 after 4000", "503"]}
    send(layout, registry)
    check(layout, registry)
    assert waited == [17, 60, 0.004]


def test_the_count_of_bytes_sent_goes_by_the_blob_and_not_by_what_a_registry_claims(
    layout: Layout, registry: Registry, monkeypatch: pytest.MonkeyPatch
):
    on_patch = Handler.on_patch

    def boasts(self, url, body):
        answer, self.answer = self.answer, lambda status, **more: None
        on_patch(self, url, body)
        self.answer = answer
        self.answer(202, Location=self.path, Range="0-999999999")

    monkeypatch.setattr(pushing, "CHUNK", 1 << 20)
    monkeypatch.setattr(Handler, "on_patch", boasts)
    assert send(layout, registry).sent == sum(len(b) for b in registry.blobs.values())


def test_a_registry_that_gives_no_place_to_upload_to(
    layout: Layout, registry: Registry, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Handler, "on_post", lambda self, url, body: self.answer(202))
    with pytest.raises(PushError, match="gave no place to upload to"):
        send(layout, registry)


def test_a_blob_that_the_layout_lacks_is_named(layout: Layout, registry: Registry):
    digest = layout.manifest(layout.find(TAG))["layers"][1]["digest"]
    layout.blob(digest).unlink()
    with pytest.raises(PushError, match=f"lacks the blob {digest}"):
        send(layout, registry)


def test_a_registry_that_is_not_there(layout: Layout):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(PushError, match="cannot be reached"):
        push(layout, TAG, parse_reference(f"127.0.0.1:{port}/lab/demo"), pause=0.001)


def test_a_registry_that_serves_something_else(layout: Layout, registry: Registry):
    registry.lies = True
    with pytest.raises(DoesNotHold, match="serves sha256:"):
        send(layout, registry)


def docker_config(tmp_path: Path, content: dict) -> None:
    (tmp_path / "docker").mkdir(exist_ok=True)
    (tmp_path / "docker" / "config.json").write_text(json.dumps(content))


LOGIN = base64.b64encode(b"me:secret").decode()


def log_in(registry: Registry, tmp_path: Path) -> None:
    """Have the registry ask for a login, and docker's configuration know it."""
    registry.login = f"Basic {LOGIN}"
    docker_config(tmp_path, {"auths": {registry.name: {"auth": LOGIN}}})


def test_logins_of_the_docker_configuration_are_used(
    layout: Layout, registry: Registry, tmp_path: Path
):
    registry.login = f"Basic {LOGIN}"
    with pytest.raises(PushError, match=f"docker login {registry.name}"):
        send(layout, registry)
    docker_config(tmp_path, {"auths": {registry.name: {"auth": LOGIN}}})
    send(layout, registry)
    check(layout, registry)


def test_a_token_server_that_fails_for_a_while_is_asked_again(
    layout: Layout, registry: Registry, tmp_path: Path
):
    log_in(registry, tmp_path)
    registry.faults = {"GET token": ["429", "500", "drop", "503"]}
    send(layout, registry)
    check(layout, registry)
    assert registry.asked["GET token"] == 5


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        (["500"] * 9, "token server .* answers HTTP 500, 5 times"),
        (["no token"], "token server .* answers HTTP 200 without a token"),
        (["404"], "token server .* answers HTTP 404 without a token"),
        (["400"], "does not let this user push"),
        (["403"], "does not let this user push"),
    ],
)
def test_a_token_server_that_gives_none_is_named(
    layout: Layout, registry: Registry, tmp_path: Path, faults: list[str], says: str
):
    log_in(registry, tmp_path)
    registry.faults = {"GET token": faults}
    with pytest.raises(PushError, match=says):
        send(layout, registry)


@pytest.mark.parametrize("challenge", ["Negotiate", 'Bearer service="reg"', 'Basic realm="x"'])
def test_logins_of_other_kinds_are_not_guessed(
    layout: Layout, registry: Registry, monkeypatch: pytest.MonkeyPatch, challenge: str
):
    monkeypatch.setattr(
        Handler, "on_head", lambda self, url, _: self.answer(401, WWW_Authenticate=challenge)
    )
    known = "Basic" not in challenge
    says = "login of an unknown kind" if known else "does not let this user push"
    with pytest.raises(PushError, match=says):
        send(layout, registry)


def test_an_identity_token_is_no_password(
    layout: Layout, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    docker_config(tmp_path, {"auths": {registry.name: {"identitytoken": "secret"}}})

    def wants_basic(self):
        self.server.authorizations.append(self.headers.get("Authorization"))
        self.answer(401, WWW_Authenticate='Basic realm="x"')

    monkeypatch.setattr(Handler, "do_HEAD", wants_basic)
    with pytest.raises(PushError, match=f"docker login {registry.name}"):
        send(layout, registry)
    assert registry.authorizations == [None]


def test_a_login_in_netrc_does_not_take_the_tokens_place(
    layout: Layout, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password another\n")
    monkeypatch.setenv("NETRC", str(netrc))
    log_in(registry, tmp_path)
    send(layout, registry)
    check(layout, registry)


def test_a_storage_host_does_not_see_the_registrys_token(
    layout: Layout, registry: Registry, tmp_path: Path
):
    log_in(registry, tmp_path)
    with Registry() as storage:
        threading.Thread(target=storage.serve_forever, args=(0.01,), daemon=True).start()
        registry.storage, storage.uploads = f"http://{storage.name}", registry.uploads
        storage.blobs = registry.blobs
        send(layout, registry)
        check(layout, registry)
        assert storage.asked["PATCH blobs"] and storage.asked["PUT blobs"]
        assert set(storage.authorizations) == {None}
        # Nor does it get a login by asking for one.
        registry.blobs.clear()
        storage.login = f"Basic {LOGIN}"
        with pytest.raises(PushError, match="does not let this user push"):
            send(layout, registry)
        assert storage.asked["GET token"] == 0
        storage.shutdown()


@pytest.mark.parametrize("identity", [False, True])
def test_the_token_is_for_the_repository_that_blobs_are_mounted_from_too(
    layout: Layout, registry: Registry, tmp_path: Path, identity: bool
):
    registry.login = "secret" if identity else f"Basic {LOGIN}"
    entry = {"identitytoken": "secret"} if identity else {"auth": LOGIN}
    docker_config(tmp_path, {"auths": {registry.name: entry}})
    send(layout, registry, mount_from="lab/base")
    assert registry.scopes == [["repository:lab/demo:pull,push", "repository:lab/base:pull"]]
    send(layout, registry)
    assert registry.scopes[1] == ["repository:lab/demo:pull,push"]


@pytest.mark.parametrize("part", ["lab/demo", "lab", ""])
def test_the_longest_entry_of_podmans_file_is_used(
    layout: Layout, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
):
    """An entry for a repository goes before that of its namespace, and this before its host's."""
    registry.login = f"Basic {LOGIN}"
    wrong = base64.b64encode(b"me:wrong").decode()
    shorter = {"lab/demo": ["lab", ""], "lab": ["", "la", "lab/other"], "": ["other"]}[part]
    names = dict.fromkeys(shorter, wrong) | {part: LOGIN}
    auths = {f"{registry.name}/{n}".rstrip("/"): {"auth": entry} for n, entry in names.items()}
    (tmp_path / "auth.json").write_text(json.dumps({"auths": auths}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    send(layout, registry)
    check(layout, registry)


@pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"])
def test_podmans_file_is_found_where_podman_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout, variable: str
):
    monkeypatch.setenv(variable, str(tmp_path / "podman"))
    (tmp_path / "podman" / "containers").mkdir(parents=True)
    file = tmp_path / "podman" / "containers" / "auth.json"
    file.write_text(json.dumps({"auths": {"registry.example/lab": {"auth": LOGIN}}}))
    assert credentials("registry.example", "lab/demo") == Credentials("me", "secret")
    assert credentials("registry.example", "labs/demo") is None


def test_credential_helpers_are_asked(
    layout: Layout, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    registry.login = f"Basic {LOGIN}"
    docker_config(tmp_path, {"credHelpers": {registry.name: "test"}})
    helper = tmp_path / "docker-credential-test"
    helper.write_text('#!/bin/sh\necho \'{"Username": "me", "Secret": "secret"}\'\n')
    helper.chmod(helper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    send(layout, registry)
    check(layout, registry)


def helper_that_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    helper = tmp_path / "docker-credential-test"
    helper.write_text(f"#!/bin/sh\n{script}\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def test_identity_tokens_are_used_as_such(
    layout: Layout, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    registry.login = "an-identity-token"
    entry = {"auth": LOGIN, "identitytoken": "an-identity-token"}
    docker_config(tmp_path, {"auths": {registry.name: entry}})
    send(layout, registry)
    (tmp_path / "docker" / "config.json").write_text('{"credsStore": "test", "auths": null}')
    said = '{"Username": "<token>", "Secret": "an-identity-token"}'
    helper_that_says(tmp_path, monkeypatch, f"echo '{said}'")
    send(layout, registry)
    check(layout, registry)


@pytest.mark.parametrize("content", [{"auths": []}, {"credHelpers": 1}, [], {"auths": "x"}])
def test_a_configuration_of_another_shape_is_named(layout, tmp_path: Path, content):
    docker_config(tmp_path, content)
    if content == []:
        (tmp_path / "docker" / "config.json").write_text("[]")
    with pytest.raises(TorchlockError, match=r"config\.json is damaged"):
        credentials("registry.example")


@pytest.mark.parametrize("text", ["{", "\udcff"])
def test_a_configuration_that_cannot_be_read_is_named(layout, tmp_path: Path, text: str):
    docker_config(tmp_path, {})
    file = tmp_path / "docker" / "config.json"
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(TorchlockError, match=r"config\.json cannot be read") as refused:
        credentials("registry.example")
    assert refused.value.hint == "docker login registry.example"
    file.unlink()
    file.mkdir()
    with pytest.raises(TorchlockError, match=r"config\.json cannot be read .*Is a directory"):
        credentials("registry.example")


@pytest.mark.parametrize("auth", ["\xe4", "abc", base64.b64encode(b"\xff:\xff").decode()])
def test_a_login_that_is_damaged_is_named_and_not_quoted(layout, tmp_path: Path, auth: str):
    docker_config(tmp_path, {"auths": {"registry.example": {"auth": auth}}})
    with pytest.raises(TorchlockError, match=r"entry for registry\.example is damaged") as refused:
        credentials("registry.example")
    assert auth not in str(refused.value)


def test_helpers_that_cannot_be_asked_are_named(
    layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    docker_config(tmp_path, {"credsStore": "test"})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TorchlockError, match=r"docker-credential-test, which .* is not installed"):
        credentials("registry.example")
    (tmp_path / "docker-credential-test").write_text("not a program")
    (tmp_path / "docker-credential-test").chmod(0o755)
    with pytest.raises(TorchlockError, match=r"docker-credential-test, which .* cannot be run"):
        credentials("registry.example")


def test_a_helper_that_fails_is_quoted_and_one_that_has_nothing_is_none(
    layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    docker_config(tmp_path, {"credsStore": "test"})
    helper_that_says(tmp_path, monkeypatch, "echo the keyring is locked >&2; exit 1")
    with pytest.raises(TorchlockError, match="docker-credential-test failed: the keyring is lock"):
        credentials("registry.example")
    helper_that_says(tmp_path, monkeypatch, "echo credentials not found in native keychain; exit 1")
    assert credentials("registry.example") is None


@pytest.mark.parametrize("content", [{"auths": None}, {"auths": {"registry.example": None}}, {}])
def test_a_configuration_without_a_login_is_none(layout, tmp_path: Path, content):
    docker_config(tmp_path, content)
    assert credentials("registry.example") is None


@pytest.mark.parametrize("prints", ["hello", "[]", '{"Username": "me"}', ""])
def test_a_helper_that_prints_no_login_is_named_and_not_quoted(
    layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: str
):
    docker_config(tmp_path, {"credsStore": "test"})
    helper_that_says(tmp_path, monkeypatch, f"echo '{prints}'")
    with pytest.raises(TorchlockError, match="docker-credential-test succeeded") as refused:
        credentials("registry.example")
    assert "hello" not in str(refused.value)


@pytest.mark.parametrize("name", ["hub.example", "index.hub.example", "registry-1.hub.example"])
def test_a_login_under_the_address_of_the_index_is_found(
    layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    key = "https://index.hub.example/v1/"
    docker_config(tmp_path, {"auths": {key: {"auth": LOGIN}}})
    assert credentials(name) == Credentials("me", "secret")
    assert credentials("other.hub.example") is None
    (tmp_path / "docker" / "config.json").write_text('{"credsStore": "test"}')
    script = 'read -r s; [ "$s" = KEY ] || { echo not found; exit 1; }; '.replace("KEY", key)
    helper_that_says(
        tmp_path, monkeypatch, script + """echo '{"Username": "me", "Secret": "secret"}'"""
    )
    assert credentials(name) == Credentials("me", "secret")


def tls_context(directory: Path) -> ssl.SSLContext:
    """A server's TLS with a certificate that nobody vouches for."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificate, key = directory / "certificate", directory / "key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.2",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest.fixture
def elsewhere(registry: Registry) -> Iterator[Registry]:
    """A registry that is not this machine's by its name: TLS is spoken to it."""
    with Registry("127.0.0.2") as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def test_a_registry_without_tls_is_called_that(layout: Layout, elsewhere: Registry):
    with pytest.raises(PushError, match=f"{elsewhere.name} does not speak TLS") as refused:
        send(layout, elsewhere)
    assert f"oci:{layout.root}:{TAG} docker://{elsewhere.name}/lab/demo:v1" in refused.value.hint


def test_a_certificate_is_trusted_where_the_user_names_it(
    layout: Layout, elsewhere: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    elsewhere.socket = tls_context(tmp_path).wrap_socket(elsewhere.socket, server_side=True)
    with pytest.raises(PushError, match="the certificate is not trusted") as refused:
        send(layout, elsewhere)
    assert "REQUESTS_CA_BUNDLE=FILE" in refused.value.hint
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "certificate"))
    send(layout, elsewhere)
    check(layout, elsewhere)


def test_a_connection_that_breaks_in_tls_is_tried_again(layout: Layout):
    with socket.socket() as server:
        server.bind(("127.0.0.2", 0))
        server.listen()
        asked = []

        def hang_up() -> None:
            while len(asked) < pushing.ATTEMPTS:
                connection, _ = server.accept()
                asked.append(connection.recv(1))
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        reference = parse_reference(f"127.0.0.2:{server.getsockname()[1]}/lab/demo")
        with pytest.raises(PushError, match="5 times"):
            push(layout, TAG, reference, pause=0.001)
        assert len(asked) == pushing.ATTEMPTS


@pytest.fixture
def real_registry(tmp_path: Path) -> Iterator[str]:
    with real_registry_in(tmp_path) as name:
        yield name


@pytest.mark.slow
def test_the_real_registry_serves_the_digest(layout: Layout, real_registry: str, tmp_path: Path):
    done = push(layout, TAG, parse_reference(f"{real_registry}/lab/demo:v1"))
    again = push(layout, TAG, parse_reference(f"{real_registry}/lab/demo:v1"))
    assert (again.sent, again.digest) == (0, done.digest)
    other = parse_reference(f"{real_registry}/lab/other:v1")
    assert push(layout, TAG, other, mount_from="lab/demo").mounted == done.sent
    source = f"docker://{real_registry}/lab/demo:v1"
    said = subprocess.run(
        ["skopeo", "inspect", "--tls-verify=false", source],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert json.loads(said.stdout)["Digest"] == done.digest
    copy = f"oci:{tmp_path}/copy:v1"
    subprocess.run(["skopeo", "copy", "--src-tls-verify=false", source, copy], check=True)
    assert Layout(tmp_path / "copy").find("v1")["digest"] == done.digest
    unpack = ["umoci", "unpack", "--rootless", "--image", f"{tmp_path}/copy:v1"]
    subprocess.run([*unpack, str(tmp_path / "bundle")], check=True)
    unpacked = (tmp_path / "bundle" / "rootfs" / "one").read_bytes()
    assert unpacked.startswith(hashlib.sha256(b"one0").digest())


@pytest.mark.slow
def test_the_real_registry_with_a_login(layout: Layout, tmp_path: Path):
    with real_registry_in(tmp_path, login=True) as name:
        reference = parse_reference(f"{name}/lab/demo:v1")
        with pytest.raises(PushError, match="does not let this user push to lab/demo") as refused:
            push(layout, TAG, reference)
        assert refused.value.hint == f"docker login {name}"
        wrong = base64.b64encode(b"me:wrong").decode()
        docker_config(tmp_path, {"auths": {name: {"auth": wrong}}})
        with pytest.raises(PushError, match="does not let this user push to lab/demo"):
            push(layout, TAG, reference)
        docker_config(tmp_path, {"auths": {name: {"auth": LOGIN}}})
        done = push(layout, TAG, reference)
        again = push(layout, TAG, parse_reference(f"{name}/lab/other:v1"), mount_from="lab/demo")
        assert (again.digest, again.mounted, again.sent) == (done.digest, done.sent, 0)
        said = subprocess.run(
            ["skopeo", "inspect", "--tls-verify=false", "--creds=me:secret",
             f"docker://{name}/lab/other:v1"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert json.loads(said.stdout)["Digest"] == done.digest
