"""What of a URL is shown, and what a lock takes."""

from __future__ import annotations

import pytest

from torchlock.urls import is_public, public


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:p@host/@scope/x.whl?a=b", "http://host/@scope/x.whl"),
        ("https://h/t/tk-1-2/forge/noarch", "https://h/t/<TOKEN>/forge/noarch"),
        ("https://h/conda/t/tk-1", "https://h/conda/t/<TOKEN>"),
        ("two: http://a@b/c, http://b/t/x, then?", "two: http://b/c, http://b/t/<TOKEN>, then?"),
        ("(url: /t/tk-1/x?token=2)", "(url: /t/<TOKEN>/x"),
        ("https://h/forge/noarch/p-1-0.conda", "https://h/forge/noarch/p-1-0.conda"),
    ],
)
def test_what_is_secret_is_not_shown(text, shown):
    assert public(text) == shown


def test_what_is_shown_is_public():
    assert not is_public("https://u@h/x")
    assert not is_public("https://h/t/tk-1/x")
    assert is_public("https://h/@scope/t")
    assert is_public("https://h/pytorch/torch-2.whl")
