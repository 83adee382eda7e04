"""conda's settings as torchlock reads them, against what conda itself makes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import rattler

from torchlock.channels import package_mirrors
from torchlock.condarc import read_condarc
from torchlock.errors import TorchlockError
from torchlock.lock import Lock, Package
from torchlock.realize.place import named_prefix

ORACLE = r"""
import json, os, sys
import conda_lock._vendor
home, root, request = json.load(sys.stdin)
sys.path.insert(0, os.path.join(os.path.dirname(conda_lock._vendor.__file__)))
answers = []
for case in request:
    for name in [n for n in os.environ if n.startswith(("CONDA", "XDG_"))]:
        del os.environ[name]
    os.environ.update(case["environment"], HOME=home, CONDA_ROOT=root)
    for path, text in case["files"].items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as stream:
            stream.write(text)
    sys.prefix = root
    from conda_lock._vendor.conda.base.context import context, reset_context, validate_prefix_name
    from conda_lock._vendor.conda.models.channel import Channel
    try:
        reset_context()
        Channel._reset_state()
        answers.append({
            "envs": list(context.envs_dirs),
            "register": context.register_envs,
            "prefix": validate_prefix_name("pt27", context),
            "channels": {
                name: [url.removesuffix("/noarch")
                       for url in Channel(name).urls(with_credentials=True, subdirs=("noarch",))]
                for name in case["channels"]
            },
        })
    except Exception as error:
        answers.append({"fault": f"{type(error).__name__}: {error}"})
    for path in case["files"]:
        os.unlink(path)
json.dump(answers, sys.stdout)
"""
"""Prints what conda 24.7's own context says in each case; `sys.prefix` is its installation."""

NAMES = ("forge", "forge/label/dev", "mine", "team/sub")


class Machine:
    """A home and a conda installation; conda's answers and ours for files and variables there."""

    def __init__(self, root: Path) -> None:
        self.home, self.root, self.prefix = root / "home", root / "conda", root / "active"
        for directory in (self.home, self.root / "conda-meta", self.prefix):
            directory.mkdir(parents=True)
        (self.root / "conda-meta" / "history").touch()
        self.xdg = root / "xdg"
        self.named = root / "named.yml"

    @property
    def places(self) -> list[Path]:
        """Every file conda reads that a test may write, from the weakest to the strongest."""
        below = (".condarc", "condarc", "condarc.d/a.yml", "condarc.d/b.yaml")
        config = self.home / ".config" / "conda"
        directories = (self.root, self.xdg / "conda", config, self.home / ".conda")
        return [
            *(directory / name for directory in directories for name in below),
            self.home / ".condarc",
            *(self.prefix / name for name in below),
            self.named,
        ]

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "XDG_CONFIG_HOME": str(self.xdg),
            "CONDA_PREFIX": str(self.prefix),
            "CONDARC": str(self.named),
            "TOKEN": "tk-123",
            "PLACE": str(self.home / "place"),
            **more,
        }

    def case(self, files: dict[Path, str], **more: str) -> dict[str, object]:
        return {
            "files": {str(path): text for path, text in files.items()},
            "environment": self.environment(**more),
            "channels": [
                *NAMES,
                *(["defaults"] if "default_channels" in str([files, more]).lower() else []),
            ],
        }

    def conda_says(self, cases: list[dict[str, object]]) -> list[dict[str, object]]:
        asked = json.dumps([str(self.home), str(self.root), cases])
        done = subprocess.run(
            [sys.executable, "-c", ORACLE], input=asked, capture_output=True, text=True, check=True
        )
        answers: list[dict[str, object]] = json.loads(done.stdout)
        return answers

    def torchlock_says(self, case: dict[str, object]) -> dict[str, object]:
        with pytest.MonkeyPatch.context() as patch:
            for name in [n for n in os.environ if n.startswith(("CONDA", "MAMBA", "XDG_"))]:
                patch.delenv(name)
            for name, value in dict(case["environment"]).items():  # type: ignore[call-overload]
                patch.setenv(name, value)
            patch.setenv("HOME", str(self.home))
            patch.setenv("CONDA_EXE", str(self.root / "bin" / "conda"))
            files = {Path(p): text for p, text in dict(case["files"]).items()}  # type: ignore[call-overload]
            for path, text in files.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            try:
                settings = read_condarc()
                return {
                    "envs": [str(p) for p in settings.environment_directories],
                    "register": settings.register_envs,
                    "prefix": str(named_prefix("pt27")),
                    "channels": {name: _locations(name) for name in list(case["channels"])},
                }
            except TorchlockError as error:
                return {"fault": error.message}
            finally:
                for path in files:
                    path.unlink()


def _locations(name: str) -> list[str]:
    """Where the packages of a channel are looked for; conda's default alias is the lock's own."""
    above = rattler.Channel(name).base_url.rstrip("/")
    package = Package(
        "p", "1", "conda", "linux-64", f"{above}/noarch/p-1-0.conda", "0" * 64, "0" * 32, {}
    )
    lock = Lock((package,), ("linux-64",), (name,), (), {})
    urls = package_mirrors(lock, [package]).get(package.sha256, [package.url])
    return [url.removesuffix("/noarch/p-1-0.conda") for url in urls]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"))


def test_every_file_is_read_in_condas_order(machine):
    """Each case has one file more; the strongest must win, and the maps of all be merged."""
    text = "channel_alias: http://h{n}.example\ncustom_channels:\n  mine: http://m{n}.example\n"
    text += "  only{n}: http://o.example\nenvs_dirs: [$PLACE/e{n}, $PLACE/shared]\n"
    cases = []
    for count in range(1, len(machine.places) + 1):
        some = enumerate(machine.places[:count])
        cases.append(machine.case({path: text.format(n=n) for n, path in some}))
    conda = machine.conda_says(cases)
    assert [machine.torchlock_says(case) for case in cases] == conda
    last = len(machine.places) - 1
    assert conda[-1]["channels"]["forge"] == [f"http://h{last}.example/forge"]
    assert len({str(answer) for answer in conda}) == len(cases)


CASES = {
    "a token and a password": "channel_alias: https://u:pw@h.example:8080/t/tk-1/base/\n",
    "a token in a variable": "channel_alias: https://h.example/t/${TOKEN}\n",
    "variables everywhere": """
custom_channels:
  mine: https://h.example/t/$TOKEN/above
  forge: file://$PLACE/channels
envs_dirs: [$PLACE/envs, ~/$MISSING/envs]
custom_multichannels:
  team/sub: [https://h.example/t/$TOKEN/a, $TOKEN]
""",
    "several channels of one name": """
channel_alias: http://alias.example/conda
custom_multichannels:
  forge: [http://alias.example/conda/first, https://b.example/x/second, third]
default_channels: [http://d.example/pkgs/main, http://d.example/mine]
""",
    "a custom channel without a scheme": "custom_channels:\n  mine: h.example/x\n",
    "above a label": "custom_channels:\n  forge: http://h.example\n  team: file:///srv\n",
    "the other name": "envs_path:\n  - $PLACE/one\n  - $PLACE/two\n",
    "the other root": "root_prefix: ~/other\n",
    "no list": "register_envs: no\n",
    "no list, as a number": "register_envs: 0.0\n",
    "a list, as text": "register_envs: 'On'\n",
    "a list, as a number": "register_envs: 1\n",
    "nothing": "custom_channels:\nenvs_dirs: ~\n",
    "an empty file": "",
}


def test_what_settings_mean(machine):
    cases = [machine.case({machine.home / ".condarc": text}) for text in CASES.values()]
    variables = [
        machine.case({}, CONDA_CHANNEL_ALIAS="http://v.example/t/$TOKEN"),
        machine.case(
            {machine.home / ".condarc": "envs_dirs: [$PLACE/file]\n"},
            CONDA_ENVS_PATH="$PLACE/a:~/b",
        ),
        machine.case({}, CONDA_ENVS_DIRS="~/a", CONDA_ROOT_PREFIX=str(machine.home / "r")),
        machine.case(
            {machine.home / ".condarc": "register_envs: true\n"}, CONDA_REGISTER_ENVS="False"
        ),
        machine.case({}, CONDA_DEFAULT_CHANNELS="http://x.example/a, http://x.example/b"),
    ]
    conda = machine.conda_says([*cases, *variables])
    assert [machine.torchlock_says(case) for case in [*cases, *variables]] == conda
    said = dict(zip(CASES, conda, strict=False))
    password, token = (said[name]["channels"]["forge"] for name in list(CASES)[:2])
    assert password == ["https://u:pw@h.example:8080/base/t/tk-1/forge"]
    assert token == ["https://h.example/t/tk-123/forge"]
    assert [said[name]["register"] for name in said if "list" in name] == [False, False, True, True]
    assert said["the other name"]["envs"][:2] == [
        f"{machine.home}/place/{n}" for n in ("one", "two")
    ]


URLS = {
    "https://h.example/x/mine": "https://u:pw@h.example/x/t/tk-1/mine",
    "https://h.example/x/mine/label/dev": "https://u:pw@h.example/x/t/tk-1/mine/label/dev",
    "https://h.example/x/mineral": "https://h.example/x/mineral",
    "http://alias.example/base/forge": "http://alias.example/base/t/tk-2/forge",
    "https://other.example/mine": "https://other.example/mine",
}


def test_a_channel_given_as_a_url_gets_the_credentials_for_its_place(machine):
    text = "custom_channels:\n  mine: https://u:pw@h.example/t/tk-1/x\n"
    text += "channel_alias: https://alias.example/t/tk-2/base\n"
    case = machine.case({machine.home / ".condarc": text}) | {"channels": list(URLS)}
    (conda,) = machine.conda_says([case])
    assert machine.torchlock_says(case) == conda
    assert conda["channels"] == {url: [with_credentials] for url, with_credentials in URLS.items()}


FAULTS = {
    "channel_alias: h.example/x\n": "has no scheme",
    "custom_channels: [a]\n": "custom_channels is to be a map",
    "custom_multichannels:\n  forge: {b: c}\n": "custom_multichannels is to be a list",
    "register_envs: maybe\n": "register_envs is to be true or false",
    "envs_dirs: [~/a]\nenvs_path: [~/b]\n": "sets both envs_dirs and envs_path",
    "- channel_alias\n": "is no map of settings",
}


def test_what_conda_refuses_is_refused(machine):
    cases = [machine.case({machine.home / ".condarc": text}) for text in FAULTS]
    for case, conda, said in zip(cases, machine.conda_says(cases), FAULTS.values(), strict=True):
        assert "fault" in conda, case
        assert said in str(machine.torchlock_says(case)["fault"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"channel_alias: 'https://h.example/t/tk-sesame/x\n  a: b\n", "is not YAML"),
        (b"a: [https://h.example/t/tk-sesame/x: y: z\n", "is not YAML"),
        (b"channel_alias: https://h.example/\xff\n", "cannot be read"),
    ],
)
def test_a_file_that_is_damaged_is_named_without_its_tokens(tmp_path, monkeypatch, text, said):
    path = tmp_path / "condarc"
    path.write_bytes(text)
    monkeypatch.setenv("CONDARC", str(path))
    with pytest.raises(TorchlockError, match=f"{path} {said}") as caught:
        read_condarc()
    assert "sesame" not in str(caught.value)


VALUES = ("http://a.example/x", "http://b.example/t/tk-9/y", "file:///c", "$TOKEN/d")
FLAGS = ("", "", "", "  #!final", "  #!top", "  #!bottom", "  # a word")
KEYS = ("forge", "mine", "team")


def generated(random: Random) -> str:
    """Return a file with some of the settings, in some order, with flags behind some of them.

    Lists in maps have them behind the list or behind its rows: in a list that is final conda
    does not look at its rows' flags.
    """

    def flag() -> str:
        return random.choice(FLAGS)

    def listed(indent: str, before: str = "", flags: Sequence[str] = FLAGS) -> str:
        chosen = random.sample(VALUES, random.randint(1, len(VALUES)))
        return "".join(f"{indent}- {before}{value}{random.choice(flags)}\n" for value in chosen)

    def in_map(key: str) -> str:
        if random.random() < 0.5:
            return f"  {key}:\n{listed('    ')}"
        return f"  {key}:{flag()}\n{listed('    ', flags=('',))}"

    def keys() -> list[str]:
        return random.sample(KEYS, random.randint(1, len(KEYS)))

    blocks = [
        f"channel_alias: {random.choice(VALUES[:3])}{flag()}\n",
        f"custom_channels:{flag()}\n"
        + "".join(f"  {key}: {random.choice(VALUES)}{flag()}\n" for key in keys()),
        "custom_multichannels:\n" + "".join(in_map(key) for key in keys()),
        f"envs_dirs:{flag()}\n{listed('  ', '~/')}",
        f"envs_dirs: [$PLACE/p, $PLACE/q]{flag()}\n",
        f"register_envs: {random.choice(('yes', 'off'))}{flag()}\n",
    ]
    chosen = random.sample(blocks, random.randint(0, len(blocks)))
    lists = [block for block in chosen if block.startswith("envs_dirs")]
    return "".join(block for block in chosen if block not in lists[1:])


def test_files_are_merged_as_conda_merges_them(machine):
    """Sixty machines with four files each; one conda answers for all of them."""
    places = [machine.places[n] for n in (0, 6, 12, -1)]
    random = Random(27)
    cases = [machine.case({path: generated(random) for path in places}) for _ in range(60)]
    answers = machine.conda_says(cases)
    for case, conda in zip(cases, answers, strict=True):
        assert machine.torchlock_says(case) == conda, case["files"]
    assert not any("fault" in conda for conda in answers)
    assert len({str(conda["channels"]) for conda in answers}) > 40
