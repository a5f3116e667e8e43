"""The metrics of verdicts, data sets, retraining and self-play, by the names of their commands."""

from __future__ import annotations

from streams.observability.catalog import Metric

CURATION_VERDICTS = Metric(
    "streamward_curation_verdicts_total",
    "counter",
    ("policy", "labeller", "verdict"),
    "Verdicts on runs, by gates and judge.",
    ("curate",),
    "a run that ended",
)
CURATION_JUDGE_COST = Metric(
    "streamward_curation_judge_cost_usd_total",
    "counter",
    ("policy",),
    "Cost of the judge of runs, with scoring.judge_prompt_usd and judge_completion_usd.",
    ("curate",),
    "a judged run",
)
CURATION_KAPPA = Metric(
    "streamward_curation_kappa_low_ratio",
    "gauge",
    ("model",),
    "Lower end of the interval of Cohen's kappa between a judge and people.",
    ("curate",),
    "verdicts of people",
)

DATASET_DUE = Metric(
    "streamward_dataset_due_ratio",
    "gauge",
    ("dataset",),
    "Runs that were promoted since the newest build, as a share of what the next one needs.",
    ("datasets",),
)
DATASET_BUILDS = Metric(
    "streamward_dataset_builds_total", "counter", ("dataset",), "Builds.", ("datasets",), "enough promoted runs"
)

DATASET_DRIFT = Metric(
    "streamward_dataset_drift_ratio",
    "gauge",
    ("dataset", "column"),
    "Distance of the questions of a build's newer rows from the build before it (total variation).",
    ("datasets",),
    "a second build",
)
DATASET_DRIFT_BOUND = Metric(
    "streamward_dataset_drift_bound_ratio",
    "gauge",
    ("dataset", "column"),
    "Distance that chance alone passes in one build of a hundred at most.",
    ("datasets",),
    "a second build",
)

RETRAIN_DUE = Metric(
    "streamward_retrain_due_ratio",
    "gauge",
    ("rule", "signal"),
    "Evidence since the last crossing, as a share of what the next one needs: newly promoted runs, or the e-value of a "
    "fall.",
    ("retrain",),
    "a rule with more than a schedule",
)
RETRAIN_CROSSINGS = Metric(
    "streamward_retrain_crossings_total",
    "counter",
    ("rule", "signal", "action"),
    "Crossings: reasons that started a job.",
    ("retrain",),
    "a crossing",
)

SELFPLAY_QUESTIONS = Metric(
    "streamward_selfplay_questions_total",
    "counter",
    ("catalogue",),
    "Questions that this process asked.",
    ("selfplay",),
    "a run",
)
METRICS = (
    CURATION_VERDICTS,
    CURATION_JUDGE_COST,
    CURATION_KAPPA,
    DATASET_DUE,
    DATASET_BUILDS,
    DATASET_DRIFT,
    DATASET_DRIFT_BOUND,
    RETRAIN_DUE,
    RETRAIN_CROSSINGS,
    SELFPLAY_QUESTIONS,
)
