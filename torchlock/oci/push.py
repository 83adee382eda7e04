"""Pushing a layout to a registry: only the blobs it lacks, resumed where a transfer broke.

Protocol: OCI distribution specification 1.1, and the token flow of the docker registry
authentication specification.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

import requests

from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.http import PASSING_STATUS, new_session, retry_after
from torchlock.oci.credentials import TOKEN_USER, Credentials, credentials
from torchlock.oci.layout import INDEX, MANIFEST, Descriptor, Layout, document
from torchlock.oci.reference import Reference
from torchlock.progress import Progress, silent

ATTEMPTS = 5
CHUNK = 32 << 20
"""Bytes of a blob in one request: what a broken connection can cost."""


class PushError(TorchlockError):
    """The registry cannot be reached, refuses, or answers against its protocol."""


@dataclass(frozen=True)
class Pushed:
    """What a push did: the manifest's digest, and bytes sent, mounted and found there.

    `attached` counts the documents that went with the image, such as the bill of materials.
    """

    digest: str
    sent: int
    mounted: int
    present: int
    attached: int


def push(
    layout: Layout,
    tag: str,
    reference: Reference,
    *,
    mount_from: str = "",
    pause: float = 1.0,
    progress: Progress = silent,
) -> Pushed:
    """Push the image named `tag` of a layout, and what is attached to it.

    `mount_from` is another repository of the registry that may have the blobs already; `pause`
    is the first wait between attempts, in seconds. Raises `PushError`, or `DoesNotHold` when
    the registry then serves the tag under another digest.
    """
    return _Push(layout, tag, reference, mount_from, pause, progress).image()


@dataclass
class _Push:
    layout: Layout
    tag: str
    reference: Reference
    mount_from: str
    pause: float
    progress: Progress
    session: requests.Session = field(default_factory=new_session)
    sent: int = 0
    mounted: int = 0
    present: int = 0
    token: str = ""

    def image(self) -> Pushed:
        descriptor = self.layout.find(self.tag)
        digest = str(descriptor["digest"])
        self._manifest(descriptor, self.reference.tag)
        attached = self.layout.referrers(digest)
        supported = [self._manifest(row, str(row["digest"])) for row in attached]
        if attached and not all(supported):
            self._referrers_tag(digest, attached)
        served = self._digest_of(self.reference.tag)
        if served != digest:
            raise DoesNotHold(
                f"{self.reference.registry} serves {served} for the tag, pushed was {digest}"
            )
        return Pushed(digest, self.sent, self.mounted, self.present, len(attached))

    def _manifest(self, descriptor: Descriptor, name: str) -> bool:
        """Push a manifest and its blobs; say whether the registry knows referrers."""
        content, manifest = self.layout.read(descriptor), self.layout.manifest(descriptor)
        blobs = {b["digest"]: b for b in (*manifest["layers"], manifest["config"])}
        with self.progress("pushing", len(blobs)) as report:
            for blob in blobs.values():
                item = report.start(blob["digest"][7:19], blob["size"], 0)
                try:
                    self._blob(blob, lambda count, item=item: report.advance(item, count))
                finally:
                    report.finish(item)
        answer = self._put_manifest(name, str(descriptor["mediaType"]), content)
        return "OCI-Subject" in answer.headers or "subject" not in manifest

    def _put_manifest(self, name: str, media_type: str, content: bytes) -> requests.Response:
        headers = {"Content-Type": media_type}
        return self._request("PUT", f"manifests/{name}", {201, 202}, data=content, headers=headers)

    def _referrers_tag(self, digest: str, attached: list[Descriptor]) -> None:
        """Attach by tag, the specification's way for registries without a referrers API.

        What others attached, signatures for example, stays.
        """
        tag, ours = digest.replace(":", "-"), {str(row["digest"]) for row in attached}
        answer = self._request("GET", f"manifests/{tag}", {200, 404}, headers={"Accept": INDEX})
        rows = list(attached)
        if answer.status_code == 200:
            try:
                rows += [row for row in answer.json()["manifests"] if row["digest"] not in ours]
            except (ValueError, KeyError, TypeError):
                raise PushError(
                    f"{self.reference.registry}: {self.reference.repository}:{tag} is no index",
                    hint="remove that tag from the registry, then push again",
                ) from None
        index = document(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": rows})
        self._put_manifest(tag, INDEX, index.content)

    def _digest_of(self, name: str) -> str:
        answer = self._request("GET", f"manifests/{name}", {200}, headers={"Accept": MANIFEST})
        return "sha256:" + hashlib.sha256(answer.content).hexdigest()

    def _blob(self, blob: Descriptor, advance: Any) -> None:
        digest, size = str(blob["digest"]), int(blob["size"])
        if self._has(digest):
            self.present += size
            advance(size)
            return
        query = {"mount": digest, "from": self.mount_from} if self.mount_from else {}
        path = "blobs/uploads/" + (f"?{urlencode(query)}" if query else "")
        answer = self._request("POST", path, {201, 202})
        if answer.status_code == 201:
            self.mounted += size
            advance(size)
            return
        path_of_blob = self.layout.blob(digest)
        if not path_of_blob.exists():
            raise PushError(f"{self.layout.root} lacks the blob {digest}")
        self._upload(path_of_blob, digest, size, self._location(answer), advance)

    def _upload(self, path: Path, digest: str, size: int, location: str, advance: Any) -> None:
        offset, faults = 0, 0
        with path.open("rb") as stream:
            while offset < size:
                try:
                    answer = self._send_chunk(stream, offset, min(CHUNK, size - offset), location)
                except (requests.RequestException, _Again) as fault:
                    faults += 1
                    if faults >= ATTEMPTS:
                        raise PushError(
                            f"{self.reference.registry}: sending {digest} broke {faults} times, "
                            f"last with: {fault}",
                            hint="run the same command again; finished blobs are not sent twice",
                        ) from None
                    self._wait(faults, getattr(fault, "pause", 0.0))
                    location, offset = self._resume(location, size)
                    continue
                location = self._location(answer)
                done = max(_end_of_range(answer, size), offset + min(CHUNK, size - offset))
                advance(done - offset)
                self.sent += done - offset
                offset, faults = done, 0
        whole = _with_query(location, digest=digest)
        answer = self._request("PUT", whole, {201, 404})
        # An answer that was lost leaves the blob there and no upload to finish.
        if answer.status_code == 404 and not self._has(digest):
            raise self._refused("PUT", whole, answer)

    def _has(self, digest: str) -> bool:
        return self._request("HEAD", f"blobs/{digest}", {200, 404}).status_code == 200

    def _send_chunk(
        self, stream: IO[bytes], offset: int, count: int, location: str
    ) -> requests.Response:
        stream.seek(offset)
        data = stream.read(count)
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"{offset}-{offset + len(data) - 1}",
        }
        answer = self._send("PATCH", location, data=data, headers=headers)
        if answer.status_code in PASSING_STATUS or answer.status_code == 416:
            raise _Again(f"HTTP {answer.status_code}", retry_after(answer))
        if answer.status_code not in (202, 204):
            raise self._refused("PATCH", location, answer)
        return answer

    def _resume(self, location: str, size: int) -> tuple[str, int]:
        """Ask how much of an upload arrived; start another one when it is forgotten."""
        answer = self._request("GET", location, {204, 404})
        if answer.status_code == 204:
            where = answer.headers.get("Location")
            return (self._location(answer) if where else location), _end_of_range(answer, size)
        return self._location(self._request("POST", "blobs/uploads/", {202})), 0

    def _location(self, answer: requests.Response) -> str:
        if "Location" not in answer.headers:
            raise PushError(f"{self.reference.registry} gave no place to upload to")
        return urljoin(answer.url, answer.headers["Location"])

    def _request(self, method: str, path: str, wanted: set[int], **more: Any) -> requests.Response:
        """Send a request, again after passing faults; return an answer with a wanted status."""
        url = path
        if not path.startswith("http"):
            url = f"{self.reference.base}/v2/{self.reference.repository}/{path}"
        answer = self._outlast(self.reference.registry, lambda: self._send(method, url, **more))
        if answer.status_code in wanted:
            return answer
        raise self._refused(method, url, answer)

    def _outlast(self, server: str, send: Callable[[], requests.Response]) -> requests.Response:
        """Send again after passing faults; return the first answer that is none of them.

        `server` is for messages.
        """
        fault = ""
        for attempt in range(ATTEMPTS):
            pause = 0.0
            try:
                answer = send()
            except requests.exceptions.SSLError as error:
                self._check_trust(server, error)
                fault = f"breaks off TLS ({error})"
            except requests.RequestException as error:
                fault = f"cannot be reached ({type(error).__name__})"
            else:
                if answer.status_code not in PASSING_STATUS:
                    return answer
                fault, pause = f"answers HTTP {answer.status_code}", retry_after(answer)
            if attempt + 1 < ATTEMPTS:
                self._wait(attempt + 1, pause)
        raise PushError(
            f"{server} {fault}, {ATTEMPTS} times",
            hint="check the registry and the network, then run the same command again",
        )

    def _check_trust(self, server: str, error: requests.exceptions.SSLError) -> None:
        """Raise `PushError` for what no other attempt would change."""
        said = str(error)
        if "CERTIFICATE_VERIFY_FAILED" in said:
            raise PushError(
                f"{server}: the certificate is not trusted ({error})",
                hint="let this machine trust its authority, or name the certificates: "
                "REQUESTS_CA_BUNDLE=FILE invoke push ...",
            ) from None
        if re.search("WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|record layer failure", said):
            source = shlex.quote(f"oci:{self.layout.root}:{self.tag}")
            raise PushError(
                f"{server} does not speak TLS: plain HTTP is only used to this machine itself",
                hint="give the registry a certificate; or, trusting the network between: "
                f"skopeo copy --dest-tls-verify=false {source} docker://{self.reference.full}",
            ) from None

    def _wait(self, attempt: int, pause: float) -> None:
        time.sleep(max(pause, min(self.pause * 2 ** (attempt - 1), 30.0)))

    def _send(
        self, method: str, url: str, headers: dict[str, str] | None = None, **more: Any
    ) -> requests.Response:
        for _ in range(2):
            # Uploads may be redirected to a storage host, which must not see the registry's token.
            ours = urlsplit(url).netloc == self.reference.host
            authorize = _Authorization(self.token) if self.token and ours else None
            answer = self.session.request(
                method, url, headers=headers, auth=authorize, timeout=(15, 300), **more
            )
            challenge = answer.headers.get("WWW-Authenticate", "")
            # Whom else a login goes to is the registry's own word alone.
            asked = urlsplit(answer.url).netloc == self.reference.host
            if answer.status_code != 401 or not challenge or not asked:
                return answer
            self._authorize(challenge)
        return answer

    def _authorize(self, challenge: str) -> None:
        """Get what the registry asks for: the login itself, or a token for it."""
        known = credentials(self.reference.registry, self.reference.repository)
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            if known is None or known.user == TOKEN_USER:  # Basic takes no identity token
                raise self._no_login()
            self.token = _basic(known)
            return
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        if "realm" not in fields:
            raise PushError(f"{self.reference.registry} asks for a login of an unknown kind")
        self.token = f"Bearer {self._fetch_token(fields, known)}"

    def _fetch_token(self, fields: dict[str, str], known: Credentials | None) -> str:
        realm, service = fields["realm"], fields.get("service", "")
        scopes = fields.get("scope", f"repository:{self.reference.repository}:pull,push").split()
        if self.mount_from:
            scopes.append(f"repository:{self.mount_from}:pull")

        def ask() -> requests.Response:
            if known and known.user == TOKEN_USER:
                form = {
                    "service": service, "scope": " ".join(scopes), "client_id": "torchlock",
                    "grant_type": "refresh_token", "refresh_token": known.password,
                }  # fmt: skip
                return self.session.post(realm, data=form, timeout=(15, 60))
            query = {"service": service, "scope": scopes}
            authorize = _Authorization(_basic(known)) if known else None
            return self.session.get(realm, params=query, auth=authorize, timeout=(15, 60))

        server = f"{self.reference.registry}'s token server {urlsplit(realm).netloc}"
        answer = self._outlast(server, ask)
        if answer.status_code in (400, 401, 403):  # 400 is OAuth2's for a token that is no good
            raise self._no_login()
        try:
            content = answer.json() if answer.ok else {}
            return str(content.get("token") or content["access_token"])
        except (ValueError, KeyError, AttributeError):
            raise PushError(
                f"{server} answers HTTP {answer.status_code} without a token",
                hint="check the registry, then run the same command again",
            ) from None

    def _no_login(self) -> PushError:
        return PushError(
            f"{self.reference.registry} does not let this user push to {self.reference.repository}",
            hint=f"docker login {self.reference.registry}",
        )

    def _refused(self, method: str, url: str, answer: requests.Response) -> PushError:
        if answer.status_code in (401, 403):
            return self._no_login()
        try:
            said = "; ".join(str(e.get("message")) for e in answer.json()["errors"])
        except (ValueError, KeyError, TypeError, AttributeError):
            said = answer.reason or ""
        where = urlsplit(url)
        return PushError(
            f"{where.netloc} answers HTTP {answer.status_code} to {method} {where.path}: {said}"
        )


class _Again(Exception):  # noqa: N818 - becomes a PushError after the last attempt
    def __init__(self, message: str, pause: float) -> None:
        super().__init__(message)
        self.pause = pause


@dataclass(frozen=True)
class _Authorization(requests.auth.AuthBase):
    """A header that `.netrc`, which requests would read otherwise, does not replace."""

    value: str

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = self.value
        return request


def _basic(known: Credentials) -> str:
    return requests.auth._basic_auth_str(known.user, known.password)


def _end_of_range(answer: requests.Response, size: int) -> int:
    """Return how many bytes the registry has, from `Range: 0-<last>`.

    A registry that has nothing yet answers `0-0`, which also stands for one byte: nothing is
    assumed, since sending from the start is always right.
    """
    match = re.fullmatch(r"(?:bytes=)?0-(\d+)", answer.headers.get("Range", ""))
    if not match or match[1] == "0":
        return 0
    return min(int(match[1]) + 1, size)


def _with_query(url: str, **more: str) -> str:
    parts = urlsplit(url)
    query = [*parse_qsl(parts.query, keep_blank_values=True), *more.items()]
    return urlunsplit(parts._replace(query=urlencode(query)))
