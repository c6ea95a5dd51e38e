"""Tensors and files in a store, under the SHA-256 of what they are.

Owns their keys and the form of tensors, which is that of safetensors. Knows no torch: elements are bytes here, by names of
types that torch and numpy share.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from safetensors import SafetensorError, TensorSpec, deserialize, serialize

from ts_stateful.store.base import Store, StoreCorrupt

__all__ = ["Tensor", "get_media", "get_tensors", "put_media", "put_tensors"]

_NAMES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)
# What the format calls them, to what torch and numpy do.
_TYPES = {TensorSpec(dtype=name, shape=[0], data_ptr=1, data_len=0).dtype: name for name in _NAMES}


class Tensor(NamedTuple):
    """A tensor's elements as they lie in memory, little-endian and in the order of C; `dtype` is `bfloat16` for instance."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def put_tensors(store: Store, tensors: Mapping[str, Tensor], ttl_s: float | None = None) -> str:
    """Writes tensors if they are not there yet; returns the digest by which they are found.

    Raises:
        StoreUnavailable: as the store says.
    """
    # The addresses hold for as long as `tensors` does.
    specs = {
        name: TensorSpec(
            dtype=tensor.dtype,
            shape=tensor.shape,
            data_ptr=ctypes.cast(ctypes.c_char_p(tensor.data), ctypes.c_void_p).value or 0,
            data_len=len(tensor.data),
        )
        for name, tensor in sorted(tensors.items())
    }
    return _put(store, "blobs", serialize(specs), ttl_s)


def get_tensors(store: Store, digest: str) -> dict[str, Tensor] | None:
    """The tensors of that digest, or None if the store has forgotten them.

    Raises:
        StoreCorrupt: they are not what was written.
        StoreUnavailable: as the store says.
    """
    data = _get(store, "blobs", digest)
    if data is None:
        return None
    try:
        found = deserialize(data)  # type: ignore[no-untyped-call]
        return {
            name: Tensor(_TYPES[one["dtype"]], tuple(one["shape"]), bytes(one["data"]))
            for name, one in found
        }
    except (SafetensorError, KeyError) as error:
        raise _damaged("tensors") from error


def put_media(store: Store, data: bytes, ttl_s: float | None = None) -> str:
    """Writes a file that a client sent, if it is not there yet; returns the digest by which it is found."""
    return _put(store, "media", data, ttl_s)


def get_media(store: Store, digest: str) -> bytes | None:
    """The file of that digest, or None if the store has forgotten it.

    Raises:
        StoreCorrupt: it is not what was written.
        StoreUnavailable: as the store says.
    """
    return _get(store, "media", digest)


def _put(store: Store, folder: str, data: bytes, ttl_s: float | None) -> str:
    digest = hashlib.sha256(data).hexdigest()
    store.create(f"{folder}/{digest}", data, ttl_s)  # False: the same is there already
    return digest


def _get(store: Store, folder: str, digest: str) -> bytes | None:
    data = store.get(f"{folder}/{digest}")
    if data is not None and hashlib.sha256(data).hexdigest() != digest:
        raise _damaged(folder)
    return data


def _damaged(what: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"{what} in the store are not what was written",
        "remove them; the session can show the image again",
    )
