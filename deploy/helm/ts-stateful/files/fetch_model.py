"""Fetch a model into the volume of models, in an init container.

`fetch_model.py SOURCE TARGET [--revision R] [--sha256 DIGEST]`. SOURCE is `hub://owner/name`, `s3://bucket/key.mar`, `s3://bucket/folder`,
or the https address of a `.mar` file, or of a `.tar`, `.tar.gz`, `.tgz` or `.zip` with the model's folder.

A target is complete when it has its name. One that an earlier start of the node has fetched from the same source is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

PACKED = (".tar", ".tar.gz", ".tgz", ".zip")
# Weights are read from safetensors alone.
IGNORED = ("*.bin", "*.ckpt", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.ot", "*.pt", "*.pth")
CHUNK = 1 << 20


class FetchFailed(Exception):
    """The model could not be fetched; the message says why."""


def fetch(source: str, target: Path, *, revision: str = "main", sha256: str = "") -> bool:
    """Fetch a model; return False if the target has it already.

    Raises:
        FetchFailed: the source is of no known kind, has another digest, or holds no model.
        OSError: it cannot be read, or the volume is full.
    """
    wanted = json.dumps([source, revision, sha256])
    note = target.with_name(f".{target.name}.source")
    if target.exists() and note.is_file() and note.read_text() == wanted:
        return False
    note.unlink(missing_ok=True)
    work = target.with_name(f".{target.name}.work")
    for old in (target, work):
        remove(old)
    work.mkdir(parents=True)
    fetched = _fetched(source, work, revision, sha256)
    fetched.replace(target)
    note.write_text(wanted)
    remove(work)
    return True


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _fetched(source: str, work: Path, revision: str, sha256: str) -> Path:
    if source.startswith("hub://"):
        return _from_hub(source.removeprefix("hub://"), work, revision)
    if source.startswith("s3://"):
        return _from_s3(source, work)
    if source.startswith(("https://", "http://")):
        return _from_url(source, work, sha256)
    raise FetchFailed(f"{source}: not hub://, s3:// or https://")


def _from_hub(name: str, work: Path, revision: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - of this source alone

    folder = work / "model"
    snapshot_download(name, revision=revision, local_dir=folder, ignore_patterns=list(IGNORED))
    remove(folder / ".cache")
    return folder


def _from_s3(source: str, work: Path) -> Path:
    import boto3  # noqa: PLC0415 - of this source alone

    bucket, _, key = source.removeprefix("s3://").partition("/")
    client = boto3.client("s3")
    if key.endswith(".mar"):
        client.download_file(bucket, key, str(work / "model"))
        return work / "model"
    prefix = key.rstrip("/") + "/" if key else ""
    folder = work / "model"
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for one in page.get("Contents", ()):
            inside = one["Key"].removeprefix(prefix)
            if not inside or inside.endswith("/"):
                continue
            file = folder / inside
            if not file.resolve().is_relative_to(folder.resolve()):
                raise FetchFailed(f"{source}: {inside} leads out of the folder")
            file.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, one["Key"], str(file))
    if not folder.is_dir():
        raise FetchFailed(f"{source}: has no objects")
    return folder


def _from_url(source: str, work: Path, sha256: str) -> Path:
    name = source.partition("?")[0].rpartition("/")[2]
    packed = next((end for end in PACKED if name.endswith(end)), None)
    if packed is None and not name.endswith(".mar"):
        raise FetchFailed(f"{source}: has to end in .mar, {', '.join(PACKED)}")
    file = work / "file"
    digest = hashlib.sha256()
    with urllib.request.urlopen(source, timeout=60) as answer, file.open("wb") as out:
        while chunk := answer.read(CHUNK):
            digest.update(chunk)
            out.write(chunk)
    if sha256 and digest.hexdigest() != sha256.lower():
        raise FetchFailed(f"{source}: its SHA-256 is {digest.hexdigest()}, not {sha256}")
    return file if packed is None else _unpacked(source, file, work / "model")


def _unpacked(source: str, file: Path, folder: Path) -> Path:
    """Unpack a model's folder, also if it is the only one in the archive."""
    folder.mkdir()
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as packed:
                packed.extractall(folder)
        else:
            with tarfile.open(file) as unpacked:
                unpacked.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise FetchFailed(f"{source}: cannot be unpacked: {error}") from None
    file.unlink()
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def main() -> int:
    """Fetch what the arguments name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("target", type=Path)
    parser.add_argument("--revision", default="main")
    parser.add_argument("--sha256", default="")
    options = parser.parse_args()
    try:
        new = fetch(
            options.source, options.target, revision=options.revision, sha256=options.sha256
        )
    except Exception as error:  # of the hub's, S3's and others' clients
        sys.stderr.write(f"error: {type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    sys.stdout.write(
        f"{options.target}: {'fetched from' if new else 'still there, from'} {options.source}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
