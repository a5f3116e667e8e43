"""A forward_backward call as the SDK has it on the wire, of any size."""

from __future__ import annotations

from typing import Any

import numpy as np

from plugins.tinker.api import protobuf

PROTOBUF = {"content-type": "application/x-protobuf"}


def pass_message(model: str, seq_id: int, examples: int, tokens: int) -> Any:
    """Return a call of so many examples of so many tokens each; 16 bytes a token."""
    message = protobuf.message("ForwardBackwardRequest", model_id=model, seq_id=seq_id, loss_fn="cross_entropy")
    for _ in range(examples):
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.arange(tokens, dtype="<i4").tobytes()
        for name, dtype, code in (("target_tokens", "<i8", 2), ("weights", "<f4", 1)):
            tensor = datum.loss_fn_inputs[name]
            tensor.dense, tensor.dtype = np.ones(tokens, dtype).tobytes(), code
            tensor.shape.append(tokens)
    return message
