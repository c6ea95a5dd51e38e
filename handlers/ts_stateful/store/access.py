"""A server's access to its store: the threads that call it, and a thread that sweeps it."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Executor
from pathlib import Path
from typing import Literal, NamedTuple

from ts_stateful.config.schema import StoreConfig
from ts_stateful.store.backends.open import open_store, redacted
from ts_stateful.store.base import Store, StoreError
from ts_stateful.store.threads import started_pool

__all__ = ["StoreAccess", "store_of"]

logger = logging.getLogger(__name__)

_THREADS = 4
_SWEEP_S = 600.0


class StoreAccess(NamedTuple):
    """A store, the policy for its failures, and the threads that call it."""

    store: Store
    policy: Literal["required", "best_effort"]
    executor: Executor
    content: Literal["all", "text", "none"] = "all"  # the parts of a session that are written


def store_of(settings: StoreConfig, default: Path) -> StoreAccess | None:
    """Open the configured store, or the folder `default` where none is named. Return None for the URL `none`.

    Raises:
        ConfigError: the URL is wrong, or a package or key for it is missing.
        StoreUnavailable: its folder cannot be made.
    """
    if settings.url == "none":
        logger.warning("handler.store.url is none: sessions end with their engine")
        return None
    url = settings.url or default.absolute().as_uri()
    store = open_store(url, settings)
    logger.info("writing sessions to %s", redacted(url))
    threading.Thread(target=_sweep, args=(store,), name="store-sweep", daemon=True).start()
    if settings.content == "none":
        logger.warning("handler.store.content is none: sessions end with their engine")
    executor = started_pool(_THREADS, "store")
    return StoreAccess(store, settings.policy, executor, settings.content)


def _sweep(store: Store) -> None:
    while True:
        try:
            store.sweep()
        except StoreError as error:
            logger.warning("sweeping the store failed: %s", error)
        time.sleep(_SWEEP_S)
