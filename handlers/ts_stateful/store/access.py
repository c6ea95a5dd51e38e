"""A server's access to its store: the threads that call it, and a thread that sweeps it."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ts_stateful.config.schema import StoreConfig
from ts_stateful.store.backends.open import open_store, redacted
from ts_stateful.store.base import Capacity, Store, StoreError
from ts_stateful.store.threads import started_pool

__all__ = ["StoreAccess", "store_of"]

logger = logging.getLogger(__name__)

_THREADS = 4
_LOOK_S = 15.0
_LOOKS = 40  # a sweep in 10 minutes


@dataclass
class StoreAccess:
    """A store, the policy for its failures, the threads that call it, and its capacity when it was looked at last."""

    store: Store
    policy: Literal["required", "best_effort"]
    executor: Executor
    capacity: Capacity = field(default_factory=Capacity)

    def look(self) -> None:
        """Read the capacity. It is unknown of a store that does not answer, or forbids the question."""
        try:
            self.capacity = self.store.capacity()
        except StoreError as error:
            self.capacity = Capacity()
            logger.debug("the capacity of the store is unknown: %s", error)


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
    if settings.content == "none":
        logger.warning("handler.store.content is none: sessions end with their engine")
    access = StoreAccess(store, settings.policy, started_pool(_THREADS, "store"))
    threading.Thread(target=_attend, args=(access,), name="store-sweep", daemon=True).start()
    return access


def _attend(access: StoreAccess) -> None:
    for look in itertools.count():
        access.look()
        try:
            if look % _LOOKS == 0:
                access.store.sweep()
        except StoreError as error:
            logger.warning("sweeping the store failed: %s", error)
        time.sleep(_LOOK_S)
