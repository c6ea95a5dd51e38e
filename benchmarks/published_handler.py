"""The baseline of steps: a TorchServe handler that keeps states as the published stateful examples do.

It keeps a dictionary of Python objects by sequence id, and drops the least recently used when it is full. It loops over the
rows of a batch, with a forward pass for each. Its requests and answers are those of this package's clients.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch


class PublishedHandler:
    """Sequences of the model in the archive; TorchServe wants one class in this module."""

    def initialize(self, context: Any) -> None:
        """Load the model, declared by `handler` of the archive's configuration."""
        settings = context.model_yaml_config["handler"]
        torch.set_num_threads(settings["threads"])
        model_dir = Path(context.system_properties["model_dir"])
        self._module = torch.jit.load(model_dir / settings["model"]).eval()
        self._inputs = [tensor["name"] for tensor in settings["inputs"]]
        self._output = settings["outputs"][0]["name"]
        self._shapes = [tensor["shape"] for tensor in settings["states"]]
        self._capacity = context.model_yaml_config["maxNumSequence"]
        self._states: OrderedDict[str, list[torch.Tensor]] = OrderedDict()

    @torch.inference_mode()
    def handle(self, data: list[dict[str, Any]], context: Any) -> list[bytes]:
        """Run the steps of a batch, one after the other."""
        return [
            self._step(context.get_sequence_id(index), json.loads(row["data"]))
            for index, row in enumerate(data)
        ]

    def _step(self, sequence_id: str, request: dict[str, Any]) -> bytes:
        sent = {tensor["name"]: tensor["data"] for tensor in request["inputs"]}
        inputs = [torch.tensor([sent[name]]) for name in self._inputs]
        states = self._states.pop(sequence_id, None)
        if states is None:
            states = [torch.zeros(layers, 1, size) for layers, size in self._shapes]
        output, *states = self._module(*inputs, *states)
        self._states[sequence_id] = states
        if len(self._states) > self._capacity:
            self._states.popitem(last=False)
        shape, elements = list(output.shape[1:]), output[0].tolist()
        tensor = {"name": self._output, "datatype": "FP32", "shape": shape, "data": elements}
        return json.dumps({"session_id": sequence_id, "outputs": [tensor]}).encode()
