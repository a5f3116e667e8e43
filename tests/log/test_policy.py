"""The policy agent on a real log: whole samplings, the right version, nothing lost and nothing answered for nothing."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from click.testing import Result
from confluent_kafka import admin

from schemas.events import (
    AdapterEvent,
    AdvantagedGroup,
    Coordinates,
    DeadLetter,
    Event,
    Message,
    Response,
    Reward,
    Task,
    derive_id,
)
from schemas.serde import encode
from streams.adapters.admission import held_back
from streams.adapters.admission.policy_log import PolicyLog
from streams.adapters.versions import read_state
from streams.engines.protocol import Completion, SamplingRequest
from streams.engines.scripted.scripted_engine import ScriptedEngine
from streams.errors import SettingsError, StreamwardError
from streams.evaluation.suite_tasks import evaluation
from streams.kafka import admin as cluster
from streams.kafka.client import client_config
from streams.kafka.producer import Producer
from streams.kafka.record import Record, dead_letter, key_of, partition_of
from streams.kafka.retry import BrokerOutage, StoppedReading
from streams.kafka.topics import topic_of, topics
from streams.settings.model import Batches, Policy as PolicySettings, Settings
from streams.stages.policy import policy_agent as policy
from streams.stages.tasks.submit import submit
from streams.stages.tasks.suites import generated
from streams.tools.dead_letters.refusals import Refusals
from tests.support import factories
from tests.support.beside import running_beside
from tests.support.commands import invoke
from tests.support.factories import group, member
from tests.support.log.policy_agents import forget_commits, patient, stored, sum_task
from tests.support.processes import until, write

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(settings: Settings) -> Settings:
    here = settings.model_copy(
        update={
            "topics": settings.topics.model_copy(update={"partitions": 2, "policy_partitions": 2}),
            "batches": Batches(groups=2, max_policy_lag=0),
            "policy": PolicySettings(name="p", engine="scripted", round_tasks=4),
        }
    )
    cluster.apply_topics(here)
    return here


def task(name: str, **changes: Any) -> Task:
    return sum_task(name, **{"group_size": 3} | changes)


def group_of(number: str, *, teaches: bool) -> AdvantagedGroup:
    responses = tuple(member(slot, advantage=(slot - 0.5) * teaches) for slot in (0, 1))
    return group(task_id=number, policy="p", group_size=3, responses=responses)


SHOWN = {"adapters show 1": "jsonl", "adapters rollout": "json"}


def told(settings: Settings, *command: str) -> str:
    """Run a command about policy `p`, and return what it prints."""
    result = invoke(settings, *command)
    assert result.exit_code == 0, result.output
    return result.stdout


def promoted(version: int) -> AdapterEvent:
    return factories.promoted(version, policy="p", created_at=version)


def read(settings: Settings, label: str) -> list[Event]:
    event = topics(settings.topics)[label].event
    found = [record.decode(event) for record in cluster.read_topic(settings, label)]
    assert all(isinstance(one, event) for one in found)
    return found  # type: ignore[return-value]


def answers(settings: Settings) -> dict[str, list[Response]]:
    """Every response by task, in the order of the log."""
    by_task = defaultdict(list)
    for one in read(settings, "responses"):
        assert isinstance(one, Response)
        by_task[one.task_id].append(one)
    return by_task


@contextmanager
def running(settings: Settings, engine: ScriptedEngine | None = None) -> Iterator[threading.Thread]:
    """Run an agent beside the test. Leaving stops it, and raises what it raised."""
    with running_beside(lambda stop: policy.run(settings, stop=stop, engine=engine or ScriptedEngine())) as (thread,):
        yield thread


def until_answered(settings: Settings, *names: str) -> dict[str, list[Response]]:
    until(lambda: set(names) <= answers(settings).keys(), f"answers to {', '.join(names)}")
    return answers(settings)


def committed(settings: Settings) -> int:
    """Return how many tasks are committed, over all partitions."""
    name = topics(settings.topics)["tasks"].name
    consumer = ck.Consumer({**client_config(settings.kafka), "group.id": f"{settings.topics.prefix}policy-p"})
    asked = [ck.TopicPartition(name, p) for p in range(settings.topics.partitions)]
    found = patient(settings).ask(lambda: consumer.committed(asked, timeout=10), "for commits")
    consumer.close()
    return sum(max(tp.offset, 0) for tp in found)


# --- whole samplings --------------------------------------------------------------------------------------------------


def test_every_slot_of_a_sampling_is_written_side_by_side_in_slot_order(settings: Settings) -> None:
    names = [f"t{n}" for n in range(6)]
    write(settings, *map(task, names))
    with running(settings):
        until_answered(settings, *names)
    for found in answers(settings).values():
        assert [one.slot for one in found] == [0, 1, 2]
        assert len({one.sampling_id for one in found}) == 1
        assert [one.response_id for one in found] == [derive_id(found[0].sampling_id, slot) for slot in range(3)]
    order = [one.sampling_id for one in read(settings, "responses") if isinstance(one, Response)]
    assert sum(before != after for before, after in pairwise(order)) == len(names) - 1
    assert committed(settings) == len(names)


def test_added_partitions_are_refused_with_the_reason_before_anything_more_is_sampled(settings: Settings) -> None:
    name, client = topics(settings.topics)["tasks"].name, admin.AdminClient(client_config(settings.kafka))
    with (
        pytest.raises(SettingsError, match=r"has a partition 2, expected 2 .* use another topics.prefix"),
        running(settings) as agent,
    ):
        write(settings, task("before"))
        until_answered(settings, "before")
        client.create_partitions([admin.NewPartitions(name, 4)])[name].result()
        with Producer(settings) as producer:
            producer.send_bytes((name, 3), b"after", encode(task("after")))
        until(lambda: not agent.is_alive(), "the end of the agent")
    assert answers(settings).keys() == {"before"}
    with pytest.raises(SettingsError, match=r"has 4 partitions, expected 2"):
        submit(settings, [task("more")])
    assert len(read(settings, "tasks")) == 2


@pytest.mark.parametrize("whose", [{"policy": "q"}, {"agent": "calc"}])
def test_tasks_of_another_policy_or_of_an_agent_are_passed_over(settings: Settings, whose: dict[str, str]) -> None:
    write(settings, task("theirs", **whose), task("ours"))  # of one partition, so the second is read after the first
    with running(settings):
        until_answered(settings, "ours")
    assert answers(settings).keys() == {"ours"}
    assert committed(settings) == 2


def test_a_record_that_is_no_task_or_is_misplaced_is_left_to_the_stage_that_reads_every_task(
    settings: Settings,
) -> None:
    # librdkafka's own partitioner would put most tasks where neither the scoring agent nor the join looks for them
    name, wrong = topics(settings.topics)["tasks"].name, 1 - partition_of("elsewhere", 2)
    with Producer(settings) as producer:
        producer.send_bytes(name, b"ours", b"not avro")
        producer.send_bytes((name, wrong), b"elsewhere", encode(task("elsewhere")))
        producer.send_bytes(name, b"another key", encode(task("ours, too")))
        producer.send(task("ours"))
    with running(settings):
        until_answered(settings, "ours")
        until(lambda: committed(settings) == 4, "every task is done")
    assert answers(settings).keys() == {"ours"}
    assert read(settings, "dead-letters") == [], "each policy would write one about the same record"


def test_a_prompt_beyond_the_context_is_answered_with_failed_slots(settings: Settings) -> None:
    write(settings, task("long", messages=(Message(role="user", content="x" * 9000),)))
    with running(settings):
        found = until_answered(settings, "long")["long"]
    assert [(one.finish_reason, list(one.completion_token_ids)) for one in found] == [("error", [])] * 3
    assert "do not fit the context" in (found[0].error or "")


class Fails(ScriptedEngine):
    """Raises for every round that holds the task `bad`."""

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        if any(request.task.task_id == "bad" for request in requests):
            raise RuntimeError("out of memory")
        return super().sample(requests)


def test_a_task_the_engine_fails_on_is_answered_as_failed_and_its_neighbours_are_not(settings: Settings) -> None:
    write(settings, task("good"), task("bad"), task("fine"))
    with running(settings, Fails()):
        found = until_answered(settings, "good", "bad", "fine")
    assert [one.error for one in found["bad"]] == ["RuntimeError: out of memory"] * 3
    assert [one.error for name in ("good", "fine") for one in found[name]] == [None] * 6


class Writes(ScriptedEngine):
    """Answers slot 1 with a logprob that no record can hold."""

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        return [
            [replace(one, logprobs=(float("nan"),) * len(one.logprobs)) if one.slot == 1 else one for one in slots]
            for slots in super().sample(requests)
        ]


def test_a_slot_that_cannot_be_written_is_a_failed_one_and_the_sampling_stays_whole(settings: Settings) -> None:
    write(settings, task("t"))
    with running(settings, Writes()):
        found = until_answered(settings, "t")["t"]
    assert [one.finish_reason for one in found] == ["stop", "error", "stop"]


class Lies(ScriptedEngine):
    """Serves another version than it is told to."""

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        self.served_version = 7
        return super().sample(requests)


def test_an_engine_that_served_another_version_ends_the_agent_and_writes_nothing(settings: Settings) -> None:
    write(settings, task("t"))
    with (
        pytest.raises(StreamwardError, match="should serve version 0, but reports 7"),
        running(settings, Lies()) as agent,
    ):
        until(lambda: not agent.is_alive(), "the end of the agent")
    assert answers(settings) == {}


def test_reading_pauses_when_too_many_tasks_wait_and_goes_on_when_they_are_answered(settings: Settings) -> None:
    few = settings.policy.model_copy(update={"max_waiting": 2})
    here = settings.model_copy(update={"policy": few, "batches": Batches(groups=16)})
    first, second = [f"t{n}" for n in range(6)], [f"u{n}" for n in range(6)]
    write(here, *map(task, first))
    with running(here):
        until_answered(here, *first)
        write(here, *(task(name, purpose="train") for name in second))  # only one at a time is in memory
        until_answered(here, *second)
        until(lambda: committed(here) == 12, "every task is done")
    assert {len(found) for found in answers(here).values()} == {3}


def test_two_agents_share_the_tasks_and_every_task_is_answered(settings: Settings) -> None:
    names = [f"t{n}" for n in range(30)]
    with running(settings):
        write(settings, *map(task, names[:10]))
        until_answered(settings, *names[:10])
        with running(settings):  # joins while the other works: its partitions change hands
            write(settings, *map(task, names[10:20]))
            until_answered(settings, *names[:20])
        write(settings, *map(task, names[20:]))
        until_answered(settings, *names)
    for found in answers(settings).values():
        by_sampling = Counter(one.sampling_id for one in found)
        assert set(by_sampling.values()) == {3}  # at least once, and whole each time


# --- versions ---------------------------------------------------------------------------------------------------------


def test_a_version_promoted_while_the_agent_runs_answers_what_comes_after(settings: Settings, tmp_path: Path) -> None:
    write(settings, task("before"))
    with running(settings):
        until_answered(settings, "before")
        write(settings, stored(settings, 1, tmp_path), promoted(1))
        until(lambda: read_state(settings, "p").primary == 1, "the promotion")
        names = [f"after-{n}" for n in range(4)]
        for name in names:
            write(settings, task(name))
            until_answered(settings, name)
    versions = {name: {one.adapter_version for one in found} for name, found in answers(settings).items()}
    assert all(len(of_task) == 1 for of_task in versions.values())
    assert versions["before"] == {0}
    assert versions[names[-1]] == {1}


def test_an_agent_that_starts_late_begins_with_the_version_in_force(settings: Settings, tmp_path: Path) -> None:
    write(settings, stored(settings, 1, tmp_path), promoted(1), task("t"))
    with running(settings):
        found = until_answered(settings, "t")["t"]
    assert {one.adapter_version for one in found} == {1}


def test_an_agent_that_should_stop_while_it_starts_reads_no_further(settings: Settings) -> None:
    write(settings, factories.trained(1, policy="p"))
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedReading, match="adapters is read"):
        PolicyLog(settings, BrokerOutage(settings.kafka, stop), "p")


def test_a_pinned_task_is_answered_by_its_version_whatever_is_in_force(settings: Settings, tmp_path: Path) -> None:
    first, second = stored(settings, 1, tmp_path), stored(settings, 2, tmp_path)
    write(settings, first, promoted(1), second, promoted(2))
    write(settings, *(task(f"t{v}", adapter_version=v) for v in (0, 1, 2)), task("free"))
    with running(settings):
        found = until_answered(settings, "t0", "t1", "t2", "free")
    assert {name: found[name][0].adapter_version for name in found} == {"t0": 0, "t1": 1, "t2": 2, "free": 2}


def test_a_task_pinned_to_a_version_to_come_waits_for_it(settings: Settings, tmp_path: Path) -> None:
    write(settings, task("early", adapter_version=1), task("free"))
    with running(settings):
        assert until_answered(settings, "free").keys() == {"free"}
        write(settings, stored(settings, 1, tmp_path))
        found = until_answered(settings, "early")["early"]
    assert {one.adapter_version for one in found} == {1}
    assert committed(settings) == 2


def test_an_agent_looks_at_the_store_before_any_task_comes(settings: Settings, tmp_path: Path) -> None:
    event = stored(settings, 1, tmp_path)
    (Path(settings.adapters.store) / "p" / "1" / "adapter_model.safetensors").write_bytes(b"weights 2")
    write(settings, event, promoted(1))
    with running(settings):
        until(lambda: len(read(settings, "dead-letters")) == 1, "the refusal of version 1")
    state = read_state(settings, "p")
    refused = Refusals(settings, "p").look(state)
    assert [(one.version, one.reason) for one in refused] == [(1, "bad_adapter")]
    assert state.primary_without({one.version for one in refused}) == 0
    shown = {name: json.loads(told(settings, *name.split(), "--output", form)) for name, form in SHOWN.items()}
    assert shown["adapters show 1"]["refused"] == shown["adapters rollout"]["refused"][0]
    assert shown["adapters show 1"]["refused"]["answers"] == shown["adapters rollout"]["answers"] == 0
    table = told(settings, "adapters", "list", "--output", "table")
    assert "primary" in table and "bad_adapter; version 0 answers" in table
    assert "version 0, since an agent refused version 1" in told(settings, "adapters", "rollout", "--output", "table")
    told(settings, "admin", "dlq", "drop", refused[0].letter)
    watched = Refusals(settings, "p")
    assert watched.look(state) == []
    with running(settings):
        until(lambda: len(read(settings, "dead-letters")) == 3, "the refusal by the next agent")
    assert [one.version for one in watched.look(state)] == [1]


def test_a_damaged_adapter_is_dead_lettered_and_the_old_version_goes_on(settings: Settings, tmp_path: Path) -> None:
    event = stored(settings, 1, tmp_path)
    (Path(settings.adapters.store) / "p" / "1" / "adapter_model.safetensors").write_bytes(b"weights 2")
    write(settings, event, promoted(1), task("free"), task("pinned", adapter_version=1))
    with running(settings):
        found = until_answered(settings, "free", "pinned")
    assert {(one.adapter_version, one.error) for one in found["free"]} == {(0, None)}
    assert all("could not be loaded" in (one.error or "") or "sha256" in (one.error or "") for one in found["pinned"])
    (letter,) = read(settings, "dead-letters")
    assert isinstance(letter, DeadLetter)
    assert (letter.stage, letter.reason, letter.source_topic) == (
        "policy",
        "bad_adapter",
        topics(settings.topics)["adapters"].name,
    )


# --- admission --------------------------------------------------------------------------------------------------------


def test_train_tasks_wait_for_the_trainer_and_eval_tasks_do_not(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # two groups a batch and no lag allowed: version 0 may sample two useful groups, and not one more
    # and of the six only one may be in memory, which must not keep the agent from reading what is behind them
    monkeypatch.setattr(held_back, "SAY_EVERY_S", 0.2)
    settings = settings.model_copy(update={"policy": settings.policy.model_copy(update={"max_waiting": 2})})
    caplog.set_level("INFO", "streamward.policy")
    names = [f"t{n}" for n in range(6)]
    write(settings, *(task(name, purpose="train") for name in names))
    with running(settings):
        until(lambda: len(answers(settings)) == 2, "two train tasks")
        write(settings, task("eval"))
        until_answered(settings, "eval")
        first, second = [name for name in names if name in answers(settings)]

        write(settings, group_of(first, teaches=False))  # teaches nothing, so its place is free at once
        until(lambda: len(answers(settings)) == 4, "a third train task")
        (third,) = [name for name in names if name in answers(settings) and name not in (first, second)]

        write(settings, group_of(second, teaches=True), group_of(third, teaches=True))
        time.sleep(1)
        assert len(answers(settings)) == 4  # the batch is full, and version 0 can add nothing to the next one

        batch = factories.batch(policy="p", created_at=1, max_policy_lag=0, groups_offsets=(1, 2))
        write(settings, batch, stored(settings, 1, tmp_path), promoted(1))
        until(lambda: len(answers(settings)) == 6, "two train tasks of version 1")
        time.sleep(1)
    versions = Counter(found[0].adapter_version for name, found in answers(settings).items() if name != "eval")
    assert versions == {0: 3, 1: 2}
    assert "3 train tasks wait, for 0 min now, for the next batch: 2 groups are there" in caplog.text


def test_a_restarted_agent_counts_what_is_still_in_flight(settings: Settings) -> None:
    write(settings, *(task(f"t{n}", purpose="train") for n in range(4)))
    with running(settings):
        until(lambda: len(answers(settings)) == 2, "two train tasks")
    with running(settings):
        write(settings, task("eval"))
        until_answered(settings, "eval")
        time.sleep(1)
    assert len(answers(settings)) == 3


def give_up_on(settings: Settings, found: Response, reason: str) -> None:
    """Write the dead letter of a response that has no score."""
    name = topics(settings.topics)["responses"].name
    at = Coordinates(name, partition_of(found.task_id, settings.topics.partitions), found.slot)
    record = Record(at, found.created_at, found.task_id.encode(), encode(found))
    write(settings, dead_letter(record, stage="scoring", reason=reason, error="exact: exception: it raised"))


def test_a_group_that_its_scorer_gave_up_on_makes_room_for_the_next_task(settings: Settings) -> None:
    # two groups a batch and no lag: with one group that cannot come, no batch would be cut until the deadline
    write(settings, *(task(f"t{n}", purpose="train") for n in range(5)))
    with running(settings):
        until(lambda: len(answers(settings)) == 2, "two train tasks")
        first, second = answers(settings)
        give_up_on(settings, answers(settings)[first][0], "unknown_scorer")  # nothing that stage says of a score
        give_up_on(settings, answers(settings)[first][1], "score_failed")
        until(lambda: len(answers(settings)) == 3, "the task that takes its place")
        time.sleep(1)
        assert len(answers(settings)) == 3
    with running(settings):  # another agent finds the dead letter in the log
        write(settings, group_of(second, teaches=False))
        until(lambda: len(answers(settings)) == 4, "a place that the second left")
        write(settings, group_of(first, teaches=True))  # scored after all: it takes a place, too
        write(settings, task("eval"))
        until_answered(settings, "eval")
        time.sleep(1)
    assert len(answers(settings)) == 5


def test_a_task_whose_group_is_out_or_whose_deadline_has_passed_is_not_sampled(settings: Settings) -> None:
    write(settings, group_of("out", teaches=False))
    write(settings, task("out", purpose="train"), task("over", deadline_at=5), task("in-time"))
    with running(settings):
        until_answered(settings, "in-time")
        until(lambda: committed(settings) == 3, "every task is done")
    assert answers(settings).keys() == {"in-time"}


def test_a_question_that_evaluate_and_the_guard_both_ask_is_sampled_once(settings: Settings) -> None:
    # Each skips what the other has written, but both may look before either writes.
    suite = generated("sums", count=3, seed=0)
    tomorrow = int(time.time() + 86_400) * 1000
    write(settings, *evaluation(suite, policy="p", version=0, now_ms=1))
    write(settings, *evaluation(suite, policy="p", version=0, now_ms=2, deadline_ms=tomorrow))
    with running(settings):
        until(lambda: committed(settings) == 6, "every task is done")
        write(settings, *evaluation(suite, policy="p", version=0, now_ms=3))
        until(lambda: committed(settings) == 9, "every task is done")
    assert [len(found) for found in answers(settings).values()] == [1, 1, 1]


# --- stopped and killed -----------------------------------------------------------------------------------------------


def test_an_agent_killed_before_its_commit_loses_no_task_and_answers_none_twice(settings: Settings) -> None:
    names = [f"t{n}" for n in range(8)]
    write(settings, *map(task, names[:6]))
    with running(settings):
        until_answered(settings, *names[:6])
    forget_commits(settings, "policy-p")
    write(settings, *map(task, names[6:]))
    with running(settings):
        until_answered(settings, *names)
        until(lambda: committed(settings) == 8, "every task is done")
    assert Counter(len(found) for found in answers(settings).values()) == {3: 8}


def test_a_sampling_that_was_cut_short_by_a_kill_is_made_again_whole(settings: Settings) -> None:
    asked = task("t")
    write(settings, asked)
    with running(settings):
        whole = until_answered(settings, "t")["t"]
    forget_commits(settings, "policy-p")
    write(settings, replace(asked, task_id="cut"))
    topic = topic_of(Response, settings.topics)
    cut = [replace(one, task_id="cut", sampling_id="s", response_id=derive_id("s", one.slot)) for one in whole[:2]]
    assert key_of(cut[0], topic) == b"cut"
    write(settings, *cut)
    with running(settings):
        until(lambda: len(answers(settings)["cut"]) == 5, "a whole sampling")
    again = answers(settings)["cut"][2:]
    assert [one.slot for one in again] == [0, 1, 2]
    assert {one.sampling_id for one in again} != {"s"}
    assert len(answers(settings)["t"]) == 3


class Dies(ScriptedEngine):
    """Ends the agent in its second round."""

    rounds = 0

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        self.rounds += 1
        if self.rounds == 2:
            raise StreamwardError("the machine went away")
        return super().sample(requests)


def test_an_agent_that_dies_in_a_round_leaves_its_tasks_to_the_next(settings: Settings) -> None:
    names = [f"t{n}" for n in range(10)]
    write(settings, *map(task, names))
    with pytest.raises(StreamwardError, match="went away"), running(settings, Dies()) as agent:
        until(lambda: not agent.is_alive(), "the end of the agent")
    assert 1 <= len(answers(settings)) <= 4
    with running(settings):
        until_answered(settings, *names)
    assert Counter(len(found) for found in answers(settings).values()) == {3: 10}


# --- asking it --------------------------------------------------------------------------------------------------------


def test_a_question_is_answered_by_the_running_agent_and_what_somebody_thinks_of_it_is_kept(settings: Settings) -> None:
    def run(*words: str) -> Result:
        return invoke(settings, *words)

    with running(settings, ScriptedEngine('{"answers": "echo"}')):
        asked = run("ask", "4 + 7 =", "--max-tokens", "30")
    answer = json.loads(asked.stdout)
    [response] = next(iter(answers(settings).values()))
    assert (answer["response"], answer["answer"], answer["version"]) == (response.response_id, response.text, 0)
    [question] = read(settings, "tasks")
    assert isinstance(question, Task) and (question.purpose, question.reward_sources) == ("serve", ())

    opinion = ("reward", response.response_id, "0.9", "--source", "ada", "--reason", "short")
    first, again = run(*opinion), run(*opinion)
    assert first.exit_code == 0 and first.stdout == again.stdout
    [reward] = read(settings, "rewards")
    assert isinstance(reward, Reward)
    assert (reward.source, reward.value, reward.rationale) == ("feedback/ada", 0.9, "short")
    [record] = cluster.read_topic(settings, "rewards")
    assert record.at.partition == partition_of(response.task_id, settings.topics.partitions)
    other = run("reward", response.response_id, "0.2", "--source", "ada")
    assert other.exit_code == 4 and "ada gave" in other.stderr
    unknown = run("reward", "no-such-id", "1")
    assert unknown.exit_code == 3 and "no response no-such-id" in unknown.stderr


def test_a_question_that_nobody_answers_says_what_to_start(settings: Settings) -> None:
    result = invoke(settings, "ask", "4 + 7 =", "--wait", "0.2")
    assert result.exit_code == 1 and "does a policy agent of p run?" in result.stderr
