"""The files in deploy/sagemaker other than Python: their linters, and their agreement."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.e2e.sagemaker_container import DEPLOY, FRONTS, dockerfile, image_environment
from tests.e2e.server import ROOT
from ts_stateful.protocol import sagemaker as sagemaker_api

SCRIPT = DEPLOY / "build_and_push.sh"


@pytest.mark.parametrize(
    ("linter", "file"),
    [
        ("cfn-lint", DEPLOY / "role.yaml"),
        *(("hadolint", dockerfile(front)) for front in FRONTS),
        ("shellcheck", SCRIPT),
        ("shellcheck", DEPLOY / "serve.sh"),
    ],
)
def test_the_linter_finds_nothing(linter: str, file: Path) -> None:
    """This holds for the CloudFormation template, the Dockerfiles and the scripts."""
    command = Path(sys.executable).with_name(linter)
    if not command.exists():
        pytest.skip(f"needs {linter}")
    done = subprocess.run([command, file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_notebook_is_valid_and_has_no_output() -> None:
    """Its output would be about a private endpoint."""
    notebook = json.loads((DEPLOY / "sessions.ipynb").read_text())
    nbformat.validate(notebook)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)


@pytest.mark.parametrize("front", FRONTS)
def test_the_image_names_the_session_headers_as_sagemaker_does(front: str) -> None:
    """In the continuous profile only the worker reads them."""
    environment = image_environment(front)
    assert environment["TS_REQUEST_SEQUENCE_ID"] == sagemaker_api.SESSION_ID
    assert environment["TS_REQUEST_SEQUENCE_END"] == sagemaker_api.CLOSED_SESSION_ID


@pytest.mark.parametrize("front", FRONTS)
def test_the_sources_of_the_dockerfile_are_in_its_context(front: str) -> None:
    """Docker receives nothing else: no environments, models or results."""
    file = dockerfile(front)
    lines = file.read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert all((ROOT / name).exists() for name in copied)
    kept = file.with_name(f"{file.name}.dockerignore").read_text().splitlines()[1:]
    assert kept[0] == "*"
    assert {name.removeprefix("!/").split("/**")[0] for name in kept[1:]} == copied


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """Make an `aws` and a `docker` that record their calls."""
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
    """Run the script. Return its output and its calls."""
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
    """The base is SageMaker's image of the same region; a missing repository is made."""
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


@pytest.mark.parametrize("front", FRONTS)
def test_the_front_is_chosen(commands: Path, front: str) -> None:
    """By its own Dockerfile; one of them has neither TorchServe's command nor Java."""
    _, calls = push(commands, "--region", "us-west-2", "--front", front)
    (build,) = [call for call in calls if call.startswith("docker build")]
    assert f"--file {dockerfile(front)} " in build
    entry = dockerfile(front).read_text()
    assert ("JAVA_HOME" in entry) is ("torchserve.entrypoint" in entry) is (front == "torchserve")


def test_another_base_needs_no_login(commands: Path) -> None:
    """Only the registries of AWS need one."""
    _, calls = push(commands, "--region", "us-west-2", "--base", "python:3.12-slim")
    assert sum(call.startswith("docker login") for call in calls) == 1
    assert any("--build-arg BASE=python:3.12-slim" in call for call in calls)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tags", "7"], "unknown option: --tags"),
        (["--tag"], "--tag needs a value"),
        (["--front", "nginx"], "--front is torchserve or asgi, not nginx"),
    ],
)
def test_a_wrong_option_is_refused(arguments: list[str], message: str) -> None:
    """Nothing is built."""
    assert shutil.which("bash") is not None
    done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
