"""The image's bill of materials, from the locks alone.

Format: CycloneDX 1.5 JSON (ECMA-424), with package URLs; no time and no serial number, so that
the same locks give the same document.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

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
    purl = f"pkg:pypi/{package.name}@{quote(package.version)}?file_name={quote(package.filename)}"
    return _component(package.name, package.version, purl, package.sha256, package.url)


def _conda(package: Package) -> dict[str, Any]:
    channel, subdir, filename = package.url.rsplit("/", 2)
    kind = "conda" if filename.endswith(".conda") else "tar.bz2"
    build = package.filename.removesuffix(f".{kind}").rpartition("-")[2]
    purl = (
        f"pkg:conda/{quote(package.name)}@{quote(package.version)}?build={quote(build)}"
        f"&channel={quote(channel, safe=':/')}&subdir={subdir}&type={kind}"
    )
    return _component(package.name, package.version, purl, package.sha256, package.url)


def _deb(package: DebPackage, rootfs: RootfsLock) -> dict[str, Any]:
    purl = (
        f"pkg:deb/debian/{quote(package.name)}@{quote(package.version)}"
        f"?arch={package.architecture}&distro={rootfs.codename}"
    )
    return _component(package.name, package.version, purl, package.sha256, package.url)
