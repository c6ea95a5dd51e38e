"""Principals on real servers: a proxy's header, and signed tokens, over every way in, at two servers of one store."""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from deploy.sagemaker.local.endpoint import CONTAINER_VARIABLES
from deploy.sagemaker.local.routing import Instance, Router
from deploy.sagemaker.local.server import ServiceLimits, make_app
from tests.e2e.server import log_path, profile_server
from tests.e2e.speak import DEADLINE_S, HEADER, SCENE, Speaker, error_of, eventually
from tests.support.clock import FakeClock
from tests.support.issuer import AUDIENCE, ISSUER, Issuer
from tests.support.sagemaker import ENDPOINT, serving
from tests.support.web import Site, answer
from ts_stateful.cli.main import main
from ts_stateful.cli.terminal import Terminal
from ts_stateful.client import Server, connect
from ts_stateful.client.retry import RetryPolicy
from ts_stateful.protocol.errors import SessionNotFound, Unauthenticated
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.sagemaker import CUSTOM_ATTRIBUTES, SESSION_ID
from ts_stateful.serving.server import LocalServer

pytestmark = pytest.mark.xdist_group("principals")  # none uses a server of other files

Speak = Callable[[LocalServer], Speaker]
_QUESTION = "What color is the circle?"
_POLICY = RetryPolicy(max_retries=0)
_JWT = {"mode": "jwt", "issuer": ISSUER, "audience": AUDIENCE}


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    """An issuer of tokens."""
    return Issuer()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for the sessions of both servers with tokens."""
    folder = tmp_path_factory.mktemp("store")
    folder.chmod(0o700)
    return folder.as_uri()


@pytest.fixture(
    scope="module", params=[Profile.CONTINUOUS, Profile.ASGI], ids=lambda one: one.value
)
def profile(request: pytest.FixtureRequest) -> Profile:
    """Both fronts in turn."""
    chosen: Profile = request.param
    return chosen


@pytest.fixture(scope="module")
def server(
    profile: Profile, tmp_path_factory: pytest.TempPathFactory, issuer: Issuer, store: str
) -> Iterator[LocalServer]:
    """A server that reads the issuer's keys from a URL."""
    site = Site()
    site.routes["/keys"] = answer(issuer.key_set)
    auth = {**_JWT, "jwks": f"{site.url}/keys"}
    handler = {"auth": auth, "audit": "json", "store": {"url": store}}
    folder = tmp_path_factory.mktemp("jwt")
    with profile_server(profile, folder, name=f"jwt-{profile.value}", handler=handler) as server:
        yield server
    site.stop()


@pytest.fixture(scope="module")
def second(
    tmp_path_factory: pytest.TempPathFactory, issuer: Issuer, store: str
) -> Iterator[LocalServer]:
    """A server with the same store that SageMaker's requests reach; it reads the keys from a file."""
    folder = tmp_path_factory.mktemp("sagemaker")
    keys = folder / "keys.json"
    keys.write_bytes(issuer.key_set)
    auth = {**_JWT, "jwks": str(keys), "header": CUSTOM_ATTRIBUTES}
    with profile_server(
        Profile.CONTINUOUS,
        folder,
        name="jwt-sagemaker",
        handler={"auth": auth, "store": {"url": store}},
        environ=CONTAINER_VARIABLES,
    ) as server:
        yield server


@pytest.fixture(scope="module")
def behind_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server that trusts the header of a proxy."""
    handler = {"auth": {"mode": "header", "header": "X-Principal"}, "audit": "text"}
    folder = tmp_path_factory.mktemp("header")
    with profile_server(Profile.CONTINUOUS, folder, name="proxy-header", handler=handler) as server:
        yield server


def connected(url: str, token: str) -> Server:
    return connect(url, token=token, policy=_POLICY, timeout_s=DEADLINE_S)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_session_belongs_to_the_principal_of_its_token(
    server: LocalServer, issuer: Issuer, profile: Profile, scheme: str
) -> None:
    """Over HTTP, and over gRPC in the message; another principal may use the same id."""
    url = server.http_url if scheme == "http" else server.grpc_url
    name = f"mine-{profile.value}-{scheme}"
    with (
        connected(url, issuer.token("alice")) as alice,
        connected(url, issuer.token("bob")) as bob,
        alice.open(session_id=name, images=[SCENE]) as session,
    ):
        assert session.session_id == name
        assert session.prompt(_QUESTION).result() == "red"
        for act in (session.info, lambda: session.fork().close()):
            act()
        for stranger in (name, "never"):
            with pytest.raises(SessionNotFound):
                bob.attach(stranger)
        with bob.open(session_id=name) as other:
            assert other.info().turns == 0
        assert session.info().turns == 1
        assert "".join(session.prompt("And the square?")) == "blue"
    with connected(url, issuer.token("alice", life_s=-60)) as late, pytest.raises(Unauthenticated):
        late.open()


@pytest.mark.parametrize("profile", [Profile.SEQUENCE, Profile.ASYNC])
def test_tokens_reach_the_model_over_grpc_in_other_profiles(
    tmp_path: Path, issuer: Issuer, profile: Profile
) -> None:
    """In streams too."""
    keys = tmp_path / "keys.json"
    keys.write_bytes(issuer.key_set)
    handler = {"auth": {**_JWT, "jwks": str(keys)}}
    with (
        profile_server(profile, tmp_path, name=f"jwt-{profile.value}", handler=handler) as server,
        connected(server.grpc_url, issuer.token("alice")) as alice,
        connected(server.grpc_url, issuer.token("bob")) as bob,
    ):
        session = alice.open(session_id="s", images=[SCENE])
        assert "".join(session.prompt(_QUESTION)) == "red"
        with pytest.raises(SessionNotFound):
            bob.attach("s")
        session.close()


def test_what_is_refused_is_refused_alike(
    server: LocalServer, issuer: Issuer, speak: Speak, profile: Profile
) -> None:
    """Another's id and an unknown one have the same bytes; without a token there is only `hello`."""
    speaker = speak(server)
    tokens = {name: {"Authorization": f"Bearer {issuer.token(name)}"} for name in ("alice", "bob")}
    open_ = {"type": "open", "session_id": "ID-0"}
    assert speaker.post(open_, headers=tokens["alice"]).status_code == 200
    for document in ({"type": "info"}, {"type": "fork"}, {"type": "close"}, {"prompt": "x"}):
        mine, never = (
            speaker.post(document, session=name, headers=tokens["bob"]) for name in ("ID-0", "ID-1")
        )
        assert error_of(mine.json()) == ("session_not_found", 404)
        assert mine.content == never.content
        assert mine.headers.keys() == never.headers.keys()
        assert mine.headers[HEADER] == "ID-0"
    assert speaker.post({"type": "close"}, session="ID-0", headers=tokens["alice"]).is_success
    gone = speaker.post({"type": "info"}, session="ID-0", headers=tokens["alice"])
    assert error_of(gone.json()) == ("session_closed", 410)
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic YTpi"}):
        refused = speaker.post({"prompt": "x"}, headers=headers)
        assert error_of(refused.json()) == ("unauthenticated", 401)
        assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert speaker.ask({"type": "hello"})["profile"] == profile.value
    claims = {**open_, "metadata": {"tenant": "bob"}}
    claimed = speaker.post(claims, headers=tokens["alice"])
    assert claimed.json()["error"]["field"] == "metadata.tenant"


def test_openais_client_sends_its_key(server: LocalServer, issuer: Issuer) -> None:
    """As the token; a session header is an id of its principal."""
    url = f"{server.http_url}/predictions/chat/1.0/v1"
    image = f"data:image/png;base64,{base64.b64encode(SCENE.read_bytes()).decode()}"
    content: Any = [
        {"type": "image_url", "image_url": {"url": image}},
        {"type": "text", "text": _QUESTION},
    ]

    def ask(token: str, **headers: str) -> str | None:
        with openai.OpenAI(
            base_url=url, api_key=token, timeout=DEADLINE_S, max_retries=0
        ) as client:
            completion = client.chat.completions.create(
                model="chat",
                messages=[{"role": "user", "content": content}],
                extra_headers=headers,
            )
        return completion.choices[0].message.content

    with connected(server.http_url, issuer.token("alice")) as alice, alice.open() as session:
        assert ask(issuer.token("alice"), **{HEADER: session.session_id}) == "red"
        assert session.info().turns == 1
        with pytest.raises(openai.NotFoundError):
            ask(issuer.token("bob"), **{HEADER: session.session_id})
    assert ask(issuer.token("bob")) == "red"
    with pytest.raises(openai.AuthenticationError):
        ask("sk-nothing")


def test_a_response_belongs_to_the_principal_of_its_key(
    server: LocalServer, issuer: Issuer
) -> None:
    """Another one neither reads nor continues nor ends it, nor learns that it exists."""
    base = f"{server.http_url}/predictions/chat/1.0/v1"
    alice, bob = (
        openai.OpenAI(base_url=base, api_key=issuer.token(name), max_retries=0, timeout=DEADLINE_S)
        for name in ("alice", "bob")
    )
    with alice, bob:
        asked: Any = {"model": "chat", "input": "Is there a circle?"}
        first = alice.responses.create(**asked)
        made = alice.conversations.create()
        attempts: list[Callable[[str, str], Any]] = [
            lambda name, _: bob.responses.retrieve(name),
            lambda name, _: bob.responses.cancel(name),
            lambda name, _: bob.responses.create(**asked, previous_response_id=name),
            lambda _, name: bob.responses.create(**asked, conversation=name),
            lambda _, name: bob.conversations.retrieve(name),
        ]
        nothing = uuid.uuid4().hex
        for attempt in attempts:
            refusals = []
            for names in ((first.id, made.id), (f"resp_{nothing}_1", f"conv_{nothing}")):
                with pytest.raises(openai.NotFoundError) as refused:
                    attempt(*names)
                text = refused.value.message
                refusals.append(text.replace(names[0], "ID").replace(names[1], "ID"))
            assert refusals[0] == refusals[1]
        second = alice.responses.create(**asked, previous_response_id=first.id)
        assert second.id == first.id[:-1] + "2"
        branch = alice.responses.create(**asked, previous_response_id=first.id)
        assert alice.responses.retrieve(branch.id) == branch
        assert branch.id.rpartition("_")[0] != first.id.rpartition("_")[0]
        assert not list(alice.conversations.items.list(made.id))


def test_a_session_goes_on_at_another_server_for_its_principal(
    server: LocalServer, second: LocalServer, issuer: Issuer, profile: Profile
) -> None:
    """There by SageMaker's runtime API, whose custom attributes hold the token."""
    moved = f"moved-{profile.value}"
    tokens = {name: issuer.token(name) for name in ("alice", "bob")}
    with connected(server.http_url, tokens["alice"]) as alice:
        session = alice.open(session_id=moved, images=[SCENE])
        assert session.prompt(_QUESTION).result() == "red"
    invoke = {"headers": {SESSION_ID: moved}, "timeout": DEADLINE_S}
    url = f"{second.http_url}/invocations"

    def asked(principal: str, document: Any) -> httpx.Response:
        headers = {SESSION_ID: moved, CUSTOM_ATTRIBUTES: f"trace=1,token={tokens[principal]}"}
        return httpx.post(url, json=document, headers=headers, timeout=DEADLINE_S, trust_env=False)

    prompt = {"prompt": "And the square?"}
    assert error_of(asked("bob", prompt).json()) == ("session_not_found", 404)
    went_on = asked("alice", prompt)
    assert went_on.json()["text"] == "blue"
    assert went_on.headers[SESSION_ID] == moved
    refused = httpx.post(url, json=prompt, trust_env=False, **invoke)  # type: ignore[arg-type]
    assert refused.status_code == 401
    router = Router([Instance(second.http_url)], FakeClock())
    app = make_app(ENDPOINT, router, Terminal(io.StringIO()), ServiceLimits())
    with serving(app) as (local,):
        address = f"sagemaker://{ENDPOINT}?endpoint_url={local}"
        with connected(address, tokens["bob"]) as bob, bob.open(images=[SCENE]) as own:
            assert own.prompt(_QUESTION).result() == "red"


def test_the_audit_log_names_principals_and_no_ids(
    server: LocalServer, issuer: Issuer, profile: Profile
) -> None:
    """In the server's log, one JSON object after the prefix of each line."""
    path = log_path(f"jwt-{profile.value}")
    name = "audited-session"
    with connected(server.http_url, issuer.token("carol")) as carol:
        carol.open(session_id=name, system="a secret").close()

    def lines() -> list[Any]:
        found = [
            line[line.index("{") :] for line in path.read_text().splitlines() if '"verb": ' in line
        ]
        return [each for each in map(json.loads, found) if each["principal"] == "carol"]

    eventually(lambda: len(lines()) == 2)
    opened, closed = lines()
    assert (opened["verb"], closed["verb"]) == ("open", "close")
    assert opened["session"] == closed["session"]
    assert name not in path.read_text()
    assert "a secret" not in path.read_text()


def test_a_proxys_header_names_the_principal(behind_proxy: LocalServer, speak: Speak) -> None:
    """Over HTTP only: nothing that a proxy sets reaches the model over gRPC."""
    speaker = speak(behind_proxy)
    alice, bob = ({"X-Principal": name} for name in ("alice", "bob"))
    with connect(behind_proxy.http_url, headers=alice, policy=_POLICY) as connection:
        session = connection.open(session_id="s", images=[SCENE])
        assert "".join(session.prompt(_QUESTION)) == "red"
    info = speaker.post({"type": "info"}, session="s", headers=bob)
    assert error_of(info.json()) == ("session_not_found", 404)
    form = {"data": (None, b'{"type": "info", "session_id": "s"}'), "X-Principal": (None, b"alice")}
    for options in (
        {"json": {"type": "info", "session_id": "s"}},
        {"files": form},
        {"json": {"type": "info", "session_id": "s"}, "params": {"X-Principal": "alice"}},
    ):
        refused = speaker.post(**options)
        assert error_of(refused.json()) == ("unauthenticated", 401)
    with speaker.stub() as stub:
        message = speaker.message({"type": "info", "session_id": "s"})
        message.input["x-principal"] = b"alice"
        metadata = (("x-principal", "alice"),)
        answered = stub.Predictions(message, timeout=DEADLINE_S, metadata=metadata)
        assert error_of(json.loads(answered.prediction)) == ("unauthenticated", 401)


def test_the_command_line_sends_tokens_and_headers(
    server: LocalServer,
    behind_proxy: LocalServer,
    issuer: Issuer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And the doctor finds a server healthy that refuses it."""
    ask = ["prompt", _QUESTION, "--image", str(SCENE), "--url"]
    assert main([*ask, server.grpc_url, "--token", issuer.token("dave")]) == 0
    assert main([*ask, behind_proxy.http_url, "--header", "X-Principal: dave"]) == 0
    assert capsys.readouterr().out.split() == ["red", "red"]
    assert main([*ask, behind_proxy.http_url]) == 1
    assert "unauthenticated" in capsys.readouterr().err
    doctor = ["doctor", "--url", server.http_url, "--management-url", server.management_url]
    assert main(doctor) == 0, capsys.readouterr().out
