"""Another host, as far as a child process can be given one: clock, user, locale, zlib.

Nothing here needs more than a C compiler and, for another user, root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.compiler import compile_c

_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
#define BACK 800000000 /* seconds: 25 years */

int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(id, at);
    if (!done && id == CLOCK_REALTIME) at->tv_sec -= BACK;
    return done;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""

# ISA-L's DEFLATE has the interface of zlib and makes other bytes of the same data.
_OTHER_ZLIB = "import sys, isal.isal_zlib\nsys.modules['zlib'] = isal.isal_zlib\n"
# The other way round: what inflates by ISA-L has to do with zlib.
_NO_ISAL = "import sys\nsys.modules['isal'] = None\n"

FACTS = """
import hashlib, locale, os, time, zlib
locale.setlocale(locale.LC_ALL, "")
compressed = zlib.compress(b"".join(b"%d" % n for n in range(9999)))
print(*(
    int(time.time() / 1e8), os.getuid(), locale.setlocale(locale.LC_CTYPE),
    hashlib.sha256(compressed).hexdigest()[:8], os.sched_getaffinity(0).__len__(),
), sep="/")
"""
"""Python that prints what a host is: years, user, locale, what zlib makes, usable cores."""


def assert_another(facts: str, *, zlib: bool) -> None:
    """Check that a child's `FACTS` are not this process's, `zlib` among them if so asked."""
    here = subprocess.run(
        [sys.executable, "-c", FACTS], capture_output=True, text=True, check=True
    ).stdout
    pairs = list(zip(facts.strip().split("/"), here.strip().split("/"), strict=True))
    clock, user, locale, compressed, cores = (there != at_home for there, at_home in pairs)
    assert clock and locale, pairs
    assert user or os.geteuid(), pairs
    assert compressed or not zlib, pairs
    assert cores or len(os.sched_getaffinity(0)) == 1, pairs


@dataclass(frozen=True)
class Host:
    """What to put before a command, and its environment."""

    before: tuple[str, ...]
    environment: dict[str, str]


def other_host(scratch: Path, *, isal: bool = True) -> Host:
    """Return a host with another clock, user, locale, zlib, hash seed and number of cores.

    With `isal` its zlib is ISA-L's, without it there is zlib alone. `scratch` takes what is
    made for it.
    """
    (scratch / "clock.c").write_text(_CLOCK)
    clock = scratch / "clock.so"
    compile_c(scratch / "clock.c", clock, "-shared", "-fPIC", "-ldl")
    (scratch / "sitecustomize.py").write_text(_OTHER_ZLIB if isal else _NO_ISAL)
    environment = {
        **os.environ, "LD_PRELOAD": str(clock), "PYTHONPATH": str(scratch),
        "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "1",
        "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent", **_locale(scratch),
    }  # fmt: skip
    return Host((*_user(), "taskset", "-c", "0"), environment)


def _locale(scratch: Path) -> dict[str, str]:
    """Turkish, whose letters change case as no others do, where its sources are installed."""
    made = subprocess.run(
        ["localedef", "-i", "tr_TR", "-f", "UTF-8", scratch / "tr_TR.UTF-8"],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        return {"LC_ALL": "POSIX"}
    return {"LC_ALL": "tr_TR.UTF-8", "LOCPATH": str(scratch)}


def _user() -> tuple[str, ...]:
    """Become nobody where one may; tests' directories are root's, so its reach is kept."""
    if os.geteuid():
        return ()
    reach = "+dac_override,+dac_read_search,+fowner"
    return (
        "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
        f"--inh-caps={reach}", f"--ambient-caps={reach}",
    )  # fmt: skip
