"""The configuration in deploy/haproxy: it is valid, and agrees with the rest of the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.haproxy import CONFIG, NO_HAPROXY, check, haproxy_binary
from ts_stateful.sagemaker_api import SESSION_ID

HEADERS = ("ts_request_sequence_id", SESSION_ID)


@pytest.fixture(scope="module")
def served(repository: Path) -> dict[str, Any]:
    """The repository's model-config.yaml."""
    document: dict[str, Any] = yaml.safe_load((repository / "model-config.yaml").read_text())
    return document


@pytest.mark.parametrize("environ", [{}, {"TS_DNS": "torchserve.default.svc.cluster.local"}])
def test_haproxy_takes_the_configuration(environ: dict[str, str]) -> None:
    """With nodes by their addresses and by a name, without a warning."""
    binary = haproxy_binary()
    if binary is None:
        pytest.skip(NO_HAPROXY)
    done = check(binary, CONFIG, **environ)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr


def test_checks_find_a_place_on_a_busy_node(served: dict[str, Any]) -> None:
    """HAProxy sends a node fewer requests at a time than it has places."""
    (limit,) = re.findall(r" maxconn (\d+) ", CONFIG.read_text())
    assert int(limit) < served["batchSize"]


def test_the_table_keeps_a_session_for_as_long_as_it_can_live(served: dict[str, Any]) -> None:
    """And has room for the longest id."""
    length, hours = re.findall(
        r"stick-table type string len (\d+) .* expire (\d+)h", CONFIG.read_text()
    )[0]
    assert int(length) > 226
    assert int(hours) * 3_600_000 >= served["sequenceTimeoutMSec"]


@pytest.mark.parametrize("header", HEADERS)
def test_sessions_are_read_from_the_headers_that_there_are(header: str) -> None:
    """Of requests, and of answers."""
    text = CONFIG.read_text()
    assert f"set-var(txn.session) req.hdr({header})" in text
    assert f"stick store-response res.fhdr({header}),field(1,;) table sessions" in text
