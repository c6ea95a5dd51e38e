"""Programs of attacks: drawn at random, kept in files, made smaller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.fuzz.attacks import Attack, Body, Bytes, Call, Message
from tests.fuzz.search import inputs

__all__ = ["MAX_ATTACKS", "PROGRAMS", "Program", "programs", "read", "smaller", "written"]

Program = tuple[Attack, ...]

PROGRAMS = "server"
"""The corpus of programs, as those of parsers have their names."""
MAX_ATTACKS: Final = 6
_MAX_TOTAL_BYTES: Final = 120_000_000  # of all copies
_SIZES: Final = (100, 10_000, 1_000_000, 8_000_000, 27_000_000)  # TorchServe takes 28,000,000
_DOCUMENTS: Final = """\
{"type":"hello"}
{"type":"open","ttl_s":20}
{"type":"open","session_id":"attacker","ttl_s":20}
{"prompt":"What color is it?","max_new_tokens":4}
{"prompt":"?","stream":true,"max_new_tokens":30,"ignore_eos":true}
{"prompt":"?","session_id":"attacker","max_new_tokens":30,"ignore_eos":true}
{"type":"continue","turn":1,"after":0}
{"type":"rewind","to_turn":0}
{"type":"fork","at_turn":0}
{"type":"cancel"}
{"type":"close"}""".splitlines()
_ARRAYS: Final = ('{"prompt":[', '{"type":"open","metadata":{"a":[', "[")
_VALUES: Final = ("[],", "{},", "0,", '"",', "[[]],", "[", '{"a":')
_UNITS: Final = ('"a":0,', "a&", "\0", "a=1&", "\r\n", "x", " ", '"', "\\")
_IDS: Final = ("attacker", "attacker-2", "NEW_SESSION", "", "a;b", "../a", "None", "a" * 300)
_METHODS: Final = ("Predictions", "StreamPredictions", "StreamPredictions2", "Ping", "Nothing")
_MODEL: Final = "/predictions/chat"
_TARGETS: Final = [
    "/predictions/chat/1.0",
    "/predictions/chat?a=b",
    "/predictions/none",
    "/predictions/chat/1.0/v1/chat/completions",
    "/invocations",
    "/ping",
    "/",
    "*",
    "/models",
    "/predictions/../models",
    "/v2/models/chat/infer",
    "http://localhost/ping",
    "/%00",
]
_JSON: Final = "Content-Type: application/json"
_HEADERS: Final = """\
Content-Type: text/plain
Content-Type: a/b; charset=\xff
Content-Type: application/x-www-form-urlencoded
Content-Type: multipart/form-data
Content-Type: multipart/form-data; boundary=X
Content-Encoding: gzip
Expect: 100-continue
Connection: close
Connection: Upgrade
Upgrade: h2c
Upgrade: websocket
describe: True
explain: True
ts_request_sequence_start: true
ts_request_sequence_end: true
Bad Name: \0""".splitlines()
_FRAMINGS: Final = ("length", "short", "long", "none", "chunks", "bad chunks", "both")
_PREFACE: Final = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # and empty settings

T = TypeVar("T")


def _one_of(*strategies: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """Draw from each strategy as often as it is listed, also if it is a union itself."""
    return st.sampled_from(strategies).flatmap(lambda strategy: strategy)


def _big(head: str, unit: str, size: int) -> Body:
    return Body(head=head, unit=unit, times=size // len(unit))


def _http(
    target: str, body: Body, method: str, headers: tuple[str, ...], framing: str
) -> tuple[Body, ...]:
    """Return a request over HTTP/1.1, perhaps with a framing that lies about its body."""
    size, last = body.num_bytes, Body()
    lengths = {"length": size, "short": size // 2, "long": 2 * size + 1, "both": size}
    head = "\r\n".join([f"{method} {target} HTTP/1.1", "Host: localhost", *headers, ""])
    if framing in lengths:
        head += f"Content-Length: {lengths[framing]}\r\n"
    if framing in ("chunks", "bad chunks", "both"):
        chunk = "-1" if framing == "bad chunks" else f"{size:x}"
        head += f"Transfer-Encoding: chunked\r\n\r\n{chunk}"
        last = Body("\r\n0\r\n\r\n")
    return Body(f"{head}\r\n"), body, last


def _frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None) -> str:
    """Return a frame of HTTP/2 (RFC 9113, section 4.1), whose length may be a lie."""
    claimed = len(payload) if length is None else length
    head = claimed.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return (head + payload).decode("latin-1")


_documents = st.sampled_from(_DOCUMENTS).map(Body)
_corpus = [data.partition(b"\n\n")[2].decode("latin-1") for data in inputs("request").values()]
_small = _one_of(_documents, st.sampled_from(_corpus).map(Body))
_sizes = st.sampled_from(_SIZES)
_costly = st.sampled_from((_SIZES[1], _SIZES[-1]))  # their cost shows in many bytes alone
_values = st.builds(_big, st.sampled_from(_ARRAYS), st.sampled_from(_VALUES), _costly)
_much = st.builds(_big, st.sampled_from(("", *_ARRAYS)), st.sampled_from(_UNITS), _sizes)
_bodies = _one_of(_small, _small, _values, _much)
_bytes = st.binary(max_size=60)
_pauses = st.sampled_from([0, 0, 1, 5, 50])
_ids = st.sampled_from(_IDS)
_session = _ids.map("ts_request_sequence_id: {}".format)

_good_headers = _one_of(st.just((_JSON,)), _session.map(lambda line: (_JSON, line)))
_good_requests = st.builds(
    _http, st.just(_MODEL), _bodies, st.just("POST"), _good_headers, st.just("length")
)
_odd_requests = st.builds(
    _http,
    st.sampled_from((_MODEL, "/a" * 2000, *_TARGETS)),
    _bodies,
    st.sampled_from(["POST", "POST", "GET", "PUT", "OPTIONS", "CONNECT", "TRACE", "a b"]),
    st.lists(_one_of(st.sampled_from(_HEADERS), _session), max_size=4).map(tuple),
    st.sampled_from(_FRAMINGS),
)
_requests = _one_of(_good_requests, _odd_requests)
_pipelined = st.lists(_requests, min_size=1, max_size=3).map(lambda some: sum(some, ()))
_frames = st.builds(
    _frame,
    st.integers(0, 10),
    st.sampled_from([0, 1, 4, 5, 8, 255]),
    st.sampled_from([0, 1, 3, 2, 2**31 - 1]),
    _bytes,
    st.sampled_from([None, None, 0, 1, 2**24 - 1]),
)
_http2 = st.builds(
    lambda frames, times: (Body(_PREFACE, "".join(frames), times),),
    st.lists(_frames, max_size=6),
    st.sampled_from([1, 100]),
)
_noise = _bytes.map(lambda data: (Body(data.decode("latin-1")),))


def _written_oddly(
    data: st.SearchStrategy[tuple[Body, ...]], port: st.SearchStrategy[str]
) -> st.SearchStrategy[Bytes]:
    return st.builds(
        Bytes,
        data,
        port,
        copies=st.integers(1, 8),
        share=_one_of(st.just(1.0), st.floats(0, 1)),
        pieces=st.sampled_from([1, 1, 2, 8]),
        pause_ms=_pauses,
        ending=st.sampled_from(["read", "half-close", "abort", "leave"]),
    )


def _calls(
    methods: tuple[str, ...], messages: st.SearchStrategy[Message]
) -> st.SearchStrategy[Call]:
    endings = ["half-close", "half-close", "cancel", "half-close and cancel", "leave"]
    return st.builds(
        Call,
        st.sampled_from(methods),
        st.lists(messages, max_size=3).map(tuple),
        st.sampled_from(endings),
        _pauses,
        st.integers(1, 6),
    )


_good_messages = st.builds(
    lambda body, name: Message({"data": body}, name),
    _one_of(_documents, _bodies),
    _one_of(st.none(), st.just("attacker"), _ids),
)
_odd_messages = st.builds(
    Message,
    st.dictionaries(st.sampled_from(["data", "body", "rpc", "x"]), _bodies, max_size=3),
    _one_of(st.none(), _ids),
    st.sampled_from(["chat", "chat", "none", ""]),
    _one_of(st.none(), st.none(), _noise.map(lambda some: some[0])),
)
_well_written = st.builds(Bytes, _good_requests, copies=st.sampled_from([1, 4]))
_attacks: st.SearchStrategy[Attack] = _one_of(
    *[_calls(_METHODS[:3], _good_messages)] * 2,
    _calls(_METHODS, _one_of(_good_messages, _odd_messages)),
    *[_well_written] * 2,
    _written_oddly(_pipelined, st.just("http")),
    _written_oddly(_http2, st.just("grpc")),
    _written_oddly(_noise, st.sampled_from(["http", "grpc"])),
)


def programs() -> st.SearchStrategy[Program]:
    """Generate some attacks, one after the other; none of them sends more than what is bearable."""
    bearable = _attacks.filter(lambda attack: attack.num_bytes <= _MAX_TOTAL_BYTES)
    return st.lists(bearable, min_size=1, max_size=MAX_ATTACKS).map(tuple)


def smaller(program: Program) -> Iterator[Program]:
    """Generate programs that do a little less: an attack, a half of its copies, or one of its parts is missing."""
    for index, attack in enumerate(program):
        before, after = program[:index], program[index + 1 :]
        if before or after:
            yield before + after
        less: list[Attack] = []
        if attack.copies > 1:
            less.append(replace(attack, copies=attack.copies // 2))
        if isinstance(attack, Call) and len(attack.messages) > 1:
            less.append(replace(attack, messages=attack.messages[1:]))
        if attack.pause_ms:
            less.append(replace(attack, pause_ms=0))
        yield from ((*before, one, *after) for one in less)


def read(data: bytes) -> Program:
    """Read a program from JSON."""
    return msgspec.json.decode(data, type=Program)


def written(program: Program) -> bytes:
    """Return a program as JSON."""
    return msgspec.json.format(msgspec.json.encode(program), indent=1) + b"\n"
