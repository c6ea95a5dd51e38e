"""The command and the probes of the Redis pod, on a real server: TLS, a password, and only the commands of the store."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from tests.support.certificates import NO_OPENSSL, has_openssl, self_signed
from tests.support.manifests import container, workloads
from tests.support.ports import free_port
from ts_stateful.config.schema import StoreConfig
from ts_stateful.store.backends.open import open_store
from ts_stateful.store.base import StoreUnavailable

NO_TLS = "no redis-server with TLS: apt-get install redis-server"
PASSWORD = "a4lU2/x+Zm8="
VARIABLE = "TS_STATEFUL_STORE_PASSWORD"


class RedisPod(NamedTuple):
    """A server that was started as the pod starts it; certificates are in `tls`."""

    port: int
    tls: Path
    environ: dict[str, str]

    @property
    def url(self) -> str:
        """Return the URL that the documents name, with this server's address."""
        return f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={self.tls}/ca.crt"

    def probe(self, kind: str) -> subprocess.CompletedProcess[str]:
        """Run a probe of the pod."""
        command = container(workloads()["redis"])[kind]["exec"]["command"]
        here = [word.replace("/tls", str(self.tls)) for word in command]
        return subprocess.run(
            [here[0], "-p", str(self.port), *here[1:]],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )


def has_tls(binary: str) -> bool:
    """Return True if this Redis was built with TLS."""
    done = subprocess.run(
        [binary, "--port", "0", "--tls-port", "0", "--maxmemory", "no"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "tls-port" not in done.stdout + done.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisPod]:
    """Run the pod's command with other paths and another port."""
    binary = shutil.which("redis-server", path=f"/usr/bin:/usr/local/bin:{os.defpath}")
    if binary is None or not has_tls(binary):
        pytest.skip(NO_TLS)
    if not has_openssl():
        pytest.skip(NO_OPENSSL)
    folder = tmp_path_factory.mktemp("redis")
    certificate = self_signed(folder / "tls.crt")
    shutil.move(f"{certificate}.key", folder / "tls.key")
    shutil.copy(certificate, folder / "ca.crt")
    spec: dict[str, Any] = container(workloads()["redis"])
    port = free_port()
    (script,) = spec["args"]
    script = script.replace("6379", str(port)).replace("/tls/", f"{folder}/")
    environ = {"PATH": f"{Path(binary).parent}:{os.defpath}", "REDISCLI_AUTH": PASSWORD}
    with subprocess.Popen(
        [*spec["command"], script], cwd=folder, env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert any("Ready to accept connections" in line for line in process.stdout)
            yield RedisPod(port, folder, environ)
        finally:
            process.kill()


def test_the_nodes_store_their_sessions(served: RedisPod, monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls of the store are allowed, over TLS and with the password of the environment."""
    monkeypatch.setenv(VARIABLE, PASSWORD)
    store = open_store(served.url, StoreConfig(password_env=VARIABLE, timeout_sec=20))
    with contextlib.closing(store):
        assert store.create("sessions/a/00000000", b"x", ttl_s=100)
        assert not store.create("sessions/a/00000000", b"y", ttl_s=100)
        assert store.create("blobs/b", b"z")
        assert store.get_many(["sessions/a/00000000", "blobs/b"]) == [b"x", b"z"]
        assert store.list("sessions") == ["sessions/a/00000000"]
        store.delete("sessions/a")
        assert store.get("sessions/a/00000000") is None


def test_another_password_is_refused(served: RedisPod, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is none."""
    monkeypatch.setenv(VARIABLE, "other")
    for options in (
        StoreConfig(password_env=VARIABLE, timeout_sec=20),
        StoreConfig(timeout_sec=20),
    ):
        with (
            contextlib.closing(open_store(served.url, options)) as store,
            pytest.raises(StoreUnavailable),
        ):
            store.get("blobs/b")


def test_plain_connections_are_refused(served: RedisPod) -> None:
    """The server has no port without TLS, and its certificate is checked."""
    for url in (f"redis://127.0.0.1:{served.port}/0", f"rediss://127.0.0.1:{served.port}/0"):
        with (
            contextlib.closing(open_store(url, StoreConfig(timeout_sec=20))) as store,
            pytest.raises(StoreUnavailable),
        ):
            store.get("blobs/b")


@pytest.mark.parametrize(
    "command",
    [("CONFIG", "GET", "*"), ("FLUSHALL",), ("KEYS", "*"), ("GET", "other:key")],
)
def test_other_commands_and_keys_are_refused(served: RedisPod, command: tuple[str, ...]) -> None:
    """A node that was taken over cannot read the configuration, load code, or empty the database at once."""
    with (
        redis.Redis.from_url(served.url, password=PASSWORD) as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.execute_command(*command)


def test_the_probes_ask_over_tls(served: RedisPod) -> None:
    """With another password readiness fails, and liveness does not: a restart would not help."""
    for kind in ("readinessProbe", "livenessProbe"):
        done = served.probe(kind)
        assert (done.returncode, done.stdout) == (0, "PONG\n"), done.stderr
    other = served._replace(environ={**served.environ, "REDISCLI_AUTH": "other"})
    assert other.probe("readinessProbe").returncode != 0
    assert other.probe("livenessProbe").returncode == 0


def test_the_password_is_no_argument(served: RedisPod) -> None:
    """Every process of the machine can read arguments."""
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"tls-port {served.port}" in lines or f":{served.port}" in lines
    assert PASSWORD not in lines
