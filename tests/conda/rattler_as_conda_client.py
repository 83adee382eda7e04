#!/usr/bin/env python3
"""Stands in for conda where `conda-lock install` needs a client: over py-rattler.

It is no conda. It understands the three calls that conda-lock makes and nothing else:

    CLIENT --version
    CLIENT create --quiet --file FILE --yes --prefix PREFIX    (lines `url#md5`, as conda reads)
    CLIENT run --prefix PREFIX PROGRAM ARGUMENT...

As conda does, it checks each download against the md5 after `#` (conda-lock gives no sha256)
and keeps downloads in CONDA_PKGS_DIRS.
"""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import rattler


def main(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print("conda 0.0.0")
        return 0
    if arguments[0] == "create":
        options = dict(zip(arguments, arguments[1:], strict=False))
        create(Path(options["--file"]), Path(options["--prefix"]))
        return 0
    if arguments[:2] == ["run", "--prefix"]:
        prefix, (program, *rest) = Path(arguments[2]), arguments[3:]
        path = f"{prefix}/bin{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "CONDA_PREFIX": str(prefix), "PATH": path}
        return subprocess.run([prefix / "bin" / program, *rest], env=environment).returncode
    print(f"not a call that conda-lock install makes: {arguments}", file=sys.stderr)
    return 2


def create(listing: Path, prefix: Path) -> None:
    lines = [line.strip() for line in listing.read_text().splitlines()]
    urls = [line for line in lines if line and not line.startswith(("#", "@"))]
    downloads = Path(os.environ["CONDA_PKGS_DIRS"])
    downloads.mkdir(parents=True, exist_ok=True)
    asyncio.run(install([download(url, downloads) for url in urls], prefix, downloads))


def download(line: str, downloads: Path) -> tuple[Path, str]:
    url, _, md5 = line.partition("#")
    path = downloads / url.rsplit("/", 1)[-1]
    if not path.exists():
        with urllib.request.urlopen(url) as answer:
            path.write_bytes(answer.read())
    actual = hashlib.md5(path.read_bytes()).hexdigest()
    if actual != md5:
        raise SystemExit(f"ChecksumMismatchError: {url}: md5 {actual}, expected {md5}")
    return path, url


async def install(packages: list[tuple[Path, str]], prefix: Path, downloads: Path) -> None:
    records = [await rattler.RepoDataRecord.from_package_archive(path) for path, _ in packages]
    await rattler.install(
        records, prefix, cache_dir=downloads / "unpacked", execute_link_scripts=True,
        show_progress=False, platform=rattler.Subdir("linux-64"),
    )  # fmt: skip
    for _, url in packages:
        name = url.rsplit("/", 1)[-1].removesuffix(".conda").removesuffix(".tar.bz2")
        record = prefix / "conda-meta" / f"{name}.json"
        record.write_text(json.dumps({**json.loads(record.read_text()), "url": url}))


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except SystemExit as error:
        print(error, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    os._exit(code)  # py-rattler can crash the interpreter at its own exit
