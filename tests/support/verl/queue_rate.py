"""Put and get samples of 4 KiB through TransferQueue, for a rate: benchmark `samples` runs it in .venv-verl.

backend's settings (stdin) ──► rounds of put, get, clear ──► samples a second (stdout)
"""

from __future__ import annotations

import json
import sys
import time

import ray
import torch
import transfer_queue
from omegaconf import OmegaConf
from tensordict import TensorDict

import plugins.verl.transfer_queue  # noqa: F401 - registers the backend

FLOATS = 1024
"""Of 4 bytes: 4 KiB."""
ACTORS = 4
"""Ray gives each a CPU, however many there are: the controller, and the memory's storage units, which wait for one."""


def main() -> None:
    """Measure, and print one line."""
    order = json.load(sys.stdin)
    ray.init(num_cpus=ACTORS, include_dashboard=False, log_to_driver=False)
    transfer_queue.init(OmegaConf.create(order["conf"]))
    rows, seconds = order["rows"], {"put": 0.0, "get": 0.0}
    keys = [f"sample-{number}" for number in range(rows)]
    fields = TensorDict({"tokens": torch.rand(rows, FLOATS)}, batch_size=rows)
    for number in range(order["rounds"] + 1):
        began = time.perf_counter()
        transfer_queue.kv_batch_put(keys=keys, partition_id="train", fields=fields)
        put = time.perf_counter()
        answer = transfer_queue.kv_batch_get(keys=keys, partition_id="train")
        end = time.perf_counter()
        assert torch.equal(torch.stack(list(answer["tokens"].unbind())), fields["tokens"])
        transfer_queue.kv_clear(keys=keys, partition_id="train")
        if number:  # the first one connects
            seconds["put"] += put - began
            seconds["get"] += end - put
    samples = rows * order["rounds"]
    print(json.dumps({name: samples / taken for name, taken in seconds.items()}))
    transfer_queue.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
