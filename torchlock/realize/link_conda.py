"""Link conda packages into a prefix with rattler; run as a program of its own.

py-rattler's interpreter can crash at its exit after the work is done, so `linking.py` runs
this in a child process, reads the result it leaves in a file, and ignores how it ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import rattler


class _Scripts(rattler.InstallerReporter):
    """Notices what link scripts come to: rattler itself goes on without a word when one fails."""

    def __init__(self) -> None:
        self.running: list[tuple[str, str]] = []
        self.ran: list[str] = []
        self.failed: list[str] = []

    def on_post_link_start(self, package_name: str, script_path: str) -> int:
        self.running.append((package_name, script_path))
        return len(self.running) - 1

    def on_post_link_complete(self, index: int, success: bool) -> None:
        package, script = self.running[index]
        if success:
            self.ran.append(package)
        else:
            self.failed.append(f"{package}: {script}")


async def link(request: dict[str, Any], scripts: _Scripts) -> None:
    """Carry out a request. Raises what rattler raises, `ValueError` for a damaged record."""
    with tempfile.TemporaryDirectory() as scratch:
        records = [_record(row, Path(scratch)) for row in request["packages"]]
    # Whoever edits a file of a prefix may edit the cache through a hard link: check contents.
    layer = rattler.PackageCacheLayer(Path(request["cache"])).with_validation_mode(
        rattler.ValidationMode.full()
    )
    await rattler.install(
        records,
        request["prefix"],
        installed_packages=_installed(Path(request["prefix"])),
        package_cache=rattler.PackageCache.from_layers([layer]),
        platform=rattler.Subdir(request["platform"]),
        execute_link_scripts=request["link_scripts"],
        reinstall_packages=set(request["again"]),
        reporter=scripts,
    )


def _installed(prefix: Path) -> list[rattler.PrefixRecord]:
    found = []
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            found.append(rattler.PrefixRecord.from_path(path))
        except Exception as error:
            raise ValueError(f"{path} is no record of a conda package: {error}") from None
    return found


def _record(row: dict[str, Any], scratch: Path) -> rattler.RepoDataRecord:
    index = scratch / f"{row['sha256']}.json"
    index.write_text(json.dumps(row["index"]), encoding="utf-8")
    record = rattler.PackageRecord.from_index_json(index)
    record.sha256 = bytes.fromhex(row["sha256"])
    record.md5 = bytes.fromhex(row["md5"])
    record.size = row["size"]
    archive = Path(row["archive"])
    return rattler.RepoDataRecord(record, archive.name, archive.as_uri(), row["channel"])


def main(request_path: Path, result_path: Path) -> None:
    """Read the JSON request, carry it out, write the JSON result.

    The result has `ran`, the packages whose link scripts did what they should, `failed_scripts`,
    and `error` where that is why the work is not done.

    The request has `prefix`, `cache`, `platform`, `link_scripts`, `again` (names of packages to
    link afresh) and `packages`, each with its `index` (index.json), `archive` (absolute path),
    `channel`, `sha256`, `md5` and `size`.
    """
    scripts = _Scripts()  # type: ignore[abstract]  # its base says that all have defaults
    result: dict[str, Any] = {"ran": scripts.ran, "failed_scripts": scripts.failed}
    try:
        asyncio.run(link(json.loads(request_path.read_text(encoding="utf-8")), scripts))
    except Exception as error:
        result["error"] = str(error) or type(error).__name__
    result_path.write_text(json.dumps(result), encoding="utf-8")
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
