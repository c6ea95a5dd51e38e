"""The commands for operators, at a socket with scripted answers."""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.admin_server import FakeAdmin, session_document, status_document
from tests.support.clock import FakeClock
from ts_stateful.cli import main
from ts_stateful.cli.admin import COMMANDS
from ts_stateful.cli.top import screen, top
from ts_stateful.client.admin import AdminClient
from ts_stateful.process.private import user_folder

SMALL = session_document("small", device_bytes=10, age_s=7300.0, idle_s=1.0, tenant="zoe")
LARGE = session_document("large", host_bytes=1 << 20, idle_s=300.0, running=True, waiting=2)
TENANT = session_document("of-a-tenant", device_bytes=20, age_s=1.0, idle_s=0.5, tenant="acme")


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdmin]:
    """A server, which the environment names."""
    with tempfile.TemporaryDirectory(prefix="ts-") as folder:
        monkeypatch.setenv("TS_STATEFUL_RUNTIME_DIR", folder)
        with FakeAdmin(Path(folder) / "admin.sock") as fake:
            monkeypatch.setenv("TS_STATEFUL_ADMIN", fake.url)
            listed = {"sessions": [SMALL, LARGE, TENANT], "missing": []}
            fake.answers["GET /sessions"] = (200, listed)
            fake.answers["GET /status"] = (200, status_document())
            yield fake


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("bytes", ["large", "of-a-tenant", "small"]),
        ("age", ["small", "large", "of-a-tenant"]),
        ("idle", ["large", "small", "of-a-tenant"]),
        ("tenant", ["large", "of-a-tenant", "small"]),
    ],
)
def test_sessions_are_sorted(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], key: str, order: list[str]
) -> None:
    """One line each, in columns below one another."""
    assert main(["sessions", "--sort", key]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == order
    assert {line.index("chat") for line in lines} == {heading.index("MODEL")}
    by_id = {line.split()[0]: line.split() for line in lines}
    assert by_id["small"][2:5] == ["zoe", "2h01m", "1s"]
    assert by_id["large"][-2:] == ["running", "+2"]


def test_sessions_as_json_and_of_a_tenant(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of a tenant is data, whatever it contains."""
    answer = {"sessions": [TENANT], "missing": []}
    admin.answers["GET /sessions?tenant=a%26b%2F"] = (200, answer)
    assert main(["sessions", "--json", "--tenant", "a&b/"]) == 0
    assert json.loads(capsys.readouterr().out) == answer


def test_one_session_is_shown(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """All fields of it."""
    admin.answers["GET /sessions/large"] = (200, {"sessions": [LARGE]})
    assert main(["sessions", "large"]) == 0
    assert "host_bytes: 1048576\n" in capsys.readouterr().out


def test_an_engine_that_does_not_answer_is_named(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are listed; the status is 1."""
    admin.answers["GET /sessions"] = (200, {"sessions": [SMALL], "missing": ["chat/1"]})
    assert main(["sessions"]) == 1
    printed = capsys.readouterr()
    assert "small" in printed.out
    assert "chat/1; their sessions are not listed" in printed.err


@pytest.mark.parametrize(
    ("arguments", "call", "answer", "printed"),
    [
        ("evict a", "sessions/a/evict", {"sessions": [LARGE]}, "evicted large; its tier is now"),
        ("close a", "sessions/a/close", {"closed": 1, "failed": {}}, "closed 1 session\n"),
        ("close a --model m", "sessions/a/close?model=m", {"closed": 1, "failed": {}}, "closed 1"),
        ("close a --expire", "sessions/a/expire", {"sessions": [LARGE]}, "ends after the turns"),
        ("close --tenant t", "tenants/t/close", {"closed": 3, "failed": {}}, "closed 3 sessions\n"),
        ("drain", "drain", status_document(status="draining"), "draining; open sessions: 2,"),
        ("undrain", "undrain", status_document(), "ready; open sessions: 2,"),
        ("log-level DEBUG", "log-level?level=DEBUG", {"level": "DEBUG"}, "log level DEBUG\n"),
        (
            *("restart-engine 1 --model m", "engines/1/restart?model=m"),
            {"engine": "m/1", "pid": 7, "status": "restarting"},
            "engine m/1 (process 7) exits after its turns\n",
        ),
    ],
)
def test_a_command_is_one_call(
    admin: FakeAdmin,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    call: str,
    answer: dict[str, Any],
    printed: str,
) -> None:
    """Its effect is printed."""
    admin.answers[f"POST /{call}"] = (200, answer)
    assert main(arguments.split()) == 0
    assert admin.calls == [f"POST /{call}"]
    assert printed in capsys.readouterr().out


def test_sessions_that_could_not_be_closed_are_named(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 1."""
    answer = {"closed": 2, "failed": {"a": "the store does not answer"}}
    admin.answers["POST /tenants/t/close"] = (200, answer)
    assert main(["close", "--tenant", "t"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "closed 2 sessions\n"
    assert printed.err == "error: a: the store does not answer\n"


@pytest.mark.parametrize(
    ("status", "document", "reason"),
    [
        (
            404,
            {"error": {"code": "session_not_found", "message": "none"}},
            "session_not_found: none",
        ),
        (401, {"error": {"code": "unauthenticated", "message": "no"}}, "TS_STATEFUL_ADMIN_TOKEN"),
        (502, {"html": "no"}, "502"),
    ],
)
def test_a_refusal_is_an_error(
    admin: FakeAdmin,
    capsys: pytest.CaptureFixture[str],
    status: int,
    document: Any,
    reason: str,
) -> None:
    """With the reason and the remedy; no trace."""
    admin.answers["POST /sessions/a/evict"] = (status, document)
    assert main(["evict", "a"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert reason in error


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["--admin", "unix:///none.sock"], 1, "is the server running?"),
        (["--admin", "http://127.0.0.1:9"], 1, "is the server running?"),
        (["--admin", "none.sock"], 2, "neither unix:///path nor http://host:port"),
        (["--admin", "grpc://127.0.0.1:7070"], 2, "neither unix:///path nor http://host:port"),
    ],
)
def test_a_wrong_server_is_named(
    admin: FakeAdmin,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    reason: str,
) -> None:
    """With the remedy."""
    assert main(["sessions", *arguments]) == status
    error = capsys.readouterr().err
    assert arguments[1] in error
    assert reason in error


def test_without_a_server_the_error_has_the_remedy(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is running under this user's folder."""
    monkeypatch.delenv("TS_STATEFUL_ADMIN")
    assert main(["drain"]) == 1
    assert "no server of this user" in capsys.readouterr().err


def test_a_change_of_a_server_that_was_found_names_it(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On standard error; not if the caller has named it, and not where nothing changes."""
    admin.answers["POST /drain"] = (200, status_document(status="draining"))
    assert main(["drain"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.delenv("TS_STATEFUL_ADMIN")
    links = user_folder() / "admin"
    links.mkdir()
    (links / "y.sock").symlink_to(admin.url.removeprefix("unix://"))
    assert main(["drain"]) == 0
    assert capsys.readouterr().err == f"server {admin.url}\n"
    assert main(["sessions"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("arguments", [["close"], ["close", "a", "--tenant", "b"]])
def test_close_names_a_session_or_a_tenant(admin: FakeAdmin, arguments: list[str]) -> None:
    """One of both; nothing is sent."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert main(["close", "--tenant", "b", "--expire"]) == 2
    assert admin.calls == []


def test_top_prints_once_into_a_pipe(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """Engines and sessions, and nothing is cut."""
    long = session_document(f"{'a' * 32}.{'b' * 64}", tenant="a" * 32)
    admin.answers["GET /sessions"] = (200, {"sessions": [SMALL, long], "missing": []})
    assert main(["top", "--sort", "age"]) == 0
    printed = capsys.readouterr().out
    assert "1 GiB of 4 GiB" in printed
    assert long["session_id"] in printed
    assert printed.index("small") < printed.index(long["session_id"])


class StopClock(FakeClock):
    """Interrupts the program at the third sleep; at each sleep it calls a step of the test."""

    def __init__(self, *steps: Any) -> None:
        super().__init__()
        self.steps = list(steps)

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        super().sleep(seconds)
        if not self.steps:
            raise KeyboardInterrupt
        self.steps.pop(0)()


def test_top_shows_each_look_on_a_terminal(admin: FakeAdmin) -> None:
    """Also while the front starts again."""
    out = io.StringIO()
    terminal = {"TERM": "xterm"}
    console = Console(file=out, force_terminal=True, width=120, height=20, _environ=terminal)
    renamed = {"sessions": [session_document("newcomer")], "missing": []}
    options = argparse.Namespace(sort="bytes", tenant=None, interval=5.0)
    with AdminClient(admin.url) as client, AdminClient("unix:///none.sock") as broken:
        real = client.get

        def appears() -> None:
            admin.answers["GET /sessions"] = (200, renamed)

        def breaks() -> None:
            client.get = broken.get  # type: ignore[method-assign]

        def mends() -> None:
            client.get = real  # type: ignore[method-assign]

        clock = StopClock(appears, breaks, mends)
        with pytest.raises(KeyboardInterrupt):
            top(client, options, console, clock)
    assert clock.now == 1020.0
    text = out.getvalue()
    assert text.index("large") < text.index("newcomer") < text.index("is the server running?")
    assert text.rindex("newcomer") > text.index("is the server running?")


def test_top_prints_once_where_nothing_can_be_drawn_again(admin: FakeAdmin) -> None:
    """As in the shell of an editor."""
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    with AdminClient(admin.url) as client:
        top(client, argparse.Namespace(sort="bytes", tenant=None), dumb)
    assert isinstance(dumb.file, io.StringIO)
    assert "large" in dumb.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_a_narrow_screen_lacks_columns_instead_of_digits(width: int) -> None:
    """Ids are cut last; what is shown is whole."""
    sessions = [session_document(f"{'a' * 32}.{'b' * 64}", tenant="[red]t"), LARGE]
    console = Console(file=io.StringIO(), width=width)
    console.print(screen(status_document(), sessions, width, 1))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "1 more" in text
    assert "4 KiB" in text
    assert "DEVICE" in text
    assert ("[red]t" in text) == ("TENANT" in text)
    assert ("TENANT" in text) == (width >= 120)
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(
    "command",
    ["sessions", "evict", "close", "close --tenant", "sessions --tenant", "info", "chat --session"],
)
def test_an_empty_name_is_wrong_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a variable that is not set: it is neither all sessions nor a new one."""
    with pytest.raises(SystemExit, match="2"):
        main([*command.split(), ""])
    assert "it is empty; is a variable unset?" in capsys.readouterr().err


def test_without_the_extra_the_error_names_it(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pip takes it."""
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.delitem(sys.modules, "ts_stateful.cli.top")
    assert main(["top"]) == 1
    assert "pip install 'torchserve-stateful[top]'" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An example, and the way to the server."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for text in (f"\n  ts-stateful {command}", "TS_STATEFUL_ADMIN", "--admin"):
        assert text in printed
