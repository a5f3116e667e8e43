"""Learning curves of a policy: each figure by version, with the time of its newest record.

    groups, responses           ──► of the version that answered: reward, what taught, length, cut answers
    adapters (trained), batches ──► of the step that made a version: loss, KL, …, lag, distinct answers, throughput
    adapters (evaluated)        ──► of the version that was asked: held-out score and reward

Each figure is a statement that `streamward query` can run, too. Several policies and experiments can be overlaid
(overlays.py): by version, by time, or by hours since each began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from streams.evaluation.intervals import wilson
from streams.evaluation.score_trend import trend_text
from streams.evaluation.suite import owner_of
from streams.tools.query.views import literal
from streams.tools.views.curve import HELD_OUT, Curve, CurveChart, CurvePoint, Figure, Over
from streams.tools.views.group_outcome import NOTHING_REASON_SQL
from streams.tools.views.log_view import LogSnapshot, Row
from streams.tools.views.task import outcomes_sql

OVER: Mapping[Over, str] = {"version": "by version", "time": "over time", "hours": "since the start"}
LARGEST = 1e300
"""Of what is drawn: the distance of two larger numbers is infinite. NaN is below nothing."""
COLOURS = 6
"""Colours that look different from each other."""

TRAINED_SQL = """FROM adapters WHERE policy = {} AND kind = 'trained'
    QUALIFY row_number() OVER (PARTITION BY version ORDER BY _offset) = 1"""
"""Each version of a policy once, by the event that made it."""


# --- statements -------------------------------------------------------------------------------------------------------


def train_groups(policy: str) -> str:
    """Return the condition of a policy's groups for training."""
    return f"policy = {literal(policy)} AND purpose = 'train'"


def answered_sql(policy: str, condition: str = "true") -> str:
    """Return the statement of what each version's answers were worth, a row for each version that answered.

    The condition may narrow it to some of its groups, as in `outcomes_sql`.
    """
    return f"""
SELECT adapter_version AS version, count(*) AS groups, avg(reward_mean) AS reward,
    count(*) FILTER (NOT flat) AS differed, count(*) FILTER (({NOTHING_REASON_SQL}) IS NULL) AS taught,
    sum(cut_answers) / nullif(sum(scored), 0) AS cut_share, epoch_ms(max(_timestamp)) AS time_ms
FROM ({outcomes_sql(f"{train_groups(policy)} AND {condition}")}) WHERE adapter_version >= 0
GROUP BY ALL ORDER BY version
"""  # noqa: S608 - a literal


def rewards_sql(policy: str) -> str:
    """Return the statement of the mean reward of the train groups of each version, by scenario.

    The band is the mean and twice its standard error over groups: about 95 %. It ends at the lowest and the highest
    reward of an answer in the scenario.
    """
    return f"""
SELECT scenario, adapter_version AS version, count(*) AS groups, avg(reward_mean) AS mean,
    greatest(min(lowest), avg(reward_mean) - 2 * coalesce(stddev_samp(reward_mean), 0) / sqrt(count(*))) AS low,
    least(max(highest), avg(reward_mean) + 2 * coalesce(stddev_samp(reward_mean), 0) / sqrt(count(*))) AS high,
    epoch_ms(max(_timestamp)) AS time_ms
FROM (SELECT *, min(list_min(list_transform(members, lambda m: m.reward))) OVER (PARTITION BY scenario) AS lowest,
        max(list_max(list_transform(members, lambda m: m.reward))) OVER (PARTITION BY scenario) AS highest
    FROM groups WHERE {train_groups(policy)} AND reward_mean IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY group_id ORDER BY _offset) = 1)
GROUP BY ALL ORDER BY scenario, version
"""  # noqa: S608


def members_sql(policy: str) -> str:
    """Return the statement of the scored answers of a policy's train groups."""
    condition = train_groups(policy)
    return f"""
SELECT adapter_version AS version, _timestamp, unnest(members) AS member FROM groups SEMI JOIN (
    SELECT _partition, min(_offset) AS _offset FROM groups WHERE {condition} GROUP BY _partition, group_id
) USING (_partition, _offset) WHERE {condition}
"""  # noqa: S608


def sources_sql(policy: str) -> str:
    """Return the statement of the mean of each source of reward, and of each part of one, by version."""
    return f"""
SELECT part.key AS source, version, avg(part.value) AS mean, epoch_ms(max(_timestamp)) AS time_ms
FROM (SELECT version, _timestamp, unnest(map_entries(member.components)) AS part FROM ({members_sql(policy)}))
GROUP BY ALL ORDER BY source, version
"""  # noqa: S608


def lengths_sql(policy: str) -> str:
    """Return the statement of the mean length of the scored answers of each version, in tokens."""
    return f"""
SELECT m.version, avg(r.completion_tokens) AS tokens, epoch_ms(max(m._timestamp)) AS time_ms
FROM ({members_sql(policy)}) AS m
JOIN whole.responses AS r ON r._partition = m.member."partition" AND r._offset = m.member."offset"
GROUP BY ALL ORDER BY m.version
"""  # noqa: S608


def steps_sql(policy: str) -> str:
    """Return the statement of the step that made each version: what was measured, and of its batch size and lag.

    `per_minute`: its answers, over the time since the version before it was made.
    """
    return f"""
WITH made AS (
    SELECT version, last_batch, metrics, epoch_ms(_timestamp) AS time_ms {TRAINED_SQL.format(literal(policy))}
), cut AS (
    SELECT sequence, responses, lags FROM batches WHERE policy = {literal(policy)}
    QUALIFY row_number() OVER (PARTITION BY sequence ORDER BY _offset) = 1
)
SELECT version, metrics, time_ms,
    list_sum(list_transform(lags, lambda l: l.lag * l.groups)) / list_sum(list_transform(lags, lambda l: l.groups))
        AS mean_lag,
    60000.0 * responses / nullif(time_ms - lag(time_ms) OVER (ORDER BY version), 0) AS per_minute
FROM made LEFT JOIN cut ON sequence = last_batch ORDER BY version
"""  # noqa: S608


def held_out_sql(policy: str) -> str:
    """Return the statement of the held-out scores: one row per version and suite, the newest of each."""
    return f"""
SELECT suite, version, metrics['exact'] AS exact, metrics['mean_reward'] AS mean_reward,
    metrics['success_low'] AS success_low, metrics['success_high'] AS success_high,
    metrics['mean_reward_low'] AS reward_low, metrics['mean_reward_high'] AS reward_high,
    TRY_CAST(metrics['n'] AS BIGINT) AS n, epoch_ms(_timestamp) AS time_ms, _partition, _offset
FROM adapters WHERE policy = {literal(policy)} AND kind = 'evaluated'
QUALIFY row_number() OVER (PARTITION BY suite, version ORDER BY _offset DESC) = 1 ORDER BY suite, version
"""  # noqa: S608


# --- curves -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChartSection:
    """Charts under one heading."""

    title: str
    charts: list[CurveChart]

    @property
    def is_folded(self) -> bool:
        """Whether it begins folded."""
        return self.title in FOLDED


def suite_title(suite: str | None) -> str:
    """Return a suite's name as a legend has it: that of a job's held-out questions is the job with its short id.

    >>> suite_title("job/4adaf3a1-50c7-5e0c-9f3c-2f3a1e9d7c10"), suite_title("sums@1f3c9a2b")
    ('job 4adaf3a1', 'sums@1f3c9a2b')
    """
    name = suite or "held out"
    owner = owner_of(name)
    return name if owner is None else f"{owner[0]} {owner[1][:8]}"


Lines = dict[str, list[CurvePoint]]
LinesOf = Callable[[LogSnapshot, str], Lines]
"""A reader of the lines of a figure of a policy, by their names."""


def _lines(rows: Iterable[tuple[str, CurvePoint | None]]) -> Lines:
    """Return the points of each line by its name, without those that no picture has room for."""
    lines: Lines = {}
    for name, point in rows:
        if point is not None and abs(point.value) < LARGEST:
            is_drawn = abs(point.low) < LARGEST and abs(point.high) < LARGEST
            lines.setdefault(name, []).append(point if is_drawn else point.without_band())
    return lines


def _point(row: Row, value: float | None) -> CurvePoint | None:
    return None if value is None else CurvePoint(row["version"], value, value, value, row["time_ms"])


def _column(rows: Sequence[Row], name: str) -> Lines:
    """Return the only line of a figure that is a column."""
    return _lines(("", _point(row, row[name])) for row in rows)


def _ratio(rows: Sequence[Row], numerator: str, denominator: str) -> Lines:
    """Return the only line of a figure that is one metric of a step over another."""
    pairs = [(row, row["metrics"].get(numerator), row["metrics"].get(denominator)) for row in rows]
    return _lines(("", _point(row, first / second)) for row, first, second in pairs if first is not None and second)


def _score_lines(log: LogSnapshot, policy: str) -> Lines:
    """Return the share of right answers on each suite, with Wilson's interval."""
    return _lines(
        (suite_title(row["suite"]), _share_point(row)) for row in suite_scores(log, policy) if row["exact"] is not None
    )


def _share_point(row: Row) -> CurvePoint:
    return CurvePoint(row["version"], row["exact"], *share_bounds(row), row["time_ms"])


def _suite_reward_lines(log: LogSnapshot, policy: str) -> Lines:
    """Return the rewards on each suite with rewards other than right or wrong."""
    rows = [row for row in suite_scores(log, policy) if row["mean_reward"] is not None]
    suites = {row["suite"] for row in rows if row["mean_reward"] != row["exact"]}
    return _lines((suite_title(row["suite"]), _mean_point(row)) for row in rows if row["suite"] in suites)


def _mean_point(row: Row) -> CurvePoint:
    value = row["mean_reward"]
    low, high = (value if bound is None else bound for bound in (row["reward_low"], row["reward_high"]))
    return CurvePoint(row["version"], value, low, high, row["time_ms"])


def _scenario_lines(log: LogSnapshot, policy: str) -> Lines:
    return _lines(
        (row["scenario"], CurvePoint(*(row[name] for name in ("version", "mean", "low", "high", "time_ms"))))
        for row in log.rows(rewards_sql(policy))
    )


def _source_lines(log: LogSnapshot, policy: str) -> Lines:
    """Return the mean of each source, where there are several; of the only one its parts."""
    lines = _lines((row["source"], _point(row, row["mean"])) for row in log.rows(sources_sql(policy)))
    sources = [name for name in lines if not any(name.startswith(f"{other}.") for other in lines)]
    names = sources if len(sources) > 1 else [*lines]
    return {name: lines[name] for name in names} if len(names) > 1 else {}


def _taught_line(log: LogSnapshot, policy: str) -> Lines:
    return _lines(("", _point(row, row["taught"] / row["groups"])) for row in answer_figures(log, policy))


def _of_answers(column: str) -> LinesOf:
    """Return what reads a column of what each version answered."""
    return lambda log, policy: _column(answer_figures(log, policy), column)


def _of_steps(column: str) -> LinesOf:
    """Return what reads a column of the step that made each version."""
    return lambda log, policy: _column(step_figures(log, policy), column)


def _of_metrics(numerator: str, denominator: str) -> LinesOf:
    return lambda log, policy: _ratio(step_figures(log, policy), numerator, denominator)


def _metric(name: str, or_none: bool = False) -> LinesOf:
    """Return what reads a figure that the trainer measured; with `or_none` one that is always 0 has no line."""

    def read(log: LogSnapshot, policy: str) -> Lines:
        lines = _lines(("", _point(row, row["metrics"].get(name))) for row in step_figures(log, policy))
        return {} if or_none and not any(point.value for point in lines.get("", ())) else lines

    return read


def _no_lines(log: LogSnapshot, policy: str) -> Lines:
    return {}


_TAUGHT = Figure("taught", "Groups that taught something", "Share of the groups.", "answered", True)
_REWARD = Figure("reward", "Train reward", "Mean over the groups, with twice its standard error.", "answered")
_CUT = Figure("cut", "Cut answers", "Share that ended at the limit of tokens.", "answered", True)
_HELD_OUT_REWARD = Figure(
    "held_out_reward", "Held-out reward", "Where it says more than right or wrong; 95 % interval.", "answered"
)
SECTIONS: Mapping[str, Sequence[tuple[Figure, LinesOf]]] = {
    "Is it learning?": (
        (HELD_OUT._replace(groups="answered"), _score_lines),
        (_REWARD, _scenario_lines),
        (_TAUGHT, _taught_line),
        (
            Figure("length", "Length of answers", "Tokens, the mean.", "answered"),
            lambda log, policy: _column(log.rows(lengths_sql(policy)), "tokens"),
        ),
        (_CUT, _of_answers("cut_share")),
    ),
    "Rewards and answers": (
        (_HELD_OUT_REWARD, _suite_reward_lines),
        (Figure("sources", "Reward by source", "Mean over the answers.", "answered"), _source_lines),
        (
            Figure("distinct", "Distinct answers", "Share of the answers of a step.", "made", True),
            _of_metrics("answers_distinct", "responses"),
        ),
    ),
    "Training steps": (
        (Figure("loss", "Loss", "", "made"), _metric("loss")),
        (Figure("kl", "KL to the sampler", "Nats per token.", "made"), _metric("kl")),
        (Figure("kl_reference", "KL to the base model", "Nats per token.", "made"), _metric("kl_reference", True)),
        (Figure("entropy", "Entropy", "Nats per token.", "made"), _metric("entropy")),
        (Figure("grad_norm", "Norm of the gradient", "Before it is clipped.", "made"), _metric("grad_norm")),
        (Figure("clipped", "Tokens clipped", "Share of the tokens.", "made"), _metric("clipped")),
        (Figure("effective", "Effective tokens", "Share of the tokens.", "made"), _metric("effective")),
        (Figure("lag", "Lag", "Versions between answers and step, the mean.", "made"), _of_steps("mean_lag")),
    ),
    "Throughput": (
        (
            Figure("per_minute", "Answers a minute", "Trained on, since the version before.", "made"),
            _of_steps("per_minute"),
        ),
        (
            Figure("tokens_s", "Tokens a second", "Of the trainer, in its steps.", "made"),
            _of_metrics("tokens", "step_s"),
        ),
    ),
}
FIRST, *FOLDED = SECTIONS
"""The heading that is shown open, and those that begin folded."""
"""The charts of a policy, by heading, with the reader of each."""
COMPARED: Mapping[str, LinesOf] = {"reward": _of_answers("reward"), "sources": _no_lines}
"""Readers of the only line of a policy where several are laid over each other, if that is another function."""


# --- data of several charts, read once while the log does not change --------------------------------------------------


def answer_figures(log: LogSnapshot, policy: str) -> list[Row]:
    """Return the rows of `answered_sql`."""
    return log.recall(f"answered {policy}", lambda: log.rows(answered_sql(policy)), from_log=True)


def step_figures(log: LogSnapshot, policy: str) -> list[Row]:
    """Return the rows of `steps_sql`."""
    return log.recall(f"steps {policy}", lambda: log.rows(steps_sql(policy)), from_log=True)


def suite_scores(log: LogSnapshot, policy: str) -> list[Row]:
    """Return the rows of `held_out_sql`."""
    return log.recall(f"held out {policy}", lambda: log.rows(held_out_sql(policy)), from_log=True)


def share_bounds(row: Row) -> tuple[float, float]:
    """Return the interval of a suite's share of right answers: as recorded, which counts questions, not answers."""
    if row["success_low"] is None:
        return wilson(row["exact"], row["n"] or 0)
    return row["success_low"], row["success_high"]


def read_trend(log: LogSnapshot, policy: str) -> str:
    """Return how the scores on the suite that was asked last went, in a sentence; empty without two of them."""
    rows = [row for row in suite_scores(log, policy) if row["exact"] is not None]
    newest = max(rows, key=lambda row: row["time_ms"], default={"suite": None})["suite"]
    of_suite = [row for row in rows if row["suite"] == newest]
    return trend_text({row["version"]: (row["exact"], share_bounds(row)[0]) for row in of_suite})


def read_sections(log: LogSnapshot, policy: str, *, compares: bool = False) -> list[ChartSection]:
    """Return all charts of a policy, also those without a point; `compares`: as several are laid over each other."""
    return log.recall(f"curves {compares} {policy}", lambda: _read_sections(log, policy, compares), from_log=True)


def _read_sections(log: LogSnapshot, policy: str, compares: bool) -> list[ChartSection]:
    readers = {figure: read for section in SECTIONS.values() for figure, read in section}
    if compares:
        readers |= {figure: COMPARED[figure.key] for figure in readers if figure.key in COMPARED}
    lines = {figure: read(log, policy) for figure, read in readers.items()}
    start_ms = min(
        (point.time_ms for points in lines.values() for line in points.values() for point in line), default=0
    )

    def chart(figure: Figure) -> CurveChart:
        named = enumerate(lines[figure].items())
        curves = [Curve(name, line, policy, start_ms, number, number >= COLOURS) for number, (name, line) in named]
        return CurveChart(figure, curves)

    return [ChartSection(title, [chart(figure) for figure, _ in section]) for title, section in SECTIONS.items()]
