"""Health of the server and its models, for probes, TorchServe's clients and load balancers."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ts_stateful.asgi.models import Models

__all__ = ["Health"]


class Health:
    """The endpoints of health. `ready` is 503 while a model is loaded, an engine does not answer, or the server drains."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def live(self, _request: Request) -> Response:
        """Return 200: the process answers."""
        return JSONResponse({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """Return 200 if the server takes requests, or of one model if the path names it."""
        name = request.path_params.get("model")
        chosen = [model for model in self._models if name in (None, model.name)]
        if not chosen:
            return JSONResponse({"status": "unknown model"}, 404)
        states = {model.name: "ready" if model.is_ready else "not ready" for model in chosen}
        state = "not ready" if "not ready" in states.values() else "ready"
        status = "draining" if self._models.is_draining else state
        document: dict[str, Any] = {"status": status, "models": states}
        loading = {
            model.name: {
                "step": step.name,
                "share": step.share,
                "seconds": round(step.seconds(), 1),
            }
            for model in chosen
            if (step := model.load_step) is not None
        }
        if loading:
            document["loading"] = loading
        return JSONResponse(document, 200 if status == "ready" else 503)

    async def ping(self, _request: Request) -> Response:
        """Return the same in TorchServe's words."""
        is_ready = self._models.is_ready
        document = {"status": "Healthy" if is_ready else "Unhealthy"}
        return JSONResponse(document, 200 if is_ready else 503)

    async def models(self, _request: Request) -> Response:
        """Return the models' names, as TorchServe's management API does."""
        listed = [{"modelName": one.name, "modelUrl": one.name} for one in self._models]
        return JSONResponse({"models": listed})

    async def model(self, request: Request) -> Response:
        """Return the description of one model in a list, as TorchServe does."""
        model = await self._models.find(request.path_params["model"])
        frontend = model.config.frontend
        document = {
            "modelName": model.name,
            "modelVersion": model.version,
            "batchSize": frontend.batch_size,
            "maxNumSequence": frontend.max_sessions,
            "workers": [
                {"id": str(index), "status": "READY" if is_up else "UNLOADING"}
                for index, is_up in enumerate(model.dispatcher.engines_up)
            ],
            "status": "READY" if model.is_ready else "UNLOADING",
        }
        return JSONResponse([document])
