"""Decoder processes: what they may do, and what the engine takes from them."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from PIL import Image

from tests.support.hostile import bomb
from tests.support.pictures import encoded, noise, png
from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.decoder.frames import Status
from ts_stateful.media.decoder.process import DecoderDied, DecoderProcess

Make = Callable[..., DecoderProcess]
_PATIENCE_S = 60.0


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes decoders; settings are those of MediaConfig."""
    made: list[DecoderProcess] = []

    def make(**settings: float) -> DecoderProcess:
        made.append(DecoderProcess(MediaConfig(**settings)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for process in made:
        process.close()


def heavy() -> bytes:
    """Return a small file that takes seconds to decode: 40 megapixels in 90 scans."""
    data = encoded(Image.new("L", (8000, 5000)), "JPEG", progressive=True)
    last_scan = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last_scan * 90 + data[-2:]


def decoded(process: DecoderProcess, data: bytes) -> Image.Image | Status:
    opened = process.open(data)
    assert opened.status is Status.OK
    return process.decode_image(opened.width * opened.height)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_pixels_come_back(make: Make) -> None:
    """Also those of an image that is sent in parts, and after a refused one."""
    process = make()
    for size in ((1, 1), (7, 5), (1000, 700), (1, 10_000)):
        picture = noise(1, *size)
        image = decoded(process, png(picture))
        assert isinstance(image, Image.Image)
        assert (image.size, image.tobytes()) == (size, picture.tobytes())
        assert process.open(b"no image").status is Status.DAMAGED
        assert process.open(bomb()).status is Status.TOO_MANY_PIXELS


def test_it_inherits_nothing(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of the engine but paths of modules, and no file or connection."""
    monkeypatch.setenv("STORE_KEY", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with (tmp_path / "store").open("w") as file, socket.socket() as connection:
        os.set_inheritable(file.fileno(), True)
        os.set_inheritable(connection.fileno(), True)
        process = make()
        decoded(process, png(noise(1)))
        theirs = Path(f"/proc/{process.pid}")
        environ = (theirs / "environ").read_bytes()
        assert b"secret" not in environ
        names = {entry.partition(b"=")[0] for entry in environ.split(b"\0") if entry}
        allowed = {b"LD_LIBRARY_PATH", b"PYTHONHOME", b"PYTHONPATH", b"PYTHONDONTWRITEBYTECODE"}
        assert names <= allowed
        files = [str(link.readlink()) for link in (theirs / "fd").iterdir()]
    assert len(files) == 1
    assert files[0].startswith("socket:")


def test_it_is_confined_by_the_kernel(make: Make) -> None:
    """No privileges, no files, no processes, no core dump, and a bound on memory."""
    process = make(max_pixels=1_000_000, max_bytes=1_000_000)
    decoded(process, png(noise(1)))
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    for name in ("NOFILE", "FSIZE", "NPROC", "CORE"):
        limit = getattr(resource, f"RLIMIT_{name}")
        assert resource.prlimit(process.pid, limit) == (0, 0)
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_AS)
    assert 0 < soft == hard < psutil.Process(process.pid).memory_info().vms + 200_000_000
    assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n"


_ESCAPES = """
import os, resource, socket, threading
from ts_stateful.media.decoder.sandbox import confine

connection, parent, refused = socket.socket(fileno=0), os.getppid(), []
os.dup2(os.open("/etc/passwd", os.O_RDONLY), 200)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def attempt(name, action):
    try:
        action()
    except (OSError, RuntimeError, ValueError):
        refused.append(name)

assert confine(200_000_000)
attempt("open", lambda: os.open("/etc/passwd", os.O_RDONLY))
attempt("read", lambda: os.read(200, 1))
attempt("socket", socket.socket)
attempt("pipe", os.pipe)
attempt("fork", os.fork)
attempt("thread", lambda: threading.Thread(target=int).start())
attempt("exec", lambda: os.execv("/bin/true", ["true"]))
attempt("kill", lambda: os.kill(parent, 0))
attempt("stat", lambda: os.stat("/"))
attempt("unlink", lambda: os.unlink("/nowhere"))
attempt("limit", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)))
connection.sendall(" ".join(refused).encode())
os._exit(0)
"""


def test_code_in_a_decoder_could_do_nothing() -> None:
    """Files, sockets, processes, threads, signals and limits are refused, also to root."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            command = [sys.executable, "-c", _ESCAPES]
            subprocess.run(command, stdin=theirs.fileno(), check=True, timeout=_PATIENCE_S)
        refused = ours.recv(1000).decode()
    assert refused == "open read socket pipe fork thread exec kill stat unlink limit"


def test_a_decoder_that_hangs_is_given_up(make: Make) -> None:
    """By the engine's clock, and whatever the decoder does."""
    process = make(decode_timeout_sec=0.2)
    decoded(process, png(noise(1)))
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        process.open(png(noise(1)))


def test_a_decoder_that_computes_too_long_ends_itself(make: Make) -> None:
    """Also without its engine, so none is left over."""
    process = make(decode_timeout_sec=0.1)
    with pytest.raises(TimeoutError):
        decoded(process, heavy())
    wait_for(lambda: not _runs(process.pid))


def test_a_decoder_that_is_killed_is_reported(make: Make) -> None:
    """While it decodes, and before an image comes."""
    process = make()
    opened = process.open(png(noise(1)))
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(DecoderDied, match="status -9"):
        process.decode_image(opened.width * opened.height)
    with pytest.raises(DecoderDied):
        process.open(png(noise(1)))


def test_more_pixels_than_announced_are_not_taken(make: Make) -> None:
    """A decoder is not trusted."""
    process = make()
    process.open(png(noise(1, 10, 10)))
    with pytest.raises(DecoderDied, match="more pixels"):
        process.decode_image(99)


def test_memory_beyond_the_limit_is_refused_and_nothing_else(make: Make) -> None:
    """The decoder survives what it has no memory for."""
    process = make(max_pixels=40_000_000)
    assert process.open(heavy()).status is Status.OK
    used = psutil.Process(process.pid).memory_info().vms
    resource.prlimit(process.pid, resource.RLIMIT_AS, (used + 10_000_000,) * 2)
    assert process.decode_image(40_000_000) is Status.NO_MEMORY
    assert isinstance(decoded(process, png(noise(1))), Image.Image)


_ENGINE = """
import sys, time
from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.decoder.process import DecoderProcess
process = DecoderProcess(MediaConfig())
process.open(sys.stdin.buffer.read())
print(process.pid, flush=True)
{then}
"""


@pytest.mark.parametrize("then", ["time.sleep(600)", "process.decode_image(10**8)"])
def test_a_decoder_exits_with_its_engine(then: str) -> None:
    """Idle or in the middle of an image, also if the engine is killed."""
    engine = subprocess.Popen(
        [sys.executable, "-c", _ENGINE.format(then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with engine:
        assert engine.stdin is not None
        assert engine.stdout is not None
        engine.stdin.write(heavy())
        engine.stdin.close()
        pid = int(engine.stdout.readline())
        engine.kill()
    wait_for(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
