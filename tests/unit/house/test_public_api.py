"""The public names of the package and of its client."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import ts_stateful
from ts_stateful import client, version
from ts_stateful.client import errors
from ts_stateful.protocol import errors as protocol_errors


@pytest.mark.parametrize("name", ["ts_stateful", "ts_stateful.client"])
def test_every_public_name_resolves(name: str) -> None:
    """All names of `__all__` exist, each once."""
    module = importlib.import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        assert getattr(module, public) is not None


def test_the_package_names_what_its_parts_define() -> None:
    """The names at the top are those of the client, of the protocol's errors and of the version."""
    assert ts_stateful.connect is client.connect
    assert (ts_stateful.Server, ts_stateful.Session) == (client.Server, client.Session)
    assert ts_stateful.errors is protocol_errors
    assert ts_stateful.__version__ == version.__version__
    with pytest.raises(AttributeError, match="nothing"):
        _ = ts_stateful.nothing


def test_every_client_error_is_public() -> None:
    """A program can catch each of them by importing `ts_stateful.client` alone."""
    classes = {name for name in errors.__all__ if name[0].isupper()}
    assert classes <= set(client.__all__)


def test_importing_the_package_is_cheap() -> None:
    """`import ts_stateful` loads neither the client's libraries nor torch."""
    code = (
        "import sys, ts_stateful; ts_stateful.__version__;"
        "print(*{'grpc', 'torch', 'httpx', 'msgspec'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
