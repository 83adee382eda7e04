"""Recorded bits: one small file for each class of machine, read, compared and written here."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validation import canonical
from validation.outcome import DOES_NOT_HOLD, HOLDS, NOT_JUDGED, Outcome, ValidationError

DIRECTORY = Path(__file__).resolve().parent / "references"
FORMAT = 1


@dataclass(frozen=True)
class Reference:
    """Digests that every machine of a class must reproduce.

    `machine_class` has a `name` and the versions that its bits depend on.
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
    """A class in one line: its name, then the versions it depends on."""
    facts = [f"{fact} {value}" for fact, value in sorted(machine_class.items()) if fact != "name"]
    return ", ".join([machine_class["name"], *facts])


def file_name(machine_class: dict[str, str]) -> str:
    """The file that a class's reference has: its name and a digest of all its facts."""
    name = re.sub(r"[^a-z0-9]+", "-", machine_class["name"].lower())
    return f"{name}-{canonical.digest(machine_class).partition(':')[2][:8]}.json"


def load(path: Path) -> Reference:
    """Reads a reference; raises ValidationError when the file is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        reference = Reference(
            value["class"], value["lock"], value["tree"], value["digests"], value["made"]
        )
        digests = [d for check in reference.digests.values() for d in check.values()]
        sound = (
            value["format"] == FORMAT
            and isinstance(reference.machine_class["name"], str)
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
    """The reference of a class, or None; raises ValidationError when its file is damaged."""
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
    except ValidationError as fault:
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
    compared, lacking = 0, []
    for check, results in sorted(digests.items()):
        for result, ours in sorted(results.items()):
            recorded = reference.digests.get(check, {}).get(result)
            if recorded is None:
                lacking.append(f"{check}, {result}")
            elif ours != recorded:
                return Outcome(
                    name,
                    DOES_NOT_HOLD,
                    f"differs from the reference of class {kind}: {check}, {result} is {ours},"
                    f" recorded {recorded}",
                )
            else:
                compared += 1
    if lacking:
        return Outcome(
            name,
            NOT_JUDGED,
            f"the reference of class {kind} lacks {'; '.join(lacking)}"
            f" ({compared} digests are identical)",
        )
    return Outcome(name, HOLDS, f"identical to the reference of class {kind} ({compared} digests)")


def record(reference: Reference, *, replace: bool, directory: Path = DIRECTORY) -> str:
    """Writes a reference; returns what it did in a sentence.

    Raises ValidationError, with both digests, when another one is recorded and `replace` is false.
    """
    path = directory / file_name(reference.machine_class)
    if path.exists() and not replace:
        old = load(path)
        for check, results in sorted(reference.digests.items()):
            for result, ours in sorted(results.items()):
                recorded = old.digests.get(check, {}).get(result)
                if recorded != ours:
                    raise ValidationError(
                        f"{path.name} records another digest for {check}, {result}:"
                        f" {recorded or 'none'} there, {ours} now",
                        hint="look why it changed; if it must change, --record --replace",
                    )
        if (old.lock, old.tree) == (reference.lock, reference.tree):
            return f"{path.name} already records these digests"
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise ValidationError(f"{directory.name} could not be made: {error.strerror}") from error
    canonical.write(str(path), reference.to_json())
    return f"recorded {path.name}"


def _damaged(path: Path, reason: str) -> ValidationError:
    return ValidationError(
        f"the reference {path.name} is damaged: {reason}",
        hint=f"git checkout -- validation/references/{path.name}",
    )
