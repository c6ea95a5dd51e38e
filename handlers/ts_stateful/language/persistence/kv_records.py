"""KV states of sessions in the store, so that a long session goes on without being computed again.

Below `kv/<session id>/` are pieces: safetensors files of `keys.<layer>`, `values.<layer>` and, in models with indexes,
`indexes.<layer>`, each `(heads, tokens, dim)`. The name of a piece is `<start>-<stop>-<meaning>-<checksum>`:

- `start` and `stop`: the tokens whose states it has; with recurrent states, `recurrent.<number>`, both are the number of tokens
  after which they are;
- `meaning`: a digest of the model, the token ids up to `stop` and the images among them, from which the states follow;
- `checksum`: a digest of the file.

So a piece whose name fits is right, and a session that was rewound finds the pieces that it still has in common. Both digests
begin with the request that opened the session, which only the log has. Names therefore cannot be used to guess texts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.kv.cache import KVCache, Snapshot
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.entries import OpenedEntry, session_logs, ungrouped
from ts_stateful.store.base import Store, StoreCorrupt

__all__ = ["ReadKV", "StoredKV", "Transcript"]

logger = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 24  # of one value; a few are in memory at a time
_PIECE_TOKENS = 16, 1024  # at least and at most


class Transcript(NamedTuple):
    """The token ids of a session (`log`), the images among them, the request that opened it (`origin`), and its adapter."""

    session_id: str
    origin: str
    log: Sequence[int]
    images: Sequence[MediaInput]
    adapter: str | None = None


class ReadKV(NamedTuple):
    """KV states that were read; not `is_whole` if more were listed, but damaged or removed meanwhile."""

    kv: KVCache
    is_whole: bool


class _KVPiece(NamedTuple):
    start: int
    stop: int
    meaning: str
    checksum: str

    @property
    def name(self) -> str:
        return f"{self.start:08d}-{self.stop:08d}-{self.meaning}-{self.checksum}"


class _Meanings(dict[int, str]):
    """The meaning of the first tokens of a transcript by their number. Ascending ones read each token once.

    `digest` is that of the model and the session.
    """

    def __init__(
        self, digest: hashlib._Hash, transcript: Transcript, media_tokens: Collection[int]
    ) -> None:
        super().__init__()
        self._beginning = self._digest = digest
        self._num_read = self._num_media = 0
        self._transcript, self._media_tokens = transcript, media_tokens

    def __missing__(self, stop: int) -> str:
        if stop < self._num_read:
            self._digest, self._num_read, self._num_media = self._beginning, 0, 0
        ids = self._transcript.log[self._num_read : stop]
        self._digest = self._digest.copy()
        self._digest.update(array("q", ids).tobytes())
        # A generated image token counts as one image more here; at worst, a piece is not found.
        self._num_media += sum(map(ids.count, self._media_tokens))
        self._num_read = stop
        digest, count = self._digest.copy(), self._num_media
        for image in self._transcript.images:
            if count <= 0:
                break
            digest.update(f" {image.key}".encode())
            count -= sum(map(image.ids.count, self._media_tokens))
        self[stop] = digest.hexdigest()
        return self[stop]


class StoredKV:
    """The KV states of one model in a store. All methods wait for the store; they are for its threads."""

    def __init__(self, model: Model, store: Store) -> None:
        self._model = model
        self._store = store
        self._layout = layout = model.forward.layout
        own = {**model.fingerprint, "kv": [[*shape] for shape in layout.layers]}
        self._fingerprint = json.dumps(own, sort_keys=True).encode()
        least, most = _PIECE_TOKENS
        self._grain = max(
            least, min(most, _PIECE_BYTES // max(1, layout.token_bytes) // least * least)
        )

    def write(self, transcript: Transcript, snapshot: Snapshot, ttl_s: float) -> int | None:
        """Write the states of a snapshot that are missing; return the number of tokens whose states the store then has.

        They are fewer than the snapshot's if it was cut meanwhile. Return None, and leave none, if the session has no log.

        Raises:
            StoreError: see `Store`. A part may have been written.
        """
        if not self._has_log(transcript):
            return None
        found = self._pieces(transcript.session_id)
        kept, length = self._complete(transcript, snapshot, ttl_s, found)
        has_log = self._has_log(transcript)  # its end removes states after the log, too
        # Of an earlier history. A longer one may belong to another engine, where the session went on.
        old = [piece for piece in found if piece not in kept and piece.stop <= length]
        pieces = old if has_log else kept
        self._store.delete_keys([_key(transcript.session_id, piece) for piece in pieces])
        return length if has_log else None

    def _complete(
        self, transcript: Transcript, snapshot: Snapshot, ttl_s: float, found: Sequence[_KVPiece]
    ) -> tuple[list[_KVPiece], int]:
        """Write the pieces that were not found. Return all pieces, and the number of their tokens."""
        length, meanings = snapshot.length, self._meanings(transcript)
        kept: list[_KVPiece] = []
        for start, stop in self._ranges(snapshot):
            meaning = meanings[stop]
            same = [piece for piece in found if piece[:3] == (start, stop, meaning)]
            if not same:
                tensors = self._tensors(snapshot, start, stop)
                if tensors is None:
                    return kept, start
                data = save(tensors)
                same = [_KVPiece(start, stop, meaning, _checksum(transcript, data))]
                self._store.create(_key(transcript.session_id, same[0]), data, ttl_s)
            kept += same
        return kept, length

    def read(self, transcript: Transcript, limit: int) -> ReadKV:
        """Return the valid states of at most the first `limit` tokens, on the model's device.

        Raises:
            StoreUnavailable: see `Store`.
        """
        chain = list(self._chain(transcript, limit))
        kv = self._model.new_kv()
        covered = chain[-1].stop if chain else 0
        if not self._layout.token_elements:
            covered = min(limit, len(transcript.log))
        points = self._points(transcript, covered)
        kv.reserve(covered)
        damaged = next((p for p in chain if not self._take(transcript, p, kv)), None)
        kv.length = damaged.start if damaged else covered
        taken = [self._take(transcript, point, kv) for point in points]
        kv.truncate(kv.length)
        return ReadKV(kv, all(taken) and not damaged)

    def remove(self, session_id: str) -> None:
        """Remove all pieces of a session."""
        self._store.delete(f"kv/{session_id}")

    def _has_log(self, transcript: Transcript) -> bool:
        """Return True if the store has the log of this session, not of a later one of its id."""
        logs = session_logs(self._store)
        data = self._store.get(logs.log(transcript.session_id).key(0))
        opened = None if data is None else next(ungrouped([logs.codec.decode(data)]))
        return isinstance(opened, OpenedEntry) and opened.origin == transcript.origin

    def _pieces(self, session_id: str) -> list[_KVPiece]:
        pieces = []
        for key in self._store.list(f"kv/{session_id}"):
            start, stop, meaning, checksum = key.rpartition("/")[2].split("-")
            pieces.append(_KVPiece(int(start), int(stop), meaning, checksum))
        return pieces

    def _chain(self, transcript: Transcript, limit: int) -> Iterator[_KVPiece]:
        """Yield pieces that fit, one after the other."""
        pieces = sorted(self._pieces(transcript.session_id), reverse=True)
        limit, start = min(limit, len(transcript.log)), 0
        meanings = self._meanings(transcript)
        while True:
            following = (
                piece
                for piece in pieces
                if piece.start == start < piece.stop <= limit
                and piece.meaning == meanings[piece.stop]
            )
            longest = next(following, None)
            if longest is None:
                return
            yield longest
            start = longest.stop

    def _points(self, transcript: Transcript, limit: int) -> list[_KVPiece]:
        """Return the pieces of recurrent states that fit, ascending."""
        meanings = self._meanings(transcript)
        return [
            piece
            for piece in sorted(self._pieces(transcript.session_id))
            if piece.start == piece.stop <= limit and piece.meaning == meanings[piece.stop]
        ]

    def _meanings(self, transcript: Transcript) -> _Meanings:
        digest = hashlib.sha256(transcript.origin.encode() + b"\0" + self._fingerprint)
        for part in self._model.adapters.fingerprint(transcript.adapter).values():
            digest.update(part.encode())
        return _Meanings(digest, transcript, self._model.media_tokens)

    def _ranges(self, snapshot: Snapshot) -> Iterator[tuple[int, int]]:
        """Yield the bounds of the pieces of a snapshot."""
        length = snapshot.length
        yield from ((at, at) for at in snapshot.recurrent if at <= length)
        if self._layout.token_elements:
            for start in range(0, length, self._grain):
                yield start, min(start + self._grain, length)

    def _tensors(self, snapshot: Snapshot, start: int, stop: int) -> dict[str, Tensor] | None:
        """Return the content of a piece; None if it is no longer valid."""
        if start == stop:
            states = enumerate(snapshot.recurrent[stop])
            return {f"recurrent.{i:03}": state.cpu() for i, state in states if state is not None}
        parts = snapshot.read(start, stop)
        return None if parts is None else dict(zip(self._names(), parts, strict=True))

    def _take(self, transcript: Transcript, piece: _KVPiece, kv: KVCache) -> bool:
        """Read a piece into a cache; remove it, and return False, if it is not what was written."""
        key = _key(transcript.session_id, piece)
        with contextlib.suppress(StoreCorrupt, SafetensorError, KeyError):
            data = self._store.get(key)
            if data is not None and _checksum(transcript, data) == piece.checksum:
                tensors = load(data)
                fill = self._fill_recurrent if piece.start == piece.stop else self._fill
                if fill(kv, piece, tensors):
                    return True
        logger.warning("stored KV states are missing or damaged; they are computed again")
        self._store.delete_keys([key])
        return False

    def _fill(self, kv: KVCache, piece: _KVPiece, tensors: dict[str, Tensor]) -> bool:
        states = [tensors[name] for name in self._names()]
        shapes = [(heads, piece.stop - piece.start, dim) for heads, dim in self._layout.shapes]
        if [tuple(state.shape) for state in states] != shapes:
            return False
        if any(state.dtype != self._layout.dtype for state in states):
            return False
        for target, source in zip(kv.states, states, strict=True):
            target[:, piece.start : piece.stop].copy_(source)
        return True

    def _fill_recurrent(self, kv: KVCache, piece: _KVPiece, tensors: dict[str, Tensor]) -> bool:
        assert kv.recurrent is not None
        if sum(tensor.nbytes for tensor in tensors.values()) != self._layout.recurrent_bytes:
            return False
        found = [tensors.get(f"recurrent.{i:03}") for i in range(2 * sum(self._layout.recurrent))]
        states = [None if state is None else state.to(kv.device) for state in found]
        kv.recurrent.restore(piece.stop, states)
        return True

    def _names(self) -> list[str]:
        """Return the names of the tensors in a piece, in the order of `KVCache.states`."""
        layers = range(len(self._layout.layers))
        kinds = ("keys", "values", *(("indexes",) if self._layout.indexes else ()))
        return [f"{kind}.{layer:03}" for kind in kinds for layer in layers]


def _key(session_id: str, piece: _KVPiece) -> str:
    return f"kv/{session_id}/{piece.name}"


def _checksum(transcript: Transcript, data: bytes) -> str:
    digest = hashlib.sha256(transcript.origin.encode() + b"\0")
    digest.update(data)
    return digest.hexdigest()
