"""A store as a server uses it: with threads on which it is asked, and somebody who keeps it clean.

Owns these threads and the place that a store has by default. Knows nothing of sessions.
"""

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
    """A store, what happens when it fails, and the threads on which it is asked."""

    store: Store
    policy: Literal["required", "best_effort"]
    executor: Executor
    content: Literal["all", "text", "none"] = "all"  # what of a session is written


def store_of(settings: StoreConfig, default: Path) -> StoreAccess | None:
    """The store that a configuration means, which is the folder `default` where it names none; None if there is to be none.

    Raises:
        ConfigError: the store is described wrongly, or something is missing for it.
        StoreUnavailable: its folder cannot be made.
    """
    if settings.url == "none":
        logger.warning("handler.store.url is none: sessions end with their engine")
        return None
    url = settings.url or default.absolute().as_uri()
    store = open_store(url, settings)
    logger.info("sessions are written to %s", redacted(url))
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
            logger.warning("the store could not be swept: %s", error)
        time.sleep(_SWEEP_S)
