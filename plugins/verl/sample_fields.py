"""The fields of a sample as verl's agent loop writes them, and one for what verl has no name for.

    key uid_session_output ──► prompts, responses, response_mask, rollout_log_probs, rm_scores … ──► arrays, values
    key uid ──► tags: {"status": "finished"} once all of its sessions are there

Not covered: tensors of types that numpy does not have, as bfloat16; tokens, masks and logprobs of verl are of others.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plugins.verl.sample_queue import FieldValue
from schemas import json_text
from streams.errors import UndecodableEvent

ABOUT = "streamward"
"""The field of what verl has no name for."""
PROMPTS, RESPONSES, MASK = "prompts", "responses", "response_mask"
LOGPROBS, SCORES = "rollout_log_probs", "rm_scores"
NEEDED = (PROMPTS, RESPONSES, MASK, LOGPROBS, SCORES)
"""Fields without which a sample is not trained on here."""
OPTIONAL = ("raw_prompt", "data_source", ABOUT)
"""Fields that are read if they are there."""
STATUS, FINISHED, FAILURE = "status", "finished", "failure"
NUMPY = frozenset({"int16", "int32", "int64", "float32", "float64", "bool", "uint8"})


class SampleKey(NamedTuple):
    """The place of an output in its group."""

    uid: str
    session: int
    output: int

    @classmethod
    def parse(cls, key: str) -> SampleKey | None:
        """Return the parts of a key as verl makes it; None if it is another.

        >>> SampleKey.parse("a_b_3_0")
        SampleKey(uid='a_b', session=3, output=0)
        """
        uid, *numbers = key.rsplit("_", 2)
        if len(numbers) != 2 or not all(number.isdecimal() and number.isascii() for number in numbers):
            return None
        return cls(uid, int(numbers[0]), int(numbers[1]))

    def __str__(self) -> str:
        return f"{self.uid}_{self.session}_{self.output}"


def tensor(values: NDArray[Any]) -> FieldValue:
    """Return an array as a tensor's field."""
    return FieldValue("tensor", np.ascontiguousarray(values).tobytes(), str(values.dtype), values.shape)


def plain(value: Any) -> FieldValue:
    """Return a value of JSON as a field."""
    return FieldValue("json", json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def array(field: FieldValue) -> NDArray[Any]:
    """Return a tensor's field of one dimension as an array. Raises UndecodableEvent."""
    if field.encoding != "tensor" or field.dtype not in NUMPY or len(field.shape) != 1:
        what = f"a {field.encoding} of {field.dtype}, {list(field.shape)}"
        raise UndecodableEvent(f"it is {what}; expected a tensor of one dimension of {', '.join(sorted(NUMPY))}")
    try:
        return np.frombuffer(field.data, np.dtype(field.dtype)).reshape(field.shape)
    except ValueError as exc:
        raise UndecodableEvent(f"its bytes are not those of {field.dtype}, {list(field.shape)}: {exc}") from exc


def value_of(field: FieldValue | None) -> Any:
    """Return a value of JSON; None if there is none, or it is packed another way."""
    if field is None or field.encoding != "json":
        return None
    try:
        return json_text.parse(field.data)
    except ValueError as exc:
        raise UndecodableEvent(f"it is no JSON: {exc}") from exc
