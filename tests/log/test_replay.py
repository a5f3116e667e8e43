"""Replaying a part of the log under other settings, against a real broker: what comes out, and what is left alone."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from schemas.events import AdvantagedGroup, Batch, Response, Reward, RewardSource, Task
from streams.errors import NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.kafka import admin as cluster
from streams.kafka.client import client_config
from streams.kafka.history import LogHistory
from streams.settings.model import Archive, Settings
from streams.tools.archive import history, sync
from streams.tools.audit.reading import Audit
from streams.tools.replay import driver, experiments, plan_replay as planning, run_replay as replay, selection
from streams.tools.replay.run_replay import ReplayRequest, ReplayResult
from streams.tools.replay.selection import Selection
from tests.support.factories import task
from tests.support.log.replay_source import (
    BEGUN_MS,
    FRESH,
    HALF,
    NUMBER,
    SIZE,
    append,
    contents,
    name_of,
    shaped,
    without_place,
    write,
)
from tests.support.log.shared_node import own_prefix
from tests.support.processes import read

pytestmark = pytest.mark.kafka
SHORT = (RewardSource(name="length", settings='{"limit": 4, "unit": "characters"}'),)


@pytest.fixture(scope="module")
def source(kafka_bootstrap: str) -> Iterator[Settings]:
    """The settings of a log that is only read."""
    settings = shaped(
        Settings.model_validate({"kafka": {"bootstrap": kafka_bootstrap}, "topics": {"prefix": own_prefix()}})
    )
    write(settings)
    yield settings


class Before(NamedTuple):
    """What the source held before it was replayed, and its consumer groups."""

    contents: dict[str, list[tuple[Any, ...]]]
    groups: list[str]


@pytest.fixture(scope="module")
def same(source: Settings, tmp_path_factory: pytest.TempPathFactory) -> tuple[ReplayResult, Before]:
    """An experiment under the settings of the source, and what there was before it."""
    before = Before(contents(source), consumer_groups(source))
    return run(source, request("same", tmp_path_factory.mktemp("same"))), before


def request(name: str, folder: Path, **changes: Any) -> ReplayRequest:
    selected = changes.pop("selection", Selection(policy="default"))
    return ReplayRequest(name=name, selection=selected, folder=folder / name, train=False, **changes)


def run(source: Settings, asked: ReplayRequest) -> ReplayResult:
    return replay.run(source, asked, stop=threading.Event())


def groups_of(settings: Settings) -> list[AdvantagedGroup]:
    return [group for _, group in read(settings, AdvantagedGroup)]


def batches_of(settings: Settings) -> list[Batch]:
    return [batch for _, batch in read(settings, Batch)]


def test_the_same_settings_give_the_groups_that_the_join_makes_of_the_source(
    source: Settings, same: tuple[ReplayResult, Before]
) -> None:
    result, _ = same
    ours = groups_of(result.settings)
    theirs = {g.group_id: g for g in driver.join(source) if isinstance(g, AdvantagedGroup) and g.policy == "default"}
    assert {group.group_id: without_place(group) for group in ours} == {
        group_id: without_place(group) for group_id, group in theirs.items()
    }
    assert {group.policy for group in ours} == {"same"}
    assert [group.task_id for group in ours] == [name_of(number) for number in range(NUMBER)]
    assert result.counts["tasks"] == result.counts["groups"] == NUMBER


def test_a_group_carries_the_lag_it_had_when_it_was_whole_and_batches_go_by_it(
    same: tuple[ReplayResult, Before],
) -> None:
    result, _ = same
    lags = [int(group.metadata["policy_lag"]) for group in groups_of(result.settings)]
    assert lags == [0] * HALF + [0] + [1] * (NUMBER - FRESH - 1)
    assert [[(lag.lag, lag.groups) for lag in batch.lags] for batch in batches_of(result.settings)] == [
        [(0, 2)], [(0, 2)], [(0, 1), (1, 1)], [(1, 2)]
    ]  # fmt: skip


def test_on_policy_only_drops_what_was_stale(source: Settings, tmp_path: Path) -> None:
    result = run(source, request("fresh", tmp_path, changes={"batches.max_policy_lag": 0, "batches.groups": 5}))
    (batch,) = batches_of(result.settings)
    offsets = {record.at.offset: group.task_id for record, group in read(result.settings, AdvantagedGroup)}
    assert [offsets[offset] for offset in batch.groups_offsets] == [name_of(number) for number in range(FRESH + 1)]
    assert experiments.find(source, "fresh").changed == (
        "batches.groups",
        "batches.max_policy_lag",
        "trainer.off_policy",
    )


def test_another_formula_gives_other_advantages(source: Settings, tmp_path: Path) -> None:
    result = run(source, request("dr", tmp_path, changes={"advantages.formula": "dr_grpo"}))
    for group in groups_of(result.settings):
        assert [one.advantage for one in group.responses] == pytest.approx([-1 / 3, 2 / 3, -1 / 3])


def test_a_new_scorer_judges_the_recorded_responses_and_the_old_rewards_stay_behind(
    source: Settings, tmp_path: Path
) -> None:
    result = run(source, request("length", tmp_path, scorers=SHORT))
    rewards = [reward for _, reward in read(result.settings, Reward)]
    assert {(reward.source, reward.policy) for reward in rewards} == {("length", "length")}
    assert len(rewards) == NUMBER * SIZE
    assert {source.name for _, task in read(result.settings, Task) for source in task.reward_sources} == {"length"}
    assert len(groups_of(result.settings)) == NUMBER
    for group in groups_of(result.settings):
        assert [one.reward for one in group.responses] == [0.75, 0.5, 0.25]


def test_the_source_is_left_as_it_was_but_for_the_events_that_tell_of_it(
    source: Settings, same: tuple[ReplayResult, Before]
) -> None:
    before, after = dict(same[1].contents), contents(source)
    new = [record for record in after.pop("experiments") if record not in before["experiments"]]
    before.pop("experiments")
    assert after == before
    assert [key for *_, key, _ in new].count(b"same") == 2 and consumer_groups(source) == same[1].groups
    found = experiments.find(source, "same")
    assert [event.kind for event in found.events] == ["started", "finished"]
    assert sum(one.next - one.first for one in found.ranges if one.topic.endswith(".tasks")) == NUMBER + 2
    assert found.counts["batches"] == NUMBER // 2


def consumer_groups(settings: Settings) -> list[str]:
    """Return the consumer groups of this log's own."""
    client = admin.AdminClient(client_config(settings.kafka))
    names = [group.group_id for group in client.list_consumer_groups().result().valid]
    return sorted(
        name
        for name in names
        if name.startswith(settings.topics.prefix) and not name.startswith(f"{settings.topics.prefix}experiment.")
    )


def test_a_run_that_is_stopped_in_every_stage_and_asked_to_go_on_ends_with_the_same_topics(
    source: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.tools.replay.replay_context.REPORT_EVERY", 1)
    stages = ["copying responses", "scoring", "joining", "writing groups", "cutting batches"]
    for stage in stages:
        stop = threading.Event()

        def report(doing: str, done: int, of: int | None, stop: threading.Event = stop, stage: str = stage) -> None:
            if doing == stage and (done >= 3 or doing == "joining"):
                stop.set()

        stopped = replay.run(source, request("cut", tmp_path, scorers=SHORT), stop=stop, report=report)
        assert (stage, stopped.kind) == (stage, "stopped")
    spooled = tmp_path / "cut" / ".joined-killed"  # as a run that was killed leaves it
    spooled.mkdir()
    result = run(source, request("cut", tmp_path, scorers=SHORT))
    assert not spooled.exists()
    kinds = [event.kind for event in experiments.find(source, "cut").events]
    assert kinds == ["started", "stopped"] * len(stages) + ["started", "finished"]
    monkeypatch.setattr(
        "streams.tools.replay.regroup.ALONE_RECORDS", 0
    )  # partitions side by side, as those of a large log
    whole = run(source, request("whole", tmp_path, scorers=SHORT))
    assert alike(result.settings) == alike(whole.settings)


def alike(settings: Settings) -> dict[str, list[Any]]:
    """Return what lies in the topics, without the experiment's name, where it leads, and how long scoring took."""
    changes: dict[Any, dict[str, Any]] = {
        Task: {},
        Response: {},
        Reward: {"latency_ms": 0.0},
        AdvantagedGroup: {},
        Batch: {"batch_id": "any", "groups_partition": 0},
    }
    return {
        kind.__name__: [
            (0 if kind in (AdvantagedGroup, Batch) else record.at.partition, record.at.offset, record.timestamp_ms,
             replace(event, policy="any", **without))
            for record, event in read(settings, kind)
        ]
        for kind, without in changes.items()
    }  # fmt: skip


# --- what is chosen ---------------------------------------------------------------------------------------------------


def chosen(source: Settings, **limits: Any) -> set[str]:
    selected = Selection(**({"policy": "default"} | limits))
    ranges = selection.ranges_of(source, LogHistory(source), selected)
    among = {"task-1", "held-out"} if selected.where else None
    return {key.decode() for key in selection.choose(source, LogHistory(source), selected, ranges, among).keys}


ALL = {name_of(number) for number in range(NUMBER)}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, ALL),
        ({"key": "task-3"}, {"task-3"}),
        ({"scenario": "odd"}, {"task-1", "task-3", "task-5", "task-7"}),
        ({"policy": "other"}, {"elsewhere"}),
        ({"where": "SQL"}, {"task-1"}),
        ({"since_ms": BEGUN_MS + 250}, {"task-7"}),
        ({"until_ms": BEGUN_MS + 35}, {"task-0"}),
        ({"since_ms": BEGUN_MS + 35, "until_ms": BEGUN_MS + 100}, {"task-1", "task-2"}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",  # a set's order is another in each process
)
def test_only_the_train_tasks_that_are_meant_are_chosen(
    source: Settings, limits: dict[str, Any], expected: set[str]
) -> None:
    assert chosen(source, **limits) == expected


def test_offsets_are_those_of_each_partition_of_tasks(source: Settings) -> None:
    assert chosen(source, first=0, next=1) | chosen(source, first=1) == ALL
    assert chosen(source, first=0, next=1) & chosen(source, first=1) == set()


def test_only_what_belongs_to_the_chosen_is_copied(source: Settings, tmp_path: Path) -> None:
    result = run(source, request("one", tmp_path, selection=Selection(policy="default", key="task-3")))
    assert {key for one in contents(result.settings).values() for *_, key, _ in one} == {b"task-3", b"one"}
    assert result.counts == {"tasks": 1, "responses": SIZE, "rewards": SIZE, "groups": 1}


# --- what is refused --------------------------------------------------------------------------------------------------


def test_nothing_chosen_is_an_error_and_makes_nothing(source: Settings, tmp_path: Path) -> None:
    asked = request("empty", tmp_path, selection=Selection(policy="nobody", asked=(("policy", "nobody"),)))
    with pytest.raises(NotFoundError, match=r"no train task of policy nobody is in the range \(--policy nobody\)"):
        run(source, asked)
    assert not [topic for topic in cluster.describe(source) if "experiment.empty." in topic]
    assert "empty" not in experiments.read(source)


def test_a_name_is_not_given_twice_but_for_the_same(source: Settings, same: tuple[ReplayResult, Before]) -> None:
    folder = experiments.find(source, "same").folder.parent
    there = contents(same[0].settings)
    run(source, request("same", folder))
    assert contents(same[0].settings) == there
    with pytest.raises(RefusedError, match=r"experiment same exists \(finished\) with batches\.groups=2.*has 4"):
        run(source, request("same", folder, changes={"batches.groups": 4}))


def test_a_range_that_retention_has_cut_is_refused(settings: Settings, tmp_path: Path) -> None:
    source = shaped(settings)
    end_ms = write(source)
    append(source, [task(task_id=f"more-{number}", group_size=SIZE) for number in range(9)], end_ms)
    client = admin.AdminClient(client_config(source.kafka))
    wanted = [ck.TopicPartition(f"{source.topics.prefix}tasks", partition, 2) for partition in range(3)]
    for future in client.delete_records(wanted).values():
        future.result()
    with pytest.raises(
        RefusedError, match=r"tasks\[0\]@1: retention has deleted a part of the range; the first record has"
    ):
        run(source, request("cut", tmp_path, selection=Selection(policy="default", first=1)))
    with pytest.raises(RefusedError, match="is younger than --since"):
        run(source, request("since", tmp_path, selection=Selection(policy="default", since_ms=1)))


def test_a_scorer_that_cannot_judge_one_response_ends_the_experiment_and_says_why(
    source: Settings, tmp_path: Path
) -> None:
    with pytest.raises(StreamwardError, match=r"all 24 scores failed; the first: .*bad_verifier"):
        run(source, request("unjudged", tmp_path, scorers=(RewardSource(name="exact"),)))
    assert experiments.find(source, "unjudged").kind == "failed"


def test_an_experiment_is_not_replayed(same: tuple[ReplayResult, Before], tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="is an experiment's log"):
        run(same[0].settings, request("nested", tmp_path))


def test_a_scripted_log_has_nothing_to_train(source: Settings, tmp_path: Path) -> None:
    scripted = source.model_copy(update={"policy": source.policy.model_copy(update={"engine": "scripted"})})
    with pytest.raises(SettingsError, match="--no-train"):
        run(scripted, replace(request("scripted", tmp_path), train=True))


# --- what it can be asked ---------------------------------------------------------------------------------------------


def test_the_log_of_an_experiment_balances_as_any_other(same: tuple[ReplayResult, Before]) -> None:
    report = Audit(same[0].settings, settled=True).look()
    assert report.balanced, [str(finding) for finding in report.wrong]
    assert (report.counts["groups in batches"], report.counts["batches"]) == (NUMBER, NUMBER // 2)


def test_a_plan_says_what_a_run_then_does_and_writes_nothing(source: Settings, tmp_path: Path) -> None:
    def there() -> set[str]:
        return {name for name in cluster.describe(source) if name.startswith(source.topics.prefix)}

    before, topics = contents(source), there()
    asked = request("planned", tmp_path, changes={"batches.max_policy_lag": 0})
    plan = planning.plan(source, replace(asked, train=True))
    assert contents(source) == before and there() == topics
    assert not asked.place.exists()
    result = run(source, asked)
    counts = result.counts
    assert (plan.tasks, plan.responses, plan.rewards) == (counts["tasks"], counts["responses"], counts["rewards"])
    assert (plan.groups, plan.batches, plan.exact) == (counts["groups"], counts["batches"], True)
    groups = {
        record.at.offset: record.decode(AdvantagedGroup) for record in cluster.read_topic(result.settings, "groups")
    }
    tokens = [
        len(groups[offset].prompt_token_ids) + sum(len(one.completion_token_ids) for one in groups[offset].responses)
        for record in cluster.read_topic(result.settings, "batches")
        for offset in record.decode(Batch).groups_offsets
    ]
    assert plan.steps == plan.batches > 0
    assert plan.seconds == pytest.approx(sum(tokens) * 2.0 / 8.0)  # the recorded seconds of a token
    assert plan.dropped == {"stale": NUMBER - FRESH - 1}
    with pytest.raises(RefusedError, match="experiment planned is finished"):
        planning.plan(source, asked)


def test_a_plan_with_a_scorer_counts_the_scores_and_says_what_is_wrong_with_them(
    source: Settings, tmp_path: Path
) -> None:
    plan = planning.plan(source, request("scored", tmp_path, scorers=(*SHORT, RewardSource(name="exact"))))
    assert (plan.to_score, plan.rewards, plan.groups, plan.exact) == (True, 2 * NUMBER * SIZE, NUMBER, False)
    assert plan.score_s is not None and plan.score_s > 0
    assert "bad_verifier" in plan.notes[0]


def test_an_archive_gives_the_same_experiment_when_the_topics_are_emptied(
    settings: Settings, same: tuple[ReplayResult, Before], tmp_path: Path
) -> None:
    source = shaped(settings).model_copy(update={"archive": Archive(store=str(tmp_path / "archive"))})
    write(source)
    sync.sync(source, selection.SOURCES)
    delete(source, selection.SOURCES)
    with pytest.raises(NotFoundError, match="no train task of policy default"):
        replay.run(source, request("log", tmp_path), LogHistory(source), stop=threading.Event())
    result = replay.run(source, request("arc", tmp_path), history.of(source, "archive"), stop=threading.Event())
    assert [without_place(group) for group in groups_of(result.settings)] == [
        without_place(group) for group in groups_of(same[0].settings)
    ]
    assert result.counts == same[0].counts


def delete(settings: Settings, labels: Iterable[str]) -> None:
    """Delete every record of these topics, as retention does."""
    client = admin.AdminClient(client_config(settings.kafka))
    wanted = [ck.TopicPartition(*tp, end) for tp, (_, end) in cluster.offsets(settings, labels).items()]
    for future in client.delete_records(wanted).values():
        future.result()
