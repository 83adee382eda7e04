"""Byte code against what its source compiles to, judged by the interpreter that would run it.

The header of byte code names the source it was made from; it does not vouch for the code. This
compiles the source again and compares the two, in processes of the environment's own Python:
only that one makes the same code, and what is in a file can at worst end such a process.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torchlock.errors import TorchlockError

_READY = b"ready"
_DIFFERS = (
    "its code is not what this Python makes of its source (changed, or made by another "
    "release); it is made again once it is removed"
)
_CRASHES = "reading it ends the interpreter"

_CHILD = """
import marshal, os, sys, types
ATTRIBUTES = ["co_" + name for name in (
    "argcount", "posonlyargcount", "kwonlyargcount", "nlocals", "stacksize", "flags", "code",
    "names", "varnames", "freevars", "cellvars", "name", "qualname", "firstlineno", "linetable",
    "exceptiontable")]
def equal(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, types.CodeType):
        return all(getattr(a, n) == getattr(b, n) for n in ATTRIBUTES) and equal(
            a.co_consts, b.co_consts)
    if type(a) is tuple:
        return len(a) == len(b) and all(map(equal, a, b))
    if type(a) is frozenset:
        return sorted(map(repr, a)) == sorted(map(repr, b))
    if type(a) in (float, complex):  # -0.0 is not 0.0
        return repr(a) == repr(b)
    return a == b
def same(path):
    with open(path, "rb") as stream:
        found = marshal.loads(stream.read()[16:])
    directory, name = os.path.split(path)
    module, _, rest = name.partition(b".cpython-")
    with open(os.path.join(os.path.dirname(directory), module + b".py"), "rb") as stream:
        source = stream.read()
    level = 2 if b".opt-2." in rest else 1 if b".opt-1." in rest else 0
    made = compile(source, os.fsdecode(path), "exec", dont_inherit=True, optimize=level)
    return equal(made, found)
answers = sys.stdout.buffer
answers.write(b"ready\\0")
for path in sys.stdin.buffer.read().split(b"\\0")[:-1]:
    answers.flush()
    try:
        answers.write(b"same\\0" if same(path) else b"differs\\0")
    except Exception:
        answers.write(b"differs\\0")
"""


def differing(
    python: Path, root: Path, paths: Sequence[str], workers: int | None = None
) -> list[tuple[str, str]]:
    """Return (path, reason) for the byte code below `root` that `python` would not have made.

    Takes what `explain_bytecode` accepts. What pytest made for itself is passed over: it holds
    rewritten assertions. Raises `TorchlockError` when `python` does not run.
    """
    todo = [path for path in paths if ".pytest-" not in path]
    if not todo:
        return []
    count = workers or os.cpu_count() or 1
    with ThreadPoolExecutor(count) as pool:
        shares = pool.map(lambda share: _judge(python, root, share), _shares(todo, count))
        return sorted(item for share in shares for item in share)


def _shares(paths: Sequence[str], count: int) -> list[Sequence[str]]:
    return [share for index in range(count) if (share := paths[index::count])]


def _judge(python: Path, root: Path, paths: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    while paths:
        answers = _ask(python, root, paths)
        found += [(p, _DIFFERS) for p, a in zip(paths, answers, strict=False) if a != b"same"]
        if len(answers) < len(paths):
            found.append((paths[len(answers)], _CRASHES))
        paths = paths[len(answers) + 1 :]
    return found


def _ask(python: Path, root: Path, paths: Sequence[str]) -> list[bytes]:
    command = [str(python), "-I", "-S", "-B", "-W", "ignore", "-c", _CHILD]
    given = b"".join(os.fsencode(root / path) + b"\0" for path in paths)
    try:
        done = subprocess.run(command, input=given, capture_output=True, check=False)
    except OSError as error:
        raise TorchlockError(f"{python} cannot be started: {error.strerror}") from None
    first, *answers = done.stdout.split(b"\0")[:-1] or [b""]
    if first != _READY:
        raise TorchlockError(f"{python} does not run: {os.fsdecode(done.stderr.strip())}")
    return answers
