"""The mended classes of TorchServe; tests/e2e/test_half_close.py and the programs of tests/fuzz have them run."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest

from ts_stateful.torchserve import mended_classes
from ts_stateful.torchserve.mended_classes import MENDS, MendFailed, write_mended

SOURCES = Path(mended_classes.__file__).parent / "classes"
NUM_CALLS = {"GRPCJob": 12, "InferenceRequestHandler": 1}
HELPERS = [mend.helper for mend in MENDS]


@pytest.fixture(scope="module")
def jar() -> Path:
    """Find TorchServe's classes."""
    spec = importlib.util.find_spec("ts")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "frontend", "model-server.jar")


@pytest.fixture(scope="module")
def originals(jar: Path) -> dict[str, bytes]:
    """Read the classes that are installed."""
    with zipfile.ZipFile(jar) as classes:
        return {mend.name: classes.read(f"{mend.name}.class") for mend in MENDS}


def texts(data: bytes) -> set[bytes]:
    """Return the texts among a class's constants."""
    return {c.content[2:] for _, c in mended_classes._constants(data) if c.tag == 1}


@pytest.mark.parametrize("mend", MENDS, ids=NUM_CALLS)
def test_all_calls_go_to_the_helper(
    mend: mended_classes._Mend, originals: dict[str, bytes]
) -> None:
    """Instructions change, and no byte moves."""
    original = originals[mend.name]
    changed = mend.mended(original)
    constants = dict(mended_classes._constants(changed))
    before = dict(mended_classes._constants(original))
    added = sum(1 + len(c.content) for number, c in constants.items() if number not in before)
    end = 10 + sum(1 + len(c.content) for c in before.values())
    code, was = changed[end + added :], original[end:]
    assert len(code) == len(was)
    calls = [
        struct.pack(">BH", 0xB8, number)
        for number, constant in constants.items()
        if number not in before and constant.tag == 10
    ]
    starts = [i for i in range(len(code)) if code[i : i + 3] in calls]
    assert len(starts) == NUM_CALLS[mend.name.rpartition("/")[2]]
    differ = [i for i in range(len(was)) if code[i] != was[i]]
    assert all(any(i - start in range(5) for start in starts) for i in differ)
    new = {mend.helper.encode(), *(each.encode() for each in mend.methods.values())}
    assert texts(changed) - texts(original) == new - texts(original)


@pytest.mark.parametrize("mend", MENDS, ids=NUM_CALLS)
def test_another_class_is_left_alone(
    mend: mended_classes._Mend, originals: dict[str, bytes]
) -> None:
    """Of another version, nobody knows what it does."""
    with pytest.raises(MendFailed, match="version 0"):
        mend.mended(originals[mend.name] + b"x")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The server goes on without."""
    (tmp_path / "org").write_text("")
    with pytest.raises(MendFailed, match="org"):
        write_mended(tmp_path)


def test_all_classes_are_written(tmp_path: Path, originals: dict[str, bytes]) -> None:
    """Where Java looks for them first."""
    write_mended(tmp_path)
    for mend in MENDS:
        written = (tmp_path / f"{mend.name}.class").read_bytes()
        assert written == mend.mended(originals[mend.name])
        helper = (SOURCES / f"{mend.helper}.class").read_bytes()
        assert (tmp_path / f"{mend.helper}.class").read_bytes() == helper


@pytest.mark.parametrize("helper", HELPERS)
def test_a_helper_is_compiled_from_its_source(tmp_path: Path, jar: Path, helper: str) -> None:
    """By any compiler."""
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("no javac")
    command = [javac, "--release", "11", "-cp", str(jar), "-d", str(tmp_path)]
    subprocess.run([*command, str(SOURCES / f"{helper}.java")], check=True)
    compiled = (tmp_path / f"{helper}.class").read_bytes()
    assert texts(compiled) == texts((SOURCES / f"{helper}.class").read_bytes())
