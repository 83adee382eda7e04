"""The image's bill of materials, from the locks alone.

Format: CycloneDX 1.5 JSON (ECMA-424), with package URLs (ECMA-427); no time and no serial number,
so that the same locks give the same document.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlsplit

from torchlock.lock import Package
from torchlock.oci.layout import Document, document
from torchlock.rootfs.lock import DebPackage, RootfsLock

MEDIA_TYPE = "application/vnd.cyclonedx+json"


def sbom(
    title: str, wheels: Iterable[Package], conda: Iterable[Package], rootfs: RootfsLock
) -> Document:
    """Return the bill of materials of an image."""
    components = [
        *(_deb(p, rootfs) for p in rootfs.packages),
        *(_conda(p) for p in conda),
        *(_wheel(p) for p in wheels),
    ]
    return document(
        MEDIA_TYPE,
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {"component": {"type": "container", "name": title, "bom-ref": title}},
            "components": sorted(components, key=lambda c: str(c["purl"])),
        },
    )


def _component(name: str, version: str, purl: str, sha256: str, url: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
        "externalReferences": [{"type": "distribution", "url": url}],
    }


def _wheel(package: Package) -> dict[str, Any]:
    purl = _purl("pypi", package.name, package.version, file_name=package.filename)
    return _component(package.name, package.version, purl, package.sha256, package.url)


def _conda(package: Package) -> dict[str, Any]:
    channel, subdir, filename = package.url.rsplit("/", 2)
    kind = "conda" if filename.endswith(".conda") else "tar.bz2"
    build = package.filename.removesuffix(f".{kind}").rpartition("-")[2]
    purl = _purl(
        "conda", package.name, package.version,
        build=build, channel=urlsplit(channel).path.strip("/"), subdir=subdir, type=kind,
    )  # fmt: skip
    return _component(package.name, package.version, purl, package.sha256, package.url)


def _deb(package: DebPackage, rootfs: RootfsLock) -> dict[str, Any]:
    purl = _purl(
        "deb/debian", package.name, package.version,
        arch=package.architecture, distro=rootfs.codename,
    )  # fmt: skip
    return _component(package.name, package.version, purl, package.sha256, package.url)


def _purl(kind: str, name: str, version: str, **qualifiers: str) -> str:
    """Return a package URL; `kind` is its type, with the namespace where there is one."""
    pairs = "&".join(f"{key}={_encoded(value)}" for key, value in sorted(qualifiers.items()))
    return f"pkg:{kind}/{_encoded(name)}@{_encoded(version)}?{pairs}"


def _encoded(text: str) -> str:
    """Encode all but letters, digits, `.-_~` and the colon, which is not encoded anywhere."""
    return quote(text, safe=":")
