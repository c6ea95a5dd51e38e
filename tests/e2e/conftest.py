"""Fixtures of the end-to-end tests: a TorchServe per profile, started when the first test asks for it, shared by all."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.e2e.server import ROOT, profile_server
from tests.e2e.speak import Innocent, Speaker
from tests.e2e.state_server import AsgiStateModels, StateModels
from tests.e2e.steps import WAYS, Lines
from tests.support.ports import free_port
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

_running = pytest.StashKey[dict[str, LocalServer]]()
_PLACES = 160  # for all sessions of all tests that share the sequence profile's server
_SHARED = ("state_models", "asgi_state_models", *(f"{profile.value}_server" for profile in Profile))

# Many servers are started, none serves for long: what the JVM saves by compiling little is more than what it loses.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def _shared(
    profile: Profile,
    tmp_path_factory: pytest.TempPathFactory,
    config: pytest.Config,
    name: str = "",
    environ: Mapping[str, str] | None = None,
    **handler: Any,
) -> Iterator[LocalServer]:
    # In the sequence profile an id keeps its place long after its session has ended.
    places = {"batchSize": _PLACES, "maxNumSequence": _PLACES}
    keys: dict[str, Any] = places if profile is Profile.SEQUENCE else {}
    folder = tmp_path_factory.mktemp(profile.value)
    name = name or profile.value
    server = profile_server(
        profile, folder, name=name, endless=True, handler=handler, environ=environ, **keys
    )
    with server:
        config.stash.setdefault(_running, {})[f"{name}_server"] = server
        yield server


@pytest.fixture(scope="session")
def metrics_port() -> int:
    """The port of loopback at which the worker of `continuous_server` has metrics for Prometheus."""
    return free_port()


@pytest.fixture(scope="session")
def continuous_server(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config, metrics_port: int
) -> Iterator[LocalServer]:
    """TorchServe with the shapes model in the continuous profile."""
    yield from _shared(Profile.CONTINUOUS, tmp_path_factory, pytestconfig, metricsPort=metrics_port)


@pytest.fixture(scope="session")
def sequence_server(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[LocalServer]:
    """The same in the sequence profile."""
    yield from _shared(Profile.SEQUENCE, tmp_path_factory, pytestconfig)


@pytest.fixture(scope="session")
def registering_server(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[LocalServer]:
    """The same, but a model whose worker is lost is registered again; then `/invocations` does not find it."""
    environ = {"TS_ENABLE_MODEL_API": "true"}
    yield from _shared(Profile.SEQUENCE, tmp_path_factory, pytestconfig, "registering", environ)


@pytest.fixture(scope="session")
def async_server(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[LocalServer]:
    """The same in the async profile."""
    yield from _shared(Profile.ASYNC, tmp_path_factory, pytestconfig)


@pytest.fixture(scope="session")
def asgi_server(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[LocalServer]:
    """The same without TorchServe."""
    yield from _shared(Profile.ASGI, tmp_path_factory, pytestconfig)


@pytest.fixture(scope="session")
def state_models(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[StateModels]:
    """TorchServe with models with recurrent state, in all profiles."""
    with StateModels(tmp_path_factory.mktemp("state")) as models:
        pytestconfig.stash.setdefault(_running, {})["state_models"] = models.server
        yield models


@pytest.fixture(scope="session")
def asgi_state_models(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[AsgiStateModels]:
    """Models with recurrent state without TorchServe."""
    with AsgiStateModels(tmp_path_factory.mktemp("asgi-state")) as models:
        pytestconfig.stash.setdefault(_running, {})["asgi_state_models"] = models.server
        yield models


@pytest.fixture
def lines(state_models: StateModels) -> Iterator[Lines]:
    """Makes clients of the ledger."""
    with Lines(state_models) as lines:
        yield lines


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Every way to speak to the ledger in turn."""
    return str(request.param)


@pytest.fixture
def mortal_server(profile: Profile, request: pytest.FixtureRequest) -> LocalServer:
    """The shared server of a profile that gets over the loss of its worker."""
    name = "registering" if profile is Profile.SEQUENCE else profile.value
    server: LocalServer = request.getfixturevalue(f"{name}_server")
    return server


@pytest.fixture
def speak() -> Iterator[Callable[[LocalServer], Speaker]]:
    """Makes clients of plain HTTP and gRPC, and closes them."""
    speakers: list[Speaker] = []

    def make(server: LocalServer) -> Speaker:
        speakers.append(Speaker(server))
        return speakers[-1]

    yield make
    for speaker in speakers:
        speaker.http.close()


@pytest.fixture(params=["continuous", "asgi"])
def speaker(
    request: pytest.FixtureRequest, speak: Callable[[LocalServer], Speaker]
) -> Iterator[Speaker]:
    """A client of a shared server; when a test is done with it, another client's session must go on in the same processes."""
    speaker = speak(request.getfixturevalue(f"{request.param}_server"))
    with Innocent(speaker) as innocent:
        yield speaker
        innocent.goes_on()


@pytest.fixture
def session(speaker: Speaker) -> Iterator[str]:
    """A session that the test may mistreat."""
    name = speaker.open()
    yield name
    speaker.post({"type": "close"}, session=name)


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a server run in the same process, so that it is started once; a file may name a group for its own."""
    for item in items:
        named = item.get_closest_marker("xdist_group")
        if named is None and item.path.is_relative_to(ROOT / "tests" / "e2e"):
            item.add_marker(pytest.mark.xdist_group(_group(item)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """The shared servers stop when the tests of their group are done: an idle TorchServe takes a tenth of a processor.

    Only where a process runs groups one after the other (`--dist loadgroup`). So a test has to be in the group of its servers:
    by a fixture, by a parameter that is a profile, or by a mark.
    """
    yield
    if not item.config.getoption("loadgroup", False):
        return
    running = item.config.stash.get(_running, {})
    while running and _named_group(item) != _named_group(nextitem):
        running.popitem()[1].__exit__()


def _named_group(item: pytest.Item | None) -> Sequence[str]:
    marker = item and item.get_closest_marker("xdist_group")
    return marker.args if marker else ()


def _group(item: pytest.Item) -> str:
    """The shared server that a test uses, by its fixtures or by the profile it is run for, or else its file."""
    fixtures: list[str] = getattr(item, "fixturenames", [])
    assert sum(name in fixtures for name in _SHARED) <= 1, f"split {item.nodeid}: one server each"
    callspec = getattr(item, "callspec", None)
    params = callspec.params.values() if callspec else ()
    named = {f"{getattr(value, 'value', value)}_server" for value in params}
    return next((name for name in _SHARED if name in fixtures or name in named), item.path.stem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the end of the log of each shared server that runs: it may have asked for one by name."""
    report = yield
    if report.failed:
        for name, server in item.config.stash.get(_running, {}).items():
            report.sections.append((f"log of {name}", server.log_tail()))
    return report
