"""The verbs of torchlock, one task each: arguments in, one call, result out."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from invoke.context import Context
from invoke.tasks import task

from torchlock.artifacts import default_store, fetch
from torchlock.check import check_lock
from torchlock.errors import DOES_NOT_HOLD, HOLDS, TorchlockError
from torchlock.files import write_atomically
from torchlock.lock import read_lock
from torchlock.mirrors import index_mirrors
from torchlock.nixpkgs import move_pin
from torchlock.progress import shown
from torchlock.proof import Realization, find_realization
from torchlock.proof import validate as run_validation
from torchlock.pylock import PLATFORM
from torchlock.realize.foundation import choose_foundation
from torchlock.realize.interpreter import host_platform
from torchlock.realize.prefix import MadePrefix, make_prefix
from torchlock.realize.venv import Made, make_venv
from torchlock.records import read_records, write_records
from torchlock.records import record as record_trees
from torchlock.relock import relock
from torchlock.report import print_table, write_json
from torchlock.repository import this_repository
from torchlock.userconfig import named_prefix

INTERRUPTED = 130
DEFAULT_PREFIX = Path("env")


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def verb(body: Callable[..., int]) -> Any:
    """Make a task of a function that returns an exit code and may raise `TorchlockError`."""

    @functools.wraps(body)
    def run(context: Context, *args: Any, **options: Any) -> None:
        try:
            code = body(context, *args, **options)
        except TorchlockError as error:
            _say(f"error: {error}")
            code = error.code
        except KeyboardInterrupt:
            _say("interrupted; run the same command again to go on")
            code = INTERRUPTED
        sys.exit(code)

    return task(run)


@verb
def lock(
    _: Context,
    check: bool = False,
    upgrade: str | None = None,
    nixpkgs: str | None = None,
    json: str | None = None,
) -> int:
    """Make conda-lock.yml again from environment.yml; --check only says whether they agree."""
    repository = this_repository()
    if check:
        checks = check_lock(repository)
        if json != "-":
            print_table(
                ("check", "verdict", "evidence"),
                [(c.name, "does not hold" if c.fault else "holds", c.fault or c.evidence)
                 for c in checks],
            )  # fmt: skip
        for hint in dict.fromkeys(c.hint for c in checks if c.fault):
            _say(f"  next: {hint}")
        write_json(json, [asdict(c) for c in checks])
        return DOES_NOT_HOLD if any(c.fault for c in checks) else HOLDS
    if nixpkgs:
        pin = move_pin(repository, nixpkgs)
        _say(f"flake.lock: nixpkgs {pin.revision}, {pin.nar_hash}")
        return HOLDS
    changes = relock(repository, default_store(), upgrade=upgrade)
    if json != "-":
        print_table(
            ("platform", "half", "package", "before", "after"),
            [(c.platform, c.manager, c.name, c.before, c.after) for c in changes],
        )
    write_json(json, [asdict(c) for c in changes])
    _say(f"{len(changes)} packages changed")
    if any(c.manager == "pip" for c in changes):
        _say("  next: invoke record")
    return HOLDS


@verb
def record(_: Context) -> int:
    """Record the file trees of the locked wheels, fetching what is not in the store."""
    repository = this_repository()
    wheels = read_lock(repository.lock).wheels(PLATFORM)
    try:
        known = read_records(repository.records, PLATFORM)
    except TorchlockError:
        known = None
    paths = fetch(wheels, default_store(), mirrors=index_mirrors, progress=shown)
    records = record_trees(list(zip(wheels, paths, strict=True)), PLATFORM, known)
    write_records(records, repository.records, write_atomically)
    _say(f"{PLATFORM}: {records.tree}")
    return HOLDS


@verb
def env(
    _: Context,
    prefix: str = str(DEFAULT_PREFIX),
    name: str | None = None,
    foundation: str = "auto",
    link_scripts: bool = False,
    json: str | None = None,
) -> int:
    """Make the locked environment at PREFIX, or complete, repair or update it; then verify it.

    FOUNDATION is venv (a CPython 3.11 of this host), conda, or auto: conda where its packages
    can be had. --name puts it among conda's own environments. --link-scripts runs the packages'
    post-link scripts.
    """
    asked = named_prefix(name) if name else Path(prefix)
    made = _make(asked, foundation, link_scripts=link_scripts)
    write_json(
        json,
        {"prefix": str(made.prefix), "installed": made.installed, "tree": made.verdict.tree},
    )
    _say(f"tree {made.verdict.tree}")
    _say(f"{made.prefix} is what the lock says{'' if made.installed else '; nothing to do'}")
    activate = "conda activate" if isinstance(made, MadePrefix) else "source"
    place = made.prefix if isinstance(made, MadePrefix) else made.prefix / "bin" / "activate"
    _say(f"  next: {activate} {place}")
    return HOLDS


def _make(
    prefix: Path, foundation: str = "auto", *, link_scripts: bool = False
) -> Made | MadePrefix:
    repository, store = this_repository(), default_store()
    locked, platform, place = read_lock(repository.lock), host_platform(), prefix.absolute()
    kind, why = choose_foundation(foundation, place, locked, platform, store)
    _say(f"foundation {kind}: {why}")
    records = read_records(repository.records, platform)
    if kind == "conda":
        return make_prefix(
            locked, records, place, store,
            mirrors=index_mirrors, link_scripts=link_scripts, progress=shown, say=_say,
        )  # fmt: skip
    return make_venv(locked, records, place, store, mirrors=index_mirrors, progress=shown, say=_say)


@verb
def validate(
    _: Context,
    prefix: str | None = None,
    json: str | None = None,
    only: str | None = None,
    device: str = "auto",
    record: bool = False,
    replace: bool = False,
    identify: bool = False,
    nnodes: int = 1,
    node_rank: int = 0,
    rdzv_endpoint: str | None = None,
) -> int:
    """Prove that an environment is the locked one and trains a Transformer; make it if none is."""
    realization = find_realization(Path(prefix).absolute() if prefix else None)
    if realization is None:
        made = _make(DEFAULT_PREFIX)
        realization = Realization(made.prefix, "conda" if isinstance(made, MadePrefix) else "venv")
    arguments = ["--device", device]
    arguments += ["--only", *only.split(",")] if only else []
    arguments += ["--json", json] if json else []
    arguments += ["--nnodes", str(nnodes), "--node-rank", str(node_rank)] if nnodes > 1 else []
    arguments += ["--rdzv-endpoint", rdzv_endpoint] if rdzv_endpoint else []
    flags = {"--record": record, "--replace": replace, "--identify": identify}
    arguments += [flag for flag, given in flags.items() if given]
    return run_validation(this_repository(), realization, arguments, say=_say)
