"""KV states of sessions in the store, so that a long session goes on without being computed again.

Below `kv/<session id>/` are pieces: safetensors files of `keys.<layer>`, `values.<layer>` and, in models with indexes,
`indexes.<layer>`, each `(heads, tokens, dim)`. The name of a piece is `<start>-<stop>-<meaning>-<checksum>`:

- `start` and `stop`: the tokens whose states it has;
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
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from ts_stateful.language.kv.cache import KVCache, Snapshot
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.entries import session_logs
from ts_stateful.language.vision.encoder import ImageInput
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
    images: Sequence[ImageInput]
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


class StoredKV:
    """The KV states of one model in a store. All methods wait for the store; they are for its threads."""

    def __init__(self, model: Model, store: Store) -> None:
        self._model = model
        self._store = store
        layout = model.forward.layout
        own = {**model.fingerprint, "kv": [[*shape] for shape in layout.layers]}
        self._fingerprint = json.dumps(own, sort_keys=True).encode()
        least, most = _PIECE_TOKENS
        self._grain = max(
            least, min(most, _PIECE_BYTES // max(1, layout.token_bytes) // least * least)
        )

    def write(self, transcript: Transcript, snapshot: Snapshot, ttl_s: float) -> int:
        """Write the states of a snapshot that are missing; return the number of tokens whose states the store then has.

        They are fewer than the snapshot's if it was cut meanwhile.

        Raises:
            StoreUnavailable: see `Store`. A part may have been written.
        """
        length = snapshot.length
        found = self._pieces(transcript.session_id)
        kept = []
        for start in range(0, length, self._grain):
            stop = min(start + self._grain, length)
            meaning = self._meaning(transcript, stop)
            same = [piece for piece in found if piece[:3] == (start, stop, meaning)]
            if not same:
                states = snapshot.read(start, stop)
                if states is None:
                    return start
                data = save(dict(zip(self._names(), states, strict=True)))
                same = [_KVPiece(start, stop, meaning, _checksum(transcript, data))]
                self._store.create(_key(transcript.session_id, same[0]), data, ttl_s)
            kept += same
        for piece in found:
            # Of an earlier history. A longer one may belong to another engine, where the session went on.
            if piece not in kept and piece.stop <= length:
                self._store.delete(_key(transcript.session_id, piece))
        return length

    def read(self, transcript: Transcript, limit: int) -> ReadKV:
        """Return the valid states of at most the first `limit` tokens, on the model's device.

        Raises:
            StoreUnavailable: see `Store`.
        """
        pieces = list(self._chain(transcript, limit))
        kv = self._model.new_kv()
        kv.reserve(pieces[-1].stop if pieces else 0)
        for piece in pieces:
            key = _key(transcript.session_id, piece)
            states = self._states(transcript, piece, self._found(key))
            if states is None:
                logger.warning("stored KV states are missing or damaged; they are computed again")
                self._store.delete(key)
                break
            for target, source in zip(kv.states, states, strict=True):
                target[:, piece.start : piece.stop].copy_(source)
            kv.length = piece.stop
        is_whole = not pieces or kv.length == pieces[-1].stop
        kv.truncate(kv.length)
        return ReadKV(kv, is_whole)

    def remove(self, session_id: str) -> None:
        """Remove all pieces of a session."""
        self._store.delete(f"kv/{session_id}")

    def remove_ended(self, session_id: str) -> None:
        """Remove the pieces of a session unless it has a log: then it goes on elsewhere and may need them."""
        if self._store.get(session_logs(self._store).log(session_id).key(0)) is None:
            self.remove(session_id)

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
        while True:
            following = (
                piece
                for piece in pieces
                if piece.start == start < piece.stop <= limit
                and piece.meaning == self._meaning(transcript, piece.stop)
            )
            longest = next(following, None)
            if longest is None:
                return
            yield longest
            start = longest.stop

    def _meaning(self, transcript: Transcript, stop: int) -> str:
        digest = hashlib.sha256(transcript.origin.encode() + b"\0" + self._fingerprint)
        for part in self._model.adapters.fingerprint(transcript.adapter).values():
            digest.update(part.encode())
        ids = transcript.log[:stop]
        digest.update(array("q", ids).tobytes())
        # A generated image token counts as one image more here; at worst, a piece is not found.
        vision = self._model.vision
        count = ids.count(vision.image_token_id) if vision else 0
        for image in transcript.images:
            if count <= 0 or vision is None:
                break
            digest.update(f" {image.key}".encode())
            count -= image.ids.count(vision.image_token_id)
        return digest.hexdigest()

    def _states(
        self, transcript: Transcript, piece: _KVPiece, data: bytes | None
    ) -> list[torch.Tensor] | None:
        """Return the states in a piece, or None if they are not what was written."""
        if data is None or _checksum(transcript, data) != piece.checksum:
            return None
        layout, num_tokens = self._model.forward.layout, piece.stop - piece.start
        shapes = [(heads, num_tokens, dim) for heads, dim in layout.shapes]
        try:
            tensors = load(data)
            states = [tensors[name] for name in self._names()]
        except (SafetensorError, KeyError):
            return None
        same = all(state.dtype == layout.dtype for state in states)
        return states if same and [tuple(s.shape) for s in states] == shapes else None

    def _found(self, key: str) -> bytes | None:
        with contextlib.suppress(StoreCorrupt):
            return self._store.get(key)
        return None

    def _names(self) -> list[str]:
        """Return the names of the tensors in a piece, in the order of `KVCache.states`."""
        layers = range(len(self._model.forward.layout.layers))
        kinds = ("keys", "values", *(("indexes",) if self._model.forward.layout.indexes else ()))
        return [f"{kind}.{layer:03}" for kind in kinds for layer in layers]


def _key(session_id: str, piece: _KVPiece) -> str:
    return f"kv/{session_id}/{piece.name}"


def _checksum(transcript: Transcript, data: bytes) -> str:
    digest = hashlib.sha256(transcript.origin.encode() + b"\0")
    digest.update(data)
    return digest.hexdigest()
