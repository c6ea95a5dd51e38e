"""URLs of SageMaker's endpoints, and missing credentials, regions and packages."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ts_stateful.client import ClientError, connect
from ts_stateful.client.transports.sagemaker import SageMakerAddress, parse_sagemaker_url
from ts_stateful.protocol.sagemaker import CUSTOM_ATTRIBUTES


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("?region=eu-west-1", "credentials"),
        ("?region=eu-west-1&profile=missing", "missing"),
        ("", "region"),
    ],
)
def test_what_boto3_misses_is_named(
    monkeypatch: pytest.MonkeyPatch, query: str, named: str
) -> None:
    """Missing credentials, profiles and regions are named before anything is sent, without a retry."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with connect(f"sagemaker://demo{query}") as server, pytest.raises(ClientError, match=named):
        server.hello()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("sagemaker://Demo-1", ("Demo-1", None, None, None)),
        ("sagemaker://demo/?region=eu-west-1&profile=me", ("demo", "eu-west-1", "me", None)),
        ("sagemaker://demo?endpoint_url=http://[::1]:9", ("demo", None, None, "http://[::1]:9")),
    ],
)
def test_urls_name_endpoints(url: str, address: tuple[str | None, ...]) -> None:
    """An endpoint's name keeps its case; boto3 finds the rest."""
    assert parse_sagemaker_url(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "sagemaker:demo",
        "sagemaker://",
        "sagemaker://a_b",
        "sagemaker://a/b",
        "sagemaker://a:1",
        "sagemaker://a?color=red",
        "sagemaker://me@a",
        "sagemaker://a#b",
    ],
)
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    """A wrong name and parts that have no meaning are refused."""
    with pytest.raises(ValueError, match="sagemaker:"):
        connect(url)


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"a": "b"}},
        {"headers": {CUSTOM_ATTRIBUTES: "a=b", "a": "b"}},
        {"profile": "async"},
    ],
)
def test_what_is_torchserves_is_refused(options: dict[str, Any]) -> None:
    """Options that only TorchServe has are not ignored silently."""
    with pytest.raises(ValueError, match="SageMaker passes no header on"):
        connect("sagemaker://demo", **options)


def test_a_token_has_to_fit_the_custom_attributes() -> None:
    """The service takes no longer ones."""
    connect("sagemaker://demo?region=eu-west-1", token="x" * 1018).close()
    with pytest.raises(ValueError, match="a shorter token"):
        connect("sagemaker://demo?region=eu-west-1", token="x" * 1019)


@pytest.mark.parametrize(
    ("endpoint_url", "is_local"),
    [
        ("http://127.0.0.2:1", True),
        ("http://localhost:1", True),
        ("https://runtime.sagemaker.eu-west-1.amazonaws.com", False),
        ("http://10.0.0.1", False),
        (None, False),
    ],
)
def test_only_requests_to_this_machine_are_unsigned(
    endpoint_url: str | None, is_local: bool
) -> None:
    """Requests to all other hosts are signed."""
    assert SageMakerAddress("demo", endpoint_url=endpoint_url).is_local is is_local


def test_boto3_is_asked_for_by_name() -> None:
    """Without boto3 the other transports work, and this one names the package to install."""
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from ts_stateful.client import ClientError, connect\n"
        "connect('http://127.0.0.1:1').close()\n"
        "try: connect('sagemaker://demo')\n"
        "except ClientError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'torchserve-stateful[sagemaker]'" in done.stdout
