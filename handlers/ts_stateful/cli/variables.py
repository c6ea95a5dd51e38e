"""The environment variables of this package, and names that are probably meant for one of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from ts_stateful.protocol.unknown import similar

__all__ = ["VARIABLES", "misspelled"]

_PREFIX = "TS_STATEFUL_"
VARIABLES: Final = frozenset(
    {
        "TS_STATEFUL_ADMIN",
        "TS_STATEFUL_ADMIN_TOKEN",
        "TS_STATEFUL_BELLS",
        "TS_STATEFUL_CLOUDWATCH_NAMESPACE",
        "TS_STATEFUL_ENDPOINT_NAME",
        "TS_STATEFUL_ENTRYPOINT",
        "TS_STATEFUL_LOG_FORMAT",
        "TS_STATEFUL_LOG_LEVEL",
        "TS_STATEFUL_MANAGEMENT_TOKEN",
        "TS_STATEFUL_RUNTIME_DIR",
        "TS_STATEFUL_STATE_DIR",
        "TS_STATEFUL_TOKEN",
        "TS_STATEFUL_URL",
        "TS_STATEFUL_WATCH",
    }
)
_SIMILAR = 0.9  # users name variables of their own with the prefix, for the password of a store


def misspelled(names: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each name that is similar to a variable."""
    for name in sorted(set(names) - VARIABLES):
        if name.startswith(_PREFIX) and (remedy := similar(name, VARIABLES, _SIMILAR)):
            yield f"{name}: there is no such variable{remedy}"
