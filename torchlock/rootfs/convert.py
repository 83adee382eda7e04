"""Debian packages as entries of image layers, as if installed, without running anything.

What maintainer scripts would do is written down here once: merged /usr, dpkg's database, the
users, alternatives, the CA bundle and the few files made from templates. `apt-get install`
works in a system made this way.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchlock.errors import TorchlockError
from torchlock.formats.deb import Deb, DebFile, read_deb
from torchlock.oci.layer import Item, directory_item, file_item, symlink_item
from torchlock.oci.tarball import Member
from torchlock.rootfs import ldcache
from torchlock.rootfs.control import paragraphs
from torchlock.rootfs.lock import RootfsLock

MERGED = ("bin", "lib", "lib64", "sbin")
"""Top-level directories that are links into /usr."""

EXCLUDED = (
    "usr/share/doc/*",
    "usr/share/info/*",
    "usr/share/lintian/*",
    "usr/share/locale/*",
    "usr/share/man/*",
)
INCLUDED = ("usr/share/doc/*/copyright",)
"""What is left out of the image, and kept all the same; dpkg is told so for later installs."""

USER, USER_ID = "user", 1000

_USERS = (
    "_apt:x:100:65534::/nonexistent:/usr/sbin/nologin",
    "sshd:x:101:65534::/run/sshd:/usr/sbin/nologin",
    f"{USER}:x:{USER_ID}:{USER_ID}:{USER}:/home/{USER}:/bin/bash",
)
_GROUPS = ("_ssh:x:101:", f"{USER}:x:{USER_ID}:")

_ALTERNATIVES = {
    # name: (link, program)
    "awk": ("/usr/bin/awk", "/usr/bin/mawk"),
    "c++": ("/usr/bin/c++", "/usr/bin/g++"),
    "cc": ("/usr/bin/cc", "/usr/bin/gcc"),
    "pager": ("/usr/bin/pager", "/usr/bin/less"),
    "which": ("/usr/bin/which", "/usr/bin/which.debianutils"),
}

_TEMPLATES = {
    # what postinst scripts copy: place: template
    "etc/adduser.conf": "usr/share/adduser/adduser.conf",
    "etc/inputrc": "usr/share/readline/inputrc",
    "etc/nsswitch.conf": "usr/share/libc-bin/nsswitch.conf",
    "etc/profile": "usr/share/base-files/profile",
    "etc/shells": "usr/share/debianutils/shells",
    "root/.bashrc": "usr/share/base-files/dot.bashrc",
    "root/.profile": "usr/share/base-files/dot.profile",
}

_PAM = {
    "auth": "auth [success=1 default=ignore] pam_unix.so nullok\n"
    "auth requisite pam_deny.so\nauth required pam_permit.so\n",
    "account": "account [success=1 new_authtok_reqd=done default=ignore] pam_unix.so\n"
    "account requisite pam_deny.so\naccount required pam_permit.so\n",
    "password": "password [success=1 default=ignore] pam_unix.so obscure yescrypt\n"
    "password requisite pam_deny.so\npassword required pam_permit.so\n",
    "session": "session [default=1] pam_permit.so\nsession requisite pam_deny.so\n"
    "session required pam_permit.so\nsession required pam_unix.so\n",
    "session-noninteractive": "session [default=1] pam_permit.so\nsession requisite pam_deny.so\n"
    "session required pam_permit.so\nsession required pam_unix.so\n",
}

_EMPTY_DIRECTORIES = (
    "dev", "mnt", "opt", "proc", "run/lock", "run/sshd", "srv", "sys", "usr/local/bin",
    "usr/local/etc", "usr/local/include", "usr/local/lib", "usr/local/sbin", "usr/local/share",
    "usr/local/share/ca-certificates", "usr/local/src", "var/lib/dpkg/updates",
    "var/lib/dpkg/parts", "etc/sysctl.d", "var/lib/apt/lists/partial",
    "var/cache/apt/archives/partial",
)  # fmt: skip

CERTIFICATES = "usr/share/ca-certificates/"


class ConvertError(TorchlockError):
    """The packages do not make a root file system."""


@dataclass
class _Installed:
    """What dpkg's database says of one package."""

    deb: Deb
    paths: list[str] = field(default_factory=list)


@dataclass
class Rootfs:
    """Facts gathered while the packages' files go by; the configuration is made from them."""

    installed: list[_Installed] = field(default_factory=list)
    kept: dict[str, bytes] = field(default_factory=dict)
    sources: dict[str, bytes] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    md5: dict[str, str] = field(default_factory=dict)
    _owners: dict[str, str] = field(default_factory=dict)

    def package_items(self, debs: Iterable[Path], *, first: bool) -> Iterator[Item]:
        """Yield the files of packages, in order; `first` for the lowest layer.

        Raises `ConvertError` when two packages carry one path.
        """
        if first:
            yield from (symlink_item(name, f"usr/{name}") for name in MERGED)
        for path in debs:
            deb = read_deb(path)
            package = _Installed(deb, ["/."])
            self.installed.append(package)
            for file in deb.files():
                package.paths.append(f"/{file.path}")
                item = self._item(deb.path.name, file)
                if item:
                    yield item

    def _item(self, owner: str, file: DebFile) -> Item | None:
        path = merged(file.path)
        if path in MERGED or _excluded(path, file.kind == "directory"):
            return None
        if file.kind != "directory":
            other = self._owners.setdefault(path, owner)
            if other != owner:
                raise ConvertError(f"{other} and {owner} both carry {path}")
        target = merged(file.target) if file.kind == "link" else file.target
        member = Member(path, file.kind, file.mode, file.size, target, file.uid, file.gid)
        if file.kind != "file":
            return Item(member)
        note = self._note_of(path)
        if note is None:
            return Item(member, file)  # read by whoever writes it, in pieces
        contents = file.read()
        note(path, contents)
        return Item(member, contents)

    def _note_of(self, path: str) -> Callable[[str, bytes], None] | None:
        """Return what notes a file that the configuration needs to know, None for the others."""
        if path.startswith("etc/"):
            return self._note_md5
        if path.startswith((CERTIFICATES, "usr/share/base-passwd/")) or path in _TEMPLATES.values():
            return self.kept.__setitem__
        if path.startswith("usr/lib/python3.") and path.endswith(".py"):
            return self.sources.__setitem__
        return self._note_library if ldcache.is_library_path(path) else None

    def _note_md5(self, path: str, contents: bytes) -> None:
        self.md5[f"/{path}"] = hashlib.md5(contents, usedforsecurity=False).hexdigest()

    def _note_library(self, path: str, contents: bytes) -> None:
        if soname := ldcache.soname(contents):
            self.libraries[path] = soname

    def configuration_items(self, lock: RootfsLock) -> Iterator[Item]:
        """Yield what maintainer scripts would have made, sorted by path.

        Call it when the items of all packages have gone by.
        """
        items = [
            *self._dpkg(),
            *self._accounts(),
            *self._certificates(),
            *self._alternatives(),
            *self._templates(),
            *_apt(lock),
            *(directory_item(path) for path in _EMPTY_DIRECTORIES),
            directory_item("root", 0o700),
            symlink_item("etc/localtime", "/usr/share/zoneinfo/Etc/UTC"),
            file_item("etc/timezone", b"Etc/UTC\n"),
            file_item("etc/ld.so.cache", ldcache.cache(self.libraries)),
            *(file_item(f"etc/pam.d/common-{k}", v.encode()) for k, v in _PAM.items()),
            symlink_item("etc/dpkg/origins/default", "debian"),
            file_item("usr/sbin/policy-rc.d", b"#!/bin/sh\nexit 101\n", 0o755),
            symlink_item("var/run", "/run"),
            file_item("var/lib/ucf/hashfile", b""),
            file_item("var/lib/ucf/registry", b""),
            *(file_item(f"var/log/{n}", b"", 0o664, gid=43) for n in ("lastlog", "wtmp")),
            file_item("var/log/btmp", b"", 0o660, gid=43),
        ]
        yield from sorted(items, key=lambda item: item.member.path)

    def _dpkg(self) -> Iterator[Item]:
        status, interests = [], {}  # type: ignore[var-annotated]
        for package in sorted(self.installed, key=lambda p: p.deb.path.name):
            fields = next(paragraphs(package.deb.control["control"].decode()))
            name, info = fields["Package"], fields["Package"]
            if fields.get("Multi-Arch") == "same":
                info = f"{name}:{fields['Architecture']}"
            status.append(_status(fields, package.deb.control, self.md5))
            for member, contents in sorted(package.deb.control.items()):
                if member == "control":
                    continue
                mode = 0o755 if contents.startswith(b"#!") else 0o644
                yield file_item(f"var/lib/dpkg/info/{info}.{member}", contents, mode)
                if member == "triggers":
                    _add_interests(interests, contents.decode(), info)
            listing = "".join(f"{path}\n" for path in package.paths)
            yield file_item(f"var/lib/dpkg/info/{info}.list", listing.encode())
        yield file_item("var/lib/dpkg/info/format", b"1\n")
        yield file_item("var/lib/dpkg/status", "\n".join(status).encode())
        yield file_item("var/lib/dpkg/available", b"")
        yield file_item("var/lib/dpkg/diversions", b"")
        yield file_item("var/lib/dpkg/statoverride", b"")
        for name, lines in sorted(interests.items()):
            yield file_item(f"var/lib/dpkg/triggers/{name}", "".join(sorted(lines)).encode())

    def _accounts(self) -> Iterator[Item]:
        users = _lines(self._kept("usr/share/base-passwd/passwd.master")) + list(_USERS)
        groups = _lines(self._kept("usr/share/base-passwd/group.master")) + list(_GROUPS)
        # The masters have `*`: no password fits; `x` would send readers to the shadow file.
        users = [line.replace(":*:", ":x:", 1) for line in users]
        groups = [line.replace(":*:", ":x:", 1) for line in groups]
        # Day 1, not 0: 0 means that the password has to be changed at once.
        shadow = [f"{line.split(':')[0]}:*:1:0:99999:7:::" for line in users]
        gshadow = [f"{line.split(':')[0]}:*::" for line in groups]
        yield file_item("etc/passwd", _text(users))
        yield file_item("etc/group", _text(groups))
        yield file_item("etc/shadow", _text(shadow), 0o640, gid=42)
        yield file_item("etc/gshadow", _text(gshadow), 0o640, gid=42)
        yield file_item("etc/subuid", b"")
        yield file_item("etc/subgid", b"")

    def _certificates(self) -> Iterator[Item]:
        names = sorted(path for path in self.kept if path.startswith(CERTIFICATES))
        bundle = b"".join(self.kept[name].rstrip(b"\n") + b"\n" for name in names)
        yield file_item("etc/ssl/certs/ca-certificates.crt", bundle)
        conf = "".join(f"{name.removeprefix(CERTIFICATES)}\n" for name in names)
        yield file_item("etc/ca-certificates.conf", conf.encode())

    def _alternatives(self) -> Iterator[Item]:
        for name, (link, program) in _ALTERNATIVES.items():
            if program.removeprefix("/") in self._owners:
                yield symlink_item(link.removeprefix("/"), f"/etc/alternatives/{name}")
                yield symlink_item(f"etc/alternatives/{name}", program)
                text = f"auto\n{link}\n\n{program}\n50\n\n"
                yield file_item(f"var/lib/dpkg/alternatives/{name}", text.encode())

    def _templates(self) -> Iterator[Item]:
        for place, template in _TEMPLATES.items():
            if template in self.kept:
                yield file_item(place, self.kept[template])

    def _kept(self, path: str) -> bytes:
        try:
            return self.kept[path]
        except KeyError:
            raise ConvertError(
                f"no locked package carries /{path}", hint="invoke lock --rootfs"
            ) from None


def merged(path: str) -> str:
    """Return where a path lies once /bin, /lib, /lib64 and /sbin are links into /usr."""
    top = path.split("/", 1)[0]
    return f"usr/{path}" if top in MERGED and path != top else path


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """Return dpkg's path patterns as one regular expression; `*` also matches `/`."""
    return re.compile("|".join(re.escape(p).replace(r"\*", ".*") for p in patterns))


_EXCLUDED, _INCLUDED = _any_of(EXCLUDED), _any_of(INCLUDED)


def _excluded(path: str, directory: bool) -> bool:
    if _INCLUDED.fullmatch(path):
        return False
    if directory and path.startswith("usr/share/doc/"):
        return True  # made as a parent where a copyright file is kept
    return _EXCLUDED.fullmatch(path) is not None


def _lines(text: bytes) -> list[str]:
    return text.decode().splitlines()


def _text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _status(fields: dict[str, str], control: dict[str, bytes], md5: dict[str, str]) -> str:
    rows = {"Package": fields["Package"], "Status": "install ok installed"}
    rows.update((k, v) for k, v in fields.items() if k != "Package")
    names = (line.strip() for line in control.get("conffiles", b"").decode().splitlines())
    listed = "".join(f"\n {name} {md5[name]}" for name in names if name in md5)
    if listed:
        rows["Conffiles"] = listed
    return "".join(f"{k}:{'' if v.startswith(chr(10)) else ' '}{v}\n" for k, v in rows.items())


def _add_interests(interests: dict[str, set[str]], triggers: str, package: str) -> None:
    """Note which package waits for which trigger (deb-triggers(5)), as dpkg keeps it."""
    for line in triggers.splitlines():
        words = line.split("#")[0].split()
        if len(words) == 2 and words[0].startswith("interest"):
            waits = "/noawait" if words[0].endswith("noawait") else ""
            if words[1].startswith("/"):
                interests.setdefault("File", set()).add(f"{words[1]} {package}{waits}\n")
            else:
                interests.setdefault(words[1], set()).add(f"{package}{waits}\n")


def _apt(lock: RootfsLock) -> Iterator[Item]:
    sources = "\n".join(
        f"Types: deb\nURIs: {archive.url}\nSuites: {' '.join(archive.suites)}\n"
        "Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        for archive in lock.archives.values()
    )
    yield file_item("etc/apt/sources.list.d/debian.sources", sources.encode())
    rules = [f"path-exclude /{p}\n" for p in EXCLUDED] + [f"path-include /{p}\n" for p in INCLUDED]
    yield file_item("etc/dpkg/dpkg.cfg.d/torchlock", "".join(rules).encode())
