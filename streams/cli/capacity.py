"""`streamward admin capacity`: the processes and bytes that a load needs, and its first bottleneck.

options, settings ──► Load, CapacityPlan ──► tools.capacity.needs ──► a row for each multiple
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call
from streams.errors import SettingsError

if TYPE_CHECKING:
    from streams.output import Output
    from streams.tools.capacity import Rates

_COUNT = click.IntRange(min=1)
_RATE = click.FloatRange(min=0, min_open=True)


@click.command()
@click.option(
    "--responses-per-s", type=_RATE, default=10.0, show_default=True, help="Responses per second, on average."
)
@click.option("--prompt-tokens", type=_COUNT, default=200, show_default=True, help="Prompt tokens of a task.")
@click.option("--tokens", type=_COUNT, default=256, show_default=True, help="Tokens of a response.")
@click.option("--slots", type=_COUNT, default=8, show_default=True, help="Responses per task.")
@click.option("--scorers", type=_COUNT, default=1, show_default=True, help="Rewards per response.")
@click.option("--score-s", type=_RATE, default=0.001, show_default=True, help="CPU seconds of one score.")
@click.option("--answer-s", type=_RATE, default=10.0, show_default=True, help="Seconds from a task to its last reward.")
@click.option("--policies", type=_COUNT, default=1, show_default=True, help="Policies that share the load equally.")
@click.option(
    "--sampler-tokens-per-s", type=_RATE, default=None, help="Tokens per second that one process or device samples."
)
@click.option(
    "--trainer-tokens-per-s",
    type=_RATE,
    default=None,
    help="Tokens per second that one process or device trains on, prompts included.",
)
@click.option(
    "--times", default="1,10,100,1000", show_default=True, metavar="N,…", help="Multiples of the load, a row each."
)
@output_option
@pass_call
def capacity(
    call: AppContext,
    /,
    responses_per_s: float,
    prompt_tokens: int,
    tokens: int,
    slots: int,
    scorers: int,
    score_s: float,
    answer_s: float,
    policies: int,
    sampler_tokens_per_s: float | None,
    trainer_tokens_per_s: float | None,
    times: str,
    output: Output,
) -> None:
    """Estimate what a load needs, and its first bottleneck.

    Bytes and the cost of the join are those of this implementation (docs/scale.md). The speed of a sampler and a
    trainer depends on model and device, so give it, for one process or device; for the demo's model, the speed of one
    CPU thread is built in. Processes are planned to be busy 0.7 of the time. It does not read the log.
    """
    from streams import output as show
    from streams.tools.capacity import DAY_S, CapacityPlan, Load, needs

    settings = call.settings
    load = Load(
        responses_s=responses_per_s,
        prompt_tokens=prompt_tokens,
        completion_tokens=tokens,
        slots=slots,
        scorers=scorers,
        score_s=score_s,
        answer_s=answer_s,
        retention_days=settings.topics.retention_days,
        rates=_rates(settings.model.base, sampler_tokens_per_s, trainer_tokens_per_s),
    )
    plan = CapacityPlan(
        partitions=settings.topics.partitions,
        policy_partitions=settings.topics.policy_partitions,
        batch_groups=settings.batches.groups,
        policies=policies,
        remembered_s=settings.advantages.evict_after_s or load.retention_days * DAY_S,
    )
    columns = [
        show.Column("responses/s", lambda row: f"{row['responses_s']:g}", right=True),
        show.Column("records/s", lambda row: f"{row['records_s']:.4g}", right=True),
        show.Column("log MiB/s", lambda row: f"{row['log_mib_s']:.3g}", right=True),
        *(show.Column(name.replace("_", " "), name, right=True) for name in ("samplers", "scoring", "streams")),
        *(show.Column(name.replace("_", " "), name, right=True) for name in ("trainers", "open_groups")),
        show.Column("rows GiB", lambda row: f"{row['rows_gib']:.3g}", right=True),
        show.Column("rows back s", lambda row: f"{row['back_s']:.3g}", right=True),
        show.Column("broker GiB", lambda row: f"{row['broker_gib']:.3g}", right=True),
        show.Column("archive GiB/month", lambda row: f"{row['archive_gib_month']:.3g}", right=True),
        show.Column("full", lambda row: "; ".join(row["full"]) or "nothing"),
    ]
    show.rows([asdict(need) for need in needs(load, plan, _factors(times))], columns, output)


def _rates(base: str, sampler: float | None, trainer: float | None) -> Rates:
    from streams.tools.capacity import MODELS, Rates

    default = MODELS.get(base)
    if default is not None:
        return Rates(sampler or default.sampler, trainer or default.trainer)
    if sampler is None or trainer is None:
        raise SettingsError(
            f"model.base={base} has no built-in speed; measure it on your devices, and give both "
            "--sampler-tokens-per-s and --trainer-tokens-per-s"
        )
    return Rates(sampler, trainer)


def _factors(text: str) -> tuple[float, ...]:
    try:
        factors = tuple(float(part) for part in text.split(","))
    except ValueError:
        factors = ()
    if not factors or min(factors) <= 0:
        raise SettingsError(f"--times={text}: expected numbers above 0 with commas between, e.g. 1,10,100")
    return factors
