"""Every metric, in one table.

    Metric ──► Meter.add, set, observe ──► /metrics
       └────► grafana/metrics_page.py ──► docs/metrics.md      with those that plugins declare

Names begin with `streamward_` and end with their unit, in base units: seconds, records, tokens, nats, and `ratio` for a
share from 0 to 1. Labels have few values: policy, stage, topic (its short name), reason. Ids are never labels, and the
version of an adapter is one only in an info metric, which has one series at a time.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from streams.plugins.installed import plugin_entries

TIMES = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0)
"""Upper bounds of buckets: seconds of work."""
AGES = (0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0)
"""Seconds of waiting, which may take a day."""
VERSIONS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Numbers of versions by which a sampler is behind."""
CREDITS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Advantages, which are of the order of 1 if they are divided by a group's spread."""

LOOP: tuple[str, ...] = ("streams", "policy", "scoring", "train")
"""The processes of the loop, by the name of their command."""
READERS: tuple[str, ...] = (*LOOP, "agents")
"""Those that read as a consumer group: the loop, and `agents run`."""
SERVED: tuple[str, ...] = (*READERS, "archive", "serve")
"""Those that serve metrics.port: these, `admin archive sync --follow`, and the server of agents. Processes of plugins
do, too."""


class Metric(NamedTuple):
    """One metric, with its labels and the processes that export it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    about: str
    processes: tuple[str, ...]
    needs: str = ""
    """The event that gives it a first value, if a loop that trains does not; else ""."""
    buckets: tuple[float, ...] = ()


# --- every process ----------------------------------------------------------------------------------------------------

PROCESS = Metric(
    "streamward_process_info", "gauge", ("process", "version"), "Always 1, with the process and its version.", SERVED
)
READY = Metric("streamward_ready", "gauge", ("condition",), "1 if the condition of /readyz holds, else 0.", SERVED)
PROGRESS = Metric(
    "streamward_progress_age_seconds",
    "gauge",
    (),
    "Time since the process last made progress, which decides /healthz.",
    SERVED,
)
SCRAPE_ERRORS = Metric(
    "streamward_scrape_errors_total", "counter", (), "Values that a scrape could not get.", SERVED, "a fault"
)
EVENTS_IN = Metric("streamward_events_in_total", "counter", ("stage", "topic"), "Records read.", READERS)
EVENTS_OUT = Metric(
    "streamward_events_out_total",
    "counter",
    ("stage", "topic"),
    "Records written.",
    (*READERS, "serve"),
)
PROCESSING = Metric(
    "streamward_processing_seconds",
    "histogram",
    ("stage",),
    "Time of work: on one record (streams), one round (policy), one response with all its scores (scoring), one batch "
    "(trainer).",
    LOOP,
    buckets=TIMES,
)
EVENT_AGE = Metric(
    "streamward_event_age_seconds",
    "histogram",
    ("stage", "topic"),
    "Time from a record's timestamp to its read.",
    READERS,
    buckets=AGES,
)
LAG_RECORDS = Metric(
    "streamward_consumer_lag_records",
    "gauge",
    ("stage", "topic"),
    "Records of the assigned partitions that are not processed, those in progress included.",
    READERS,
)
LAG_SECONDS = Metric(
    "streamward_consumer_lag_seconds",
    "gauge",
    ("stage", "topic"),
    "Age of the oldest record that was read and is not processed (with none in progress, of the last one read); 0 "
    "without lag.",
    READERS,
)
DEAD_LETTERS = Metric(
    "streamward_dead_letters_total",
    "counter",
    ("stage", "reason"),
    "Records that could not be used, by reason.",
    LOOP,
    "a record that cannot be used",
)
DROPS = Metric(
    "streamward_drops_total",
    "counter",
    ("stage", "reason"),
    "Tasks and groups skipped on purpose: not answered (policy, agents), not trained on (batches).",
    ("streams", "policy", "agents"),
    "a flat or stale group, or a task that is too late",
)
REBALANCES = Metric(
    "streamward_rebalances_total",
    "counter",
    ("stage",),
    "Assignments of partitions.",
    ("streams", "policy", "scoring", "agents"),
)

SPANS_DROPPED = Metric(
    "streamward_spans_dropped_total",
    "counter",
    ("reason",),
    "Spans that were not sent: queue_full, refused (or the receiver did not answer), unsent (the process ended).",
    LOOP,
    "a receiver of traces that fails",
)

# --- streams ----------------------------------------------------------------------------------------------------------

GROUPS = Metric(
    "streamward_groups_total",
    "counter",
    ("policy", "outcome"),
    "Groups that left the join: varied, flat (all rewards equal), or the reason that there is none to train on. The "
    "zero-variance share is flat divided by the sum.",
    ("streams",),
)
FLAT_GROUPS = Metric(
    "streamward_flat_groups_total",
    "counter",
    ("policy", "cause"),
    "Groups whose rewards are all equal, by the likeliest cause: no answer is right, every answer is right, …",
    ("streams",),
    "a flat group",
)
TURN_CREDIT = Metric(
    "streamward_turn_credit",
    "histogram",
    ("policy", "turn"),
    "Absolute advantage of a turn, by its number in the response; `later` from the ninth on.",
    ("streams",),
    "credit by turn (`advantages.credit`)",
    buckets=CREDITS,
)
GROUP_SECONDS = Metric(
    "streamward_group_completion_seconds",
    "histogram",
    ("policy",),
    "Time from the first record of a task to the last that its group needed, by their timestamps.",
    ("streams",),
    buckets=AGES,
)
POLICY_LAG = Metric(
    "streamward_policy_lag_versions",
    "histogram",
    ("policy",),
    "Versions between the sampler of a group and the batch that trains on it.",
    ("streams",),
    buckets=VERSIONS,
)
DECISIONS = Metric(
    "streamward_rollout_decisions_total",
    "counter",
    ("policy", "kind"),
    "Adapter events that this process wrote: promoted, rolled_back, judged, …",
    ("streams",),
)

# --- policy -----------------------------------------------------------------------------------------------------------

SAMPLING = Metric(
    "streamward_sampling_seconds",
    "histogram",
    ("policy",),
    "Time of a round of the engine.",
    ("policy",),
    buckets=TIMES,
)
TOKENS = Metric("streamward_tokens_sampled_total", "counter", ("policy",), "Tokens the engine wrote.", ("policy",))
PROMPT_TOKENS = Metric(
    "streamward_prompt_tokens_total", "counter", ("policy",), "Tokens of prompts, once for each response.", ("policy",)
)
RESPONSES = Metric(
    "streamward_responses_total",
    "counter",
    ("policy", "finish_reason"),
    "Responses by finish reason: stop; length: truncated at max_tokens; error: the slot failed.",
    ("policy",),
)
WAITING = Metric(
    "streamward_tasks_waiting", "gauge", ("policy",), "Tasks that were read and are held back.", ("policy",)
)
ADAPTER = Metric(
    "streamward_adapter_info",
    "gauge",
    ("policy", "role", "version"),
    "Always 1: the version that the engine serves (role served), or the newest of the trainer (role trained).",
    ("policy", "train"),
)
PRIMARY = Metric(
    "streamward_rollout_primary_version",
    "gauge",
    ("policy",),
    "The primary version, as this agent sees it.",
    ("policy",),
)
CANDIDATE = Metric(
    "streamward_rollout_candidate_version",
    "gauge",
    ("policy",),
    "The candidate version.",
    ("policy",),
    "a canary in progress",
)
SHARE = Metric(
    "streamward_rollout_candidate_share_ratio",
    "gauge",
    ("policy",),
    "Share of the tasks that the candidate answers; 0 without one.",
    ("policy",),
)

# --- scoring ----------------------------------------------------------------------------------------------------------

SCORE_SECONDS = Metric(
    "streamward_score_seconds",
    "histogram",
    ("source",),
    "Time of one score, tries included.",
    ("scoring",),
    buckets=TIMES,
)
SCORE_FAILURES = Metric(
    "streamward_score_failures_total",
    "counter",
    ("source",),
    "Scores that failed after all tries.",
    ("scoring",),
    "a scorer that fails",
)
OPEN = Metric("streamward_responses_open", "gauge", (), "Responses in progress.", ("scoring",))

# --- trainer ----------------------------------------------------------------------------------------------------------

PHASES = ("wait", "load", "forward", "backward", "optimizer", "checkpoint", "publish")
PHASE = Metric(
    "streamward_trainer_phase_seconds",
    "histogram",
    ("policy", "phase"),
    f"Time of each batch by phase: {', '.join(PHASES)}.",
    ("train",),
    buckets=TIMES,
)
VERSION = Metric("streamward_trainer_version", "gauge", ("policy",), "The version that was trained last.", ("train",))
TRAINED_TOKENS = Metric(
    "streamward_trainer_tokens_total", "counter", ("policy",), "Tokens that entered the loss.", ("train",)
)
SKIPPED = Metric(
    "streamward_trainer_steps_skipped_total",
    "counter",
    ("policy",),
    "Steps that changed no weight: no usable group, or a gradient that is 0 or not finite.",
    ("train",),
    "a step without effect",
)


def _of_step(name: str, about: str, needs: str = "") -> Metric:
    return Metric(f"streamward_trainer_{name}", "gauge", ("policy",), f"{about} Of the last step.", ("train",), needs)


REWARD_MEAN = _of_step("reward_mean", "Mean reward of the responses.")
REWARD_STD = _of_step("reward_std", "Standard deviation of the rewards, over all responses.")
FLAT_SHARE = _of_step("zero_variance_ratio", "Share of the groups whose advantages are all 0.")
OF_STEP = {
    "loss": _of_step("loss", "The loss."),
    "kl": _of_step("kl_nats", "KL(sampler || trainer) per token, the k3 estimate."),
    "kl_reference": _of_step("kl_reference_nats", "KL to the base model per token; 0 with trainer.beta 0."),
    "entropy": _of_step("entropy_nats", "Entropy per token."),
    "clipped": _of_step("clipped_ratio", "Share of tokens (gspo: responses) whose ratio was clipped."),
    "mismatch": _of_step("logprob_mismatch_nats", "Mean of |logprob of the trainer - logprob of the sampler|."),
    "mismatch_max": _of_step("logprob_mismatch_max_nats", "The largest of them."),
    "effective": _of_step(
        "effective_sample_ratio", "Effective share of the tokens: (sum of ratios)² / (n × sum of squared ratios), Kish."
    ),
    "grad_norm": _of_step("gradient_norm", "Norm of the gradient before it is clipped."),
}
"""Gauges by the name that trainer/step/grpo.py gives the value."""

# --- fleets -----------------------------------------------------------------------------------------------------------

FLEET: tuple[str, ...] = ("policy", "train")
"""The processes that may serve many policies in turn."""
FLEET_MEMORY: tuple[str, ...] = (*FLEET, "serve")
"""Those that hold adapters of many policies."""
FLEET_HELD = Metric(
    "streamward_fleet_policies_held", "gauge", (), "Policies whose adapter is in memory.", FLEET_MEMORY, "`--fleet`"
)
FLEET_SWAPS = Metric(
    "streamward_fleet_swaps_total",
    "counter",
    ("source",),
    "Switches from one policy to another, by the source of the adapter: memory, or checkpoint (trainer) and store "
    "(policy agent, server).",
    FLEET_MEMORY,
    "`--fleet`",
)
FLEET_SWAP_SECONDS = Metric(
    "streamward_fleet_swap_seconds",
    "histogram",
    ("source",),
    "Time of these switches.",
    FLEET_MEMORY,
    "`--fleet`",
    buckets=TIMES,
)
FLEET_EVICTIONS = Metric(
    "streamward_fleet_evictions_total",
    "counter",
    (),
    "Policies evicted from memory because fleet.states were loaded.",
    FLEET_MEMORY,
    "`--fleet` with more policies than fleet.states",
)
FLEET_WAITING = Metric(
    "streamward_fleet_waiting_records",
    "gauge",
    ("policy",),
    "Waiting batches (trainer) or tasks (policy agent) of a policy.",
    FLEET,
    "`--fleet`",
)
FLEET_WAITING_SECONDS = Metric(
    "streamward_fleet_waiting_age_seconds",
    "gauge",
    ("policy",),
    "Age of the oldest of them, by its timestamp; 0 without any.",
    FLEET,
    "`--fleet`",
)
FLEET_ASIDE = Metric(
    "streamward_fleet_policies_set_aside", "gauge", (), "Policies that cannot be served now.", FLEET, "`--fleet`"
)
FLEET_SET_ASIDE = Metric(
    "streamward_fleet_set_aside_total",
    "counter",
    ("policy", "reason"),
    "Times that a policy was set aside, by reason: other_base, or refused, as its own process would be; the log line "
    "has details.",
    FLEET,
    "`--fleet` and a policy that cannot be served",
)

# --- audit --follow ---------------------------------------------------------------------------------------------------

IMBALANCE = Metric(
    "streamward_ledger_imbalance_records",
    "gauge",
    (),
    "Records that are lost, doubled, phantom or contradict others, unaccounted for.",
    ("audit",),
)
IN_FLIGHT = Metric(
    "streamward_ledger_in_flight_records", "gauge", (), "Records in flight: they have had no effect yet.", ("audit",)
)
FINDINGS = Metric(
    "streamward_ledger_findings_records",
    "gauge",
    ("category", "accounted"),
    "Findings of the audit, in records.",
    ("audit",),
)
REFUSED_ADAPTERS = Metric(
    "streamward_adapters_refused_total",
    "counter",
    ("reason",),
    "Adapter versions that an agent refused, by reason.",
    ("audit",),
    "an adapter that was refused",
)
RECOUNTED = Metric(
    "streamward_ledger_recount_timestamp_seconds", "gauge", (), "When the last recount ended.", ("audit",)
)

# --- serve ------------------------------------------------------------------------------------------------------------

SERVE_ROWS = Metric(
    "streamward_serve_answers_open",
    "gauge",
    ("state",),
    "Answers in the engine: running, or waiting for room.",
    ("serve",),
)
SERVE_TOKENS = Metric("streamward_serve_tokens_sampled_total", "counter", (), "Tokens the engine wrote.", ("serve",))
SERVE_PROMPT_TOKENS = Metric(
    "streamward_serve_prompt_tokens_total",
    "counter",
    ("source",),
    "Prompt tokens: computed, or reused from cached keys and values.",
    ("serve",),
)
SERVE_CACHED_TOKENS = Metric(
    "streamward_serve_cached_tokens",
    "gauge",
    (),
    "Tokens with cached keys and values for the next turn of a conversation.",
    ("serve",),
)
SERVE_CACHED_BYTES = Metric(
    "streamward_serve_cached_bytes", "gauge", (), "Memory of those keys and values, bytes.", ("serve",)
)
SERVE_TRAJECTORIES = Metric(
    "streamward_serve_trajectories_remembered",
    "gauge",
    (),
    "Trajectories in memory, ended ones included.",
    ("serve",),
)
SERVE_REMEMBERED = Metric(
    "streamward_serve_remembered_bytes",
    "gauge",
    (),
    "Memory of their turns, bytes, up to serve.remembered_mb.",
    ("serve",),
)
SERVE_EVICTED = Metric(
    "streamward_serve_evicted_total",
    "counter",
    (),
    "Trajectories whose turns were evicted because memory was full.",
    ("serve",),
)
SERVE_TURNS = Metric(
    "streamward_serve_turns_total",
    "counter",
    ("fate",),
    "Recorded calls of agents: delivered, not_delivered (the client hung up), or failed.",
    ("serve",),
)
SERVE_ACTIONS = Metric(
    "streamward_serve_actions_total",
    "counter",
    ("use",),
    "Actions in environments: usable or, e.g. calls of a tool that does not exist, unusable.",
    ("serve",),
)

# --- admin archive sync --follow --------------------------------------------------------------------------------------

ARCHIVE_LAG_RECORDS = Metric(
    "streamward_archive_lag_records",
    "gauge",
    ("topic",),
    "Records of the log that are not archived, at the last check.",
    ("archive",),
)
ARCHIVE_LAG_SECONDS = Metric(
    "streamward_archive_lag_seconds",
    "gauge",
    ("topic",),
    "Age of the oldest of them, by its timestamp, once it was read; 0 without any.",
    ("archive",),
)


def all_metrics() -> list[Metric]:
    """Return all metrics, in the order of this file, and those of plugins."""
    return [*of_core(), *(metric for metrics in by_plugin().values() for metric in metrics)]


def by_plugin() -> dict[str, list[Metric]]:
    """Return the metrics that plugins declare, by the plugin. Raises SettingsError if two have one name."""
    metrics: dict[str, list[Metric]] = {}
    names = {metric.name for metric in of_core()}
    declared = plugin_entries(
        lambda plugin: {metric.name: metric for metric in plugin.load_all(plugin.metrics)}, "metric", names
    )
    for plugin, metric in declared.values():
        metrics.setdefault(plugin.name, []).append(metric)
    return metrics


def of_core() -> list[Metric]:
    """Return the metrics of this file, in its order."""
    metrics: list[Metric] = []
    for value in list(globals().values()):
        if isinstance(value, Metric):
            metrics.append(value)
        elif value is OF_STEP:
            metrics += OF_STEP.values()
    return metrics
