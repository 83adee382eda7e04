"""Running `validation` inside a realization, by that realization's own interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchlock.findings import Finding
from torchlock.records import Records
from torchlock.verify import Verdict

_KEPT = ("PYTHONPATH", "PYTHONUSERBASE")
"""What can shadow locked modules must reach the check that looks for it."""

CLEARING_UP = 20
"""Seconds that `validation` gets to stop its processes and remove its scratch directories."""


def environment_inside(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the caller's own Python and pip settings."""
    return {
        key: value
        for key, value in environ.items()
        if key in _KEPT or not key.startswith(("PYTHON", "PIP_"))
    }


def files_context(
    verdict: Verdict,
    records: Records,
    findings: Sequence[Finding],
    *,
    compiled: bool,
    unjudged: str = "",
    more: str = "",
) -> dict[str, Any]:
    """Return what `validation` is told of the files: verdict, tree digests, evidence.

    `findings` are all there are, the stack's among them. `compiled`: byte code was compared with
    what its source compiles to. `unjudged` says what could not be judged, `more` what was judged
    besides the stack.
    """
    if findings:
        outcome = "does not hold"
        evidence = f"{len(findings)} findings, the first: {findings[0].kind}: {findings[0].path}"
    else:
        outcome = "not judged" if unjudged else "holds"
        code = "are what their source compiles to" if compiled else "match their source by header"
        evidence = (
            (f"{unjudged}; " if unjudged else "")
            + f"{verdict.files} files of {len(records.wheels)} wheels, "
            f"{verdict.bytes / 1e9:.2f} GB, tree {verdict.tree}; "
            f"{verdict.bytecode} byte code files {code}{more}"
        )
    return {
        "verdict": outcome,
        "tree": verdict.tree,
        "wheels": dict(verdict.trees),
        "evidence": evidence,
    }


def run_inside(
    python: Path, root: Path, context: Mapping[str, Any], arguments: Sequence[str]
) -> int:
    """Run the `validation` below `root` with `python`; return its exit code.

    `context` is what is known of lock and files, `arguments` are those of `python -m
    validation`. Raises `OSError` when it cannot be started.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "context.json")
        path.write_text(json.dumps(context))
        command = [
            str(python), "-B", str(root / "validation"), "--context", str(path), *arguments,
        ]  # fmt: skip
        with subprocess.Popen(command, env=environment_inside(os.environ)) as child:
            return _wait(child)


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for `validation`; on Ctrl-C let it stop its own children and clear up first."""
    try:
        return child.wait()
    except KeyboardInterrupt:
        try:
            child.wait(CLEARING_UP)
        except subprocess.TimeoutExpired:
            child.kill()
        raise
    except BaseException:
        child.terminate()
        raise
