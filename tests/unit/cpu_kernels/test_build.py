"""When the library of CPU kernels is built, and when it is not."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ts_stateful.cpu_kernels import build
from ts_stateful.cpu_kernels.build import _warn_once, cache_folder, load_library

_MAY_MOUNT = (
    shutil.which("g++") is not None
    and subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0
)


def test_a_user_without_a_home_has_a_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container's user of any number, for whom Python finds none."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "~")
    assert cache_folder().parent == Path(tempfile.gettempdir())


def test_without_a_compiler_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server starts all the same, and its log says once what to install; a failing compiler counts as none."""
    _warn_once.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert load_library(tmp_path / "cache", "language") is None
    assert load_library(tmp_path / "cache", "recurrent") is None
    assert caplog.text.count("install g++") == 1
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert load_library(tmp_path / "cache", "language") is None
    assert not list((tmp_path / "cache").glob("*.so"))


@pytest.mark.skipif(not _MAY_MOUNT, reason="needs root, and a C++ compiler")
def test_a_folder_from_which_nothing_runs_is_named(tmp_path: Path) -> None:
    """The loader's own words, "failed to map segment", do not say why."""
    program = (
        "from pathlib import Path; from ts_stateful.cpu_kernels.build import load_library as load"
    )
    program += f"; load(Path({str(tmp_path)!r}), 'recurrent')"
    mount = f'mount -t tmpfs -o noexec,mode=700 tmpfs {tmp_path} && exec {sys.executable} -c "$0"'
    command = ["unshare", "-m", "sh", "-c", mount, program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"if {tmp_path} is mounted noexec" in done.stderr


@pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)
def test_what_was_compiled_is_found_again(tmp_path: Path) -> None:
    """The next start takes the library from the folder."""
    assert load_library(tmp_path, "recurrent") is not None
    (library,) = tmp_path.glob("*.so")
    built_at = library.stat().st_mtime_ns
    build._load.cache_clear()
    assert load_library(tmp_path, "recurrent") is not None
    assert library.stat().st_mtime_ns == built_at


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_a_process_compiles_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no folder keeps the library, because others can write it."""
    compiler, cache = tmp_path / "c++", tmp_path / "cache"
    compiler.write_text(f'#!/bin/sh\necho run >> {tmp_path}/runs\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    cache.mkdir()
    cache.chmod(0o777)
    monkeypatch.setenv("CXX", str(compiler))
    first = load_library(cache, "recurrent")
    assert first is not None
    assert load_library(cache, "recurrent") is first
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize("library", ["language", "recurrent"])
@pytest.mark.parametrize(
    "processor", ["x86-64", "x86-64-v3", "skylake-avx512", "cooperlake", "sapphirerapids"]
)
def test_other_processors_have_code_too(processor: str, library: str) -> None:
    """Without vectors, and with those of AVX2, AVX-512, bfloat16 and tiles, whatever runs the tests."""
    source = Path(build.__file__).parent / "src" / f"{library}.cpp"
    command = ["g++", "-std=c++17", "-fopenmp", "-DFIRST_CACHE=48", f"-march={processor}"]
    empty = subprocess.run(
        [*command, "-x", "c++", "-S", "-o", "-", "-"], input=b"", capture_output=True, check=False
    )
    if empty.returncode:
        pytest.skip(f"this compiler does not know {processor}")
    subprocess.run([*command, "-S", "-o", "/dev/null", str(source)], check=True)
