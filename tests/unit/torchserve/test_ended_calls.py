"""The mended class of TorchServe's gRPC jobs; tests/e2e/test_half_close.py has it run."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from ts_stateful.torchserve import ended_calls
from ts_stateful.torchserve.ended_calls import MendFailed, mend, mended

HELPER = "ts_stateful/EndedCalls"
SOURCES = Path(ended_calls.__file__).parent / "classes"


@pytest.fixture(scope="module")
def jar() -> Path:
    """Find TorchServe's classes."""
    spec = importlib.util.find_spec("ts")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "frontend", "model-server.jar")


@pytest.fixture(scope="module")
def original(jar: Path) -> bytes:
    """Read the class that is installed."""
    with zipfile.ZipFile(jar) as classes:
        return classes.read("org/pytorch/serve/job/GRPCJob.class")


def texts(data: bytes) -> set[bytes]:
    """Return the texts among a class's constants."""
    return {c.content[2:] for _, c in ended_calls._constants(data) if c.tag == 1}


def test_all_calls_go_to_the_helper(original: bytes) -> None:
    """Twelve instructions change, and no byte moves."""
    changed = mended(original)
    constants = dict(ended_calls._constants(changed))
    before = dict(ended_calls._constants(original))
    added = sum(1 + len(c.content) for number, c in constants.items() if number not in before)
    end = 10 + sum(1 + len(c.content) for c in before.values())
    code, was = changed[end + added :], original[end:]
    assert len(code) == len(was)
    starts = [i for i in range(len(was)) if code[i] != was[i] and code[i] == 0xB8]
    assert len(starts) == 12
    assert texts(changed) - texts(original) == {
        HELPER.encode(),
        *(descriptor.encode() for descriptor in ended_calls._METHODS.values()),
    } - texts(original)


def test_another_class_is_left_alone(original: bytes) -> None:
    """Of another version, nobody knows what it does."""
    with pytest.raises(MendFailed, match="version 0"):
        mended(original + b"x")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The server goes on without."""
    (tmp_path / "org").write_text("")
    with pytest.raises(MendFailed, match="org"):
        mend(tmp_path)


def test_both_classes_are_written(tmp_path: Path, original: bytes) -> None:
    """Where Java looks for them first."""
    mend(tmp_path)
    assert (tmp_path / "org/pytorch/serve/job/GRPCJob.class").read_bytes() == mended(original)
    assert (tmp_path / f"{HELPER}.class").read_bytes() == (SOURCES / f"{HELPER}.class").read_bytes()


def test_the_helper_is_compiled_from_its_source(tmp_path: Path, jar: Path) -> None:
    """By any compiler."""
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("no javac")
    command = [javac, "--release", "11", "-cp", str(jar), "-d", str(tmp_path)]
    subprocess.run([*command, str(SOURCES / f"{HELPER}.java")], check=True)
    compiled = (tmp_path / f"{HELPER}.class").read_bytes()
    assert texts(compiled) == texts((SOURCES / f"{HELPER}.class").read_bytes())
