"""Compiled kernels are loaded only if no other user can have written them."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.worker import eventually
from ts_stateful.cpu_kernels.cache import load_or_compile

COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

NAME = "kernels.so"
STRANGER = 54321


class Builder:
    """Makes libraries whose function `answer` returns a number, and which leave a mark when they are loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def command(self, answer: int) -> list[str]:
        """Return the compiler's command for one; `-o` and the file are missing."""
        source = self._folder / f"{answer}.cpp"
        source.write_text(
            "#include <cstdio>\n"
            f'extern "C" int answer() {{ return {answer}; }}\n'
            f'__attribute__((constructor)) static void mark() {{ fclose(fopen("{self._mark(answer)}", "w")); }}\n'
        )
        assert COMPILER is not None
        return [COMPILER, "-shared", "-fPIC", str(source)]

    def plant(self, path: Path, answer: int) -> None:
        """Write one to a path."""
        load_or_compile(self._folder, f"{answer}.so", self.command(answer))
        shutil.copy(self._folder / f"{answer}.so", path)
        self._mark(answer).unlink()

    def was_loaded(self, answer: int) -> bool:
        """Return True if it was loaded since it was planted."""
        return self._mark(answer).exists()

    def _mark(self, answer: int) -> Path:
        return self._folder / f"{answer}.loaded"


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path / "sources")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    return folder


def answer_of(library: ctypes.CDLL) -> int:
    return int(library.answer())


def test_a_library_is_compiled_once(tmp_path: Path, builder: Builder) -> None:
    """It is in a folder and a file of this user alone, whatever the umask is; the next start loads it."""
    cache = tmp_path / "home" / "cache"
    before = os.umask(0)
    try:
        assert answer_of(load_or_compile(cache, NAME, builder.command(1))) == 1
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert [path.name for path in cache.iterdir()] == [NAME]
    assert stat.S_IMODE((cache / NAME).stat().st_mode) == 0o600
    assert answer_of(load_or_compile(cache, NAME, ["/no/compiler"])) == 1


_COMPILING = """
import os, sys
from pathlib import Path
from ts_stateful.cpu_kernels.cache import load_or_compile

load_or_compile(Path(sys.argv[1]), "x.so", sys.argv[2:])
"""


def test_a_compiler_ends_with_its_process(tmp_path: Path, builder: Builder) -> None:
    """With its own processes and files, which nobody would remove: a server may be killed while it starts."""
    started = tmp_path / "started"
    source = Path(builder.command(1)[-1])
    source.write_text(f'#include "{started}"\n')
    os.mkfifo(started)  # the compiler waits for its content
    assert COMPILER is not None
    command = [sys.executable, "-c", _COMPILING, str(tmp_path / "cache"), COMPILER, str(source)]
    process = subprocess.Popen(command)
    with started.open("w") as content:
        process.kill()
        process.wait()
        eventually(lambda: not is_read(content.fileno()))
    assert not list((tmp_path / "cache").iterdir())


def test_a_compiler_that_takes_too_long_is_ended(
    cache: Path, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would leave a library that nothing removes."""
    monkeypatch.setattr("ts_stateful.cpu_kernels.cache._COMPILE_S", 1)
    command = builder.command(1)
    source = Path(command[-1])
    source.unlink()
    os.mkfifo(source)  # the compiler waits for its content
    with pytest.raises(subprocess.TimeoutExpired):
        load_or_compile(cache, NAME, command)
    eventually(lambda: not list(cache.iterdir()))
    with contextlib.suppress(OSError):  # the part that reads has ended, too
        os.close(os.open(source, os.O_WRONLY | os.O_NONBLOCK))


def is_read(pipe: int) -> bool:
    """Return True while a process has the other end of a pipe open."""
    poll = select.poll()
    poll.register(pipe, 0)
    return not poll.poll(0)


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)


def open_to_the_group(path: Path) -> None:
    path.chmod(0o720)


def open_to_all(path: Path) -> None:
    path.chmod(0o702)


def replace_by_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def add_a_second_name(path: Path) -> None:
    os.link(path, path.with_name("second"))


ATTACKS = [
    pytest.param(give_away, marks=as_root),
    open_to_the_group,
    open_to_all,
    replace_by_a_link,
]


@pytest.mark.parametrize("attack", [*ATTACKS, add_a_second_name])
def test_a_planted_library_is_compiled_again(
    attack: Callable[[Path], None],
    builder: Builder,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file of another user, open to others, or a link is replaced; it is never loaded, and the log has a warning."""
    builder.plant(cache / NAME, 2)
    attack(cache / NAME)
    with caplog.at_level(logging.WARNING):
        assert answer_of(load_or_compile(cache, NAME, builder.command(3))) == 3
    assert not builder.was_loaded(2)
    assert NAME in caplog.text
    status = (cache / NAME).lstat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 0o600)
    assert stat.S_ISREG(status.st_mode)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_folder_that_others_can_write_is_not_used(
    attack: Callable[[Path], None],
    builder: Builder,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is in it stays and is not loaded; a temporary folder takes its place, and is removed."""
    builder.plant(cache / NAME, 4)
    planted = (cache / NAME).read_bytes()
    attack(cache)
    with caplog.at_level(logging.WARNING):
        assert answer_of(load_or_compile(cache, NAME, builder.command(5))) == 5
    assert not builder.was_loaded(4)
    assert (cache / NAME).read_bytes() == planted
    assert str(cache) in caplog.text
    assert "chmod 700" in caplog.text


def test_a_folder_that_cannot_be_made_is_no_obstacle(
    builder: Builder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernels are then compiled at each start."""
    (tmp_path / "file").write_text("")
    assert answer_of(load_or_compile(tmp_path / "file" / "cache", NAME, builder.command(6))) == 6
    assert "compiled CPU kernels are not kept" in caplog.text


def test_a_folder_that_is_swapped_while_the_compiler_runs_is_not_written(
    builder: Builder, cache: Path, tmp_path: Path
) -> None:
    """Names are looked up in the folder that was checked, not along the path."""
    builder.plant(tmp_path / "planted.so", 7)
    script = tmp_path / "compiler"
    script.write_text(
        "#!/bin/sh\n"
        f"mv {cache} {cache}.moved && mkdir {cache} && cp {tmp_path / 'planted.so'} {cache / NAME}\n"
        'exec "$@"\n'
    )
    script.chmod(0o700)
    library = load_or_compile(cache, NAME, [str(script), *builder.command(8)])
    assert answer_of(library) == 8
    assert not builder.was_loaded(7)
    assert (tmp_path / "cache.moved" / NAME).exists()
