"""What all tests share."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, so that a run tells of the change. `--hypothesis-profile=search` looks for new ones.
_slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # as machines may be
settings.register_profile("same", _slow, derandomize=True)
settings.register_profile("search", _slow, max_examples=1000)
settings.load_profile("same")

# Read when triton is first imported, as torch does by the way.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
# Whoever runs the tests may have an account; they say themselves what they need.
for _name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[_name]
# Or a folder that is not there is asked for at the hub, again and again.
os.environ["HF_HUB_OFFLINE"] = "1"

# Collecting tests imports torch and transformers, which make a million objects that stay, and hardly any garbage.
gc.disable()

_LONG_ID = 100  # characters or bytes


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """What a handler or an engine makes of the log of its process ends with the test."""
    root = logging.getLogger()
    level, filters = root.level, list(root.filters)
    formatters = [(handler, handler.formatter) for handler in root.handlers]
    yield
    root.setLevel(level)
    root.filters[:] = filters
    for handler, formatter in formatters:
        handler.setFormatter(formatter)


def pytest_make_parametrize_id(val: object) -> str | None:
    """No whole files in ids: a test's id is in the environment of every program that it starts, which has a bound."""
    return f"{len(val)}-long" if isinstance(val, str | bytes) and len(val) > _LONG_ID else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests run before end-to-end tests, whatever order the command line names; these may take longer to start."""
    items.sort(key=_is_e2e)
    for item in filter(_is_e2e, items):
        item.add_marker(pytest.mark.timeout(300))


def pytest_collection_finish() -> None:
    """The collector looks at what tests make, not at what was imported for them."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _is_e2e(item: pytest.Item) -> bool:
    return "e2e" in item.path.parts


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that need a CUDA device are skipped where there is none."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch  # noqa: PLC0415 - seconds; most runs need it only here

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
