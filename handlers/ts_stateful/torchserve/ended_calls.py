"""TorchServe's class of gRPC jobs, mended: an answer to a call that has ended ends no worker.

In TorchServe 0.12.0 `GRPCJob` answers a half-closed call after its end. gRPC's exception ends the thread of the worker, in
every profile. The class that is installed is copied with its calls of gRPC's observers going to `EndedCalls` instead, which
drops such answers. TorchServe's class path begins with its working directory, where the copy is found first.

Class files: https://docs.oracle.com/javase/specs/jvms/se11/html/jvms-4.html
"""

from __future__ import annotations

import hashlib
import importlib.util
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["MendFailed", "mend", "mended"]

_CLASS = "org/pytorch/serve/job/GRPCJob.class"
_KNOWN = "37d38e228b6314e854c0ab05d7488eb29ade8239683289b36d027357784058ce"  # of the class in TorchServe 0.12.0
_HELPER = "ts_stateful/EndedCalls"
_OBSERVER = "Lio/grpc/stub/StreamObserver;"
_BUILDER = "org/pytorch/serve/grpc/inference/PredictionResponse$Builder"
# Methods by name: the descriptor of the static one that replaces them.
_METHODS = {
    "onNext": f"({_OBSERVER}Ljava/lang/Object;)V",
    "onCompleted": f"({_OBSERVER})V",
    "onError": f"({_OBSERVER}Ljava/lang/Throwable;)V",
    "setPrediction": f"(L{_BUILDER};Lcom/google/protobuf/ByteString;)L{_BUILDER};",
}
_OWNERS = {
    "io/grpc/stub/StreamObserver",
    "io/grpc/stub/ServerCallStreamObserver",
    _BUILDER,
}
_UTF8, _METHOD, _INTERFACE_METHOD = 1, 10, 11
# Bytes of a constant after its tag; longs and doubles take two numbers.
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4}
_WIDE = (5, 6)
_VIRTUAL, _STATIC, _INTERFACE = 0xB6, 0xB8, 0xB9


class MendFailed(Exception):
    """TorchServe's class cannot be mended; the message has the reason."""


class _Constant(NamedTuple):
    tag: int
    content: bytes


def mend(folder: Path) -> None:
    """Write the mended class of the installed TorchServe into `folder`, its working directory.

    Raises:
        MendFailed: it is another TorchServe, or the folder cannot be written.
    """
    spec = importlib.util.find_spec("ts")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise MendFailed("TorchServe is not installed")
    helper = Path(__file__).parent / "classes" / f"{_HELPER}.class"
    try:
        with zipfile.ZipFile(Path(places[0], "frontend", "model-server.jar")) as jar:
            changed = mended(jar.read(_CLASS))
        for name, content in ((_CLASS, changed), (f"{_HELPER}.class", helper.read_bytes())):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise MendFailed(f"TorchServe's class of gRPC jobs: {error}") from None


def mended(original: bytes) -> bytes:
    """Return the class with calls of the helper's static methods.

    Raises:
        MendFailed: it is not the class that this was tested with.
    """
    if hashlib.sha256(original).hexdigest() != _KNOWN:
        raise MendFailed("its class of gRPC jobs is not that of version 0.12.0")
    constants = dict(_constants(original))
    end = 10 + sum(1 + len(constant.content) for constant in constants.values())
    added, code = b"", original[end:]
    number = struct.unpack_from(">H", original, 8)[0]
    for index, constant in constants.items():
        name = _method(constants, constant)
        if name is None:
            continue
        added += _static_method(name, _METHODS[name], number)
        static = struct.pack(">BH", _STATIC, number + 5)
        number += 6
        if constant.tag == _METHOD:
            code = code.replace(struct.pack(">BH", _VIRTUAL, index), static)
        else:
            count = 1 + (name != "onCompleted")
            call = struct.pack(">BHBB", _INTERFACE, index, count, 0)
            code = code.replace(call, static + bytes(2))  # two times nop
    head = original[:8] + struct.pack(">H", number)
    return head + original[10:end] + added + code


def _constants(data: bytes) -> Iterator[tuple[int, _Constant]]:
    number, position = 1, 10
    while number < struct.unpack_from(">H", data, 8)[0]:
        tag = data[position]
        size = 2 + struct.unpack_from(">H", data, position + 1)[0] if tag == _UTF8 else _SIZES[tag]
        yield number, _Constant(tag, data[position + 1 : position + 1 + size])
        position += 1 + size
        number += 2 if tag in _WIDE else 1


def _method(constants: dict[int, _Constant], constant: _Constant) -> str | None:
    """Return the name of a method that is replaced."""
    if constant.tag not in (_METHOD, _INTERFACE_METHOD):
        return None
    owner, pair = struct.unpack(">HH", constant.content)
    (owner_name,) = struct.unpack(">H", constants[owner].content)
    name, _ = struct.unpack(">HH", constants[pair].content)
    text = constants[name].content[2:].decode()
    return (
        text if constants[owner_name].content[2:].decode() in _OWNERS and text in _METHODS else None
    )


def _static_method(name: str, descriptor: str, first: int) -> bytes:
    """Return six constants, numbered from `first`; the last one is the method."""
    texts = b"".join(
        struct.pack(">BH", _UTF8, len(text)) + text.encode() for text in (_HELPER, name, descriptor)
    )
    return texts + struct.pack(
        ">BHBHHBHH", 7, first, 12, first + 1, first + 2, _METHOD, first + 3, first + 4
    )
