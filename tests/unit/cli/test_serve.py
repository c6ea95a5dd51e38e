"""`ts-stateful serve`: its options together, and its help."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ts_stateful.cli import main
from ts_stateful.cli.parser import build_parser
from ts_stateful.cli.serve import make_torchserve
from ts_stateful.torchserve.server import settings_file

COUNTER = Path(__file__).parents[3] / "examples" / "counter"


@pytest.mark.parametrize("front", ["asgi", "torchserve"])
def test_a_missing_archive_is_refused(
    front: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the missing file."""
    assert main(["serve", str(tmp_path / "none.mar"), "--front", front, "--port", "0"]) in (1, 2)
    assert "none.mar" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["owner/name", "model.py:Class", "{folder}"])
def test_torchserve_serves_no_model_that_is_not_packed(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error has the command that packs it."""
    given = model.format(folder=tmp_path)
    assert main(["serve", given, "--front", "torchserve"]) == 2
    assert f"pack {given} first, by `ts-stateful pack`" in capsys.readouterr().err


def test_torchserve_is_not_started_with_what_is_no_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also outside of a checkout, whose files of settings are the package's own."""
    monkeypatch.chdir(tmp_path)
    Path("text.mar").write_text("no archive")
    assert main(["serve", "text.mar", "--front", "torchserve"]) == 1
    error = capsys.readouterr().err
    assert (
        error == "error: text.mar: not an archive of torch-model-archiver: File is not a zip file\n"
    )


def test_torchserve_serves_an_archive_by_its_name(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--name` is the name it was packed with, of a file and of a folder; `serve --name` comes first."""
    monkeypatch.chdir(tmp_path)
    source = repository / "examples" / "counter"
    given = ["--files", str(source / "model"), "--config", str(source / "model-config.yaml")]
    for kind, made in (("default", "counter.mar"), ("no-archive", "counter")):
        arguments = [*given, "--name", "counter", "--format", kind, "--output", str(tmp_path)]
        assert main(["pack", *arguments]) == 0
        for name in ([], ["--name", "other"]):
            arguments = ["serve", made, "--front", "torchserve", *name]
            server = make_torchserve(build_parser().parse_args(arguments))
            assert server.name == (name or ["counter"])[-1]


@pytest.mark.parametrize("name", ["config.properties", "log4j2.xml"])
def test_the_package_has_the_settings_of_the_checkout(
    name: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count where the working directory has none."""
    monkeypatch.chdir(tmp_path)
    assert settings_file(name).read_text() == (repository / name).read_text()
    Path(name).touch()
    assert settings_file(name) == Path(name)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--tls-key", "{file}"], "--tls-certificate and --tls-key belong together"),
        (["--tls-client-ca", "{file}"], "--tls-client-ca needs"),
        (["--tls-certificate", "{file}", "--tls-key", "{file}"], "not a certificate and its"),
        (["--front", "torchserve", "--ts-config", "{file}.x"], "{file}.x (--ts-config)"),
        (["--config", "{file}.missing"], "no such file: {file}.missing"),
        (["--front", "torchserve", "{file}"], "takes one archive"),
        (["--front", "torchserve", "--host", "0.0.0.0"], "are for the front asgi"),
        (["--front", "torchserve", "--max-body-bytes", "9"], "are for the front asgi"),
        (["--ts-config", "{file}"], "are for the front torchserve"),
    ],
)
def test_options_that_contradict_each_other_are_wrong_usage(
    options: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started."""
    file = tmp_path / "file"
    file.touch()
    given = [option.format(file=file) for option in options]
    assert main(["serve", *given, str(file)]) == 2
    assert problem.format(file=file) in capsys.readouterr().err


def test_an_address_of_another_machine_is_refused(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The remedy is another address, not another port."""
    model = str(repository / "examples" / "shapes" / "model")
    assert main(["serve", model, "--host", "192.0.2.1", "--port", "0"]) == 1
    assert "choose an address of this machine (--host)" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["serve", model, "--port", "65536"])
    assert "65536 is not from 0 to 65,535" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("front", "option"),
    [
        *itertools.product(["asgi", "torchserve"], ["--state-dir", "--log-file"]),
        ("asgi", "--admin-socket"),
    ],
)
def test_a_folder_that_cannot_be_written_is_wrong_usage(
    front: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started; the error names the option and the reason."""
    file = tmp_path / "file"
    file.touch()
    below = file / "folder"
    given = below if option == "--state-dir" else below / "name"
    assert main(["serve", "--front", front, option, str(given), str(file)]) == 2
    assert f"{option}: {below} cannot be written: Not a directory" in capsys.readouterr().err


def test_a_second_interrupt_lets_the_stop_finish(tmp_path: Path) -> None:
    """As of Ctrl-C twice, or of a shell that passes on both SIGINT and SIGTERM."""
    script = tmp_path / "stop.py"
    script.write_text(
        "import os, signal\n"
        "from ts_stateful.cli import serve\n"
        "for one in (signal.SIGINT, signal.SIGTERM): signal.signal(one, serve._interrupt)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "try:\n"
        "    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])\n"
        "    print('not interrupted')\n"
        "except KeyboardInterrupt:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('stopped')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
    assert done.stderr == "stopping after the running turns\n"


@pytest.mark.parametrize("before", ["env --default-signal=HUP", "nohup"])
def test_a_server_ends_with_its_terminal(before: str, tmp_path: Path) -> None:
    """And leaves nothing, unless it is to outlive it. The tests may run by `nohup`, too."""
    for path in (COUNTER / "model-config.yaml", COUNTER / "model" / "counter.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ports = " ".join(f"--{name}-port 0" for name in ("http", "management", "metrics", "grpc"))
    command = f"{before} {sys.executable} -m ts_stateful.cli serve {tmp_path} {ports}"
    with (
        tempfile.TemporaryDirectory() as temporary,
        subprocess.Popen(
            command.split(),
            env={**os.environ, "TMPDIR": temporary},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as server,
    ):
        assert server.stderr is not None
        assert server.stdout is not None
        next(line for line in server.stderr if "starting engine" in line)
        server.send_signal(signal.SIGHUP)
        if before == "nohup":
            next(line for line in server.stdout if line == "ready\n")
            server.terminate()
        assert "stopping after the running turns\n" in server.communicate()[1]
        assert server.returncode == 0
        assert not list(Path(temporary).glob("ts-????????"))


def test_the_help_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` names the ports, their defaults and examples."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for word in ("--http-port", "8080", "--grpc-port", "7070", "ready", "--front", "--tls-key"):
        assert word in printed
