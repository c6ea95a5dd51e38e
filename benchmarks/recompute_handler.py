"""The baseline: a TorchServe handler that keeps no states.

It works like published samples of multimodal sessions. It keeps the image's tensor for a session. Stock `generate` computes
everything else in every turn, the vision tower included, one turn at a time. It streams the same events as the package.
"""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import PIL.Image
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor
from ts.handler_utils.utils import send_intermediate_predict_response


class RecomputeHandler:
    """Sessions without KV states; also the streamer of `generate`, because TorchServe wants one class in this module."""

    def initialize(self, context: Any) -> None:
        """Load the model that `handler.model` of the archive's configuration names."""
        settings = context.model_yaml_config["handler"]
        torch.set_num_threads(settings["threads"])
        self._model = AutoModelForImageTextToText.from_pretrained(settings["model"]).eval()
        self._processor = AutoProcessor.from_pretrained(settings["model"])
        self._sessions: dict[str, dict[str, Any]] = {}
        self._ids: list[int] = []  # of the present reply
        self._text = ""

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[bytes]:
        """Run one turn: `session_id`, `prompt`, `max_new_tokens`, and with the first one `image` in base64."""
        request = json.loads(data[0].get("data") or data[0]["body"])
        session = self._sessions.get(request["session_id"])
        content = [{"type": "text", "text": request["prompt"]}]
        if session is None:
            session = self._sessions[request["session_id"]] = self._opened(request["image"])
            content.insert(0, {"type": "image"})
        session["messages"].append({"role": "user", "content": content})
        self._context, self._ids, self._text = context, [], ""
        self._generate(session, request["max_new_tokens"])
        reply = {"role": "assistant", "content": [{"type": "text", "text": self._text}]}
        session["messages"].append(reply)
        return [_event(text="", finish_reason="length")]

    def put(self, value: torch.Tensor) -> None:
        """Receive the prompt, then every token."""
        if value.numel() > 1:
            return
        self._ids.append(int(value))
        text = self._processor.tokenizer.decode(self._ids)
        piece, self._text = text[len(self._text) :], text
        self._context.set_response_content_type(0, "text/event-stream")
        send_intermediate_predict_response(
            [_event(text=piece)], self._context.request_ids, "more", 200, self._context
        )

    def end(self) -> None:
        """Do nothing; `handle` returns the last event."""

    def _opened(self, image: str) -> dict[str, Any]:
        with PIL.Image.open(io.BytesIO(base64.b64decode(image))) as picture:
            pixels = self._processor.image_processor(picture.convert("RGB"), return_tensors="pt")
        return {"pixel_values": pixels["pixel_values"], "messages": []}

    @torch.inference_mode()
    def _generate(self, session: dict[str, Any], max_new_tokens: int) -> None:
        text = self._processor.apply_chat_template(
            session["messages"], tokenize=False, add_generation_prompt=True
        )
        expanded = text.replace("<image>", "<image>" * self._model.config.image_seq_length)
        ids = self._processor.tokenizer(expanded, return_tensors="pt")["input_ids"]
        self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=session["pixel_values"],
            max_new_tokens=max_new_tokens,
            streamer=self,
        )


def _event(**fields: str) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()
