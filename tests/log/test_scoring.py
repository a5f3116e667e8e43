"""The scoring agent and task submission, on a real broker."""

from __future__ import annotations

import json
import os
import signal
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.events import DeadLetter, Message, Response, Reward, RewardSource, Sampling, Task, derive_id
from schemas.serde import encode
from streams.arrow.file_rows import json_lines
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.record import partition_of
from streams.kafka.retry import BrokerOutage, StoppedReading
from streams.kafka.topics import topics
from streams.settings.model import Scoring, Settings
from streams.stages.scoring import scoring_agent as scoring
from streams.stages.scoring.task_lookup import TaskLookup
from streams.stages.tasks.generators import TaskSpec, generate
from streams.stages.tasks.line_task import Reading
from streams.stages.tasks.lines import check_rows
from streams.stages.tasks.submit import submit
from tests.support.beside import running_beside
from tests.support.doubles.judge import JudgeServer, judging, says
from tests.support.log.members import member_of
from tests.support.processes import command, environment, spawn, until, write

pytestmark = pytest.mark.kafka

SLOW = """
    import time
    from pathlib import Path
    from streams.scorers import entry_point

    @entry_point("slow/1")
    def slow(task, response, settings):
        with open(settings["seen"], "a") as seen:
            seen.write(response.response_id + "\\n")
        time.sleep(settings["seconds"])
        return 0.5

    @entry_point("hang/1")
    def hang(task, response, settings):
        time.sleep(600)
"""


class Dying(Exception):
    """As if the process had ended here."""


@pytest.fixture
def ready(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings whose topics exist, and a module of scorers for the workers."""
    admin.apply_topics(settings)
    (tmp_path / "slow_scorers.py").write_text(textwrap.dedent(SLOW))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.getcwd()}")
    return settings.model_copy(update={"scoring": Scoring(modules="slow_scorers")})


def a_task(number: int, *sources: RewardSource, answer: str = "11", purpose: Any = "train") -> Task:
    return Task(
        task_id=f"t{number}",
        created_at=1,
        policy="default",
        purpose=purpose,
        messages=(Message(role="user", content="4 + 7 ="),),
        verifier=json.dumps({"answer": answer}),
        reward_sources=sources if sources or purpose == "serve" else (RewardSource(name="exact"),),
    )


def a_response(task: Task, slot: int = 0, *, text: str = "11", error: str | None = None) -> Response:
    sampling_id = derive_id("sampling", task.task_id)
    return Response(
        response_id=derive_id(sampling_id, slot),
        sampling_id=sampling_id,
        task_id=task.task_id,
        created_at=2,
        policy="default",
        slot=slot,
        group_size=8,
        adapter_version=0,
        base_digest="b",
        tokenizer_digest="k",
        engine="scripted",
        finish_reason="stop" if error is None else "error",
        error=error,
        prompt_tokens=5,
        completion_tokens=3,
        latency_ms=1.0,
        text=text,
        sampling=Sampling(),
    )


def rewards(settings: Settings) -> list[Reward]:
    decoded = [record.decode(Reward) for record in admin.read_topic(settings, "rewards")]
    assert all(isinstance(event, Reward) for event in decoded)
    return [event for event in decoded if isinstance(event, Reward)]


def dead_letters(settings: Settings) -> list[DeadLetter]:
    return [
        event
        for record in admin.read_topic(settings, "dead-letters")
        if isinstance(event := record.decode(DeadLetter), DeadLetter)
    ]


@contextmanager
def agent(settings: Settings) -> Iterator[None]:
    """A running agent; leaving stops it, and raises what it raised."""
    with running_beside(lambda stop: scoring.run(settings, stop=stop)):
        yield


def lag(settings: Settings) -> int:
    """How many responses are not committed by the scoring group."""
    ends = {tp: high for tp, (_, high) in admin.offsets(settings, ["responses"]).items()}
    with member_of(settings, scoring.STAGE, ["responses"]) as consumer:
        done = consumer.committed(ends)
    return sum(ends.values()) - sum(done.values())


def score_all(settings: Settings, expected: int) -> list[Reward]:
    with agent(settings):
        until(lambda: len(rewards(settings)) >= expected, f"{expected} rewards")
    return rewards(settings)


# --- responses become rewards -----------------------------------------------------------------------------------------


def test_each_source_of_a_task_speaks_once_about_each_response(ready: Settings) -> None:
    sources = (RewardSource(name="exact"), RewardSource(name="length", weight=0.1, settings='{"limit": 6}'))
    tasks = [a_task(n, *sources) for n in range(10)]
    responses = [a_response(task, slot, text=str(10 + slot)) for task in tasks for slot in range(4)]
    write(ready, *tasks, *responses)
    found = score_all(ready, 80)
    by_id = {response.response_id: response for response in responses}
    assert Counter((reward.response_id, reward.source) for reward in found) == {
        (response_id, source.name): 1 for response_id in by_id for source in sources
    }
    for reward in found:
        response = by_id[reward.response_id]
        assert (reward.task_id, reward.slot) == (response.task_id, response.slot)
        assert reward.value == (float(response.text == "11") if reward.source == "exact" else 0.5)
        version = "exact/2" if reward.source == "exact" else f"{reward.source}/1"
        assert reward.scorer_version == version and reward.error is None
    assert (lag(ready), dead_letters(ready)) == (0, [])


def test_rewards_lie_in_the_partition_of_their_task(ready: Settings) -> None:
    tasks = [a_task(n) for n in range(10)]
    write(ready, *tasks, *[a_response(task) for task in tasks])
    score_all(ready, 10)
    for record in admin.read_topic(ready, "rewards"):
        assert record.key is not None
        assert record.at.partition == partition_of(record.key.decode(), ready.topics.partitions)


def test_a_failed_response_a_misplaced_one_and_a_task_without_scorers_get_no_reward(ready: Settings) -> None:
    count = ready.topics.partitions
    topic, wrong = topics(ready.topics)["responses"].name, (partition_of("t3", count) + 1) % count
    with Producer(ready) as producer:  # its letter is the advantages stage's
        producer.send_bytes((topic, wrong), b"t3", encode(a_response(a_task(3), slot=1)))
    failed, serve, good = a_task(1), a_task(2, purpose="serve"), a_task(3)
    write(ready, failed, serve, good)
    write(ready, a_response(failed, error="the prompt is too long"), a_response(serve), a_response(good))
    found = score_all(ready, 1)
    wait = [reward.task_id for reward in found]
    assert (wait, lag(ready), dead_letters(ready)) == (["t3"], 0, [])


def test_a_score_that_fails_is_a_reward_without_value_and_the_others_go_on(
    ready: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    hasty = ready.model_copy(update={"scoring": Scoring(modules="slow_scorers", timeout_s=0.5, retries=1)})
    hanging, unknown = RewardSource(name="slow_scorers:hang"), RewardSource(name="exakt")
    tasks = [a_task(1, hanging, purpose="eval"), a_task(2, unknown), a_task(3)]
    write(ready, *tasks, *[a_response(task) for task in tasks])
    found = {reward.task_id: reward for reward in score_all(hasty, 3)}
    assert [found[task_id].value for task_id in ("t1", "t2", "t3")] == [None, None, 1.0]
    errors = [found[task_id].error or "" for task_id in ("t1", "t2")]
    assert errors[0].startswith("timeout: slow_scorers:hang did not answer within 0.5 s")
    assert errors[1].startswith("unknown_scorer: no scorer is called 'exakt'; did you mean exact?")
    assert lag(ready) == 0
    at = {str(getattr(record, "at", "")) for record in caplog.records}
    assert f"{ready.topics.prefix}responses[{partition_of('t2', ready.topics.partitions)}]@0" in at


def test_no_verdict_ends_the_agent_or_is_lost(ready: Settings) -> None:
    # Each of these once did: weights that overflow, half an emoji from the judge, a reward too large for its topic.
    small = ready.model_copy(update={"topics": ready.topics.model_copy(update={"max_record_bytes": 64 * 1024})})
    twice = {"of": [{"name": "exact", "weight": 1e308}, {"name": "exact", "as": "again", "weight": 1e308}]}
    large = {"of": [{"name": "exact", "as": f"{number}{'🙂' * 190}"} for number in range(100)]}
    tasks = [
        a_task(1, RewardSource(name="mix", settings=json.dumps(twice))),
        a_task(2, RewardSource(name="judge")),
        a_task(3, RewardSource(name="mix", settings=json.dumps(large))),
        a_task(4),
    ]
    write(ready, *tasks, *[a_response(task) for task in tasks])
    with judging(says('{"score": 7, "reason": "Good \\ud83d"}')) as judge:
        judged = Scoring(judge_url=judge.url, judge_model="m")
        found = {reward.task_id: reward for reward in score_all(small.model_copy(update={"scoring": judged}), 4)}
    assert [found[f"t{n}"].value for n in (1, 2, 3, 4)] == [None, 0.7, None, 1.0]
    assert "mix.of.0.weight" in str(found["t1"].error) and "malformed: " in str(found["t3"].error)
    assert (lag(ready), dead_letters(ready)) == (0, [])


def test_a_slow_scorer_does_not_hold_up_the_quick_ones(ready: Settings, tmp_path: Path) -> None:
    settings = json.dumps({"seen": str(tmp_path / "seen"), "seconds": 3})
    slow, quick = a_task(1, RewardSource(name="slow_scorers:slow", settings=settings)), a_task(1000)
    write(ready, slow, quick, a_response(slow))
    with agent(ready):
        until((tmp_path / "seen").exists, "a scorer at work")
        write(ready, a_response(quick))
        until(lambda: len(rewards(ready)) == 2, "two rewards")
    assert [reward.task_id for reward in rewards(ready)] in (["t1000", "t1"], ["t1", "t1000"])
    first = min(rewards(ready), key=lambda reward: reward.created_at)
    assert first.task_id == "t1000"


# --- a group in one request -------------------------------------------------------------------------------------------

RANKED = RewardSource(name="ranking_judge")
BY_RANK = [number / 7 for number in range(8)]
"""The values of eight responses without a tie, the worst first."""


def with_judge(settings: Settings, judge: JudgeServer, **scoring: Any) -> Settings:
    judged = Scoring(judge_url=judge.url, judge_model="m", modules="slow_scorers", **{"retries": 0, **scoring})
    return settings.model_copy(update={"scoring": judged})


def test_a_group_is_ranked_once_with_its_last_response_and_each_of_its_responses_has_a_reward(ready: Settings) -> None:
    task = a_task(1, RANKED, RewardSource(name="exact"))
    write(ready, task, *(a_response(task, slot) for slot in range(5)))
    with judging(says({"ranks": [*range(1, 9)]})) as judge, agent(with_judge(ready, judge)):
        until(lambda: lag(ready) == 0, "a commit of the first")
        assert (len(rewards(ready)), judge.requests) == (5, [])
        write(ready, *(a_response(task, slot) for slot in (7, 6, 5)))
        until(lambda: len(rewards(ready)) == 16 and lag(ready) == 0, "all rewards")
    values = [reward.value for reward in rewards(ready) if reward.source == "ranking_judge"]
    assert sorted(values, key=float) == pytest.approx(BY_RANK)  # type: ignore[arg-type]
    assert len(judge.requests) == 1
    assert len({reward.reward_id for reward in rewards(ready)}) == 16


def test_an_agent_that_takes_over_ranks_with_the_responses_that_another_one_had_read(ready: Settings) -> None:
    task, other = a_task(1, RANKED), a_task(1000)
    write(ready, task, other, *(a_response(task, slot) for slot in range(6)), a_response(other))
    with judging(says({"ranks": [*range(1, 9)]})) as judge:
        with agent(with_judge(ready, judge)):
            until(lambda: lag(ready) == 0, "a commit of everything")
        assert len(rewards(ready)) == 1 and judge.requests == []
        write(ready, a_response(task, 6), a_response(task, 7))
        found = score_all(with_judge(ready, judge), 9)
    assert sorted(reward.value or 0.0 for reward in found if reward.source == "ranking_judge") == pytest.approx(BY_RANK)
    assert (len(judge.requests), lag(ready)) == (1, 0)


def test_a_group_whose_agent_ended_before_its_rewards_were_written_is_ranked_again_by_the_same_request(
    ready: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first agent gets the ranks and dies: nothing is committed, and nothing is doubled."""
    task = a_task(1, RANKED)
    write(ready, task, *(a_response(task, slot) for slot in range(8)))

    def die(*_: Any) -> None:
        raise Dying

    with judging(says({"ranks": [*range(1, 9)]})) as judge:
        with monkeypatch.context() as patch, pytest.raises(Dying):
            patch.setattr(scoring.ScoringAgent, "_write", die)
            with agent(with_judge(ready, judge)):
                until(lambda: bool(judge.requests), "a request")
        assert rewards(ready) == []
        found = score_all(with_judge(ready, judge), 8)
    first, again = (one[2]["messages"] for one in judge.requests)
    assert first == again
    assert len({reward.reward_id for reward in found}) == len(found) == 8


def test_a_response_that_failed_completes_its_group_and_is_not_ranked(ready: Settings) -> None:
    task = a_task(1, RANKED)
    write(ready, task, *(a_response(task, slot) for slot in range(7)))
    with judging(says({"ranks": [*range(1, 8)]})) as judge, agent(with_judge(ready, judge)):
        until(lambda: lag(ready) == 0, "a commit of the first")
        write(ready, a_response(task, 7, error="no"))
        until(lambda: len(rewards(ready)) == 7 and lag(ready) == 0, "the rewards of those that did not fail")
    assert {reward.slot for reward in rewards(ready)} == set(range(7))


def test_a_ranking_that_fails_is_an_error_of_each_response_and_never_0(ready: Settings) -> None:
    task = a_task(1, RANKED)
    write(ready, task, *(a_response(task, slot) for slot in range(8)))
    with judging(says({"ranks": [1]})) as judge:
        found = score_all(with_judge(ready, judge), 8)
    assert {(reward.value, (reward.error or "").partition(":")[0]) for reward in found} == {(None, "judge_answer")}
    assert sum(reward.components["tries"] for reward in found) == 1 and lag(ready) == 0


def test_without_a_judge_the_last_response_of_a_group_is_left_and_sent_again_it_has_all_of_them_ranked(
    ready: Settings,
) -> None:
    task = a_task(1, RANKED)
    write(ready, task, *(a_response(task, slot) for slot in range(8)))
    with agent(ready):
        until(lambda: lag(ready) == 0, "a commit of everything")
    assert [letter.reason for letter in dead_letters(ready)] == ["no_judge"]
    with judging(says({"ranks": [*range(1, 9)]})) as judge:
        write(ready, a_response(task, 7))  # as `admin dlq retry` does
        found = score_all(with_judge(ready, judge), 8)
    assert {reward.slot for reward in found} == set(range(8)) and len(judge.requests) == 1


# --- what cannot be scored --------------------------------------------------------------------------------------------


def test_an_agent_without_a_judge_leaves_judged_responses_to_one_with_a_judge(ready: Settings) -> None:
    judged = a_task(1, RewardSource(name="exact"), RewardSource(name="judge"))
    mixed = a_task(2, RewardSource(name="mix", settings=json.dumps({"of": [{"name": "judge"}]})))
    plain = a_task(3)
    write(ready, judged, mixed, plain, a_response(judged), a_response(mixed), a_response(plain))
    with agent(ready):
        until(lambda: lag(ready) == 0, "a commit of everything")
    assert [reward.task_id for reward in rewards(ready)] == ["t3"], "a reward with an error would be final"
    assert [letter.reason for letter in dead_letters(ready)] == ["no_judge"] * 2
    assert all("set scoring.judge_url" in letter.error for letter in dead_letters(ready))
    with judging(says({"score": 7})) as judge:
        scoring = Scoring(judge_url=judge.url, judge_model="m")
        write(ready, a_response(judged), a_response(mixed))  # as `admin dlq retry` does
        found = score_all(ready.model_copy(update={"scoring": scoring}), 4)
    assert {(reward.task_id, reward.source) for reward in found if reward.error is None} == {
        ("t1", "exact"), ("t1", "judge"), ("t2", "mix"), ("t3", "exact")
    }  # fmt: skip


def test_an_agent_leaves_modules_that_its_settings_do_not_list_to_one_that_lists_them(ready: Settings) -> None:
    entry_point = a_task(1, RewardSource(name="slow_scorers:slow", settings='{"seen": "/dev/null", "seconds": 0}'))
    write(ready, entry_point, a_response(entry_point))
    with agent(ready.model_copy(update={"scoring": Scoring()})):
        until(lambda: lag(ready) == 0, "a commit of everything")
    [letter] = dead_letters(ready)
    assert letter.reason == "module_not_listed" and "add slow_scorers to scoring.modules" in letter.error
    write(ready, a_response(entry_point))  # as `admin dlq retry` does
    assert [reward.value for reward in score_all(ready, 1)] == [0.5]


def test_poison_is_left_to_the_stage_that_reads_every_response_and_the_partition_moves_on(ready: Settings) -> None:
    task = a_task(1)
    write(ready, task)
    topic = f"{ready.topics.prefix}responses"
    with Producer(ready) as producer:
        for payload in (b"not avro", b"\x00\x00\x00\x00\x02", None, b""):
            producer.send_bytes(topic, b"t1", payload)
        producer.send(a_response(task))
    found = score_all(ready, 1)
    assert [reward.value for reward in found] == [1.0]
    assert dead_letters(ready) == [], "the advantages stage writes the one about each"
    assert lag(ready) == 0


def test_a_response_whose_task_nobody_wrote_waits_and_then_goes_to_dead_letters(
    ready: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "TASK_WAIT_S", 1.0)
    task, orphan = a_task(1), a_task(2)
    write(ready, a_response(orphan), task, a_response(task))
    with agent(ready):
        until(lambda: len(dead_letters(ready)) == 1, "a dead letter")
    [letter] = dead_letters(ready)
    assert letter.reason == "unknown_task" and "task t2 is not in partition" in letter.error
    assert [reward.task_id for reward in rewards(ready)] == ["t1"]
    assert lag(ready) == 0


def test_a_response_that_comes_before_its_task_is_scored_when_the_task_is_there(
    ready: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "TASK_WAIT_S", 60.0)
    task = a_task(1)
    write(ready, a_response(task))
    with agent(ready):
        time.sleep(1.5)  # long enough to look for the task and not find it
        write(ready, task)
        until(lambda: len(rewards(ready)) == 1, "a reward")
    assert dead_letters(ready) == []


# --- stops and crashes ------------------------------------------------------------------------------------------------


def test_an_agent_that_starts_again_goes_on_where_it_committed(ready: Settings) -> None:
    tasks = [a_task(n) for n in range(6)]
    write(ready, *tasks, *[a_response(task) for task in tasks[:3]])
    score_all(ready, 3)
    write(ready, *[a_response(task) for task in tasks[3:]])
    assert sorted(reward.task_id for reward in score_all(ready, 6)) == [f"t{n}" for n in range(6)]


def test_two_agents_share_the_partitions_and_every_response_is_scored(ready: Settings) -> None:
    tasks = [a_task(n) for n in range(200)]
    write(ready, *tasks)
    with agent(ready):
        write(ready, *[a_response(task) for task in tasks[:100]])
        with agent(ready):
            write(ready, *[a_response(task) for task in tasks[100:]])
            until(lambda: len({reward.task_id for reward in rewards(ready)}) == 200, "a reward for each of 200 tasks")
    assert lag(ready) == 0


@pytest.mark.kills
def test_an_agent_killed_in_the_middle_loses_no_response(ready: Settings, tmp_path: Path) -> None:
    # kill -9 comes while scores are in flight and after some were written: what was not committed is scored again,
    # under the same ids, by the next agent.
    seen = tmp_path / "seen"
    source = RewardSource(name="slow_scorers:slow", settings=json.dumps({"seen": str(seen), "seconds": 0.2}))
    tasks = [a_task(n, source) for n in range(20)]
    write(ready, *tasks, *[a_response(task) for task in tasks])
    process = spawn(command("scoring"), env=environment(ready))
    try:
        until(lambda: seen.exists() and len(seen.read_text().split()) >= 5, "five responses in a scorer")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 0 < len(rewards(ready)) < 20
    with agent(ready):
        until(lambda: len({reward.response_id for reward in rewards(ready)}) == 20, "a reward for each of 20 responses")
        until(lambda: lag(ready) == 0, "a commit of everything")
    ids = {derive_id(a_response(task).response_id, source.name) for task in tasks}
    assert {reward.reward_id for reward in rewards(ready)} == ids
    assert {reward.value for reward in rewards(ready)} == {0.5}


def test_stopping_finishes_what_runs_and_leaves_the_rest_uncommitted(
    ready: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "DRAIN_S", 0.5)
    hanging = RewardSource(name="slow_scorers:slow", settings=json.dumps({"seen": str(tmp_path / "s"), "seconds": 60}))
    slow, quick = a_task(1, hanging), a_task(2)
    write(ready, slow, quick, a_response(slow), a_response(quick))
    patient = ready.model_copy(update={"scoring": Scoring(modules="slow_scorers", timeout_s=100)})
    with agent(patient):
        until((tmp_path / "s").exists, "a scorer at work")
        until(lambda: len(rewards(ready)) == 1, "a reward")
    assert [reward.task_id for reward in rewards(ready)] == ["t2"]  # and no error was written for the other
    assert lag(ready) == 1


# --- finding tasks ----------------------------------------------------------------------------------------------------


def test_a_task_that_was_let_go_is_found_again(ready: Settings) -> None:
    tasks, count = [a_task(n, answer="x" * 500) for n in range(150)], ready.topics.partitions
    write(ready, *tasks)
    mine = [task for task in tasks if partition_of(task.task_id, count) == 0]
    with TaskLookup(ready, cache_bytes=3000) as known:
        for order in (mine, mine[::-1], mine[::2] + mine[1::2]):
            for task in order:
                assert known.find(0, [task.task_id]) == {task.task_id: task}
        assert known._bytes <= 3000
        assert known.find(0, [mine[0].task_id, "nobody", mine[-1].task_id]).keys() == {
            mine[0].task_id,
            mine[-1].task_id,
        }
        later = next(a_task(n) for n in range(300, 400) if partition_of(f"t{n}", count) == 0)
        assert known.find(0, [later.task_id]) == {}
        write(ready, later)
        assert known.find(0, [later.task_id]) == {later.task_id: later}
        assert known.find(1, [later.task_id]) == {}


def test_a_task_that_is_not_there_has_the_topic_read_from_its_start_once(
    ready: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # else responses of no task, which are looked for again and again, keep the agent from everything else
    count = ready.topics.partitions
    write(ready, *(task for n in range(100) if partition_of((task := a_task(n)).task_id, count) == 0))
    later = next(a_task(n) for n in range(100, 200) if partition_of(f"t{n}", count) == 0)
    with TaskLookup(ready) as known:
        assert known.find(0, ["t0", later.task_id]).keys() <= {"t0"}
        starts, assign = [], known._reader.assign

        def noting(begin: dict[tuple[str, int], int], ends: dict[tuple[str, int], int] | None = None) -> None:
            starts.extend(begin.values())
            assign(begin, ends)

        monkeypatch.setattr(known._reader, "assign", noting)
        for _ in range(3):
            assert known.find(0, [later.task_id]) == {}
        assert 0 not in starts
        assert known.find(0, ["nobody"]) == {}
        assert starts.count(0) == 1
        write(ready, later)
        assert known.find(0, [later.task_id]) == {later.task_id: later}


def test_an_agent_that_should_stop_looks_for_no_task_any_further(ready: Settings) -> None:
    write(ready, a_task(0))
    stop = threading.Event()
    with TaskLookup(ready, outage=BrokerOutage(ready.kafka, stop)) as known:
        own = partition_of("t0", ready.topics.partitions)
        assert known.find(1 - own, ["nobody"]) == {}
        stop.set()
        with pytest.raises(StoppedReading):
            known.find(own, ["t0"])


# --- submission -------------------------------------------------------------------------------------------------------


def submitted(settings: Settings, tasks: Sequence[Task]) -> tuple[int, int]:
    sent, known = submit(settings, tasks)
    return len(sent), len(known)


def test_a_second_submission_of_the_same_file_adds_nothing(ready: Settings) -> None:
    lines = [json.dumps({"prompt": f"{n} + 1 =", "answer": str(n + 1)}) for n in range(50)]
    readings = [Reading(now_ms=now, topic_settings=ready.topics, defaults={"policy": "p"}) for now in (1, 2)]
    read = [check_rows(json_lines(lines), "sums.jsonl", reading).tasks for reading in readings]
    assert submitted(ready, read[0][:30]) == (30, 0)
    assert submitted(ready, read[1]) == (20, 30)
    assert submitted(ready, read[1]) == (0, 50)
    assert sum(1 for _ in admin.read_topic(ready, "tasks")) == 50


def test_generated_tasks_go_the_same_way(ready: Settings) -> None:
    tasks = list(generate(TaskSpec(family="sums", count=10, seed=1, purpose="train", policy="p"), now_ms=1))
    assert submitted(ready, tasks) == (10, 0)
    assert submitted(ready, tasks) == (0, 10)
    stored = [record.decode(Task) for record in admin.read_topic(ready, "tasks")]
    assert sorted(stored, key=str) == sorted(tasks, key=str)


def test_submitting_nothing_is_no_error(ready: Settings) -> None:
    assert submitted(ready, []) == (0, 0)
