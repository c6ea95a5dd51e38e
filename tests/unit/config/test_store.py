"""The settings of the store, before any store is opened."""

from __future__ import annotations

from typing import Any

import pytest

from ts_stateful.config.schema import ConfigError, load_config


def _document(url: str | None) -> dict[str, Any]:
    return {"handler": {"store": {"url": url}}}


@pytest.mark.parametrize(
    "url",
    ["/tmp/x", "file:/tmp/x", "file://tmp/x", "file:///", "redis:h", "http://:secret@h/0", "s3://"],
)
def test_a_url_of_no_store_is_refused_without_a_server(url: str) -> None:
    """With the forms that there are. The URL is not repeated, as it may have a password."""
    with pytest.raises(
        ConfigError, match=r"handler\.store: `url` has to be one of file:///"
    ) as refusal:
        load_config(_document(url))
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    [
        None,
        "none",
        "file:///tmp/x",
        "redis:///0",
        "rediss://u:p@h:1/0",
        "redis://u:p@h:1,[::1]:2,h/0?sentinel=chat",
        "s3://b/a",
    ],
)
def test_urls_of_stores_are_taken(url: str | None) -> None:
    """The store judges the rest when it is opened."""
    assert load_config(_document(url)).handler.store.url == url
