"""Rules of retraining on a real log: controllers that are killed, doubled, and away when their time comes."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from plugins.improve.triggers.retrain_controller import RetrainController
from plugins.improve.triggers.rule import RetrainRule, rule_of
from plugins.improve.triggers.trigger_log import TriggerLog
from plugins.jobs.log.job_log import JobCommand, JobLog
from schemas.events import Event, JobEvent, Message, RewardSource, TriggerEvent, derive_id
from schemas.serde import encode
from streams.kafka import times
from streams.kafka.producer import Producer
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.settings.model import Batches, Settings
from tests.support.commands import invoke, rows_of
from tests.support.factories import T0, curation_event, group, member, task
from tests.support.log.shared_node import own_topics
from tests.support.processes import command, environment, read, spawn, until, write

pytestmark = pytest.mark.kafka
DAY_MS = 86_400_000
KILLS = 20


@pytest.fixture
def made(kafka_bootstrap: str) -> Settings:
    return own_topics(kafka_bootstrap, batches=Batches(groups=4, max_policy_lag=0))


def rule(**changes: Any) -> RetrainRule:
    """Return a rule that trains on the questions of five newly promoted runs."""
    whole: dict[str, Any] = {
        "name": "five",
        "policy": "default",
        "actions": ["train"],
        "when": {"promotable": 5},
        "train": {"n_iterations": 2, "held_out_share": 0.0},
    }
    return rule_of(whole | changes)


def run_of(number: int, *, verifier: str | None = None) -> list[Event]:
    """Return the task, group and promotion of a served run."""
    name = f"run-{number}"
    answer = {"answer": str(number + 1)}
    return [
        task(
            task_id=name,
            purpose="serve",
            group_size=1,
            reward_sources=(RewardSource(name="exact"),),
            verifier=json.dumps(answer) if verifier is None else verifier,
            messages=(Message(role="user", content=f"{number} + 1 ="),),
        ),
        group(
            task_id=name,
            purpose="serve",
            group_size=1,
            reward_mean=1.0,
            responses=(member(0, reward=1.0, components={"exact": 1.0}, response_id=name),),
        ),
        curation_event(
            policy="default",
            event_id=derive_id(name, "person", "ann"),
            task_id=name,
            answer_id=name,
        ),
    ]


def serve(settings: Settings, first: int, count: int) -> None:
    write(settings, *(event for number in range(first, first + count) for event in run_of(number)))


def crossings(settings: Settings) -> list[TriggerEvent]:
    """Return the crossings that took effect."""
    with TriggerLog(settings) as log:
        return [event for event in log.events() if event.kind == "crossed"]


def jobs_created(settings: Settings) -> Counter[str]:
    """Return how many `created` records each job has."""
    return Counter(event.job_id for _, event in read(settings, JobEvent) if event.kind == "created")


class Follower:
    """One controller in this process, with a clock of its own."""

    def __init__(self, settings: Settings, rule: RetrainRule) -> None:
        self.triggers, self.jobs = TriggerLog(settings), JobLog(settings)
        self._make = lambda: RetrainController(settings, rule, self.triggers, self.jobs)

    def __enter__(self) -> Follower:
        self.triggers.__enter__()
        self.jobs.__enter__()
        self.controller = self._make()
        return self

    def __exit__(self, *_: object) -> None:
        self.controller.__exit__()
        self.jobs.__exit__()
        self.triggers.__exit__()

    def steps(self, now_ms: int = T0) -> None:
        """Take in what is there, and let one decision follow from another."""
        for _ in range(4):
            self.controller.catch_up()
            self.controller.step(now_ms)

    def end_job(self) -> None:
        """Cancel the job that runs."""
        crossing = self.controller.state.crossing
        assert crossing is not None and crossing.job_id is not None
        self.jobs.command(crossing.job_id, JobCommand(kind="cancelled", actor="ann", reason="enough"))


def test_a_job_asks_the_questions_of_the_runs_of_its_crossing_with_their_verifiers(made: Settings) -> None:
    serve(made, 0, 5)
    write(made, *run_of(90, verifier="{}"))  # checked against nothing
    with Follower(made, rule()) as follower:
        follower.steps()
        crossing = follower.controller.state.crossing
        assert crossing is not None and crossing.job_id is not None
        job = follower.jobs.get(crossing.job_id)
    assert {question.query for question in job.spec.questions} == {f"{number} + 1 =" for number in range(5)}
    assert {question.verifier for question in job.spec.questions} == {
        json.dumps({"answer": str(number + 1)}) for number in range(5)
    }
    created = next(event for _, event in read(made, JobEvent))
    assert created.metadata == {"trigger": crossing.event_id, "rule": "five"}
    assert crossing.evidence["promoted"] == 6


def test_a_promotion_in_another_partition_than_its_keys_counts_nowhere_and_gives_no_question(made: Settings) -> None:
    shape = topics(made.topics)["curation"]
    task_of_run, group_of_run, promotion = run_of(9)
    write(made, task_of_run, group_of_run)
    key = b"run-9"
    with Producer(made) as producer:
        elsewhere = (shape.name, 1 - partition_of("run-9", shape.partitions))
        producer.send_bytes(elsewhere, key, encode(promotion), timestamp_ms=times.now_ms())
    serve(made, 0, 4)
    with Follower(made, rule()) as follower:
        follower.steps()
        assert crossings(made) == []
        serve(made, 4, 1)
        follower.steps()
    (job,) = [event for _, event in read(made, JobEvent) if event.kind == "created"]
    assert job.spec is not None
    assert sorted(question.query for question in job.spec.questions) == [f"{number} + 1 =" for number in range(5)]


def test_while_a_job_runs_no_other_starts_and_what_came_meanwhile_counts_afterwards(made: Settings) -> None:
    with Follower(made, rule()) as follower:
        serve(made, 0, 5)
        follower.steps()
        serve(made, 5, 7)
        follower.steps()
        assert len(crossings(made)) == 1
        follower.end_job()
        follower.steps()
    first, second = crossings(made)
    assert (first.evidence["promoted"], second.evidence["promoted"]) == (5, 7)
    assert set(jobs_created(made).values()) == {1} and len(jobs_created(made)) == 2


def test_two_controllers_that_follow_one_rule_start_one_job(made: Settings) -> None:
    serve(made, 0, 5)
    with Follower(made, rule()) as one, Follower(made, rule()) as other:
        one.controller.catch_up(), other.controller.catch_up()
        for _ in range(4):
            one.controller.step(T0), other.controller.step(T0)
    assert len(crossings(made)) == 1 and len(jobs_created(made)) == 1


def test_a_schedule_that_nobody_followed_for_three_days_starts_one_job(made: Settings) -> None:
    daily = rule(when={"daily": "03:00"})
    serve(made, 0, 5)
    night = T0 - T0 % DAY_MS
    with Follower(made, daily) as follower:
        follower.steps(night + DAY_MS)
        assert crossings(made) == []
    with Follower(made, daily) as follower:
        follower.steps(night + 4 * DAY_MS)
        follower.end_job()
        follower.steps(night + 4 * DAY_MS + 60_000)
        follower.steps(night + DAY_MS)  # the clock jumps back
    [crossing] = crossings(made)
    assert crossing.signal == "schedule" and crossing.due_at == night + 3 * DAY_MS + 3 * 3_600_000
    assert len(jobs_created(made)) == 1


def test_a_crossing_whose_job_cannot_be_ordered_is_not_written(
    made: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    write(made, *(event for number in range(5) for event in run_of(number, verifier="{}")))
    with Follower(made, rule()) as follower:
        follower.steps()
    assert crossings(made) == [] and not jobs_created(made)
    assert "of 5 runs no question can be trained on: 5 without a verifier" in caplog.text


@pytest.mark.kills
def test_killed_twenty_times_a_controller_starts_exactly_one_job_for_each_crossing(
    made: Settings, tmp_path: Path
) -> None:
    """Each kill comes at a random moment, so some come between a crossing and its job."""
    file = tmp_path / "retrain.toml"
    file.write_text(
        'name = "five"\npolicy = "default"\nactions = ["train"]\n[when]\npromotable = 5\n'
        "[train]\nn_iterations = 2\nheld_out_share = 0.0\n",
        encoding="utf-8",
    )
    draws = random.Random(20)
    serve(made, 0, 5)
    with JobLog(made) as jobs, (tmp_path / "retrain.log").open("ab") as out:

        def follower() -> subprocess.Popen[bytes]:
            return spawn(
                command("improve", "retrain", "follow", "--rule", str(file)),
                env=environment(made), cwd=tmp_path, stdout=out, stderr=out,
            )  # fmt: skip

        served = 5
        for _ in range(KILLS):
            victim = follower()
            time.sleep(draws.uniform(0.8, 2.5))
            victim.kill()
            victim.wait()
            for job in jobs.jobs.values():
                if not job.has_ended:  # its crossing is over: more runs are a reason again
                    jobs.command(job.job_id, JobCommand(kind="cancelled", actor="ann", reason="enough"))
                    serve(made, served, 5)
                    served += 5
        printed = out.tell()
        last = follower()
        try:
            until(lambda: len(jobs_created(made)) == served // 5, "a job for each five runs", folder=tmp_path)
            log_file = (
                tmp_path / "retrain.log"
            )  # all jobs may be there already, and a signal would come before its handler
            until(
                lambda: b" starts, reads" in log_file.read_bytes()[printed:], "the last one to start", folder=tmp_path
            )
            last.terminate()
            assert last.wait(300) == 0
        finally:
            last.kill()
            last.wait()
    found = crossings(made)
    assert [event.evidence["promoted"] for event in found] == [5.0] * (served // 5)
    assert jobs_created(made).keys() == {event.job_id for event in found}
    asked = Counter(
        question.query
        for _, event in read(made, JobEvent)
        if event.spec is not None
        for question in event.spec.questions
    )
    assert asked.most_common(1)[0][1] <= max(jobs_created(made).values())


def test_the_commands_show_a_rule_and_what_it_has_started(made: Settings, tmp_path: Path) -> None:
    file = tmp_path / "retrain.toml"
    file.write_text(
        'name = "five"\npolicy = "default"\nactions = ["train"]\n[when]\npromotable = 5\nreward = {window = 50}\n'
        "[train]\nn_iterations = 2\nheld_out_share = 0.0\n",
        encoding="utf-8",
    )
    serve(made, 0, 4)
    rows = {row["signal"]: row for row in rows_of(invoke(made, "improve", "retrain", "check", "--rule", str(file)))}
    assert (rows["promotable"]["now"], rows["promotable"]["due"]) == ("4", "no")
    assert rows["reward"]["now"] == "4 values"
    serve(made, 4, 1)
    with Follower(made, rule()) as follower:
        follower.steps()
    [row] = rows_of(invoke(made, "improve", "retrain", "list"))
    assert (row["signal"], row["action"], row["status"]) == ("promotable", "train", "queued")
