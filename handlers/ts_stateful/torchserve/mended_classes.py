"""TorchServe's classes that one client can stop a worker with, or that make requests wait, mended.

In TorchServe 0.12.0 `GRPCJob` answers a half-closed call after its end. gRPC's exception ends the thread of the worker, in
every profile. And `InferenceRequestHandler` gives a request without an id to a worker, if it was pipelined and the request
before it is answered just then. No batch with it can be sent, which nobody notices until `responseTimeout`. `Model` lets the
first request of a batch wait for others, and those that come later wait until the worker returns from its call.

The classes that are installed are copied with some of their calls going to static methods of ours, in `classes`. TorchServe's
class path begins with its working directory, where the copies are found first.

Class files: https://docs.oracle.com/javase/specs/jvms/se11/html/jvms-4.html
"""

from __future__ import annotations

import hashlib
import importlib.util
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["MENDS", "MendFailed", "write_mended"]

_UTF8, _METHOD, _INTERFACE_METHOD = 1, 10, 11
# Bytes of a constant after its tag; longs and doubles take two numbers.
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4}
_WIDE = (5, 6)
_VIRTUAL, _STATIC, _INTERFACE = 0xB6, 0xB8, 0xB9  # instructions that call


class MendFailed(Exception):
    """TorchServe's class cannot be mended; the message has the reason."""


class _Constant(NamedTuple):
    tag: int
    content: bytes

    @property
    def text(self) -> str:
        """The content of one that is a text."""
        return self.content[2:].decode()


class _Mend(NamedTuple):
    """A class of TorchServe, and the calls in it that go to static methods of a class of ours.

    Attributes:
        digest: SHA-256 of the class in TorchServe 0.12.0.
        call: the instruction of those calls that are not of an interface.
        owners: the classes whose methods are replaced.
        methods: the names and descriptors of the static methods; each takes the object of the call first, if there is one.
    """

    name: str
    digest: str
    helper: str
    call: int
    owners: tuple[str, ...]
    methods: tuple[tuple[str, str], ...]

    def mended(self, original: bytes) -> bytes:
        """Return the class with calls of the helper's static methods.

        Raises:
            MendFailed: it is not the class that this was tested with.
        """
        if hashlib.sha256(original).hexdigest() != self.digest:
            raise MendFailed(f"{self.name.rpartition('/')[2]} is not that of version 0.12.0")
        constants = dict(_constants(original))
        end = 10 + sum(1 + len(constant.content) for constant in constants.values())
        added, code = b"", original[end:]
        number = struct.unpack_from(">H", original, 8)[0]
        for index, constant in constants.items():
            method = self._method(constants, constant)
            if method is None:
                continue
            added += self._static_method(*method, number)
            static = struct.pack(">BH", _STATIC, number + 5)
            number += 6
            if constant.tag == _METHOD:
                code = code.replace(struct.pack(">BH", self.call, index), static)
            else:
                count = 1 + (method[0] != "onCompleted")
                call = struct.pack(">BHBB", _INTERFACE, index, count, 0)
                code = code.replace(call, static + bytes(2))  # two times nop
        head = original[:8] + struct.pack(">H", number)
        return head + original[10:end] + added + code

    def _method(
        self, constants: Mapping[int, _Constant], constant: _Constant
    ) -> tuple[str, str] | None:
        """Return the name and the descriptor of the static method that replaces one."""
        if constant.tag not in (_METHOD, _INTERFACE_METHOD):
            return None
        owner, pair = struct.unpack(">HH", constant.content)
        (owner_name,) = struct.unpack(">H", constants[owner].content)
        if constants[owner_name].text not in self.owners:
            return None
        numbers = struct.unpack(">HH", constants[pair].content)
        name, descriptor = (constants[number].text for number in numbers)
        for method in self.methods:
            taken = method[1] if self.call == _STATIC else "(" + method[1].partition(";")[2]
            if (name, descriptor) == (method[0], taken):
                return method
        return None

    def _static_method(self, name: str, descriptor: str, first: int) -> bytes:
        """Return six constants, numbered from `first`; the last one is the method."""
        texts = b"".join(
            struct.pack(">BH", _UTF8, len(text)) + text.encode()
            for text in (self.helper, name, descriptor)
        )
        return texts + struct.pack(
            ">BHBHHBHH", 7, first, 12, first + 1, first + 2, _METHOD, first + 3, first + 4
        )


_OBSERVER = "Lio/grpc/stub/StreamObserver;"
_QUEUE = "Ljava/util/concurrent/LinkedBlockingDeque;"
_BUILDER = "org/pytorch/serve/grpc/inference/PredictionResponse$Builder"

MENDS: Final = (
    _Mend(
        "org/pytorch/serve/job/GRPCJob",
        "37d38e228b6314e854c0ab05d7488eb29ade8239683289b36d027357784058ce",
        "ts_stateful/EndedCalls",
        _VIRTUAL,
        ("io/grpc/stub/StreamObserver", "io/grpc/stub/ServerCallStreamObserver", _BUILDER),
        (
            ("onNext", f"({_OBSERVER}Ljava/lang/Object;)V"),
            ("onCompleted", f"({_OBSERVER})V"),
            ("onError", f"({_OBSERVER}Ljava/lang/Throwable;)V"),
            ("setPrediction", f"(L{_BUILDER};Lcom/google/protobuf/ByteString;)L{_BUILDER};"),
        ),
    ),
    _Mend(
        "org/pytorch/serve/http/api/rest/InferenceRequestHandler",
        "915ac25d1f8a2360181528aa8eabd3c769ebd807d54798f0bce9bc934213eb93",
        "ts_stateful/RequestIds",
        _STATIC,
        ("org/pytorch/serve/util/NettyUtils",),
        (("getRequestId", "(Lio/netty/channel/Channel;)Ljava/lang/String;"),),
    ),
    _Mend(
        "org/pytorch/serve/wlm/Model",
        "7c5523f1fe77fe79aa32665469e17725e70518692abcf4987989ef72f10d4cff",
        "ts_stateful/Doorbell",
        _VIRTUAL,
        ("java/util/concurrent/LinkedBlockingDeque",),
        (
            ("offer", f"({_QUEUE}Ljava/lang/Object;)Z"),
            ("poll", f"({_QUEUE})Ljava/lang/Object;"),
            ("poll", f"({_QUEUE}JLjava/util/concurrent/TimeUnit;)Ljava/lang/Object;"),
        ),
    ),
)
"""The classes that are mended."""


def write_mended(folder: Path) -> dict[str, str]:
    """Write the mended classes of the installed TorchServe into `folder`, its working directory; return variables for it.

    Raises:
        MendFailed: it is another TorchServe, or the folder cannot be written.
    """
    spec = importlib.util.find_spec("ts")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise MendFailed("TorchServe is not installed")
    classes, bells = Path(__file__).parent / "classes", folder / "ts_stateful"
    try:
        with zipfile.ZipFile(Path(places[0], "frontend", "model-server.jar")) as jar:
            for mend in MENDS:
                changed = mend.mended(jar.read(f"{mend.name}.class"))
                helper = (classes / f"{mend.helper}.class").read_bytes()
                for name, content in ((mend.name, changed), (mend.helper, helper)):
                    path = folder / f"{name}.class"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
        for old in bells.glob(
            "*.bell"
        ):  # of an earlier server, perhaps of a model of another profile
            old.unlink()
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise MendFailed(f"TorchServe's classes: {error}") from None
    return {"TS_STATEFUL_BELLS": str(bells)}


def _constants(data: bytes) -> Iterator[tuple[int, _Constant]]:
    number, position = 1, 10
    while number < struct.unpack_from(">H", data, 8)[0]:
        tag = data[position]
        size = 2 + struct.unpack_from(">H", data, position + 1)[0] if tag == _UTF8 else _SIZES[tag]
        yield number, _Constant(tag, data[position + 1 : position + 1 + size])
        position += 1 + size
        number += 2 if tag in _WIDE else 1
