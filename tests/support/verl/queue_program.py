"""A program of TransferQueue on the log: run by tests/plugins/verl/test_verl_queue.py in .venv-verl.

write ──► init, then put, tag and clear until killed, with a line for each that is acknowledged
read ──► init ──► what kv_list and kv_batch_get have now
data-proto ──► verl's DataProto through the queue ──► whether it is the same
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import ray
import torch
import transfer_queue
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict

ROWS = 4


def say(**line: Any) -> None:
    """Print a line."""
    print(json.dumps(line), flush=True)


def fields_of(numbers: list[int]) -> TensorDict:
    """Return rows whose content their number decides, with responses of several lengths."""
    lengths = [torch.full((1 + number % 5,), number) for number in numbers]
    return TensorDict(
        {
            "prompts": torch.tensor([[number, number + 1] for number in numbers]),
            "responses": torch.nested.as_nested_tensor(lengths, layout=torch.jagged),
            "extra": NonTensorStack(*({"number": number, "pair": (number, "a")} for number in numbers)),
        },
        batch_size=len(numbers),
    )


def write() -> None:
    """Put and clear until killed."""
    for first in range(0, 100_000, ROWS):
        numbers = list(range(first, first + ROWS))
        keys = [str(number) for number in numbers]
        transfer_queue.kv_batch_put(
            keys=keys, partition_id="train", fields=fields_of(numbers), tags=[{"number": number} for number in numbers]
        )
        say(put=numbers)
        transfer_queue.kv_clear(keys=keys[:1], partition_id="train")
        say(cleared=numbers[:1])


def read() -> None:
    """Say which samples there are, and whether each is as it was put."""
    listed = transfer_queue.kv_list().get("train", {})
    numbers = sorted(map(int, listed))
    data = transfer_queue.kv_batch_get(keys=list(map(str, numbers)), partition_id="train")
    expected = fields_of(numbers)

    def rows(of: TensorDict, name: str) -> list[list[int]]:
        return [row.tolist() for row in of[name].unbind()]

    same = (
        all(rows(data, name) == rows(expected, name) for name in ("prompts", "responses"))
        and list(data["extra"]) == list(expected["extra"])
        and [listed[str(number)] for number in numbers] == [{"number": number} for number in numbers]
    )
    say(numbers=numbers, same=same)


def data_proto() -> None:
    """Send verl's own batch through the queue."""
    from verl import DataProto

    rows = 3
    batch = DataProto.from_dict(
        tensors={"input_ids": torch.arange(12).reshape(rows, 4), "scores": torch.rand(rows, 2, dtype=torch.bfloat16)},
        non_tensors={"uid": [f"u{number}" for number in range(rows)]},
    )
    uids = NonTensorStack(*batch.non_tensor_batch["uid"].tolist())
    keys = [f"d{number}" for number in range(rows)]
    fields = TensorDict({**dict(batch.batch.items()), "uid": uids}, batch_size=rows)
    transfer_queue.kv_batch_put(keys=keys, partition_id="val", fields=fields)
    answer = transfer_queue.kv_batch_get(keys=keys, partition_id="val")
    tensors = {name: torch.stack(list(answer[name].unbind())) for name in ("input_ids", "scores")}
    back = DataProto.from_dict(tensors=tensors, non_tensors={"uid": list(answer["uid"])})
    same = all(torch.equal(back.batch[name], batch.batch[name]) for name in tensors)
    say(same=same and back.non_tensor_batch["uid"].tolist() == batch.non_tensor_batch["uid"].tolist())


def main() -> None:
    """Do what the first argument names."""
    if sys.argv[1] == "data-proto":
        import verl  # noqa: F401 - its plugins register the backend
    else:
        import plugins.verl.transfer_queue  # noqa: F401 - registers the backend
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    transfer_queue.init(OmegaConf.create(json.loads(os.environ["QUEUE_CONFIGURATION"])))
    {"write": write, "read": read, "data-proto": data_proto}[sys.argv[1]]()
    transfer_queue.close()


if __name__ == "__main__":
    main()
