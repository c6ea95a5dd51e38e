"""The form of log entries at rest."""

from __future__ import annotations

import hashlib
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from ts_stateful.store.base import StoreCorrupt

__all__ = ["VERSION", "Codec", "EntryT"]

VERSION = 2

EntryT = TypeVar("EntryT", bound=Struct)


class _JsonDocument(Struct, frozen=True):
    """An entry of a language model in version 1; the checksum is that of the bytes of `entry`."""

    version: int
    sha256: str
    entry: Raw


class Codec(Generic[EntryT]):
    """The entries of one kind of log: `entries` is a union of tagged structs.

    At rest an entry is `[2, <SHA-256 of the entry>, <entry>]` in msgpack. The same entry always has the same bytes. Fields may
    be added within a version if readers can do without them.

    Version 1 is still read. Entries of language models were JSON, `{"version":1,"sha256":"<hex>","entry":{...}}`. Those of
    recurrent ones were msgpack as now, but always of the struct `untagged`, without its tag.
    """

    def __init__(self, entries: Any, untagged: type[EntryT] | None = None) -> None:
        self._decoder = msgspec.msgpack.Decoder(entries)
        self._json_decoder = msgspec.json.Decoder(entries)
        self._untagged = untagged

    def encode(self, entry: Struct) -> bytes:
        """Return the entry at rest."""
        data = msgspec.msgpack.encode(entry)
        return msgspec.msgpack.encode((VERSION, hashlib.sha256(data).digest(), data))

    def decode(self, data: bytes) -> EntryT:
        """Return the entry of these bytes.

        Raises:
            StoreCorrupt: they are cut short, changed, or of a newer version.
        """
        try:
            return self._json(data) if data.startswith(b"{") else self._msgpack(data)
        except (msgspec.DecodeError, ValueError) as error:
            raise _damaged("it cannot be read") from error

    def _msgpack(self, data: bytes) -> EntryT:
        head, *parts = msgspec.msgpack.decode(data, type=list[Raw])
        version = msgspec.msgpack.decode(head, type=int)
        if version > VERSION:
            raise StoreCorrupt(
                f"an entry in the store has version {version}, but this program reads versions up to {VERSION}",
                "update this server to the version that wrote the entry",
            )
        digest, entry = (msgspec.msgpack.decode(part, type=bytes) for part in parts)
        _check(hashlib.sha256(entry).digest() == digest)
        if version == VERSION:
            found: EntryT = self._decoder.decode(entry)
            return found
        if version != 1 or self._untagged is None:
            raise _damaged(f"its version is {version}")
        return msgspec.msgpack.decode(entry, type=self._untagged)

    def _json(self, data: bytes) -> EntryT:
        document = msgspec.json.decode(data, type=_JsonDocument)
        if document.version != 1:
            raise _damaged(f"it is JSON of version {document.version}")
        _check(hashlib.sha256(bytes(document.entry)).hexdigest() == document.sha256)
        found: EntryT = self._json_decoder.decode(document.entry)
        return found


def _check(is_same: bool) -> None:
    if not is_same:
        raise _damaged("its checksum differs")


def _damaged(reason: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"an entry in the store is damaged: {reason}",
        "close the session or begin it again; check the disk, and what else writes to the store",
    )
