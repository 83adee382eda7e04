"""Evidence without host names, user names, serial numbers and addresses.

Each distinct value gets its own placeholder, so that two lines that name the same GPU still do.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import json
import re
from collections.abc import Callable, Iterable

from torchlock.doctor.evidence import Evidence, from_json

_HEX = "[0-9a-fA-F]"
_UUID = re.compile(rf"\b(GPU|MIG)-({_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}})\b")
# 6 bytes, or the 8 of a GUID and the 20 of an InfiniBand address
_MAC = re.compile(rf"(?<![:\w])(?:{_HEX}{{2}}:){{5,19}}{_HEX}{{2}}(?![:\w])")
# not after one `=` or `-`, where versions stand (cudnn=9.5.1.17), save as a variable's value
_IPV4 = re.compile(r"(?:(?<![\w.=-])|(?<=[A-Z]=))(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})(?!\w|\.\w)")
_MAYBE_IPV6 = re.compile(r"[\w:.]*:[\w.]*:[\w:.]*")
_TOKEN_PARTS = 24
_DOCUMENTATION = ipaddress.IPv6Network("2001:db8::/32")
_SERIAL = re.compile(r"(serial(?: number)?\s*[:=]\s*)([\w-]{4,})", re.I)
_HOME = re.compile(r"(/(?:home|Users|scratch/users|export/home)/)([^/\s:'\"]+)")
_CREDENTIALS = re.compile(r"(://)[^/\s@]+@")
_CHANNEL_TOKEN = re.compile(r"(://[^\s\"']*/t/)[^/\s\"'<>]+")
_EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.-]+\b")
_HOST_VARIABLES = (
    "HOSTNAME", "HOST", "NODE_NAME", "MASTER_ADDR", "PBS_O_HOST", "LSB_HOSTS", "SLURMD_NODENAME",
    "SLURM_SUBMIT_HOST", "SLURM_SRUN_COMM_HOST", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_TOPOLOGY_ADDR",
    "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST",
)  # fmt: skip
_USER_VARIABLES = ("USER", "LOGNAME", "USERNAME", "SLURM_JOB_USER", "SUDO_USER", "PBS_O_LOGNAME")
_ACCOUNT_VARIABLES = ("SLURM_JOB_ACCOUNT", "SLURM_ACCOUNT", "SBATCH_ACCOUNT", "PBS_ACCOUNT")
# what scontrol prints (NodeList=, BatchHost=, UserId=name(number), Account=)
_SAID_HOSTS = re.compile(r"\b(?:(?:Req|Exc)?NodeList|NodeAddr|NodeHostName|BatchHost)=([^\s(]+)")
_SAID_USERS = re.compile(r"\b(?:User|Group)Id=([^\s(]+)")
_SAID_ACCOUNTS = re.compile(r"\bAccount=([^\s(]+)")
_NODES_LIMIT = 10_000
_COMMON = {
    "root", "video", "render", "users", "localhost", "nobody", "nvidia", "ubuntu", "none", "gpu",
    "node", "cuda", "torch", "default", "null", "n/a",
}  # fmt: skip
_UNCHANGED_PLACES = ("packages", "system")


class _Names:
    """Placeholders, one for each distinct value."""

    def __init__(self, form: Callable[[int], str]) -> None:
        self._form = form
        self._known: dict[str, str] = {}

    def __call__(self, value: str) -> str:
        return self._known.setdefault(value, self._form(len(self._known) + 1))


def redact(evidence: Evidence, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> Evidence:
    """`evidence` with personal details replaced; `hosts` and `users` are names known to be here."""
    listed = {*hosts, *_named(evidence, _HOST_VARIABLES, _SAID_HOSTS)}
    lists = sorted({item for name in listed for item in _items(name)})
    each = itertools.islice((host for item in lists for host in _expand(item)), _NODES_LIMIT)
    clean = _cleaner(
        _specific({*listed, *lists, *each}),
        _specific({*users, *_named(evidence, _USER_VARIABLES, _SAID_USERS)}),
        _specific(_named(evidence, _ACCOUNT_VARIABLES, _SAID_ACCOUNTS)),
        frozenset(evidence.packages.values()),
    )
    value = json.loads(evidence.to_json())
    return from_json(
        {k: v if k in _UNCHANGED_PLACES else _walk(v, clean) for k, v in value.items()}
    )


def _named(evidence: Evidence, names: tuple[str, ...], said: re.Pattern[str]) -> set[str]:
    """What the variables `names` hold, and what lines say in the form `said`."""
    found = {evidence.set_env(name) for name in names}
    return found.union(*(said.findall(line.text) for line in evidence.lines))


def _items(nodes: str) -> list[str]:
    """The items of Slurm's node list: `a[1-2,4],b` is `a[1-2,4]` and `b`."""
    items, inside = [""], False
    for character in nodes:
        if character in "[]":
            inside = character == "["
        if character == "," and not inside:
            items.append("")
        else:
            items[-1] += character
    return [item for item in items if item]


def _expand(item: str) -> list[str]:
    """The hosts of one item, `gpu[01-02]` is `gpu01` and `gpu02`; none of more than are usual.

    Source of the form: scontrol(1), `show hostnames`.
    """
    names = [""] if len(item) < _NODES_LIMIT else []
    for part in re.split(r"(\[[^\]]*\])", item):
        choices = [part]
        if part.startswith("["):
            choices = []
            for span in part.strip("[]").split(","):
                ends = re.fullmatch(r"(\d{1,9})-(\d{1,9})", span)
                if not ends:
                    choices.append(span)
                elif int(ends[2]) - int(ends[1]) < _NODES_LIMIT:
                    numbers = range(int(ends[1]), int(ends[2]) + 1)
                    choices += [str(number).zfill(len(ends[1])) for number in numbers]
        if len(names) * len(choices) > _NODES_LIMIT:
            return []
        names = [name + choice for name in names for choice in choices]
    return names


def _specific(names: Iterable[str]) -> list[str]:
    """Names that can be searched for without hitting ordinary words, the longest first."""
    full = {name for name in names if len(name) > 1 and _address(name) is None}
    short = {name.partition(".")[0] for name in full}
    kept = full | {name for name in short if len(name) > 2}
    return sorted(filter(_rare, kept), key=len, reverse=True)


def _rare(name: str) -> bool:
    """False for common words and for the small numbers that logs are full of."""
    return name.lower() not in _COMMON and not (name.isdigit() and len(name) < 5)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _ipv6(token: str) -> tuple[int, int, ipaddress.IPv6Address] | None:
    """Where an IPv6 address stands in a token: the longest run of whole `:` parts that is one.

    A cut is made at a single colon only, so that no part of `std::add` counts as one; what a
    sentence or a port adds behind a dot is left out.
    """
    parts = token.split(":")
    if len(parts) > _TOKEN_PARTS:
        return None
    inner = [
        n
        for n in range(1, len(parts))
        if parts[n - 1] and (parts[n] or parts[n : n + 2] == ["", ""])  # a:b, or a: before ::
    ]
    cuts = [0, *inner, len(parts)]
    offset = [0]
    for part in parts:
        offset.append(offset[-1] + len(part) + 1)
    spans = [(offset[a], offset[b] - 1) for a in cuts for b in cuts if b - a > 2]
    if token.endswith(":"):
        spans += [(start, end - 1) for start, end in spans if end == len(token)]
    for start, end in sorted(spans, key=lambda span: span[0] - span[1]):
        text = token[start:end]
        for candidate in (text, text.rstrip("."), re.sub(r"\.\d+$", "", text)):
            found = _address(candidate)
            if isinstance(found, ipaddress.IPv6Address):
                return start, start + len(candidate), found
    return None


def _cleaner(
    hosts: list[str], users: list[str], accounts: list[str], versions: frozenset[str]
) -> Callable[[str], str]:
    host, user = _Names(lambda n: f"host-{n}"), _Names(lambda n: f"user-{n}")
    account = _Names(lambda n: f"account-{n}")
    named = [_any_of(names) for names in (hosts, users, accounts)]
    address, mac = (
        _Names(lambda n: f"192.0.2.{n % 256}"),
        _Names(lambda n: f"02:00:00:00:00:{n % 256:02x}"),
    )
    address6 = _Names(lambda n: f"2001:db8::{n:x}")
    uuid = _Names(lambda n: f"{n:08x}-0000-0000-0000-000000000000")
    serial = _Names(lambda n: f"serial-{n}")

    def ipv4(match: re.Match[str]) -> str:
        found = match[1]
        kept = (
            found in versions
            or found.startswith(("127.", "0.", "192.0.2."))
            or max(map(int, found.split("."))) > 255
        )
        return found if kept else address(found)

    def ipv6(match: re.Match[str]) -> str:
        token, found = match[0], _ipv6(match[0])
        if not found or found[2] in _DOCUMENTATION or int(found[2]) < 2:  # :: and ::1
            return token
        return token[: found[0]] + address6(str(found[2])) + token[found[1] :]

    def clean(text: str) -> str:
        text = _CREDENTIALS.sub(r"\1user:password@", text)
        text = _CHANNEL_TOKEN.sub(r"\1<TOKEN>", text)
        text = _EMAIL.sub("user@example", text)
        text = _UUID.sub(lambda m: f"{m[1]}-{uuid(m[2])}", text)
        text = _MAC.sub(lambda m: mac(m[0]), text)
        text = _MAYBE_IPV6.sub(ipv6, text)
        text = _IPV4.sub(ipv4, text)
        text = _SERIAL.sub(lambda m: m[1] + serial(m[2]), text)
        text = _HOME.sub(lambda m: m[1] + user(m[2]), text)
        for pattern, placeholder in zip(named, (host, user, account), strict=True):
            if pattern:
                text = pattern.sub(functools.partial(_placed, placeholder), text)
        return text

    return clean


def _any_of(names: list[str]) -> re.Pattern[str] | None:
    """Any of the names as a whole word, the longest first; None for no names."""
    if not names:
        return None
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])")


def _placed(placeholder: _Names, match: re.Match[str]) -> str:
    return placeholder(match[0])


def _walk(value: object, clean: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_walk(item, clean) for item in value]
    if isinstance(value, dict):
        return {clean(key): _walk(item, clean) for key, item in value.items()}
    return value
