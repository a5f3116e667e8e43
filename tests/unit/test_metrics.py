"""What a process counts, how it is told, and when it is healthy and ready."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence

import pytest

from schemas.events import CreditSpan
from streams.engines.protocol import Completion, SamplingRequest
from streams.engines.scripted.scripted_engine import ScriptedEngine
from streams.errors import SettingsError
from streams.evaluation.diagnosis import CAUSES
from streams.kafka import retry
from streams.kafka.lag_meter import LagMeter
from streams.observability import catalog, metrics
from streams.observability.catalog import Metric
from streams.observability.grafana import metrics_page
from streams.observability.http_server import Site, serve
from streams.observability.metrics import OFF, OTHER, Meter, serve_meter
from streams.plugins.installed import load_plugins
from streams.settings.model import Kafka, Metrics, Policy, Settings, Topics
from streams.stages.advantages.live import count
from streams.stages.policy.sampling import Sampler
from tests.import_graph import modules, path_of, sources
from tests.support.factories import group, member, task
from tests.support.scrape import get, parse

UNITS = (
    "seconds",
    "records",
    "tokens",
    "bytes",
    "nats",
    "ratio",
    "versions",
    "version",
    "info",
    "total",
    "timestamp_seconds",
    "usd",
)
BARE = (
    "streamward_ready",
    "streamward_tasks_waiting",
    "streamward_fleet_policies_held",
    "streamward_fleet_policies_set_aside",
    "streamward_agent_runs_open",
    "streamward_agent_tasks_waiting",
    "streamward_turn_credit",
    "streamward_responses_open",
    "streamward_serve_answers_open",
    "streamward_serve_trajectories_remembered",
    "streamward_tools_changed",
    "streamward_jobs",
    "streamward_job_iterations",
)
OF_STEP = ("reward_mean", "reward_std", "loss", "gradient_norm")
"""What has no unit: counts of things that the name says, and numbers of the user's own scale."""


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_page_is_what_the_table_says() -> None:
    assert metrics_page.PAGE.read_text(encoding="utf-8") == metrics_page.markdown(), (
        "run `python -m streams.observability.grafana.metrics_page`, and commit docs/metrics.md"
    )


def test_the_page_has_every_metric_once() -> None:
    page = metrics_page.markdown()
    assert [metric.name for metric in catalog.all_metrics() if page.count(f"| `{metric.name}` |") != 1] == []
    assert len(catalog.all_metrics()) == len({metric.name for metric in catalog.all_metrics()}) > 40


@pytest.mark.parametrize("metric", catalog.all_metrics(), ids=lambda metric: metric.name)
def test_a_metric_is_named_for_what_it_is(metric: Metric) -> None:
    assert re.fullmatch(r"streamward_[a-z_]+", metric.name)
    assert metric.name.endswith((*UNITS, *OF_STEP)) or metric.name in BARE
    assert metric.name.endswith("_total") is (metric.kind == "counter")
    assert bool(metric.buckets) is (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(metric.buckets)
    assert not {"task_id", "response_id", "group_id", "le"} & set(metric.labels)
    assert "version" not in metric.labels or metric.name.endswith("_info")


def test_every_metric_of_the_table_is_counted_somewhere() -> None:
    code = "\n".join(file.text for file in sources() if not file.folder.endswith("grafana"))  # which only asks
    used = set(re.findall(r"\bcatalog\.([A-Z_]+)\b", code))
    constants = {name for name, value in vars(catalog).items() if isinstance(value, Metric) or value is catalog.OF_STEP}
    assert used & constants == constants


def test_no_metric_is_named_outside_the_table() -> None:
    like_one = re.compile(rf'"(streamward_\w+_(?:{"|".join(UNITS)}))"')
    declared = {plugin.metrics.partition(":")[0] for plugin, _, _ in load_plugins() if plugin.metrics is not None}
    tables = {path_of("streams.observability.catalog"), *map(path_of, declared & modules().keys())}
    assert {file.path for file in sources() if like_one.search(file.text)} <= tables


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_counters_add_up_by_their_labels() -> None:
    meter = Meter("policy")
    meter.add(catalog.EVENTS_IN, "policy", "tasks")
    meter.add(catalog.EVENTS_IN, "policy", "tasks", by=2)
    meter.add(catalog.EVENTS_IN, "policy", "responses")
    told = parse(meter.text())
    assert told.kinds["streamward_events_in_total"] == "counter"
    assert [(one.labels["topic"], one.value) for one in told.samples] == [("tasks", 3), ("responses", 1)]


def test_buckets_are_cumulative_and_take_in_their_bound() -> None:
    meter = Meter("streams")
    for lag in (0, 1, 1, 3, 99):
        meter.observe(catalog.POLICY_LAG, lag, "default")
    told = parse(meter.text())
    buckets = [one for one in told.samples if one.name.endswith("_bucket")]
    assert [(one.labels["le"], one.value) for one in buckets] == [
        ("0.0", 1), ("1.0", 3), ("2.0", 3), ("4.0", 4), ("8.0", 4), ("16.0", 4), ("+Inf", 5),
    ]  # fmt: skip
    assert [one.value for one in told.samples if not one.name.endswith("_bucket")] == [5, 104]


def test_the_credit_of_turns_is_told_by_their_number() -> None:
    spans = tuple(CreditSpan(start=at, end=at + 1, advantage=(-1) ** at * 0.5) for at in range(10))
    meter = Meter("streams")
    count(meter, group(responses=(member(0, spans=spans),)), None)
    told = parse(meter.text())
    sums = [one for one in told.samples if one.name == "streamward_turn_credit_sum"]
    assert [(one.labels["turn"], one.value) for one in sums] == [*((str(n), 0.5) for n in range(1, 9)), ("later", 1.0)]


def test_a_flat_group_is_counted_with_its_cause_and_a_dropped_one_by_its_reason() -> None:
    meter = Meter("streams")
    for made in (group(), group(responses=(member(0), member(1))), group(dropped_reason="unscored", responses=())):
        count(meter, made, None)
    told = parse(meter.text())
    fates = {one.labels["outcome"]: one.value for one in told.samples if one.name == "streamward_groups_total"}
    assert fates == {"varied": 1, "flat": 1, "unscored": 1}
    (flat,) = (one for one in told.samples if one.name == "streamward_flat_groups_total")
    assert (flat.value, flat.labels["policy"], flat.labels["cause"] in CAUSES.values()) == (1, "default", True)


def test_a_label_may_be_any_text() -> None:
    meter = Meter("streams")
    meter.add(catalog.DEAD_LETTERS, "batches", 'a "b"\\c\nd')
    (sample,) = parse(meter.text()).samples
    assert (sample.value, sample.labels["reason"]) == (1, r"a \"b\"\\c\nd")


def test_what_goes_beyond_the_most_series_is_counted_as_other() -> None:
    meter = Meter("streams")
    for number in range(metrics.MAX_SERIES + 5):
        meter.add(catalog.GROUPS, f"policy-{number}", "varied")
    told = parse(meter.text())
    assert len(told.samples) == metrics.MAX_SERIES + 1
    assert told.total("streamward_groups_total", policy=OTHER) == 5
    assert told.total("streamward_groups_total") == metrics.MAX_SERIES + 5


def test_an_info_metric_has_one_version_of_each_policy_at_a_time() -> None:
    meter = Meter("policy")
    for version in ("1", "2"):
        meter.set(catalog.ADAPTER, 1, "default", "served", version)
    meter.set(catalog.ADAPTER, 1, "other", "served", "7")
    assert [one.labels["version"] for one in parse(meter.text()).samples] == ["2", "7"]
    meter.set(catalog.ADAPTER, None, "default", "served", "2")
    meter.set(catalog.ADAPTER, None, "other", "served", "7")
    assert parse(meter.text()).samples == []


def test_labels_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"streamward_events_in_total: got the labels \('policy',\)"):
        Meter("policy").add(catalog.EVENTS_IN, "policy")


def test_a_value_that_cannot_be_told_hides_no_other() -> None:
    meter = Meter("policy")

    def closed() -> None:
        raise RuntimeError("Consumer closed")

    meter.collect(closed)
    meter.collect(lambda: meter.set(catalog.WAITING, 3, "default"))
    told = parse(meter.text())
    assert told.total("streamward_tasks_waiting") == 3
    assert told.total("streamward_scrape_errors_total") == 1


def test_numbers_of_several_threads_add_up() -> None:
    meter = Meter("scoring")

    def work() -> None:
        for _ in range(500):
            meter.add(catalog.SCORE_FAILURES, "exact")
            meter.observe(catalog.SCORE_SECONDS, 0.1, "exact")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = parse(meter.text())
    assert told.total("streamward_score_failures_total") == told.total("streamward_score_seconds") == 2000


# --- progress and readiness -------------------------------------------------------------------------------------------


def test_a_process_that_comes_on_is_healthy() -> None:
    meter = Meter("policy", stuck_s=60)
    meter.begin("a round of 16 tasks")
    assert meter.answer("/healthz") == (200, "ok: a round of 16 tasks, for 0 s\n")


def test_a_process_that_is_stuck_says_at_what() -> None:
    meter = Meter("train", stuck_s=0)
    meter.begin("trains version 3")
    time.sleep(0.01)
    status, why = meter.answer("/healthz")
    assert status == 503 and why.startswith("stuck: trains version 3, for 0 s")
    assert "0 s are allowed" in why


def test_what_says_that_it_takes_longer_may_and_what_comes_next_may_not() -> None:
    meter = Meter("policy", stuck_s=0)
    meter.begin("building the engine", within_s=60)
    time.sleep(0.01)
    assert meter.answer("/healthz")[0] == 200
    meter.begin("looks for tasks")
    time.sleep(0.01)
    assert meter.answer("/healthz")[0] == 503


def test_waiting_for_a_broker_is_a_sign_of_life_and_no_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "NOTICE_S", 0.0)
    meter = Meter("scoring", waits_for=("kafka",))
    waits = retry.BrokerOutage(Kafka(), threading.Event(), meter)
    meter.ready("kafka")
    assert meter.answer("/readyz") == (200, "ok\n")
    waits.silent("to a commit")
    status, why = meter.answer("/readyz")
    assert status == 503 and why.startswith("kafka: Kafka at 127.0.0.1:9092 has not answered")
    assert meter.answer("/healthz")[0] == 200
    waits.answered()
    assert meter.answer("/readyz")[0] == 200


def test_a_process_is_ready_once_every_condition_holds() -> None:
    meter = Meter("policy", waits_for=("kafka", "engine"))
    assert meter.answer("/readyz") == (503, "kafka: not yet\nengine: not yet\n")
    meter.ready("kafka")
    meter.not_ready("engine", "version 3 cannot be loaded")
    assert meter.answer("/readyz") == (503, "engine: version 3 cannot be loaded\n")
    meter.ready("engine")
    assert meter.answer("/readyz") == (200, "ok\n")
    assert parse(meter.text()).total("streamward_ready") == 2


class Failing(ScriptedEngine):
    """An engine that fails while `fails`."""

    fails = True

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        if self.fails:
            raise OSError("no device")
        return super().sample(requests)


def test_an_engine_that_fails_is_not_ready_until_it_answers_again() -> None:
    meter, engine = Meter("policy", waits_for=("engine",)), Failing()
    sampler, request = Sampler(engine, Policy(engine="scripted"), meter), SamplingRequest(sampling_id="s1", task=task())
    (answer,) = sampler.sample([request], 0)
    assert {completion.error for completion in answer} == {"OSError: no device"}
    assert meter.answer("/readyz") == (503, "engine: it failed on the last task it was asked: OSError('no device')\n")
    engine.fails = False
    sampler.sample([request], 0)
    assert meter.answer("/readyz") == (200, "ok\n")


# --- lag --------------------------------------------------------------------------------------------------------------

TASKS = ("streamward.tasks", 0)


def lag_meter(meter: Meter, positions: dict[tuple[str, int], tuple[int, int]]) -> LagMeter:
    return LagMeter(meter, "policy", Topics(), lambda: positions)


def test_lag_is_the_sum_of_the_partitions_and_the_age_of_the_oldest_record() -> None:
    meter, positions = Meter("policy"), {TASKS: (3, 7), ("streamward.tasks", 1): (0, 2)}
    reading, now_ms = lag_meter(meter, positions), int(time.time() * 1000)
    reading.took(TASKS, 2, now_ms - 900_000)
    reading.took(TASKS, 3, now_ms - 600_000)
    reading.done(TASKS, 3)
    reading.report()
    told = parse(meter.text())
    assert told.total("streamward_consumer_lag_records", topic="tasks") == 6
    assert 600 <= told.total("streamward_consumer_lag_seconds", topic="tasks") < 900
    assert told.total("streamward_events_in_total") == 2


def test_there_is_no_lag_where_all_is_done_or_somebody_else_reads() -> None:
    meter, positions = Meter("policy"), {TASKS: (4, 7)}
    reading = lag_meter(meter, positions)
    reading.took(TASKS, 3, 0)
    reading.report()
    assert parse(meter.text()).total("streamward_consumer_lag_records") == 3
    positions[TASKS] = (7, 7)
    reading.done(TASKS, 7)
    reading.report()
    assert parse(meter.text()).total("streamward_consumer_lag_seconds") == 0
    positions.clear()
    reading.revoked([TASKS])
    reading.report()
    assert parse(meter.text()).total("streamward_consumer_lag_records") == 0


# --- the server -------------------------------------------------------------------------------------------------------


def test_without_a_port_nothing_is_served_and_nothing_counted() -> None:
    with serve_meter(Settings(), "policy") as meter:
        assert meter is OFF and not meter.on
        meter.add(catalog.EVENTS_IN, "policy", "tasks")
        meter.ready("kafka")
        assert not any(thread.name == "http" for thread in threading.enumerate())
    assert OFF.text() == ""


def test_a_port_that_is_taken_is_refused_with_the_way_out() -> None:
    with serve(Site(Meter("policy").answer), "127.0.0.1", 0) as url:
        port = int(url.rpartition(":")[2])
        taken = Settings(metrics=Metrics(port=port))
        with pytest.raises(SettingsError, match=rf"metrics\.port {port}: .*each process"), serve_meter(taken, "policy"):
            pass


def test_it_is_served_while_the_block_runs() -> None:
    meter = Meter("policy")
    with serve(Site(meter.answer), "127.0.0.1", 0) as url:
        assert get(f"{url}/healthz?verbose=1")[0] == 200
        assert get(f"{url}/metrics")[0] == 200
        assert get(f"{url}/") == (404, "there are /metrics, /healthz and /readyz\n")
    assert get(f"{url}/healthz") == (0, "")
