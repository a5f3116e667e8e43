"""Jobs on a real log: controllers that are killed, and the commands of people."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugins.jobs.controller.controller import JobController
from plugins.jobs.controller.gauges import JOBS
from plugins.jobs.fold.state import JobState, fold
from plugins.jobs.log.job_log import JobCommand, JobLog
from plugins.jobs.orders.request import JobOrder
from schemas.events import JobEvent, JobPrices, JobQuestion, JobTuning, Sampling, Task, derive_id
from streams.errors import NotFoundError, RefusedError
from streams.kafka import times
from streams.kafka.producer import Producer
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import DAY_MS
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.settings.model import Batches, Model, Settings
from tests.support.commands import invoke, rows_of
from tests.support.factories import T0, group, job_event, job_spec, member, response, scoreless
from tests.support.log.loop_on_log import LoopOnLog
from tests.support.log.shared_node import own_topics
from tests.support.models.tiny import save_tiny
from tests.support.processes import command, environment, read, spawn, until, write
from tests.support.scrape import parse

pytestmark = pytest.mark.kafka
QUERIES = [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(12)]


@pytest.fixture(scope="module")
def made(kafka_bootstrap: str) -> Settings:
    return own_topics(kafka_bootstrap, batches=Batches(groups=4, max_policy_lag=0))


def order(policy: str, digest: str = "d", **changes: Any) -> JobOrder:
    return JobOrder(policy, "shop", job_spec(**changes), digest)


def states(settings: Settings) -> dict[str, JobState]:
    found: dict[str, JobState] = {}
    for _, event in read(settings, JobEvent):
        state = fold(found.get(event.job_id), event)
        if state is not None:
            found[event.job_id] = state
    return found


@pytest.mark.kills
def test_controllers_killed_again_and_again_ask_for_every_task_and_end_every_iteration_once(
    made: Settings, tmp_path: Path
) -> None:
    with JobLog(made) as log:
        jobs = [log.start(order(f"killed-{n}", iterations=4, questions=questions(12)), actor="ann") for n in range(3)]
    ids = {job.job_id for job in jobs}

    def ended() -> int:
        return sum(state.has_ended for name, state in states(made).items() if name in ids)

    def iterations() -> int:
        return sum(state.iteration for name, state in states(made).items() if name in ids)

    with LoopOnLog(made, *(f"killed-{n}" for n in range(3))), (tmp_path / "jobs.log").open("ab") as out:
        for goal in (1, 4, 8):
            victim = spawn(command("jobs", "run"), env=environment(made), cwd=tmp_path, stdout=out, stderr=out)
            try:
                until(lambda goal=goal: iterations() >= goal, f"{goal} iterations", folder=tmp_path)
            finally:
                victim.kill()
                victim.wait()
        last = spawn(command("jobs", "run"), env=environment(made), cwd=tmp_path, stdout=out, stderr=out)
        try:
            until(lambda: ended() == 3, "three jobs that have ended", folder=tmp_path)
            last.terminate()
            assert last.wait(300) == 0
        finally:
            last.kill()
            last.wait()
    for job in jobs:
        events = [event for _, event in read(made, JobEvent) if event.job_id == job.job_id]
        assert states(made)[job.job_id].status == "completed"
        assert [event.iteration for event in events if event.kind == "iteration"] == [1, 2, 3, 4]
        assert Counter(event.event_id for event in events).most_common(1)[0][1] == 1
        tasks = [task for _, task in read(made, Task) if task.policy == job.policy]
        assert Counter(task.task_id for task in tasks).most_common(1)[0][1] == 1
        assert Counter(task.purpose for task in tasks)["train"] == 4 * 4
    costs = [
        row
        for row in rows_of(invoke(made, "jobs", "costs", "--by", "policy,job"))
        if row["policy"].startswith("killed")
    ]
    assert len(costs) == 3 and all(row["cost_usd"] > 0 and row["trainer_s"] == 4.0 for row in costs)


def questions(count: int) -> Any:
    return tuple(JobQuestion(query=f"{n} + 1 =") for n in range(count))


def test_the_second_of_two_commands_at_once_is_refused_and_told_so(made: Settings) -> None:
    with JobLog(made) as log:
        job = log.start(order("nobody"), actor="ann")
        now = log.command(job.job_id, JobCommand(kind="paused", actor="ann", reason="night", expect=job.sequence))
        with pytest.raises(RefusedError, match=r"it was decided when 1 events had taken effect, and there are 2"):
            log.command(job.job_id, JobCommand(kind="cancelled", actor="bob", reason="over", expect=job.sequence))
        assert now.status == log.get(job.job_id).status == "paused"
    written = [event.kind for _, event in read(made, JobEvent) if event.job_id == job.job_id]
    assert written == ["created", "paused"]


def test_commands_that_are_written_at_the_same_moment_have_one_effect(made: Settings) -> None:
    with JobLog(made) as first, JobLog(made) as second:
        job = first.start(order("nobody"), actor="ann")
        until(lambda: job.job_id in second.jobs, "the job at the other reader")
        told: list[str] = []

        def give(log: JobLog, kind: Any) -> None:
            try:
                told.append(log.command(job.job_id, JobCommand(kind=kind, actor=kind, reason="now", expect=1)).status)
            except RefusedError:
                told.append("refused")

        threads = [threading.Thread(target=give, args=one) for one in ((first, "paused"), (second, "cancelled"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert told.count("refused") == 1


def test_an_order_with_the_same_key_is_the_same_job_and_another_with_it_is_refused(made: Settings) -> None:
    with JobLog(made) as log:
        job = log.start(order("nobody"), actor="ann", key="k1")
        assert log.start(order("nobody"), actor="ann", key="k1").job_id == job.job_id == derive_id("job", "shop", "k1")
        with pytest.raises(RefusedError, match="Idempotency-Key 'k1' was used for job"):
            log.start(order("nobody", digest="another"), actor="ann", key="k1")
        paused = JobCommand(kind="paused", actor="ann", reason="night", key="k2")
        assert log.command(job.job_id, paused).sequence == log.command(job.job_id, paused).sequence == 2
        with pytest.raises(RefusedError, match="Idempotency-Key 'k2' was used before"):
            log.command(job.job_id, JobCommand(kind="cancelled", actor="ann", reason="night", key="k2"))


def test_a_job_waits_for_the_one_before_it_of_its_policy(made: Settings) -> None:
    with JobLog(made) as log:
        first, second = (log.start(order("queued", held_out_share=0.0), actor="ann") for _ in range(2))
        stop, meter = threading.Event(), Meter("jobs", waits_for=("kafka",))
        with JobController(made, BrokerOutage(made.kafka, stop, meter)) as controller:

            def steps(name: str, status: str) -> bool:
                controller.step()
                return log.get(name).status == status

            until(lambda: steps(first.job_id, "running"), "the first job to run")
            assert log.get(second.job_id).status == "queued"
            log.command(first.job_id, JobCommand(kind="paused", actor="ann", reason="night"))
            for _ in range(5):
                controller.step()
            assert log.get(second.job_id).status == "queued"  # one that is paused has not ended
            log.command(first.job_id, JobCommand(kind="cancelled", actor="ann", reason="over"))
            until(lambda: steps(second.job_id, "running"), "the second job to run")

            def counted() -> dict[str, float]:
                controller.step()
                found = parse(meter.text()).family(JOBS.name)
                return {one.labels["status"]: one.value for one in found if one.labels["policy"] == "queued"}

            until(lambda: (found := counted()).get("running") == found.get("cancelled") == 1, "both in the metrics")
            assert meter.answer("/readyz") == (200, "ok\n")

            def tasks_sent() -> float:
                controller.step()
                return parse(meter.text()).total(catalog.EVENTS_OUT.name, stage="jobs", topic="tasks")

            until(lambda: tasks_sent() > 0, "tasks of the job that runs")


def test_a_job_that_tunes_is_left_to_the_tuner(made: Settings) -> None:
    tuning = JobTuning(method="sft", epochs=1, batch=1, groups_policy="tuned")
    with JobLog(made) as log, JobController(made, BrokerOutage(made.kafka, threading.Event())) as controller:
        tuned = log.start(order("tuned", tuning=tuning, questions=(), reward_sources=()), actor="ann")
        begun = job_event("started", 1, job_id=tuned.job_id, policy="tuned", tenant=tuned.tenant)
        write(made, begun)
        later = log.start(order("sums", held_out_share=0.0), actor="ann")

        def is_read() -> bool:
            controller.step()
            return log.get(later.job_id).status == "running"

        until(is_read, "the job behind it to run")
        until(lambda: log.get(tuned.job_id).status == "running", "the job that tunes to run")
        for _ in range(5):
            controller.step()
        assert log.get(tuned.job_id).status == "running"


def test_a_job_whose_tasks_cannot_be_written_fails_and_the_others_go_on(made: Settings) -> None:
    odd = dataclasses.replace(job_spec(held_out_share=0.0).sampling, max_tokens=0)
    with JobLog(made) as log, JobController(made, BrokerOutage(made.kafka, threading.Event())) as controller:
        bad = log.start(order("odd", held_out_share=0.0, sampling=odd), actor="ann")
        good = log.start(order("even", held_out_share=0.0), actor="ann")

        def done() -> bool:
            controller.step()
            return log.get(bad.job_id).has_ended and any(task.policy == "even" for _, task in read(made, Task))

        until(done, "one job to fail and the other to ask")
        assert log.get(bad.job_id).code == "TASK_REFUSED" and "max_tokens is 0" in log.get(bad.job_id).reason
        assert log.get(good.job_id).status == "running"


# --- the command line -------------------------------------------------------------------------------------------------


def test_a_draw_that_its_scorer_gave_up_on_is_replaced_by_another_before_its_deadline(made: Settings) -> None:
    def asked() -> list[Task]:
        return [task for _, task in read(made, Task) if task.policy == "unscored"]

    with JobLog(made) as log, JobController(made, BrokerOutage(made.kafka, threading.Event())) as controller:

        def works_until(count: int) -> None:
            until(lambda: controller.step() or len(asked()) == count, f"{count} draws")

        log.start(order("unscored", held_out_share=0.0), actor="ann")
        works_until(4)
        lost, *others = asked()
        write(
            made,
            scoreless(response(task_id=lost.task_id, policy="unscored")),
            *(group(task_id=one.task_id, policy="unscored", metadata=one.metadata) for one in others),
        )
        works_until(5)


@pytest.fixture(scope="module")
def started(made: Settings) -> Iterator[dict[str, Any]]:
    lines = "\n".join(map(json.dumps, QUERIES))
    config = {
        "n_trajectories_per_query": 2,
        "max_tokens": 4,
        "prices": {"prompt": 1, "completion": 2, "trainer_hour": 3},
    }
    (job,) = rows_of(invoke(
        made, "jobs", "start", "default", "--queries", "-", "--iterations", "3", "--budget", "5", "--tenant", "shop",
        "--idempotency-key", "one", "--config", json.dumps(config), input=lines,
    ))  # fmt: skip
    yield job


def test_a_job_is_started_listed_and_shown(made: Settings, started: dict[str, Any]) -> None:
    assert (started["policy"], started["status"], started["total_iterations"]) == ("default", "queued", 3)
    assert (started["budget_usd"], started["cost_usd"]) == (5.0, 0.0)
    listed = {row["job_id"]: row for row in rows_of(invoke(made, "jobs", "list", "--policy", "default"))}
    assert listed[started["job_id"]]["tenant"] == "shop"
    shown = json.loads(invoke(made, "jobs", "show", started["job_id"][:8], "--output", "json").stdout)
    assert shown["order"]["questions"] == 12 and shown["order"]["batch_size"] == 4
    assert shown["order"]["prices"] == {"prompt": 1.0, "completion": 2.0, "trainer_hour": 3.0}
    assert started["job_id"] in invoke(made, "jobs", "show", started["job_id"], "--output", "table").stdout


def test_a_job_is_paused_resumed_cancelled_and_watched(made: Settings, started: dict[str, Any]) -> None:
    name = started["job_id"]
    assert rows_of(invoke(made, "jobs", "pause", name, "--reason", "night"))[0]["status"] == "paused"
    assert "the job is paused; paused needs" in invoke(made, "jobs", "pause", name).stderr
    assert rows_of(invoke(made, "jobs", "resume", name))[0]["status"] == "queued"
    assert rows_of(invoke(made, "jobs", "cancel", name))[0]["status"] == "cancelled"
    refused = invoke(made, "jobs", "pause", name)
    assert refused.exit_code == 4 and "the job is cancelled" in refused.stderr
    assert [row["kind"] for row in rows_of(invoke(made, "jobs", "watch", name))] == [
        "created",
        "paused",
        "resumed",
        "cancelled",
    ]
    assert "night" in invoke(made, "jobs", "watch", name, "--output", "table").stdout


def test_the_answers_of_a_job_are_exported_by_reward_and_success(made: Settings) -> None:
    with JobLog(made) as log:
        job = log.start(order("exported"), actor="ann")
    answers = [response(slot=slot, policy="exported", text=f"answer {slot}", group_size=2) for slot in range(2)]
    written: list[Any] = []
    with Producer(made) as producer:
        for answer in answers:
            producer.send(answer, on_ack=written.append)
        producer.flush()
        members = tuple(
            member(
                slot, reward=float(slot), partition=at.partition, offset=at.offset, components={"exact": float(slot)}
            )
            for slot, at in enumerate(written)
        )
        metadata = {"job": job.job_id, "job_iteration": "1", "job_draw": "0"}
        for _ in range(2):  # a copy
            producer.send(group(policy="exported", created_at=T0, metadata=metadata, responses=members))

    def exported(*options: str) -> list[str]:
        result = invoke(made, "jobs", "export", job.job_id, *options)
        assert result.exit_code == 0, result.output
        return [json.loads(line)["text"] for line in result.stdout.splitlines()]

    assert exported() == ["answer 0", "answer 1"]
    assert exported("--success-only") == exported("--min-reward", "0.5") == exported("--offset", "1") == ["answer 1"]
    assert exported("--limit", "1") == ["answer 0"]


def test_a_month_that_is_spent_refuses_orders_ends_jobs_and_is_closed_once(made: Settings) -> None:
    prices = JobPrices(prompt=0.0, completion=1e6, trainer_hour=0.0)  # a dollar a token, and half of them are estimated
    spec = job_spec(iterations=1, batch_size=1, held_out_share=0.0, prices=prices)
    small, large = (
        JobOrder("spends", "bakery", dataclasses.replace(spec, sampling=Sampling(max_tokens=usd)), str(usd))
        for usd in (40, 80)
    )
    now_ms = times.now_ms()
    with JobLog(made) as log, JobController(made, BrokerOutage(made.kafka, threading.Event())) as controller:
        job = log.start(small, actor="ann")
        before = len(read(made, JobEvent))
        with pytest.raises(
            RefusedError, match=r"estimated to cost 80\.00 USD\. Of the 100\.00 USD .* tenant bakery in"
        ):
            log.start(large, actor="ann")
        assert len(read(made, JobEvent)) == before

        def steps(status: str) -> bool:
            controller.step()
            return log.get(job.job_id).status == status

        until(lambda: steps("running"), "the job to run")
        said = {"completion_token_ids": (1,) * 50, "logprobs": (0.0,) * 50, "loss_mask": (True,) * 50}
        answers = tuple(member(slot, **said) for slot in range(2))
        write(made, group(policy="spends", created_at=now_ms, metadata={"job": job.job_id}, responses=answers))
        until(lambda: steps("failed"), "its end")
        ended = log.get(job.job_id)
        assert ended.code == "BUDGET_EXCEEDED" and "for tenant bakery in" in ended.reason
        assert ended.cost_usd == 100.0
        for _ in range(2):
            controller.close_months(now_ms + 32 * DAY_MS)
    with JobLog(made) as log, JobController(made, BrokerOutage(made.kafka, threading.Event())) as controller:
        job = log.start(order("next", held_out_share=0.0), actor="ann")
        until(lambda: steps("running"), "another controller to know everything")
        controller.close_months(now_ms + 32 * DAY_MS)
    closed = [event for _, event in read(made, JobEvent) if event.kind == "month_closed" and event.tenant == "bakery"]
    assert [event.metrics["cost_usd"] for event in closed] == [100.0]
    (row,) = [
        row for row in rows_of(invoke(made, "jobs", "costs", "--by", "tenant,month")) if row["tenant"] == "bakery"
    ]
    assert (row["closed"], row["cost_usd"]) == (True, 100.0)
    assert "closed" in invoke(made, "jobs", "costs", "--by", "tenant,month").stdout


def test_costs_are_summed_by_what_is_asked_for(made: Settings) -> None:
    assert {row["tenant"] for row in rows_of(invoke(made, "jobs", "costs", "--by", "tenant"))} == {"shop", "bakery"}
    found = rows_of(invoke(made, "jobs", "costs", "--by", "policy,job,month"))
    assert [row["cost_usd"] for row in found if row["policy"] == "spends"] == [100.0]
    assert invoke(made, "jobs", "costs", "--by", "colour").exit_code == 2


@pytest.mark.parametrize(
    ("args", "lines", "code", "says"),
    [
        (("nobody-knows",), QUERIES, 3, "there is no policy and no agent 'nobody-knows'"),
        (("default",), [], 2, "training_queries"),
        (("default",), [*QUERIES, QUERIES[3]], 2, "training_queries[12].query repeats training_queries[3].query"),
        (
            ("default",),
            [{**one, "query": f"{n} {one['query'] * 1000}"} for n in range(60) for one in QUERIES],
            2,
            "topics.max_record_bytes",
        ),
        (("default",), [{"question": "?"}], 2, "training_queries[0].query is required"),
        (("default", "--budget", "-1"), QUERIES, 2, "config.max_budget_usd"),
        (("default", "--budget", "1"), QUERIES, 2, "a price is missing"),
        (("default", "--config", '{"batch_size": 3}'), QUERIES, 2, "batches.groups is 4 here"),
        (("default", "--config", '{"colour": 3}'), QUERIES, 2, "there is no field"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_refused_with_its_reason_and_nothing_is_written(
    made: Settings, args: tuple[str, ...], lines: list[Any], code: int, says: str
) -> None:
    before = len(read(made, JobEvent))
    text = "\n".join(map(json.dumps, lines))
    result = invoke(made, "jobs", "start", *args, "--queries", "-", "--iterations", "3", input=text)
    assert result.exit_code == code and says in result.stderr, result.stderr
    assert len(read(made, JobEvent)) == before


def test_questions_that_the_model_cannot_read_whole_are_refused_where_its_files_are(
    made: Settings, tmp_path: Path
) -> None:
    tiny = made.model_copy(update={"model": Model(base=str(save_tiny(tmp_path / "tiny")))})
    text = "\n".join(json.dumps({**one, "query": one["query"] * 1000}) for one in QUERIES)
    result = invoke(tiny, "jobs", "start", "default", "--queries", "-", "--iterations", "3", input=text)
    assert result.exit_code == 2 and "fit the context of 256" in result.stderr, result.stderr


def test_a_line_of_queries_that_is_no_json_is_named(made: Settings, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"query": "1 + 1 =", "expected_outcome": "2"}\n{oh\n')
    result = invoke(made, "jobs", "start", "default", "--queries", str(tmp_path / "q.jsonl"), "--iterations", "3")
    assert result.exit_code == 2 and "q.jsonl:2: not JSON" in result.stderr


def test_a_job_that_nobody_created_is_not_found(made: Settings) -> None:
    assert invoke(made, "jobs", "show", "nobody").exit_code == 3
    with JobLog(made) as log, pytest.raises(NotFoundError, match="streamward jobs list"):
        log.get("nobody")
