"""Recorded bits: one small file for each class of machine, read, compared and written here."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validation import canonical
from validation.outcome import DOES_NOT_HOLD, HOLDS, NOT_JUDGED, Fault, Outcome

DIRECTORY = Path(__file__).resolve().parent / "references"
FORMAT = 1


@dataclass(frozen=True)
class Reference:
    """Digests that every machine of a class must reproduce.

    `lock` and `tree` say which stack made them ("sha256:...", "sha256-..."), or are empty where
    that was not known; `digests` maps a check's name to its digests; `made` says on what.
    """

    machine_class: dict[str, str]
    lock: str
    tree: str
    digests: dict[str, dict[str, str]]
    made: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The file's content."""
        return {
            "format": FORMAT,
            "class": self.machine_class,
            "lock": self.lock,
            "tree": self.tree,
            "digests": self.digests,
            "made": self.made,
        }


def class_name(machine_class: dict[str, str]) -> str:
    """A class in one line, in the order its facts are given."""
    return ", ".join(f"{name} {value}" for name, value in machine_class.items())


def file_name(machine_class: dict[str, str]) -> str:
    """The file that a class's reference has: its facts, joined, as far as a name can hold them."""
    words = "-".join(f"{machine_class[name]}" for name in machine_class)
    return re.sub(r"[^A-Za-z0-9.+]+", "-", words).strip("-").lower() + ".json"


def load(path: Path) -> Reference:
    """Reads a reference; raises Fault when the file is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        reference = Reference(
            value["class"], value["lock"], value["tree"], value["digests"], value["made"]
        )
        digests = [d for check in reference.digests.values() for d in check.values()]
        sound = (
            value["format"] == FORMAT
            and isinstance(reference.machine_class, dict)
            and isinstance(reference.lock, str)
            and isinstance(reference.tree, str)
            and all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in digests)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    if not sound:
        raise _damaged(path, "not a reference of format 1 with sha256 digests")
    return reference


def find(machine_class: dict[str, str], directory: Path = DIRECTORY) -> Reference | None:
    """The reference of a class, or None; raises Fault when its file is damaged."""
    path = directory / file_name(machine_class)
    if not path.exists():
        return None
    reference = load(path)
    if reference.machine_class != machine_class:
        raise _damaged(path, f"it is for class {class_name(reference.machine_class)}")
    return reference


def judge(
    name: str,
    machine_class: dict[str, str],
    digests: dict[str, dict[str, str]],
    *,
    lock: str,
    tree: str,
    repeats: bool,
    directory: Path = DIRECTORY,
) -> Outcome:
    """Compares `digests` (check -> result -> digest) with the class's reference.

    `repeats` says whether the digests were reached twice. Says one of: identical, no reference
    yet, differs; and "not judged" where the reference is
    damaged or of another lock or tree.
    """
    kind = class_name(machine_class)
    try:
        reference = find(machine_class, directory)
    except Fault as fault:
        return Outcome(name, NOT_JUDGED, str(fault))
    if reference is None:
        total = canonical.digest(digests)
        said = "repeats run to run" if repeats else "repetition was not judged"
        return Outcome(
            name,
            NOT_JUDGED,
            f"no reference for class {kind} yet: {said}, digest {total}",
            needed=False,
        )
    for what, ours, theirs in (("lock", lock, reference.lock), ("tree", tree, reference.tree)):
        if ours and theirs and ours != theirs:
            return Outcome(
                name,
                NOT_JUDGED,
                f"the reference of class {kind} is for another {what}: {theirs}, here {ours}"
                " (record it again with --record --replace)",
            )
    compared = 0
    for check, results in sorted(digests.items()):
        for result, ours in sorted(results.items()):
            theirs = reference.digests.get(check, {}).get(result)
            if theirs is None:
                return Outcome(
                    name, NOT_JUDGED, f"the reference of class {kind} lacks {check}, {result}"
                )
            if ours != theirs:
                return Outcome(
                    name,
                    DOES_NOT_HOLD,
                    f"differs from the reference of class {kind}: {check}, {result} is {ours},"
                    f" recorded {theirs}",
                )
            compared += 1
    return Outcome(
        name, HOLDS, f"identical to the reference of class {kind} ({compared} digests)"
    )


def record(reference: Reference, *, replace: bool, directory: Path = DIRECTORY) -> str:
    """Writes a reference; returns what it did in a sentence.

    Raises Fault, with both digests, when another one is recorded and `replace` is false.
    """
    path = directory / file_name(reference.machine_class)
    if path.exists() and not replace:
        old = load(path)
        for check, results in sorted(reference.digests.items()):
            for result, ours in sorted(results.items()):
                theirs = old.digests.get(check, {}).get(result)
                if theirs != ours:
                    raise Fault(
                        f"{path.name} records another digest for {check}, {result}:"
                        f" {theirs or 'none'} there, {ours} now",
                        hint="look why it changed; if it must change, --record --replace",
                    )
        if (old.lock, old.tree) == (reference.lock, reference.tree):
            return f"{path.name} already records these digests"
    part = path.with_suffix(".part")
    try:
        directory.mkdir(exist_ok=True)
        part.write_text(canonical.dump(reference.to_json()), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise Fault(
            f"{path.name} could not be written: {error.strerror}",
            hint="record in a writable clone of the repository",
        ) from error
    return f"recorded {path.name}"


def _damaged(path: Path, reason: str) -> Fault:
    return Fault(
        f"the reference {path.name} is damaged: {reason}",
        hint=f"git checkout -- validation/references/{path.name}",
    )
