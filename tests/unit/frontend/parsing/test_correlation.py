"""The names by which others know a request."""

from __future__ import annotations

import os
import re

from ts_stateful.frontend.parsing.correlation import Correlation, new_request_id

_TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_request_keeps_its_names() -> None:
    """Ones that are malformed are replaced, or left out."""
    kept = Correlation.of([("x-request-id", "mine-1"), ("traceparent", _TRACE), ("host", "x")])
    assert kept.pairs() == [(b"x-request-id", b"mine-1"), (b"traceparent", _TRACE.encode())]
    assert kept.trace_id == "0af7651916cd43dd8448eb211c80319c"
    for given, trace in (("a b", _TRACE[:-1]), ("x" * 129, "00-" + "0" * 32 + _TRACE[35:])):
        made = Correlation.of([("x-request-id", given), ("traceparent", trace)])
        assert len(made.request_id) == 32
        assert made.traceparent is made.trace_id is None
        assert made.pairs() == [(b"x-request-id", made.request_id.encode())]


def test_ids_are_hexadecimal_and_never_the_same() -> None:
    """Also beyond those that are made at once."""
    ids = [new_request_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)


def test_a_forked_process_gives_other_ids() -> None:
    """Those that were made before the fork are its parent's."""
    new_request_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, "".join(new_request_id() for _ in range(100)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    found = os.read(reader, 100 * 32).decode()
    theirs = {found[at : at + 32] for at in range(0, len(found), 32)}
    os.close(reader)
    os.close(writer)
    assert len(theirs) == 100
    assert not theirs & {new_request_id() for _ in range(100)}
