"""The front without TorchServe. `app` builds its application for Ray Serve, and needs the extra `ray`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ts_stateful.asgi.ray_serve.application import app

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    if name == "app":
        from ts_stateful.asgi.ray_serve.application import app  # noqa: PLC0415 - few have Ray

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
