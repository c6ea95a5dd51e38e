"""The progress of reading weights, which transformers counts tensor by tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from transformers.utils.logging import set_tqdm_hook

from ts_stateful.engine.services import LoadReport

__all__ = ["weights_counted"]


@contextlib.contextmanager
def weights_counted(name: str, progress: LoadReport) -> Iterator[None]:
    """Report the tensors that are read in the block, of the model in the folder `name`, or of a hub id."""

    def counted(make: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        if arguments and isinstance(arguments[0], Collection):
            return _each(arguments[0], progress)
        return make(*arguments, **options)

    progress.begin("loading the weights", sum(path.stat().st_size for path in _files(name)))
    previous = set_tqdm_hook(counted)
    try:
        yield
    finally:
        set_tqdm_hook(previous)


def _files(name: str) -> list[Path]:
    folder = Path(name)
    return list(folder.glob("*.safetensors")) if folder.is_dir() else []


def _each(tensors: Collection[Any], progress: LoadReport) -> Iterator[Any]:
    for index, tensor in enumerate(tensors):
        progress.advance(index / len(tensors))
        yield tensor
    progress.advance(1.0)
