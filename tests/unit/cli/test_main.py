"""The `ts-stateful` command, through its entry point and against a server without a model."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_servers import http_server
from tests.support.fake_sessions import FakeSessions, Fault, reply_to
from ts_stateful.cli import main
from ts_stateful.client import connect
from ts_stateful.protocol.errors import InternalError, MediaInvalid, QueueFull
from ts_stateful.version import __version__

Run = Callable[..., int]


def test_prompt_prints_the_reply(
    run: Run, fake: FakeSessions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`prompt` opens a session with the image, prints the reply alone, and closes the session."""
    image = tmp_path / "scene.png"
    image.write_bytes(b"image")
    options = ("--max-new-tokens", "7", "--stop", "A", "--stop", "B", "--system", "Be brief.")
    assert run("prompt", "Hello", "--image", str(image), *options) == 0
    assert capsys.readouterr().out == reply_to("Hello") + "\n"
    opened, prompt = fake.of_kind("open")[0], fake.of_kind("prompt")[0]
    assert opened["images"] == [{"base64": "aW1hZ2U="}]
    assert opened["system"] == "Be brief."
    assert (prompt["max_new_tokens"], prompt["stop"]) == (7, ["A", "B"])
    assert len(fake.closed) == 1


def test_prompt_prints_json(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """`prompt --json` prints one document with all fields of the turn."""
    assert run("prompt", "-", "--json", lines="Hello") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["text"] == reply_to("Hello")
    assert (document["turn"], document["finish_reason"]) == (1, "stop")
    assert document["usage"]["completion_tokens"] == len(document["text"])


def test_prompt_goes_on_with_a_session(run: Run, url: str, fake: FakeSessions) -> None:
    """`prompt --session` continues a session and leaves it open."""
    with connect(url) as server:
        server.open(session_id="mine").ask("one")
    assert run("prompt", "two", "--session", "mine") == 0
    assert [turn.prompt for turn in fake.sessions["mine"]] == ["one", "two"]
    assert fake.closed == set()


def test_info_shows_the_server_or_a_session(
    run: Run, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`info` describes the server, `info SESSION` a session."""
    assert run("info") == 0
    assert "profile: continuous\n" in capsys.readouterr().out
    with connect(url) as server:
        server.open(session_id="mine")
    assert run("info", "mine", "--json") == 0
    assert json.loads(capsys.readouterr().out)["session_id"] == "mine"


def test_a_failure_is_one_line(
    run: Run, fake: FakeSessions, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failure is one line on standard error, with status 1."""
    fake.fail("open", Fault(error=InternalError("trace\nid 7")))
    for arguments, message in (
        (("prompt", "Hello"), "internal: trace id 7"),
        (("info", "nobody"), "session_not_found: no session nobody"),
        (("prompt", "Hello", "--image", "no/such.png"), "no/such.png: No such file"),
        (("info", "--model", "nope"), "Model not found: nope"),
    ):
        assert run(*arguments) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"error: {message}")
        assert err.count("\n") == 1


def test_wrong_usage_is_status_two(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """A malformed command line is refused with status 2."""
    assert run("info", "--url", "nonsense") == 2
    assert "grpc://" in capsys.readouterr().err
    for arguments, message in (
        ((), "required: COMMAND"),
        (("prompt",), "required: prompt"),
        (("dance",), "invalid choice: 'dance'"),
        (("info", "--timeout", "-1"), "-1 is not above 0"),
        (("info", "--timeout", "soon"), "'soon' is not a number"),
        (("info", "--max-body-bytes", "0"), "0 is not from 1"),
        (("info", "--max-body-bytes", "1.5"), "'1.5' is not a whole number"),
    ):
        with pytest.raises(SystemExit) as caught:
            run(*arguments)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err


def test_the_version_is_the_package_s(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """For reports of defects."""
    with pytest.raises(SystemExit, match="0"):
        run("--version")
    assert capsys.readouterr().out == f"ts-stateful {__version__}\n"


@pytest.mark.parametrize("command", ["", "chat", "prompt", "info", "check", "doctor", "plan"])
def test_help_teaches_by_example(
    run: Run, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every help page ends with an example."""
    with pytest.raises(SystemExit) as caught:
        run(*([command] if command else []), "--help")
    assert caught.value.code == 0
    assert "ts-stateful" in capsys.readouterr().out.partition("example")[2]


def test_the_token_may_come_from_the_environment(
    run: Run, fake: FakeSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token then stays out of the list of processes."""
    monkeypatch.setenv("TS_STATEFUL_TOKEN", "secret")
    assert run("info") == 0
    assert fake.headers[-1]["authorization"] == "Bearer secret"


def test_http_works_alike(fake: FakeSessions, capsys: pytest.CaptureFixture[str]) -> None:
    """The command works over HTTP, too."""
    with http_server(fake) as port:
        assert main(["prompt", "Hello", "--url", f"http://127.0.0.1:{port}"]) == 0
    assert capsys.readouterr().out == reply_to("Hello") + "\n"


def test_the_url_of_a_model_is_taken_as_the_server_prints_it(
    fake: FakeSessions, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the model."""
    with http_server(fake) as port:
        url = f"http://127.0.0.1:{port}/predictions/chat"
        assert main(["prompt", "Hello", "--url", url]) == 0
    assert capsys.readouterr().out == reply_to("Hello") + "\n"


def test_a_refusal_names_its_field(
    run: Run, fake: FakeSessions, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of several images, for instance."""
    fake.fail("open", Fault(error=MediaInvalid("it is damaged", field="images[1]")))
    assert run("prompt", "Hello") == 1
    assert capsys.readouterr().err == "error: media_invalid: it is damaged (images[1])\n"


def test_check_finds_what_is_wrong(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check` accepts the shipped configuration, and refuses one that would hang, with the cure."""
    assert main(["check", str(repository / "model-config.yaml")]) == 0
    out = capsys.readouterr().out
    assert "holds: 256 sessions on an engine per device" in out
    assert out.endswith("ok\n")
    config = tmp_path / "model-config.yaml"
    config.write_text("continuousBatching: true\nminWorkers: 2\nmaxWorkers: 2\n")
    assert main(["check", str(config)]) == 1
    out = capsys.readouterr().out
    assert "error: " in out
    assert "  cure: " in out
    assert main(["check", str(config), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["holds"]) == (False, [])
    assert found["findings"][0].keys() == {"severity", "key", "message", "cure"}
    assert main(["check", str(repository / "model-config.yaml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert "256 sessions" in found["holds"][0]


def test_check_takes_a_class(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `pack` and `serve` do: its sizes are in the configuration, which has to declare states."""
    counter = repository / "examples" / "counter"
    given = f"{counter / 'model' / 'counter.py'}:Counter"
    assert main(["check", str(counter / "model-config.yaml"), "--model", given]) == 0
    assert "8 bytes a sequence" in capsys.readouterr().out
    assert main(["check", str(repository / "model-config.yaml"), "--model", given]) == 1
    assert "counter.py:Counter has no states" in capsys.readouterr().err


def test_an_interrupt_of_the_imports_is_status_130(tmp_path: Path) -> None:
    """They take a part of a second, and print no trace."""
    (tmp_path / "msgspec.py").write_text("raise KeyboardInterrupt")
    command = [sys.executable, "-m", "ts_stateful.cli", "--version"]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_character_that_the_output_lacks_is_escaped(repository: Path, tmp_path: Path) -> None:
    """In a path, for instance; nothing is lost in a log of ASCII."""
    (model := tmp_path / "Mödell").symlink_to(repository / "examples" / "shapes" / "model")
    command = [sys.executable, "-m", "ts_stateful.cli", "plan", "--sessions", "4"]
    command += ["--model", str(model)]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, "M\\xf6dell" in done.stdout) == (0, True), done.stderr


def test_an_interrupt_elsewhere_is_status_130(
    run: Run, fake: FakeSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C outside a chat ends the command."""

    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdout", Interrupted())
    assert run("prompt", "Hello") == 130
    assert "cancel" in fake.kinds()
    assert len(fake.closed) == 1


def test_a_full_server_is_waited_for(
    run: Run, fake: FakeSessions, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command waits for the server's `retry_after_s`, within its timeout."""
    fake.fail("prompt", Fault(error=QueueFull("full", retry_after_s=0.01)))
    assert run("prompt", "Hello") == 0
    fake.fail("prompt", Fault(error=QueueFull("full", retry_after_s=60.0)))
    assert run("prompt", "Hello", "--timeout", "5") == 1
    assert capsys.readouterr().err == "error: queue_full: full\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("chek", "check"),
        ("serve --fornt asgi x", "--front"),
        ("info --jsn", "--json"),
        ("serve --front asgy x", "asgi"),
    ],
)
def test_a_misspelled_word_is_recognised(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands, options and values that are misspelled are wrong usage, and the error names the similar one."""
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")


def test_a_misspelled_variable_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is similar to none of ours may be somebody else's."""
    monkeypatch.setenv("TS_STATEFUL_URLL", "grpc://127.0.0.1:1")
    monkeypatch.setenv("TS_STATEFUL_STORE_PASSWORD", "x")
    main(["check", str(tmp_path / "none.yaml")])
    warned = "warning: TS_STATEFUL_URLL: there is no such variable; did you mean TS_STATEFUL_URL?\n"
    assert capsys.readouterr().err == warned


@pytest.mark.parametrize(
    ("closed", "command", "status", "out", "err"),
    [
        ("<&-", "init", 1, "The model: ", "error: the answers have ended"),
        (">&-", "check missing.yaml", 1, "", ""),
        ("2>&-", "check missing.yaml", 1, "error: missing.yaml: cannot be read", ""),
    ],
)
def test_a_closed_stream_is_the_null_device(
    closed: str, command: str, status: int, out: str, err: str, tmp_path: Path
) -> None:
    """As of a service that is started without a terminal; there is no trace, also not on a stream that is open."""
    script = f"{shlex.quote(sys.executable)} -m ts_stateful.cli {command} {closed}"
    ran = subprocess.run(
        ["sh", "-c", script], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == status
    for text, start in ((ran.stdout, out), (ran.stderr.lstrip(), err)):
        assert text.startswith(start)
        assert bool(text) == bool(start)
