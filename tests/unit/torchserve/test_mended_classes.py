"""The mended classes of TorchServe; tests/e2e/test_half_close.py and the programs of tests/fuzz have them run."""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest

from ts_stateful.torchserve import mended_classes
from ts_stateful.torchserve.mended_classes import MENDS, MendFailed, write_mended

SOURCES = Path(mended_classes.__file__).parent / "classes"
NUM_CALLS = {"GRPCJob": 12, "InferenceRequestHandler": 1, "Model": 10}
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
    new = {mend.helper.encode(), *(text.encode() for method in mend.methods for text in method)}
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
    (tmp_path / "ts_stateful").mkdir()
    (tmp_path / "ts_stateful" / "chat.bell").write_text("of an earlier server")
    assert write_mended(tmp_path) == {"TS_STATEFUL_BELLS": str(tmp_path / "ts_stateful")}
    assert not list(tmp_path.rglob("*.bell"))
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


_BELL_PROGRAM = """
import java.util.Map;
import java.util.concurrent.*;
import org.pytorch.serve.job.Job;
import org.pytorch.serve.util.messages.*;

public class Ring {
    static Job job() {
        return new Job("chat", "1.0", WorkerCommands.PREDICT, new RequestInput("r")) {
            public void response(byte[] a, CharSequence b, int c, String d, Map<String, String> e) {}

            public void sendError(int status, String error) {}

            public boolean isOpen() {
                return true;
            }
        };
    }

    public static void main(String[] arguments) throws Exception {
        LinkedBlockingDeque<Object> queue = new LinkedBlockingDeque<>();
        BlockingQueue<Object> taken = new LinkedBlockingQueue<>();
        Thread worker = new Thread(() -> {
            try {
                taken.add(ts_stateful.Doorbell.poll(queue, Long.MAX_VALUE, TimeUnit.MILLISECONDS));
            } catch (InterruptedException never) {
            }
        });
        worker.setDaemon(true);
        worker.start();
        while (worker.getState() != Thread.State.TIMED_WAITING) {
            Thread.yield();
        }
        ts_stateful.Doorbell.offer(queue, job()); // the worker waits for it: no ring
        taken.take();
        Object none = ts_stateful.Doorbell.poll(queue, 3_600_000, TimeUnit.MILLISECONDS);
        System.out.println(none == null ? "no delay" : "?");
        ts_stateful.Doorbell.offer(queue, job()); // rings
        ts_stateful.Doorbell.offer(queue, job()); // nobody has looked since
        System.out.println(ts_stateful.Doorbell.poll(queue) != null ? "a job" : "?");
        ts_stateful.Doorbell.offer(queue, job()); // rings
        ts_stateful.Doorbell.offer(queue, "a group"); // of a sequence
        System.out.println(queue.size());
    }
}
"""


def test_requests_ring_that_nobody_waits_for(tmp_path: Path, jar: Path) -> None:
    """Once between two looks into their queue; and where they ring, a batch's first request waits for no others."""
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("no javac")
    (tmp_path / "Ring.java").write_text(_BELL_PROGRAM)
    os.mkfifo(tmp_path / "chat.bell")
    pipe = os.open(tmp_path / "chat.bell", os.O_RDWR | os.O_NONBLOCK)
    path = f"{tmp_path}{os.pathsep}{SOURCES}{os.pathsep}{jar}"
    command = [str(Path(javac).with_name("java")), "-cp", path, str(tmp_path / "Ring.java")]
    environ = {**os.environ, "TS_STATEFUL_BELLS": str(tmp_path)}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.splitlines()[-3:] == ["no delay", "a job", "3"], done.stderr
    assert os.read(pipe, 10) == bytes(2)
    os.close(pipe)
