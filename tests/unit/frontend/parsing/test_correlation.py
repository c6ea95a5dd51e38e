"""The names by which others know a request."""

from __future__ import annotations

from ts_stateful.frontend.parsing.correlation import Correlation

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
