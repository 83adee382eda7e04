"""conda's own settings: which files hold them, and how several of them make one.

conda is not asked, for it need not be there; what it would answer is worked out here after its
sources (24.7: `base/constants.py` has the search path, `base/context.py` the settings,
`common/configuration.py` the merging). Only what says where channels and environments are, and
whether those are listed, is read. mamba's `mirrored_channels` is read from the same files and
merged like its neighbours; mamba's own `.mambarc` is not read.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from torchlock.errors import TorchlockError
from torchlock.files import absolute
from torchlock.urls import public

FILE_NAMES = frozenset({".condarc", "condarc"})
YAML_SUFFIXES = frozenset({".yml", ".yaml"})
_FLAG = re.compile(r"\s*:?\s*[#!]+(final|top|bottom)[#!]*\s*$")


@dataclass(frozen=True)
class Condarc:
    """What conda's files and `CONDA_` variables say, merged, with variables expanded.

    `channel_alias` is the URL above the channels that are given by name, or empty;
    `custom_channels` maps names to the URLs above them, `custom_multichannels` to the channels
    that a name stands for, `mirrored_channels` (mamba's) to whole URLs to try in turn;
    `default_channels` are those of `defaults`. `envs_dirs` are the directories of environments
    that are named, without conda's own; `root` is the installation's, or None where there is
    none, and `root_is_writable` whether conda would keep environments in it. `register_envs` says
    whether new ones are put on the user's list of them.
    """

    channel_alias: str
    custom_channels: Mapping[str, str]
    custom_multichannels: Mapping[str, Sequence[str]]
    mirrored_channels: Mapping[str, Sequence[str]]
    default_channels: Sequence[str]
    envs_dirs: Sequence[Path]
    root: Path | None
    root_is_writable: bool
    register_envs: bool

    @property
    def environment_directories(self) -> list[Path]:
        """Where conda looks for environments by name, in its order."""
        home, own = Path.home() / ".conda" / "envs", self.root and self.root / "envs"
        fixed = [home] if own is None else [own, home] if self.root_is_writable else [home, own]
        return list(dict.fromkeys([*self.envs_dirs, *fixed]))


@dataclass(frozen=True)
class _Setting:
    """A value as one source gives it; `flag` is the `#!final`, `#!top` or `#!bottom` behind it."""

    value: str | Sequence[_Setting] | Mapping[str, _Setting]
    flag: str
    source: str


_Source = Mapping[str, _Setting]


def read_condarc() -> Condarc:
    """Return conda's settings here and now.

    A text where a list belongs is a list of one, which to conda itself is a fault. Raises
    `TorchlockError` where a file cannot be read or is not YAML (conda passes over some such files
    with a warning), where a setting is of another kind, is given under two names in one file, or
    is a `channel_alias` without a scheme: the last three as conda does.
    """
    found = [*(_parse(path) for path in _files()), _variables()]
    alias = os.path.expandvars(_text(found, "channel_alias"))
    if alias and not re.match(r"[a-z][a-z0-9]{0,11}://", alias):
        raise TorchlockError(
            f"conda's channel_alias {public(alias)!r} has no scheme",
            hint="write it as a URL in .condarc: https://HOST/PATH, or file:///PATH",
        )
    chosen = _text(found, "root_prefix", "root_dir")
    root = absolute(Path(chosen).expanduser()) if chosen else _installation()
    return Condarc(
        alias,
        {name: os.path.expandvars(value) for name, value in _map(found, "custom_channels").items()},
        _map_of_lists(found, "custom_multichannels"),
        _map_of_lists(found, "mirrored_channels"),
        [os.path.expandvars(value) for value in _list(found, ",", "default_channels")],
        [
            absolute(Path(os.path.expandvars(value)).expanduser())
            for value in _list(found, os.pathsep, "envs_dirs", "envs_path")
        ],
        root,
        root is not None and _is_writable(root),
        _truth(found, "register_envs", default=True),
    )


def _installation() -> Path | None:
    """Return the root of the conda or mamba that shells here use, or None."""
    if os.environ.get("CONDA_EXE"):
        return Path(os.environ["CONDA_EXE"]).parent.parent
    if os.environ.get("MAMBA_ROOT_PREFIX"):
        return Path(os.environ["MAMBA_ROOT_PREFIX"])
    on_path = shutil.which("conda")
    root = Path(on_path).resolve().parent.parent if on_path else None
    return root if root and (root / "conda-meta").is_dir() else None


def _is_writable(root: Path) -> bool:
    history = root / "conda-meta" / "history"
    if os.environ.get("MAMBA_ROOT_PREFIX") and not history.exists():  # micromamba needs none
        return os.access(root, os.W_OK | os.X_OK)
    return history.is_file() and os.access(history, os.W_OK)


def _files() -> Iterator[Path]:
    """Yield the files conda reads, from the weakest to the strongest."""
    installation = str(_installation() or "")
    root = os.environ.get("CONDA_ROOT") or installation
    settings = os.environ.get("XDG_CONFIG_HOME", "")
    active = os.environ.get("CONDA_PREFIX") or installation
    places = [*_three("/etc/conda"), *_three("/var/lib/conda"), *_three(root)]
    places += _three(settings and f"{settings}/conda")
    places += [*_three("~/.config/conda"), *_three("~/.conda"), "~/.condarc", *_three(active)]
    found: dict[Path, None] = {}
    for place in (*places, os.environ.get("CONDARC", "")):
        path = Path(place).expanduser()
        if not place:
            continue
        if os.path.isfile(path):  # noqa: PTH113 - false, too, where one may not look
            if path.name in FILE_NAMES or path.suffix in YAML_SUFFIXES:
                found.setdefault(path)
        elif os.path.isdir(path):  # noqa: PTH112
            below = sorted(p for p in path.iterdir() if p.suffix in YAML_SUFFIXES and p.is_file())
            found.update(dict.fromkeys(p for p in below if p not in found))
    yield from found


def _three(directory: str) -> list[str]:
    names = (".condarc", "condarc", "condarc.d")
    return [f"{directory}/{name}" for name in names] if directory else []


def _variables() -> _Source:
    """Return what variables set: CONDA_CHANNEL_ALIAS is the setting `channel_alias`."""
    return {
        name.removeprefix("CONDA_").lower(): _Setting(value.strip(), "", name)
        for name, value in os.environ.items()
        if name.startswith("CONDA_")
    }


def _parse(path: Path) -> _Source:
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise TorchlockError(
            f"{path} is not YAML: {public(' '.join(str(error).split()))}",
            hint="correct it; conda config --validate names what it objects to",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise TorchlockError(f"{path} cannot be read: {error}") from None
    setting = _setting(root, "", str(path), text.splitlines()) if root else None
    if setting is None:
        return {}
    if not isinstance(setting.value, dict):
        raise TorchlockError(f"{path} is no map of settings", hint="correct it, or remove it")
    return setting.value


def _setting(node: yaml.Node, flag: str, source: str, lines: Sequence[str]) -> _Setting | None:
    """Return a YAML node as a setting; None for `null`, which to conda is no setting."""
    if isinstance(node, yaml.MappingNode):
        named = {
            str(key.value): _setting(value, _flag(key, value, lines), source, lines)
            for key, value in node.value
        }
        return _Setting({k: v for k, v in named.items() if v}, flag, source)
    if isinstance(node, yaml.SequenceNode):
        listed = [_setting(v, _flag(v, v, lines), source, lines) for v in node.value]
        return _Setting([v for v in listed if v], flag, source)
    return None if node.tag.endswith(":null") else _Setting(str(node.value), flag, source)


def _flag(key: yaml.Node, value: yaml.Node, lines: Sequence[str]) -> str:
    """Return the flag in the comment behind a value, or behind the key of a block."""
    is_block = isinstance(value, yaml.CollectionNode) and not value.flow_style
    end = key.end_mark if is_block else value.end_mark
    behind = lines[end.line][end.column :] if end.line < len(lines) else ""
    found = _FLAG.match(behind)
    return found[1] if found else ""


def _given(sources: Sequence[_Source], *names: str) -> list[_Setting]:
    """Return what the sources say of a setting, weakest first; a final one is the last heard."""
    found = []
    for source in sources:
        here = [name for name in names if name in source]
        if len(here) > 1:
            raise TorchlockError(
                f"{source[here[0]].source} sets both {' and '.join(here)}, one and the same",
                hint="keep one of them",
            )
        found += [source[name] for name in here]
    return found


def _up_to_final(found: Sequence[_Setting]) -> Sequence[_Setting]:
    for count, setting in enumerate(found, 1):
        if setting.flag == "final":
            return found[:count]
    return found


def _text(sources: Sequence[_Source], *names: str) -> str:
    return _merged_text(_given(sources, *names), names[0])


def _truth(sources: Sequence[_Source], name: str, *, default: bool) -> bool:
    """Return a yes or no, in the words and numbers that conda takes (`auxlib/type_coercion.py`)."""
    found = _up_to_final(_given(sources, name))[-1:]
    if not found:
        return default
    word = _merged_text(found, name).strip().lower()
    if word in ("true", "yes", "on", "y"):
        return True
    if word in ("false", "no", "off", "n", "non", "none", ""):
        return False
    try:
        return bool(complex(word))
    except ValueError:
        raise _wrong_kind(found[0], name, "true or false") from None


def _list(sources: Sequence[_Source], separator: str, *names: str) -> list[str]:
    return _merged_list(_given(sources, *names), names[0], separator)


def _map(sources: Sequence[_Source], name: str) -> dict[str, str]:
    return {key: _merged_text(found, name) for key, found in _by_key(sources, name).items()}


def _map_of_lists(sources: Sequence[_Source], name: str) -> dict[str, list[str]]:
    merged = {key: _merged_list(found, name) for key, found in _by_key(sources, name).items()}
    return {key: [os.path.expandvars(v) for v in values] for key, values in merged.items()}


def _by_key(sources: Sequence[_Source], name: str) -> dict[str, list[_Setting]]:
    grouped: dict[str, list[_Setting]] = {}
    for setting in _up_to_final(_given(sources, name)):
        if not isinstance(setting.value, dict):
            raise _wrong_kind(setting, name, "a map")
        for key, value in setting.value.items():
            grouped.setdefault(key, []).append(value)
    for found in grouped.values():  # one that is final stands alone
        found[:] = [value for value in found if value.flag == "final"][:1] or found
    return grouped


def _merged_text(found: Sequence[_Setting], name: str) -> str:
    for setting in _up_to_final(found)[-1:]:
        if not isinstance(setting.value, str):
            raise _wrong_kind(setting, name, "one text")
        return setting.value
    return ""


def _merged_list(found: Sequence[_Setting], name: str, separator: str = "\n") -> list[str]:
    """Put the stronger lists before the weaker, without repetition, `top` first, `bottom` last.

    Texts, which are what variables hold, are split at `separator`.
    """
    by_flag: dict[str, list[str]] = {"top": [], "bottom": []}
    every = []
    for setting in reversed(_up_to_final(found)):
        if isinstance(setting.value, dict):
            raise _wrong_kind(setting, name, "a list")
        items = setting.value if isinstance(setting.value, list) else _split(setting, separator)
        rows = [(item.flag, _merged_text([item], name)) for item in items]
        by_flag["bottom"] += [value for flag, value in rows if flag == "bottom"]
        by_flag["top"][:0] = [value for flag, value in rows if flag == "top"]
        every += [value for _, value in rows]
    topped = dict.fromkeys([*by_flag["top"], *every])
    return list(reversed(dict.fromkeys([*reversed(by_flag["bottom"]), *reversed(topped)])))


def _split(setting: _Setting, separator: str) -> list[_Setting]:
    parts = [part.strip() for part in str(setting.value).split(separator)]
    return [replace(setting, value=part) for part in parts if part]


def _wrong_kind(setting: _Setting, name: str, wanted: str) -> TorchlockError:
    return TorchlockError(
        f"{setting.source}: {name} is to be {wanted}", hint="correct it, or remove the line"
    )
