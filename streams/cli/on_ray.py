"""`--on ray` and `--launcher ray`: the same commands, as processes on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streams.cli.runtime import AppContext, begin, importing, until_stopped
from streams.errors import SettingsError

if TYPE_CHECKING:
    from trainer.ranks.launcher import Place

F = TypeVar("F", bound=Callable[..., Any])
READS = {"policy": "tasks", "scoring": "responses"}


def options(command: F) -> F:
    """Add `--on` and `--replicas`; the command gets `on`, which is ray or None, and `replicas`."""
    command = click.option(
        "--replicas", type=click.IntRange(min=1), default=None, help="How many agents --on ray runs.  [default: 1]"
    )(command)
    return click.option(
        "--on",
        type=click.Choice(["ray"]),
        default=None,
        help="Run agents on the nodes of the Ray cluster in RAY_ADDRESS until interrupted (docs/scale.md).",
    )(command)


def is_wanted(on: str | None, replicas: int | None) -> bool:
    """Return whether the agents run on Ray. Raises UsageError if only their number is given."""
    if on is None and replicas is not None:
        raise click.UsageError(
            "--replicas has no effect without --on ray; here, start the command as often as you like"
        )
    return on is not None


def refuse_options(command: str, on: str | None, replicas: int | None) -> None:
    """Raise UsageError if a command got an option that it does not take."""
    if on is not None or replicas is not None:
        raise click.UsageError(f"--on and --replicas have no effect on {command}")


def agents(call: AppContext, words: Sequence[str], replicas: int) -> int:
    """Run `streamward WORDS` as `replicas` agents until a signal; return the exit code."""
    from streams.worker.ray import ray_cluster

    settings, kind = call.settings, words[0]
    computes = kind == "policy" and settings.policy.engine == "transformers"
    room = ray_cluster.room(
        replicas, settings.policy.threads if computes else 1, settings.model.device if computes else "cpu"
    )
    with ray_cluster.joined(f"{kind} --on ray"), until_stopped() as stop:
        begin(call, f"{kind} on Ray ({replicas} agents)", READS[kind])
        from streams.worker.ray import ray_agents

        return ray_agents.run(ray_cluster.work(settings, words, call.log_level), room, settings.ray, stop)


def trainer(call: AppContext, words: Sequence[str], place: Place | None) -> int:
    """Run `streamward WORDS`, a trainer, as trainer.processes ranks; return the exit code.

    Raises SettingsError if another launcher gave this process a `place`.
    """
    from streams.worker.ray import ray_cluster

    if place is not None:
        raise SettingsError("--launcher ray, and WORLD_SIZE is set by another launcher; use one of them")
    settings = call.settings
    room = ray_cluster.room(settings.trainer.processes, settings.trainer.threads, settings.model.device)
    with ray_cluster.joined("train --launcher ray"), until_stopped() as stop:
        begin(call, f"trainer on Ray ({room.processes} processes)", "batches")
        with importing():
            from trainer.ranks import ray_ranks

        return ray_ranks.run(ray_cluster.work(settings, words, call.log_level), room, settings.ray, stop)
