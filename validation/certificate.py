"""The certificate: what was judged, on what machine, with which result; canonical JSON."""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from validation import canonical
from validation.outcome import (
    HOLDS,
    NOT_JUDGED,
    VERDICTS,
    Outcome,
    ValidationError,
    overall,
)

KIND = "torchlock certificate"
FORMAT = 1

# An absolute path of two parts or more, also in a file: URL; /dev, /proc and /sys are the same
# everywhere. Between quotation marks it may hold spaces.
_START = r"(?:(?<![\w./])|(?<=file://))/(?!/|dev/|proc/|sys/)"
_PATH = re.compile(rf"{_START}(?:[^\s/:;,'\"()]+/)+([^\s/:;,'\"()]*)")
_QUOTED_PATH = re.compile(rf"(?<=(['\"])){_START}(?:[^/'\"\n]+/)+([^/'\"\n]*)(?=\1)")

# What this package chooses itself: no name of a host or a user can be in it, and a check stays
# what it is called on a host of the same name.
_OWN_WORDS = frozenset({"name", "question", "verdict", "digests", "tree", "digest", "wheels"})


@dataclass(frozen=True)
class Context:
    """What the parent knows and this package cannot: lock, files, foundation, the doctor's word.

    `lock` has the lock's `digest` ("sha256:..."), `files` the installed `tree` ("sha256-...") and
    `wheels` (name -> digest); both have `verdict` and `evidence`, and are empty where nobody
    judged them. `doctor` says why CUDA is absent where it was expected, and is empty elsewhere.
    """

    lock: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)
    foundation: str = ""
    doctor: dict[str, Any] = field(default_factory=dict)

    @property
    def lock_digest(self) -> str:
        """The lock's digest, or ""."""
        return str(self.lock.get("digest") or "")

    @property
    def tree(self) -> str:
        """The tree digest of the installed stack, or ""."""
        return str(self.files.get("tree") or "")


def read_context(path: Path) -> Context:
    """Reads the file the parent wrote; raises ValidationError when it is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        context = Context(
            dict(value.get("lock", {})),
            dict(value.get("files", {})),
            str(value.get("foundation", "")),
            dict(value.get("doctor") or {}),
        )
        verdicts = [part.get("verdict", HOLDS) for part in (context.lock, context.files)]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ValidationError(f"the context {path.name} cannot be read: {error}") from error
    for verdict in verdicts:
        if verdict not in VERDICTS:
            raise ValidationError(f"the context {path.name} has no such verdict: {verdict!r}")
    return context


def context_outcomes(context: Context) -> list[Outcome]:
    """The rows for lock and files; without a parent that judged them they are not judged."""
    return [
        _context_outcome("lock", context.lock, context.lock_digest),
        _context_outcome("files", context.files, f"tree {context.tree or 'unknown'}"),
    ]


def _context_outcome(name: str, judged: dict[str, Any], otherwise: str) -> Outcome:
    verdict = judged.get("verdict")
    if verdict is None:
        evidence = "no --context was given (invoke validate judges it)"
        return Outcome(name, NOT_JUDGED, evidence, needed=False)
    return Outcome(name, verdict, str(judged.get("evidence") or otherwise))


def build(
    outcomes: Sequence[Outcome],
    *,
    context: Context,
    machine: dict[str, Any],
    lane: dict[str, Any],
    classes: dict[str, dict[str, str]],
    milliseconds: int,
    identify: bool = False,
) -> dict[str, Any]:
    """The certificate as JSON types.

    User name, host name and paths are taken out of it unless `identify` is set.
    """
    stack = next((o for o in outcomes if o.name == "stack"), None)
    details = stack.details if stack else {}
    checks = []
    for outcome in outcomes:
        shown = outcome.to_json()
        if outcome.name == "stack":
            shown["details"] = {}  # versions, libraries and lane have places of their own
        checks.append(shown)
    certificate = {
        "kind": KIND,
        "format": FORMAT,
        "verdict": overall(outcomes),
        "lock": context.lock or {"verdict": NOT_JUDGED},
        "files": context.files or {"verdict": NOT_JUDGED},
        "foundation": context.foundation or None,
        "doctor": context.doctor or None,
        "versions": details.get("versions", {}),
        "libraries": details.get("libraries", []),
        "lane": {**lane, "reported": details.get("lane", {})},
        "machine": machine,
        "classes": classes,
        "checks": checks,
        "milliseconds": milliseconds,
    }
    if identify:
        certificate["identity"] = {"host": socket.gethostname(), "user": _user()}
        return certificate
    places = _places()
    cleaned = _without_names(certificate, [socket.gethostname(), _user()], places)
    return cast("dict[str, Any]", cleaned)


def _places() -> list[str]:
    """Directories this run knows, which may hold spaces, the longest first."""
    known = {Path(sys.prefix), Path(tempfile.gettempdir()), Path(__file__).resolve().parent.parent}
    for find in (Path.cwd, Path.home):
        # The directory may be gone, the user without a home.
        with contextlib.suppress(OSError, RuntimeError):
            known.add(find())
    return sorted((str(p) for p in known if len(p.parts) > 2), key=len, reverse=True)


def load(path: Path) -> dict[str, Any]:
    """Reads a certificate; raises ValidationError when it is damaged or something else."""
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text)
    except OSError as error:
        raise ValidationError(f"the certificate {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValidationError(f"the certificate {path} is damaged: {error}") from error
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise ValidationError(
            f"{path} is not a torchlock certificate", hint="invoke validate --json FILE"
        )
    if value.get("format") != FORMAT:
        raise ValidationError(
            f"{path} has certificate format {value.get('format')!r}, this reads {FORMAT}"
        )
    _check_shape(path, value)
    if not canonical.is_canonical(value, text):
        raise ValidationError(f"{path} is not canonical JSON: it was edited or reformatted")
    return value


def _check_shape(path: Path, value: dict[str, Any]) -> None:
    shape: dict[str, type] = {
        "verdict": str,
        "lock": dict,
        "files": dict,
        "versions": dict,
        "libraries": list,
        "lane": dict,
        "machine": dict,
        "classes": dict,
        "checks": list,
    }
    wrong = [name for name, kind in shape.items() if not isinstance(value.get(name), kind)]
    checks = value["checks"] if "checks" not in wrong else []
    if wrong or not all(isinstance(check, dict) and "name" in check for check in checks):
        raise ValidationError(
            f"the certificate {path} is damaged: {', '.join(wrong) or 'checks'} missing"
        )


def _without_names(value: object, names: Sequence[str], places: Sequence[str]) -> object:
    if isinstance(value, dict):
        return {
            key: item if key in _OWN_WORDS else _without_names(item, names, places)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_without_names(item, names, places) for item in value]
    if not isinstance(value, str):
        return value
    text = value
    for place in places:
        text = re.sub(rf"{re.escape(place)}(?![\w.-])", "/of/this/run", text)
    text = _QUOTED_PATH.sub(r"[path]/\2", text)
    text = _PATH.sub(r"[path]/\1", text)
    for name in filter(None, names):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "[name]", text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a numeric user without an entry in passwd
        return ""
