"""The files in deploy/sagemaker that no Python reads: each by the linter of its kind, and what they have to agree on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.e2e.sagemaker_container import DEPLOY, image_environment
from tests.e2e.server import ROOT
from ts_stateful.protocol import sagemaker as sagemaker_api

SCRIPT = DEPLOY / "build_and_push.sh"
DOCKERFILE = DEPLOY / "Dockerfile"


@pytest.mark.parametrize(
    ("linter", "file"),
    [("cfn-lint", DEPLOY / "role.yaml"), ("hadolint", DOCKERFILE), ("shellcheck", SCRIPT)],
)
def test_the_linter_finds_nothing(linter: str, file: Path) -> None:
    """In the CloudFormation template, the Dockerfile and the script."""
    command = Path(sys.executable).with_name(linter)
    if not command.exists():
        pytest.skip(f"needs {linter}")
    done = subprocess.run([command, file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_notebook_is_one_and_has_no_output() -> None:
    """What it prints is not kept: it would be about somebody's endpoint."""
    notebook = json.loads((DEPLOY / "sessions.ipynb").read_text())
    nbformat.validate(notebook)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)


def test_the_image_names_the_session_headers_as_sagemaker_does() -> None:
    """For the worker, which is all that looks at them in the continuous profile."""
    environment = image_environment()
    assert environment["TS_REQUEST_SEQUENCE_ID"] == sagemaker_api.SESSION_ID
    assert environment["TS_REQUEST_SEQUENCE_END"] == sagemaker_api.CLOSED_SESSION_ID


def test_what_the_dockerfile_copies_is_in_its_context() -> None:
    """Nothing else is sent to Docker: neither environments nor models nor results."""
    lines = DOCKERFILE.read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert all((ROOT / name).exists() for name in copied)
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()[1:]
    assert kept[0] == "*"
    assert {name.removeprefix("!/").split("/**")[0] for name in kept[1:]} == copied


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """`aws` and `docker` that write down how they are called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("aws", "docker"):
        command = folder / name
        command.write_text(
            f'#!/bin/sh\necho "{name} $*" >>"$CALLS"\n'
            'case "$*" in\n'
            "*get-caller-identity*) echo 123456789012 ;;\n"
            "*describe-repositories*) exit 254 ;;\n"
            "esac\n"
        )
        command.chmod(0o755)
    return folder


def push(commands: Path, *arguments: str, **environ: str) -> tuple[str, list[str]]:
    """Runs the script; returns its output and the calls that it made."""
    calls = commands.parent / "calls"
    done = subprocess.run(
        [SCRIPT, *arguments],
        env={"PATH": f"{commands}:{os.defpath}", "CALLS": str(calls), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, calls.read_text().splitlines()


def test_the_image_is_built_pushed_and_named(commands: Path) -> None:
    """From SageMaker's image of the same region; the repository is made if it is not there."""
    image, calls = push(commands, "--tag", "7", AWS_REGION="eu-west-1")
    assert image == "123456789012.dkr.ecr.eu-west-1.amazonaws.com/torchserve-stateful:7\n"
    assert any(call.startswith("aws ecr create-repository --region eu-west-1") for call in calls)
    (build,) = [call for call in calls if call.startswith("docker build")]
    base = (
        "BASE=763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-inference:2.6.0-gpu-py312-cu124"
    )
    assert base in build
    assert "--provenance=false" in build
    assert build.endswith(f"--tag {image.strip()} {ROOT}")
    assert calls[-1] == f"docker push {image.strip()}"


def test_another_base_needs_no_login(commands: Path) -> None:
    """Unless it is in a registry of AWS."""
    _, calls = push(commands, "--region", "us-west-2", "--base", "python:3.12-slim")
    assert sum(call.startswith("docker login") for call in calls) == 1
    assert any("--build-arg BASE=python:3.12-slim" in call for call in calls)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--tags", "7"], "unknown option: --tags"), (["--tag"], "--tag needs a value")],
)
def test_a_wrong_option_is_refused(arguments: list[str], told: str) -> None:
    """Before anything is built."""
    assert shutil.which("bash") is not None
    done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert told in done.stderr
