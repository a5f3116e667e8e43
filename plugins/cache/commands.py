"""The command of the cache: cache simulate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call

if TYPE_CHECKING:
    from streams.output import Output


@click.group()
def cache() -> None:
    """Measure what a cache of answers would do."""


@cache.command("simulate")
@click.option(
    "--similarity", type=click.FloatRange(0, 1, min_open=True), help="Smallest cosine.  [default: cache.similarity]"
)
@output_option
@pass_call
def cache_simulate(call: AppContext, similarity: float | None, output: Output) -> None:
    """Count how often a cache would have lied, over the log.

    Exact: the same question at temperature 0 was asked again; wrong: the model answered something else then. Similar:
    the same for a question that is similar to an earlier one. The bound holds the true share of wrong similar answers
    with probability 0.95; `cache.similar=serve` gives them only while it is below cache.most_wrong.
    """
    from plugins.cache.cache_settings import Cache
    from plugins.cache.simulation import simulate
    from streams import output as show

    rule = call.settings.of_plugin(Cache)
    if similarity is not None:
        rule = rule.model_copy(update={"similarity": similarity})
    row = simulate(call.settings, rule).row(rule)
    columns = [
        *show.columns(">answers"),
        show.Column("exact", lambda row: f"{row['exact']['compared']}, {row['exact']['wrong']} wrong"),
        show.Column("similar", lambda row: f"{row['similar']['compared']}, {row['similar']['wrong']} wrong"),
        show.Column("bound", lambda row: f"{row['similar']['bound']:.4f}"),
        show.Column("serve", lambda row: "yes" if row["may_serve_similar"] else "no"),
    ]
    show.rows([row], columns, output)
