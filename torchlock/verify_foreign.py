"""What is in an environment and no locked artifact explains."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from packaging.utils import canonicalize_name

from torchlock.findings import Finding, Site
from torchlock.formats.wheel import INSTALLER_METADATA
from torchlock.records import Records


def foreign_files(
    site: Site,
    counted: Mapping[str, object],
    present: Mapping[str, os.stat_result],
    explained: Callable[[str], bool],
) -> Iterator[Finding]:
    """Yield what no locked wheel explains; byte code is yielded for `explain_bytecode`."""
    unknown = []
    for path in sorted(present.keys() - counted.keys()):
        top, _, rest = path.partition("/")
        if rest in INSTALLER_METADATA and f"{top}/WHEEL" in counted:
            continue
        if explained(path):
            continue
        if path.endswith((".pyc", ".pyo")):
            # The source it belongs to decides; a lone one can be imported by itself.
            yield Finding("byte code", "", path, "")
        else:
            unknown.append(path)
    modules = _modules(counted) if unknown else {}
    for path in unknown:
        rest = path.partition("/")[2]
        shown = site.shown(site.site_packages / path)
        owner = modules.get(_import_name(path))
        if owner and not rest:
            yield Finding("shadows", owner, shown, f"stands beside or before {owner}'s module")
        elif not rest and (path.endswith(".pth") or _import_name(path) in _AT_START):
            yield Finding("foreign", "", shown, "Python runs it at every start")
        else:
            yield Finding("foreign", "", shown, "no locked artifact explains it")


_AT_START = frozenset({"sitecustomize", "usercustomize"})


def configuration(site: Site) -> Iterator[Finding]:
    """Yield a finding where a venv lets the host's own site-packages in."""
    path = site.prefix / "pyvenv.cfg"
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return  # another kind of realization
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip().lower() == "include-system-site-packages" and value.strip() != "false":
            detail = "lets in the host's own site-packages, which the lock does not know"
            yield Finding("foreign", "", path.name, detail)


def _modules(paths: Iterable[str]) -> dict[str, str]:
    """Map the locked top-level modules to the top-level name that provides them."""
    modules = {}
    for path in paths:
        name = _import_name(path)
        if name and path.endswith((".py", ".so", ".pyi")):
            modules[name] = path.split("/", 1)[0]
    return modules


def _import_name(path: str) -> str:
    top, _, rest = path.partition("/")
    if rest:
        return "" if top.endswith(".dist-info") else top
    match = re.fullmatch(r"(\w+)(\.[\w-]+)?\.(py|so|pyc)", top)
    return match[1] if match else (top if top.isidentifier() else "")


def name_versions(site: Site, findings: Sequence[Finding], records: Records) -> list[Finding]:
    """Tell another version of a locked package from mere foreign files, and put it first."""
    below = re.escape(site.shown(site.site_packages))
    versions: dict[str, Finding] = {}
    rest = []
    for finding in findings:
        match = re.match(rf"({below}/([^/]+)-([^/-]+)\.dist-info)/", finding.path)
        wheel = records.wheels.get(canonicalize_name(match[2])) if match else None
        if finding.kind == "foreign" and match and wheel and match[3] != wheel.version:
            versions[match[1]] = Finding(
                "version",
                wheel.name,
                match[1],
                f"{match[3]} is installed, the lock says {wheel.version}",
            )
        else:
            rest.append(finding)
    return [*versions.values(), *rest]
