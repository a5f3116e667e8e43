"""`--on ray` and `--launcher ray`: the same commands, as processes on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plugins.distributed.settings import Distributed
from streams.cli.runtime import AppContext, begin, importing, until_stopped
from streams.errors import SettingsError

if TYPE_CHECKING:
    from trainer.ranks.launcher import Place

READS = {"policy": "tasks", "scoring": "responses"}


def agents(call: AppContext, words: Sequence[str], replicas: int) -> int:
    """Run `streamward WORDS` as `replicas` agents until a signal; return the exit code."""
    from plugins.distributed import ray_cluster

    settings, kind = call.settings, words[0]
    computes = kind == "policy" and settings.policy.engine == "transformers"
    room = ray_cluster.room(
        replicas, settings.policy.threads if computes else 1, settings.model.device if computes else "cpu"
    )
    with ray_cluster.joined(f"{kind} --on ray"), until_stopped() as stop:
        begin(call, f"{kind} on Ray ({replicas} agents)", READS[kind])
        from plugins.distributed import ray_agents

        return ray_agents.run(
            ray_cluster.work(settings, words, call.log_level), room, settings.of_plugin(Distributed), stop
        )


def trainer(call: AppContext, words: Sequence[str], place: Place | None) -> int:
    """Run `streamward WORDS`, a trainer, as trainer.processes ranks; return the exit code.

    Raises SettingsError if another launcher gave this process a `place`.
    """
    from plugins.distributed import ray_cluster

    if place is not None:
        raise SettingsError("--launcher ray, and WORLD_SIZE is set by another launcher; use one of them")
    settings = call.settings
    room = ray_cluster.room(settings.trainer.processes, settings.trainer.threads, settings.model.device)
    with ray_cluster.joined("train --launcher ray"), until_stopped() as stop:
        begin(call, f"trainer on Ray ({room.processes} processes)", "batches")
        with importing():
            from plugins.distributed import ray_ranks

        return ray_ranks.run(
            ray_cluster.work(settings, words, call.log_level), room, settings.of_plugin(Distributed), stop
        )
