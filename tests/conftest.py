"""Fixtures shared by all tests, and the rule that no skip goes unseen."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.server import Served, serve
from torchlock.artifacts import Store

# Machines are shared and slow at times: how long an example takes says nothing.
settings.register_profile("torchlock", deadline=None, max_examples=50)
settings.load_profile("torchlock")

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests that
# interrupt a child need it as a person's terminal would have it.
signal.signal(signal.SIGINT, signal.default_int_handler)

IN_CI = os.environ.get("CI") == "true"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Fast tests run side by side; slow ones fill the machine by themselves, or measure it."""
    return min(os.cpu_count() or 1, 8) if config.option.markexpr == "not slow" else 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """In CI a skip is a failure: a check that nothing runs is a defect."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where everything must run: {report.longrepr}"
    return report


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty artifact store."""
    return Store(tmp_path / "store")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The directory that `server` serves."""
    directory = tmp_path / "served"
    directory.mkdir()
    return directory


@pytest.fixture
def server(files: Path) -> Iterator[Served]:
    """A file server that can be told to misbehave."""
    with serve(files) as served:
        yield served
