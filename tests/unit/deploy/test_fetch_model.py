"""The programs in the Helm chart: the one that fetches a model, and TorchServe's probe. They run as in a pod, as commands."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import boto3
import pytest

from tests.support.fake_servers import http_server
from tests.support.fake_sessions import FakeSessions
from tests.support.helm import CHART
from tests.support.hub_server import hub_server
from tests.support.s3_server import s3_server

MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights",
    "tokenizer/vocab.json": b"{}",
}
KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "us-east-1"}


def run(name: str, *arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the chart."""
    command = [sys.executable, str(CHART / "files" / name), *map(str, arguments)]
    environment = {**os.environ, **environ}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def content(folder: Path) -> dict[str, bytes]:
    """Read all files of a folder."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def tarball(files: dict[str, bytes], prefix: str = "") -> bytes:
    """Pack files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for name, body in files.items():
            entry = tarfile.TarInfo(prefix + name)
            entry.size = len(body)
            packed.addfile(entry, io.BytesIO(body))
    return buffer.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    """Pack files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, body in files.items():
            packed.writestr(name, body)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("model.tar.gz", tarball(MODEL)),
        ("inside.tgz", tarball(MODEL, "qwen/")),
        ("model.zip", zipped(MODEL)),
    ],
)
def test_a_packed_folder_is_unpacked(name: str, body: bytes, tmp_path: Path) -> None:
    """Also one inside another, and nothing else is left on the volume but a note."""
    with hub_server({name: body}) as (url, _):
        done = run("fetch_model.py", f"{url}/{name}", tmp_path / "chat")
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "chat") == MODEL
    assert {one.name for one in tmp_path.iterdir()} == {"chat", ".chat.source"}


def test_an_archive_stays_a_file_and_is_fetched_once(tmp_path: Path) -> None:
    """A restart of the node keeps it; another source or digest replaces it."""
    old, new = zipped(MODEL), zipped({"config.json": b"{}"})
    target = tmp_path / "chat.mar"
    with hub_server({"old.mar": old, "new.mar": new}) as (url, asked):
        for _ in range(2):
            done = run("fetch_model.py", f"{url}/old.mar", target)
            assert done.returncode == 0, done.stderr
            assert target.read_bytes() == old
        assert asked == ["/old.mar"]
        assert "still there" in done.stdout
        digest = hashlib.sha256(new).hexdigest().upper()
        done = run("fetch_model.py", f"{url}/new.mar", target, f"--sha256={digest}")
        assert done.returncode == 0, done.stderr
    assert target.read_bytes() == new


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("chat.mar", ["--sha256=" + "0" * 64], "its SHA-256 is"),
        ("chat.exe", [], "has to end in .mar"),
        ("missing.mar", [], "404"),
        ("broken.tar.gz", [], "cannot be unpacked"),
        ("escaping.tar.gz", [], "outside the destination"),
    ],
)
def test_what_is_no_model_is_refused(
    name: str, options: list[str], message: str, tmp_path: Path
) -> None:
    """The error is one line, and no target stays, so the next start tries again."""
    files = {
        "chat.mar": b"1",
        "chat.exe": b"1",
        "broken.tar.gz": b"no archive",
        "escaping.tar.gz": tarball({"../../escaped": b"1"}),
    }
    target = tmp_path / "models" / "chat"
    with hub_server(files) as (url, _):
        done = run("fetch_model.py", f"{url}/{name}", target, *options)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not target.exists()
    assert not (tmp_path / "escaped").exists()


def test_a_hub_id_is_fetched_without_pickles(tmp_path: Path) -> None:
    """Weights are read from safetensors alone, so others are not downloaded."""
    with hub_server({**MODEL, "pytorch_model.bin": b"a pickle"}) as (url, asked):
        environ = {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
        done = run("fetch_model.py", "hub://owner/name", tmp_path / "chat", **environ)
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "chat") == MODEL
    assert not [path for path in asked if "pytorch_model" in path]


def test_a_prefix_and_an_archive_of_s3_are_fetched(tmp_path: Path) -> None:
    """All objects below the prefix become files of the folder; one without objects is an error."""
    with s3_server() as endpoint:
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="id",
            aws_secret_access_key="key",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="models")
        for name, body in {**MODEL, "folder/": b""}.items():
            client.put_object(Bucket="models", Key=f"qwen/{name}", Body=body)
        client.put_object(Bucket="models", Key="qwen-other/config.json", Body=b"{}")
        client.put_object(Bucket="models", Key="chat.mar", Body=b"archive")
        environ = {**KEYS, "AWS_ENDPOINT_URL_S3": endpoint}
        for source, target, code in (
            ("s3://models/qwen", "chat", 0),
            ("s3://models/chat.mar", "chat.mar", 0),
            ("s3://models/none", "none", 1),
        ):
            done = run("fetch_model.py", source, tmp_path / target, **environ)
            assert done.returncode == code, done.stderr
        assert "has no objects" in done.stderr
        client.close()
    assert content(tmp_path / "chat") == MODEL
    assert (tmp_path / "chat.mar").read_bytes() == b"archive"


def test_the_probe_of_torchserve_asks_the_model() -> None:
    """It fails while nothing answers. Another port than TorchServe's is a second argument."""
    fake = FakeSessions()
    with http_server(fake) as port:
        url = f"http://127.0.0.1:{port}/predictions/"
        done = run("hello.py", "chat", url)
        assert done.returncode == 0, done.stderr
        assert len(fake.of_kind("hello")) == 1
    done = run("hello.py", "chat", url)
    assert done.returncode == 1
    assert "refused" in done.stderr
