"""The form of log entries at rest."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from ts_stateful.store.base import StoreCorrupt

__all__ = ["VERSION", "Codec", "EntryT", "Linked", "Logged"]

VERSION = 4
_UNLINKED = 2  # the last version without links
_Parts = Annotated[list[Raw], Meta(max_length=16)]  # of any version; each costs 64 bytes or more


class Logged(Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """An entry of a log; `writer` is a random id of the engine that wrote it.

    `opened_by` is the request that opened the session, so that no entry counts in a later session of its id. Entries of
    sequences lack it, as their positions are not used again, and those of earlier programs.
    """

    writer: str = ""
    opened_by: str = ""


EntryT = TypeVar("EntryT", bound=Logged)


class _JsonDocument(Struct, frozen=True):
    """An entry of a language model in version 1; the checksum is that of the bytes of `entry`."""

    version: int
    sha256: str
    entry: Raw


class Linked(Struct, Generic[EntryT], frozen=True):
    """An entry, and the SHA-256 of the bytes before it in its log: empty at the beginning, None in versions without links."""

    entry: EntryT
    previous: bytes | None


class Codec(Generic[EntryT]):
    """The entries of one kind of log: `entries` is a union of tagged structs.

    At rest an entry is `[4, <SHA-256 of previous and entry>, <entry>, <previous>]` in msgpack. `previous` is the SHA-256 of the
    bytes of the entry before it, or empty. The same entry after the same one always has the same bytes. Fields may be added
    within a version if readers can do without them.

    Versions 3 (the same), 2 (without `previous`) and 1 are still read. In version 1, entries of language models were JSON,
    `{"version":1,"sha256":"<hex>","entry":{...}}`. Those of recurrent ones were msgpack as in version 2, but always of the
    struct `untagged`, without its tag.
    """

    def __init__(self, entries: Any, untagged: type[EntryT] | None = None) -> None:
        self._decoder = msgspec.msgpack.Decoder(entries)
        self._json_decoder = msgspec.json.Decoder(entries)
        self._untagged = untagged

    def encode(self, entry: Struct, previous: bytes = b"") -> bytes:
        """Return the entry at rest."""
        data = msgspec.msgpack.encode(entry)
        digest = hashlib.sha256(previous + data).digest()
        return msgspec.msgpack.encode((VERSION, digest, data, previous))

    def decode(self, data: bytes) -> EntryT:
        """Return the entry of these bytes. Raises as `decode_linked` does."""
        return self.decode_linked(data).entry

    def decode_linked(self, data: bytes) -> Linked[EntryT]:
        """Return the entry of these bytes, and its link.

        Raises:
            StoreCorrupt: they are cut short, changed, or of a newer version.
        """
        try:
            if data.startswith(b"{"):
                return Linked(self._json(data), None)
            return self._msgpack(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise _damaged("it cannot be read") from error

    def _msgpack(self, data: bytes) -> Linked[EntryT]:
        head, *parts = msgspec.msgpack.decode(data, type=_Parts)
        version = msgspec.msgpack.decode(head, type=int)
        if version > VERSION:
            raise StoreCorrupt(
                f"an entry in the store has version {version}, but this program reads versions up to {VERSION}",
                "update this server to the version that wrote the entry",
            )
        digest, entry, *links = (msgspec.msgpack.decode(part, type=bytes) for part in parts)
        _check(len(links) == (version > _UNLINKED))
        if links:
            previous = links[0]
            _check(hashlib.sha256(previous + entry).digest() == digest)
            return Linked(self._decoder.decode(entry), previous)
        _check(hashlib.sha256(entry).digest() == digest)
        if version == _UNLINKED:
            return Linked(self._decoder.decode(entry), None)
        if version != 1 or self._untagged is None:
            raise _damaged(f"its version is {version}")
        return Linked(msgspec.msgpack.decode(entry, type=self._untagged), None)

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
        "erase the session (`close` with `erase`); check the disk, and what else writes to the store",
    )
