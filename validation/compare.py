"""Compares certificates and names the first thing that differs, in the order it would matter."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validation import canonical, certificate
from validation.loaded import ELSEWHERE, ENVIRONMENT
from validation.outcome import DOES_NOT_HOLD, EXIT_CODES, HOLDS, NOT_JUDGED, ValidationError


@dataclass(frozen=True)
class Difference:
    """The first thing in which two certificates differ.

    `what` is one of lock, files, libraries, lane, class, numbers; `evidence` says what each has;
    `reading` what that means.
    """

    what: str
    evidence: str
    reading: str


@dataclass(frozen=True)
class Comparison:
    """`first` is None where nothing differs; `unjudged` names what a side did not judge."""

    first: Difference | None
    unjudged: tuple[str, ...]
    compared: int

    @property
    def verdict(self) -> str:
        """Holds only where both sides judged the same numbers and they agree."""
        if self.first:
            return DOES_NOT_HOLD
        return HOLDS if self.compared else NOT_JUDGED


_READINGS = {
    "lock": "These are different environments; everything below may differ as well.",
    "files": "The same lock is installed differently: a file was changed, or belongs to another"
    " build, or files of others stand among it. invoke validate names them.",
    "libraries": "The same files are on disk, but other libraries were loaded:"
    " LD_LIBRARY_PATH, LD_PRELOAD or another torch came first.",
    "lane": "The checks ran in different lanes, so their bits need not agree.",
    "class": "The machines belong to different classes; GPU bits hold for one class only.",
    "numbers": "Everything that should decide the bits is the same, and yet they differ: look at"
    " the hardware, the kernel and the foundation.",
}


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> Comparison:
    """Compares two certificates (as `certificate.load` gives them)."""
    unjudged: list[str] = []
    first = None
    for what, look in _LOOKS.items():
        evidence = look(a, b, unjudged)
        if evidence:
            first = Difference(what, evidence, _READINGS[what])
            break
    return Comparison(first, tuple(unjudged), len(_common_numbers(a, b)))


def _lock(a: Mapping[str, Any], b: Mapping[str, Any], unjudged: list[str]) -> str:
    ours, theirs = a["lock"].get("digest"), b["lock"].get("digest")
    if not ours or not theirs:
        unjudged.append("lock")
        return ""
    return _pair("lock", ours, theirs)


def _files(a: Mapping[str, Any], b: Mapping[str, Any], unjudged: list[str]) -> str:
    ours, theirs = a["files"], b["files"]
    if not ours.get("tree") or not theirs.get("tree"):
        unjudged.append("files")
        return ""
    named = _first(ours.get("wheels") or {}, theirs.get("wheels") or {})
    verdicts = [str(side.get("verdict", "not judged")) for side in (ours, theirs)]
    # Foreign files and byte code are no part of a tree, so the verdict may differ alone.
    return named or _pair("tree", ours["tree"], theirs["tree"]) or _pair("verdict", *verdicts)


def _libraries(a: Mapping[str, Any], b: Mapping[str, Any], unjudged: list[str]) -> str:
    # Only what the environment brings must be the same; the foundation may differ.
    versions = [{k: v for k, v in side["versions"].items() if k != "python"} for side in (a, b)]
    if not versions[0] or not versions[1]:
        unjudged.append("libraries")
        return ""
    loaded = [
        {
            library["name"]: library["from"]
            for library in side["libraries"]
            if library["from"] in (ENVIRONMENT, ELSEWHERE)
        }
        for side in (a, b)
    ]
    return _first(*versions) or _first(*loaded)


def _lane(a: Mapping[str, Any], b: Mapping[str, Any], unjudged: list[str]) -> str:
    return _first(a["lane"].get("portable", {}), b["lane"].get("portable", {})) or _first(
        a["lane"].get("reported", {}), b["lane"].get("reported", {})
    )


def _class(a: Mapping[str, Any], b: Mapping[str, Any], unjudged: list[str]) -> str:
    for kind in ("cpu", "gpu"):
        ours, theirs = a["classes"].get(kind), b["classes"].get(kind)
        if not ours or not theirs:
            unjudged.append(f"{kind} class")
        elif difference := _first(ours, theirs):
            return f"{kind} {difference}"
    return ""


def _numbers(a: Mapping[str, Any], b: Mapping[str, Any], unjudged: list[str]) -> str:
    ours, theirs = _numbers_of(a), _numbers_of(b)
    common = _common_numbers(a, b)
    unjudged += sorted({check for check, _ in set(ours) ^ set(theirs)})
    for check, result in common:
        if ours[check, result] != theirs[check, result]:
            where = _first_step(a, b, check, result)
            evidence = _pair(f"{check}, {result}", ours[check, result], theirs[check, result])
            cpus = _pair("CPU", a["machine"].get("cpu"), b["machine"].get("cpu"))
            return evidence + where + (f"; {cpus}" if cpus else "")
    return ""


_LOOKS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any], list[str]], str]] = {
    "lock": _lock,
    "files": _files,
    "libraries": _libraries,
    "lane": _lane,
    "class": _class,
    "numbers": _numbers,
}


def _numbers_of(side: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    return {
        (str(check["name"]), str(result)): str(digest)
        for check in side["checks"]
        for result, digest in check.get("digests", {}).items()
    }


def _common_numbers(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str]]:
    theirs = _numbers_of(b)
    return [key for key in _numbers_of(a) if key in theirs]


def _first_step(a: Mapping[str, Any], b: Mapping[str, Any], check: str, result: str) -> str:
    """At which training step the losses part, where both certificates have the trace."""
    traces = []
    for side in (a, b):
        found: Mapping[str, Any] = next((c for c in side["checks"] if c["name"] == check), {})
        traces.append(found.get("details", {}).get("losses", {}).get(result, []))
    for step, (ours, theirs) in enumerate(zip(*traces, strict=False), start=1):
        if ours != theirs:
            return f"; the losses part at step {step}"
    return ""


def _first(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            return _pair(name, ours.get(name), theirs.get(name))
    return ""


def _pair(name: str, ours: object, theirs: object) -> str:
    return "" if ours == theirs else f"{name}: {ours or 'absent'} / {theirs or 'absent'}"


def main(arguments: Sequence[str]) -> int:
    """`A B [...]`: compares each certificate with the first; returns the exit code."""
    options = argparse.ArgumentParser(prog="compare", description=__doc__)
    options.add_argument("certificates", nargs="+", type=Path)
    options.add_argument("--json", metavar="FILE", help="the result; - for standard output")
    chosen = options.parse_args(arguments)
    try:
        if len(chosen.certificates) < 2:
            raise ValidationError("one certificate alone cannot be compared")
        loaded = [certificate.load(path) for path in chosen.certificates]
    except ValidationError as fault:
        print(fault, file=sys.stderr)  # noqa: T201
        return EXIT_CODES[NOT_JUDGED]
    first, stream = chosen.certificates[0], sys.stderr if chosen.json == "-" else sys.stdout
    results = []
    for path, other in zip(chosen.certificates[1:], loaded[1:], strict=True):
        try:
            result = compare(loaded[0], other)
        except (AttributeError, KeyError, TypeError) as error:
            print(f"{first} or {path} is damaged: {error!r}", file=sys.stderr)  # noqa: T201
            return EXIT_CODES[NOT_JUDGED]
        stream.write(f"{first} and {path}: {describe(result)}\n")
        difference = result.first
        results.append(
            {
                "a": first.name,
                "b": path.name,
                "verdict": result.verdict,
                "differs": difference.what if difference else None,
                "evidence": difference.evidence if difference else None,
                "not judged": list(result.unjudged),
                "compared": result.compared,
            }
        )
    if chosen.json:
        try:
            canonical.write(chosen.json, results)
        except ValidationError as fault:
            print(fault, file=sys.stderr)  # noqa: T201
            return EXIT_CODES[NOT_JUDGED]
    verdicts = {result["verdict"] for result in results}
    worst = next(v for v in (DOES_NOT_HOLD, NOT_JUDGED, HOLDS) if v in verdicts)
    return EXIT_CODES[worst]


def describe(result: Comparison) -> str:
    """The comparison in a sentence or two."""
    if result.first:
        found = result.first
        return f"they differ, first in: {found.what}\n  {found.evidence}\n  {found.reading}"
    left_out = f"; not judged on both sides: {', '.join(result.unjudged)}"
    said = f"the same ({result.compared} digests)" if result.compared else "no numbers in common"
    return said + (left_out if result.unjudged else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
