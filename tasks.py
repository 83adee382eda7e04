"""The verbs of torchlock, one task each: arguments in, one call, result out."""

from __future__ import annotations

from torchlock.handover import hand_over

hand_over()  # before anything is imported that the stack does not carry

import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.tasks import task

from torchlock.artifacts import default_store
from torchlock.errors import DOES_NOT_HOLD, HOLDS, NOT_JUDGED, TorchlockError
from torchlock.files import absolute, write_atomically
from torchlock.lock import read_lock
from torchlock.oci.reference import DEFAULT_TAG, parse_name, parse_reference
from torchlock.progress import Report
from torchlock.pylock import PLATFORM
from torchlock.realize.marker import read_marker
from torchlock.report import write_json
from torchlock.repository import this_repository

# What only one verb runs on is imported by that verb: all of it takes half a second.
if TYPE_CHECKING:
    from torchlock.proof import Realization
    from torchlock.realize.choice import Foundation
    from torchlock.realize.prefix import MadePrefix
    from torchlock.realize.venv import Made

INTERRUPTED = 130
DEFAULT_PREFIX = Path("env")
IMAGE = "image"
"""The layout that images are rendered into by default."""


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _shown(verb: str, items: int) -> AbstractContextManager[Report]:
    """Show the progress of what takes long."""
    from torchlock.display import shown

    return shown(verb, items)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from torchlock.table import print_table

    print_table(columns, rows)


def verb(body: Callable[..., int]) -> Any:
    """Make a task of a function that returns an exit code and may raise `TorchlockError`.

    An argument that is the empty string is refused, unless that is its default.
    """

    defaults = {p.name: p.default for p in inspect.signature(body).parameters.values()}

    @functools.wraps(body)
    def run(context: Context, *args: Any, **options: Any) -> None:
        try:
            for name, value in options.items():
                if value == "" and defaults.get(name) != "":
                    raise TorchlockError(
                        f"{name} is given, but empty", hint="is a variable in the command not set?"
                    )
            code = body(context, *args, **options)
        except TorchlockError as error:
            _say(f"error: {error}")
            code = error.code
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _say(f"error: {where}{error.strerror or error}")
            code = NOT_JUDGED
        except KeyboardInterrupt:
            _say("interrupted; run the same command again to go on")
            code = INTERRUPTED
        sys.exit(code)

    return task(run, iterable=["also"] if "also" in inspect.signature(body).parameters else [])


def _options(**given: str | None) -> list[str]:
    """Return `--name value` for each option that was given."""
    return [part for key, value in given.items() if value for part in (f"--{key}", value)]


@verb
def lock(
    _: Context,
    check: bool = False,
    upgrade: str | None = None,
    nixpkgs: str | None = None,
    rootfs: bool = False,
    json: str | None = None,
) -> int:
    """Make conda-lock.yml again from environment.yml; --check only says whether they agree.

    --nixpkgs REVISION moves the pin of flake.nix and flake.lock, --rootfs that of the image's
    Debian packages; each leaves the rest as it is.
    """
    repository = this_repository()
    if check:
        from torchlock.check import check_lock

        checks = check_lock(repository)
        if json != "-":
            _print_table(
                ("check", "verdict", "evidence"),
                [(c.name, "does not hold" if c.fault else "holds", c.fault or c.evidence)
                 for c in checks],
            )  # fmt: skip
        for hint in dict.fromkeys(c.hint for c in checks if c.fault):
            _say(f"  next: {hint}")
        write_json(json, [asdict(c) for c in checks])
        return DOES_NOT_HOLD if any(c.fault for c in checks) else HOLDS
    if nixpkgs:
        from torchlock.nixpkgs import move_pin

        pin = move_pin(repository, nixpkgs)
        _say(f"flake.lock: nixpkgs {pin.revision}, {pin.nar_hash}")
        return HOLDS
    if rootfs:
        return _lock_rootfs()
    from torchlock.relock import relock

    changes = relock(repository, default_store(), upgrade=upgrade)
    if json != "-":
        _print_table(
            ("platform", "half", "package", "before", "after"),
            [(c.platform, c.manager, c.name, c.before, c.after) for c in changes],
        )
    write_json(json, [asdict(c) for c in changes])
    _say(f"{len(changes)} packages changed")
    if any(c.manager == "pip" for c in changes):
        _say("  next: invoke record")
    return HOLDS


def _lock_rootfs() -> int:
    from torchlock.rootfs.lock import relock_rootfs

    before, after = relock_rootfs()
    old = {p.name: p.version for p in before.packages} if before else {}
    new = {p.name: p.version for p in after.packages}
    moved = [n for n in sorted(old.keys() | new.keys()) if old.get(n) != new.get(n)]
    _print_table(
        ("package", "before", "after"), [(n, old.get(n, ""), new.get(n, "")) for n in moved]
    )
    _say(f"{len(moved)} Debian packages changed")
    if moved:
        _say("  next: invoke image --record")
    return HOLDS


@verb
def record(_: Context) -> int:
    """Record the file trees of the locked wheels, fetching what is not in the store."""
    from torchlock.artifacts import fetch
    from torchlock.mirrors import index_mirrors
    from torchlock.records import read_records, write_records
    from torchlock.records import record as record_trees

    repository = this_repository()
    wheels = read_lock(repository.lock).wheels(PLATFORM)
    try:
        known = read_records(repository.records, PLATFORM)
    except TorchlockError:
        known = None
    paths = fetch(wheels, default_store(), mirrors=index_mirrors, progress=_shown)
    records = record_trees(list(zip(wheels, paths, strict=True)), PLATFORM, known)
    write_records(records, repository.records, write_atomically)
    _say(f"{PLATFORM}: {records.tree}")
    return HOLDS


@verb
def env(
    _: Context,
    prefix: str | None = None,
    name: str | None = None,
    foundation: str | None = None,
    link_scripts: bool = False,
    json: str | None = None,
) -> int:
    """Make the locked environment at PREFIX, or complete, repair or update it; then verify it.

    PREFIX is by default ./env; --name puts it among conda's own environments. FOUNDATION is
    venv (a CPython 3.11 of this host), conda, or auto: conda where its packages can be had; by
    default what PREFIX has, else venv. --link-scripts runs the conda packages' link scripts that
    were not run yet.
    """
    if name is not None and prefix is not None:
        raise TorchlockError("--name and --prefix name two places", hint="give one of them")
    from torchlock.realize.place import named_prefix

    asked = Path(prefix or DEFAULT_PREFIX) if name is None else named_prefix(name)
    kind, made = _make(asked, foundation, link_scripts=link_scripts)
    write_json(
        json,
        {
            "prefix": str(made.prefix),
            "foundation": kind,
            "installed": made.installed,
            "tree": made.verdict.tree,
        },
    )
    _say(f"tree {made.verdict.tree}")
    _say(f"{made.prefix} is what the lock says{'' if made.installed else '; nothing to do'}")
    activate = "conda activate" if kind == "conda" else "source"
    place = made.prefix if kind == "conda" else made.prefix / "bin" / "activate"
    _say(f"  next: {activate} {quote(str(place))}")
    return HOLDS


def _make(
    prefix: Path, foundation: str | None = None, *, link_scripts: bool = False
) -> tuple[Foundation, Made | MadePrefix]:
    from torchlock.mirrors import index_mirrors
    from torchlock.realize.choice import choose_foundation
    from torchlock.realize.interpreter import host_platform
    from torchlock.records import read_records

    repository, store = this_repository(), default_store()
    locked, platform, place = read_lock(repository.lock), host_platform(), absolute(prefix)
    if foundation is None:
        marker = read_marker(place)
        foundation = marker.foundation if marker else "venv"
    kind, why = choose_foundation(foundation, place, locked, platform, store)
    if foundation == "auto":
        _say(f"foundation {kind}: {why}")
    if link_scripts and kind != "conda":
        raise TorchlockError("only conda packages have link scripts", hint="--foundation conda")
    records = read_records(repository.records, platform)
    if kind == "conda":
        from torchlock.realize.prefix import make_prefix

        return kind, make_prefix(
            locked, records, place, store,
            mirrors=index_mirrors, link_scripts=link_scripts, progress=_shown, say=_say,
        )  # fmt: skip
    from torchlock.realize.venv import make_venv

    return kind, make_venv(
        locked, records, place, store, mirrors=index_mirrors, progress=_shown, say=_say
    )


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
    sign: str | None = None,
    nnodes: int = 1,
    node_rank: int = 0,
    rdzv_endpoint: str | None = None,
) -> int:
    """Prove that an environment is the locked one and trains a Transformer; make it if none is.

    --json FILE writes the certificate, --sign KEY signs it with an SSH key. --only takes names of
    checks, joined by commas.
    """
    from torchlock.proof import find_realization
    from torchlock.proof import validate as run_validation

    if sign and (json is None or json == "-"):
        raise TorchlockError(
            "--sign needs the certificate in a file", hint="--json FILE --sign KEY"
        )
    arguments = ["--only", *_checks(only)] if only else []
    realization = find_realization(absolute(Path(prefix)) if prefix else None)
    realization = realization or _default_realization()
    arguments += ["--nnodes", str(nnodes), "--node-rank", str(node_rank)]
    arguments += ["--rdzv-endpoint", rdzv_endpoint] if rdzv_endpoint else []
    arguments += ["--json", str(absolute(Path(json))) if json != "-" else json] if json else []
    flags = {"--record": record, "--replace": replace, "--identify": identify}
    arguments += [flag for flag, given in flags.items() if given]
    before = _identity(json)
    code = run_validation(this_repository(), realization, arguments, device=device, say=_say)
    if sign and json:
        if _identity(json) == before:
            raise TorchlockError(f"{json} was not written, so there is nothing to sign")
        from validation.sign import main

        return code or main(["sign", json, "--key", sign])
    return code


def _checks(only: str) -> list[str]:
    """Return the names in `only`; a wrong one is refused before anything is read."""
    from validation.checks import CHECKS

    known, asked = [check.name for check in CHECKS], only.split(",")
    for name in asked:
        if name not in known:
            raise TorchlockError(
                f"there is no check {name!r}", hint=f"--only with some of {','.join(known)}"
            )
    return asked


def _default_realization() -> Realization:
    """Return the environment in ./env as it stands, made first where it is not complete."""
    from torchlock.proof import find_realization

    place = absolute(DEFAULT_PREFIX)
    marker = read_marker(place)
    lock_digest = read_lock(this_repository().lock).digest
    if not (marker and marker.complete and marker.lock == lock_digest):
        _make(place)
    found = find_realization(place)
    if found is None:
        raise TorchlockError(f"{place} holds no environment", hint="invoke env")
    return found


def _identity(path: str | None) -> tuple[int, int] | None:
    """What tells a file that was replaced from the one before it."""
    try:
        status = Path(path or "").stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


@verb
def compare(_: Context, first: str, second: str, also: list[str], json: str | None = None) -> int:
    """Name the first thing in which certificates differ; --also takes a third, a fourth ..."""
    from validation.compare import main

    return main([first, second, *also, *_options(json=json)])


@verb
def verify(_: Context, certificate: str, signers: str, json: str | None = None) -> int:
    """Check a certificate's signature against an allowed-signers file of OpenSSH."""
    from validation.sign import main

    return main(["verify", certificate, "--signers", signers, *_options(json=json)])


@verb
def doctor(
    _: Context,
    evidence: str | None = None,
    error: str | None = None,
    save: str | None = None,
    python: str | None = None,
    json: str | None = None,
) -> int:
    """Say why CUDA is unavailable and what to type.

    Looks at this machine and the torch of PYTHON (by default that of ./env), or at --evidence
    FILE or --error TEXT. --save FILE keeps the evidence, without names and addresses.
    """
    from torchlock.doctor.__main__ import main as run_doctor

    here = DEFAULT_PREFIX / "bin" / "python"
    looked_at = python or (str(absolute(here)) if here.exists() else None)
    return run_doctor(
        _options(evidence=evidence, error=error, save=save, python=looked_at, json=json)
    )


@verb
def image(
    _: Context,
    foundation: str = "debian",
    out: str = IMAGE,
    tag: str = DEFAULT_TAG,
    digest: bool = False,
    verify: bool = False,
    record: bool = False,
) -> int:
    """Render the OCI image from the lock into the layout OUT; no engine, no root.

    FOUNDATION is debian (its own python3.11) or conda (the lock's conda half); the stack is the
    same. --digest only prints the digest the image must have. --verify makes every layer anew
    instead of trusting what is recorded, --record records the layers.
    """
    from torchlock.mirrors import index_mirrors
    from torchlock.realize.image import render
    from torchlock.realize.image_documents import image_digest
    from torchlock.realize.image_plan import image_source, record_layers

    source = image_source(this_repository(), foundation)
    if digest:
        print(image_digest(source))
        return HOLDS
    made, layers = render(
        source, Path(out), default_store(),
        tag=tag, verify=verify, mirrors=index_mirrors, progress=_shown, say=_say,
    )  # fmt: skip
    if record:
        record_layers(source, layers)
    print(made.digest)
    where = _options(out=None if out == IMAGE else out, tag=None if tag == DEFAULT_TAG else tag)
    load_it = shlex.join(["invoke", "load", *where])
    push_it = shlex.join(["invoke", "push", f"HOST/NAME:{parse_name(tag).tag}", *where])
    _say(f"  next: {load_it}, or: {push_it}")
    return HOLDS


@verb
def push(
    _: Context, ref: str, out: str = IMAGE, tag: str = DEFAULT_TAG, mount_from: str = ""
) -> int:
    """Upload the image in OUT to REF: only the blobs that the registry lacks."""
    from torchlock.oci.layout import Layout
    from torchlock.oci.push import push as push_layout

    reference = parse_reference(ref)
    pushed = push_layout(Layout(Path(out)), tag, reference, mount_from=mount_from, progress=_shown)
    if not pushed.attached:
        _say("no SBOM is attached to this image; to render one: invoke image")
    print(pushed.digest)
    _say(
        f"{pushed.sent} bytes sent, {pushed.mounted} blobs mounted, {pushed.present} there already"
    )
    return HOLDS


@verb
def load(_: Context, out: str = IMAGE, tag: str = DEFAULT_TAG, engine: str = "") -> int:
    """Hand the image in OUT to podman, containerd or docker, and say if its digest changes."""
    from torchlock.oci.layout import Layout
    from torchlock.oci.load import load as load_layout

    loaded = load_layout(Layout(Path(out)), tag, engine, progress=_shown, say=_say)
    print(loaded.digest)
    kept = "the digest is kept" if loaded.digest_kept else "this engine gives it another digest"
    _say(f"{loaded.name} is in {loaded.engine}; {kept}")
    return HOLDS
