"""What was found, as text for people and JSON for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchlock.errors import TorchlockError
from torchlock.files import write_atomically

if TYPE_CHECKING:
    from torchlock.findings import Finding


def describe(findings: Sequence[Finding], most: int = 10) -> str:
    """Return findings as lines, the first `most` of them."""
    lines = [
        f"  {f.kind}: {f.path}{f' ({f.package})' if f.package else ''}: {f.detail}"
        for f in findings[:most]
    ]
    if len(findings) > most:
        lines.append(f"  and {len(findings) - most} more")
    return "\n".join(lines)


def write_json(target: str | None, value: Any) -> None:
    """Write `value` as JSON to a file, or to standard output for `-`; nothing for None."""
    if target is None:
        return
    text = json.dumps(value, indent=1) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    try:
        write_atomically(Path(target), text.encode())
    except OSError as error:
        raise TorchlockError(f"{target} cannot be written: {error.strerror}") from None
