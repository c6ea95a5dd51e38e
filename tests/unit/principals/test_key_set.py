"""Key sets: which keys count, and when they are read."""

from __future__ import annotations

import json
import threading
from typing import Any

import jwt
import pytest

from tests.support.clock import FakeClock
from tests.support.issuer import Issuer, key_set
from tests.support.worker import eventually
from ts_stateful.principals.key_set import KeySet, read_keys
from ts_stateful.principals.key_sources import KeySource, KeysUnreadable
from ts_stateful.protocol.errors import Unauthenticated


class Readings(KeySource):
    """A source that plays its results in turn, the last one for ever; an exception is raised."""

    def __init__(self, *results: bytes | Exception) -> None:
        self._results = list(results)
        self.num_reads = 0
        self.read_twice = threading.Event()

    def read(self) -> bytes:
        """See `KeySource`."""
        self.num_reads += 1
        if self.num_reads == 2:
            self.read_twice.set()
        result = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        if isinstance(result, Exception):
            raise result
        return result


class PatientClock(FakeClock):
    """A clock whose sleeps never end after the first `num_sleeps`."""

    def __init__(self, num_sleeps: int = 0) -> None:
        super().__init__()
        self._num_sleeps = num_sleeps

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        self._num_sleeps -= 1
        if self._num_sleeps < 0:
            threading.Event().wait()


def test_only_public_keys_for_signatures_count() -> None:
    """Weak, secret, private and encryption keys are left out, unknown ones too."""
    good = Issuer("good")
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"}
    private = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(good.key)) | {"kid": "private"}
    weak = Issuer("weak", "RS256", bits=1024).jwk
    others: list[Any] = [
        secret,
        private,
        weak,
        {**good.jwk, "kid": "encrypts", "use": "enc"},
        {**good.jwk, "kid": "hmac", "alg": "HS256"},
        {"kty": "new", "kid": "new"},
        {**good.jwk, "kid": ["a", "list"]},
        {"kty": "EC", "kid": "broken", "crv": "P-256"},
        "key",
    ]
    assert set(read_keys(key_set(*others, good.jwk))) == {"good"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b"\xff",
        b'{"\xff',
        b'{"keys": ' + b"[" * 90000,
    ],
)
def test_a_document_without_keys_is_refused(data: bytes) -> None:
    """Whatever a server sends."""
    with pytest.raises(KeysUnreadable):
        read_keys(data)


def test_a_token_without_key_id_means_the_only_key() -> None:
    """With two keys it means none."""
    one, two = Issuer("1"), Issuer("2")
    keys = KeySet(Readings(key_set(one.jwk), key_set(one.jwk, two.jwk)), 300)
    keys.refresh()
    assert keys.find(None).key_id == "1"
    keys.refresh()
    with pytest.raises(Unauthenticated):
        keys.find(None)


def test_keys_stay_while_they_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """An issuer may be down for a while; the log says so."""
    issuer = Issuer()
    keys = KeySet(Readings(issuer.key_set, KeysUnreadable("down"), b"{}", issuer.key_set), 300)
    for _ in range(4):
        keys.refresh()
    assert keys.find("1").key_id == "1"
    assert keys.version == 1  # the same keys again are no change
    assert "down" in caplog.text


def test_an_unknown_key_lets_the_thread_read_once_more() -> None:
    """Not the request; and not again before the pause is over."""
    source = Readings(Issuer("1").key_set, Issuer("2").key_set)
    keys = KeySet(source, 300, PatientClock())
    keys.start()
    assert source.num_reads == 1
    for _ in range(100):
        with pytest.raises(Unauthenticated):
            keys.find("3")
    assert source.read_twice.wait(30)
    assert source.num_reads == 2


def test_a_defect_does_not_end_the_reading() -> None:
    """The next key is known all the same."""
    source = Readings(Issuer("1").key_set, OSError("too many open files"), Issuer("2").key_set)
    keys = KeySet(source, 0.01, PatientClock(1))
    keys.start()
    eventually(lambda: keys.version == 2)
    assert keys.find("2").key_id == "2"
