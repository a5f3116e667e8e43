"""The trainer's processes on a Ray cluster: Ray Train places and restarts them.

    streamward train --launcher ray ──► TorchTrainer ──► worker 0 ──► streamward train, RANK=0   the trainer
       │                                             ├─► worker 1 ──► streamward train, RANK=1   its share of a batch
       └── RankRun, an actor: may all end? how did they? ◄── each worker

Ray Train finds the nodes, says who is which rank and where rank 0 listens; a worker starts its rank with the variables
that torchrun would set (trainer/ranks/launcher.py), so each byte of the result is the same as there. When a rank or a
node is lost, Ray ends the others and starts all again, and they resume from the newest checkpoint. A rank that refuses
its settings ends the run instead.

Not covered: a group of Ray's own. It makes one between its workers when it is asked to use torch; ours are other
processes, which must not be in one before the trainer is built (trainer/ranks/exchange.py).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import ray
import ray.train
from ray.train.backend import Backend
from ray.train.torch import TorchConfig, TorchTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from plugins.distributed.ray_cluster import NodeCommand, Room, child_of, no_room, room_for
from plugins.distributed.settings import Distributed
from streams.errors import EXIT_RESTART, ClusterError
from streams.files import Scratch
from streams.processes.child import describe_exit
from trainer.ranks.launcher import HOME_S, RankRun
from trainer.step.model import LIBRARIES

LOOK_EVERY_S = 0.5
SILENT_S = 15.0
"""A run without a word of rank 0 for this long has none."""
START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
"""Ray Train's variable for how long it waits for room, when it starts and when it starts again."""

log = logging.getLogger(__name__)


class RankLost(Exception):
    """A rank ended so that all are to be started again."""


class RankMeeting(Backend):  # type: ignore[misc]
    """Says where the ranks meet, and no more."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        host, port = worker_group.execute_single(0, _free_place)
        worker_group.execute(_meet_at, host, port)


class MeetingPlace(TorchConfig):  # type: ignore[misc]
    """For torch, whose processes are children of Ray's workers: these must not take memory of a GPU themselves."""

    backend_cls = RankMeeting
    train_func_context = nullcontext


def _meet_at(host: str, port: int) -> None:
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))


def _free_place() -> tuple[str, int]:
    """Return the address of this node, and a port of it that is free."""
    host = ray.util.get_node_ip_address()
    with socket.socket() as listener:
        listener.bind((host, 0))
        return host, int(listener.getsockname()[1])


def run(work: NodeCommand, room: Room, settings: Distributed, stop: Event) -> int:
    """Run `work`, a trainer, as the ranks that `room` is for, and return its exit code. Call it within `joined`.

    When `stop` is set, rank 0 finishes its step and ends. Returns 75 if ranks were lost more often than
    settings.restarts. Raises ClusterError if the cluster has no room for them, SettingsError if a node is not as this
    one, both before anything is started.
    """
    with room_for(room, settings.wait_s, stop, LIBRARIES, spread=False) as group:
        if group is None:
            return 0
    os.environ[START_TIMEOUT] = str(settings.wait_s)
    on_this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    rank_run = ray.remote(RankRun).options(num_cpus=0, scheduling_strategy=on_this_node).remote(room.processes)
    with Scratch("ray") as folder:
        failures: list[Exception] = []
        thread = threading.Thread(
            target=_fit, args=(_trainer(work, room, settings, rank_run, folder), failures), name="ray", daemon=True
        )
        thread.start()
        is_stopping = False
        while thread.is_alive():
            if stop.is_set() and not is_stopping:
                is_stopping = True
                rank_run.stop.remote()
            if is_stopping and ray.get(rank_run.silent_s.remote()) > SILENT_S:
                break  # Ray waits for room, and no rank is there that could end
            thread.join(LOOK_EVERY_S)
    code: int | None = ray.get(rank_run.code.remote())
    if code is not None or is_stopping:
        return code or 0
    for failure in failures:
        if isinstance(failure, ray.train.ControllerError) and "Timeout" in type(failure.controller_failure).__name__:
            raise ClusterError(f"ranks were lost. {no_room(room, settings.wait_s)}")
        log.error("ranks were lost: %s", str(failure).strip().splitlines()[-1])
    return EXIT_RESTART


def _trainer(work: NodeCommand, room: Room, settings: Distributed, rank_run: Any, folder: Path) -> TorchTrainer:
    return TorchTrainer(
        partial(_rank, work, rank_run),  # not as train_loop_config, which Ray may show to people: it has secrets
        torch_config=MeetingPlace(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(
            num_workers=room.processes, use_gpu=room.gpus > 0, resources_per_worker=room.bundle()
        ),
        run_config=ray.train.RunConfig(
            name="ranks",
            storage_path=str(folder),  # nothing is written there: checkpoints are the trainer's own
            failure_config=ray.train.FailureConfig(max_failures=settings.restarts, controller_failure_limit=0),
        ),
    )


def _fit(trainer: TorchTrainer, failures: list[Exception]) -> None:
    try:
        trainer.fit()
    except (ray.train.TrainingFailedError, ray.exceptions.RayError) as exc:
        failures.append(exc)


def _rank(work: NodeCommand, rank_run: Any) -> None:
    """Be a worker of Ray Train: run one rank until it ends. Raises RankLost if all are to be started again."""
    if ray.get(rank_run.is_stopping.remote()):
        return
    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(context.get_local_rank()),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
    }
    ray.get(rank_run.record_start.remote(rank))
    with child_of(work, variables) as child:
        while child.poll() is None and ray.get(rank_run.code.remote()) is None:
            if rank == 0 and ray.get(rank_run.is_stopping.remote()):
                child.terminate()
            child.wait_at_most(LOOK_EVERY_S)
        child.wait_at_most(HOME_S)
    code = child.returncode
    if ray.get(rank_run.record_end.remote(rank, code)) is None and code != 0:
        raise RankLost(f"rank {rank} of {size} ended with {describe_exit(code)}; all end with it")
