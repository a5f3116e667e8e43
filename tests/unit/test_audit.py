"""What the audit counts, what it leaves in flight, and that it asks nobody whom it checks."""

from __future__ import annotations

import ast
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import hypothesis
import pytest
from hypothesis import example, given, strategies as st

from schemas.events import Batch, Response, TokensElsewhere, derive_id
from schemas.tokens import Logprobs, LossMask, TokenIds
from streams import advantage_formulas
from streams.advantage_formulas import FORMULAS
from streams.kafka.record import Record, dead_letter
from streams.plugins.installed import load_plugins
from streams.settings.model import Advantages, Fleet, Settings
from streams.stages.advantages.credit import Episode
from streams.tools.audit.audit_metrics import text
from streams.tools.audit.facts import Reach
from streams.tools.audit.recount import Ledger, recount
from streams.tools.audit.recount_group import expected_numbers
from tests.support.factories import PROGRAM, T0, control, one_of_each, response, reward, task
from tests.support.log.whole_run import (
    BY_NAME,
    SETTINGS,
    SIZE,
    SOURCES,
    TOPICS,
    Joined,
    Written,
    answers,
    appended,
    ends,
    event_of,
    groups_of,
    inputs,
    named,
    rewritten,
    settled,
    trained,
    verdicts,
    whole_log,
)
from tests.support.thoroughness import examples

ROOT = Path(__file__).parents[2]


def _files(module: str) -> list[Path]:
    """Return the file of a module, or those of a package."""
    path = ROOT.joinpath(*module.split("."))
    return sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


MODULES = sorted((ROOT / "streams" / "tools" / "audit").glob("*.py"))
OF_PLUGINS = [
    path
    for plugin, _, version in load_plugins()
    if plugin.recounts is not None and version is None
    for path in _files(plugin.recounts.partition(":")[0])
]
MAY_IMPORT = {
    "advantage_formulas",  # for the second implementation of each formula, next to the first
    "errors",
    "output",
    "cli.runtime",
    "kafka.admin",
    "kafka.group_names",
    "kafka.offsets",
    "kafka.reader",
    "kafka.record",
    "kafka.times",
    "kafka.topics",
    "kafka.transactions",
    "kafka.headers",
    "observability.catalog",
    "observability.http_server",
    "observability.metrics",
    "plugins.installed",
    "settings.load",
    "settings.model",
    "topics.shape",
}


@cache
def whole() -> tuple[Record, ...]:
    return tuple(whole_log().records)


def passed(records: list[Record], *groups: str, labels: tuple[str, ...] = ()) -> dict[tuple[str, str, int], int]:
    """Return the commits of groups that have read all of these records, or those of some topics."""
    return {
        (group, topic, partition): end
        for (topic, partition), end in ends(records).items()
        for group in groups
        if not labels or BY_NAME[topic].label in labels
    }


@pytest.mark.parametrize("path", [*MODULES, *OF_PLUGINS], ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_the_audit_imports_nothing_of_what_it_checks(path: Path) -> None:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            module = node.module or ""
            packages = ("streams", "streams.tools.audit", "streams.kafka", "streams.observability", "streams.settings")
            found |= {f"{module}.{alias.name}" for alias in node.names} if module in packages else {module}
    ours = {name for name in found if name.split(".")[0] in ("streams", "trainer", "plugins")}
    allowed = {f"streams.{name}" for name in MAY_IMPORT} | {f"streams.tools.audit.{module.stem}" for module in MODULES}
    allowed |= {".".join(module.relative_to(ROOT).with_suffix("").parts) for module in OF_PLUGINS}
    assert ours - allowed == set()


def test_a_log_through_every_stage_balances() -> None:
    report = settled(list(whole()))
    assert named(report) == ""
    assert report.balanced
    assert [what for what, _, holds in report.equations() if not holds] == []


def test_the_sums_are_those_of_the_log() -> None:
    plain = settled(list(whole())).plain()
    assert {name: plain[name] for name in ("tasks", "responses", "rewards", "groups", "batches", "adapters")} == {
        "tasks": 21,
        "responses": 63,
        "rewards": 107,
        "groups": 21,
        "batches": 4,
        "adapters": 4,
    }
    # 19 answered tasks of 3 and one of 2 slots, 6 of them failed; task-13 and a slot of task-12 were never answered
    assert plain["sums"]["slots of all tasks"] == "63 = 53 answered + 6 failed + 4 unanswered + 0 open"
    assert plain["sums"]["tasks"] == "21 = 18 groups + 3 dropped + 0 open"
    assert plain["in_flight"] == {"groups": 3}
    assert plain["dead_letters"]["superseded"] == SIZE


def test_what_was_refused_is_named_with_its_kind_and_accounted_for_by_its_dead_letter() -> None:
    report = settled(list(whole()))
    assert [len(report.of(kind)) for kind in ("contradictory", "late", "superseded", "repeated")] == [3, 1, 9, 4]
    assert all(found.accounted for found in report.findings)


def test_one_policy_is_recounted_alone() -> None:
    ledger = Ledger(SETTINGS)
    for record in whole():
        ledger.take(record)
    reach = Reach(ends=ends(whole()), settled=True)
    both = [ledger.report(reach, policy=policy) for policy in ("default", "other")]
    assert [report.counts["tasks"] for report in both] == [16, 5]
    assert all(report.balanced for report in both)


def test_an_offset_without_a_record_is_lost_unless_a_transaction_left_it() -> None:
    log = Written()
    at = log.write(task(), T0).at
    ends = {(at.topic, at.partition): at.offset + 4}
    left = {(at.topic, at.partition): {at.offset + 1, at.offset + 2}}  # an aborted record and its marker
    report = recount(log.records, SETTINGS, Reach(ends={**log.ends, **ends}, unread=left, now_ms=T0 + 1))
    assert [(found.category, found.at) for found in report.wrong] == [("lost", at._replace(offset=at.offset + 3))]


def test_feedback_is_nobodys_loss() -> None:
    answered = next(record.decode(Response) for record in whole() if BY_NAME[record.at.topic].label == "responses")
    assert isinstance(answered, Response)
    records, _ = appended(list(whole()), reward(answered, source="feedback/ada", value=0.1))
    assert named(settled(records)) == ""


def test_what_is_over_the_quota_of_a_group_is_accounted_for_by_its_dead_letter() -> None:
    log = Written()
    join, asked = Joined(log), task(group_size=SIZE)
    slots = answers(asked)
    flood = [reward(slots[0], source=letter * 1_100_000) for letter in "ab"]
    for event in (asked, *flood, *slots, *map(reward, slots), control()):
        join.read(log.write(event, event.created_at))
    report = settled(log.records)
    assert (named(report), report.dead_letters) == ("", {"over_quota": 1 + SIZE, "unasked": 1})


def test_without_commits_everything_is_in_flight_and_nothing_is_lost() -> None:
    records = [record for record in whole() if BY_NAME[record.at.topic].label in ("tasks", "responses")]
    report = recount(records, SETTINGS, Reach(ends=ends(records)))
    assert report.balanced
    assert report.in_flight["tasks"] == 21


def test_a_task_that_the_policy_agent_has_passed_without_an_answer_is_lost() -> None:
    log = Written()
    at = log.write(task(), T0).at
    commits = passed(log.records, "policy-default")
    report = recount(log.records, SETTINGS, Reach(committed=commits, ends=log.ends, now_ms=T0 + 1))
    assert [
        (found.category, found.at) for found in report.wrong
    ] == []  # the join has not read it: who knows what will be
    commits |= passed(log.records, "streams")
    report = recount(log.records, SETTINGS, Reach(committed=commits, ends=log.ends, now_ms=T0 + 1))
    assert [(found.category, found.at) for found in report.wrong] == [("lost", at)]


def test_a_task_that_every_fleet_has_passed_without_an_answer_is_lost_if_its_policy_is_answered_by_one() -> None:
    log = Written()
    at = log.write(task(task_id="asked"), T0).at

    def wrong(settings: Settings = SETTINGS, **commits: int) -> list[tuple[str, str]]:
        found = passed(log.records, "streams")
        for name, offset in commits.items():
            group = f"policy-{name.replace('_', '@')}"
            found |= {key: min(offset, value) for key, value in passed(log.records, group).items()}
        report = recount(log.records, settings, Reach(committed=found, ends=log.ends, now_ms=T0 + 1))
        return [(one.category, one.what) for one in report.wrong if one.at == at]

    assert wrong(_one=99) == [], "a policy that nobody ever answered may wait for a fleet of its base model"
    log.write(task(task_id="other"), T0)
    log.write(response(task_id="other"), T0)
    assert wrong(_one=99) == [("lost", "policy-@one has passed it, but no sampling has every slot")]
    assert wrong(_one=99, _two=0) == [] and wrong(_one=99, default=0) == []
    assert wrong(_one=99, _two=99) == [
        ("lost", "policy-@one, policy-@two has passed it, but no sampling has every slot")
    ]
    assert wrong(SETTINGS.model_copy(update={"fleet": Fleet(policies="others-*")}), _one=99) == []


def test_a_task_that_names_an_agent_is_answered_by_its_manager_whatever_the_policy_agent_has_passed() -> None:
    log = Written()
    at = log.write(task(agent="adder"), T0).at
    commits = passed(log.records, "policy-default", "streams")
    report = recount(log.records, SETTINGS, Reach(committed=commits, ends=log.ends, now_ms=T0 + 1))
    assert (report.wrong, report.in_flight["tasks"]) == ([], 1)
    commits |= passed(log.records, "agents-adder@default")
    report = recount(log.records, SETTINGS, Reach(committed=commits, ends=log.ends, now_ms=T0 + 1))
    assert [(found.category, found.at) for found in report.wrong] == [("lost", at)]
    assert report.wrong[0].what.startswith("agents-adder@default has passed it")


def test_a_task_whose_deadline_is_over_may_have_been_passed_over() -> None:
    log = Written()
    log.write(task(deadline_at=T0 + 100), T0)
    commits = passed(log.records, "policy-default", "streams")
    report = recount(log.records, SETTINGS, Reach(committed=commits, ends=log.ends, now_ms=T0 + 101))
    assert report.balanced
    assert report.in_flight["tasks"] == 1


def test_a_train_task_that_is_held_back_for_days_is_in_flight() -> None:
    log = Written()
    log.write(task(), T0)
    commits = passed(log.records, "streams")
    report = recount(log.records, SETTINGS, Reach(committed=commits, ends=log.ends, now_ms=T0 + 10**9))
    assert report.balanced
    assert report.in_flight["tasks"] == 1


def test_a_train_task_that_was_held_back_is_judged_by_the_time_of_its_first_response() -> None:
    log, sampled_ms = Written(), T0 + 3_600_000
    asked = task(group_size=SIZE, reward_sources=SOURCES[:1])
    slots = answers(asked)
    log.write(asked, T0)
    for slot in slots:
        log.write(slot, sampled_ms)
    for slot in slots[1:]:
        log.write(reward(slot), sampled_ms + 600_000)
    late = log.write(reward(slots[0]), sampled_ms + 600_001).at
    log.write(control(), sampled_ms + 605_000)
    join = Joined(log)
    for record in list(log.records):
        join.read(record)
    report = settled(log.records)
    assert named(report) == ""
    assert [(found.category, found.at) for found in report.findings] == [("late", late)]
    assert report.plain()["sums"]["tasks"] == "1 = 1 groups + 0 dropped + 0 open"


def test_a_task_in_the_wrong_partition_is_named_and_so_is_what_was_answered_to_it() -> None:
    log = Written()
    asked = task(group_size=SIZE, reward_sources=SOURCES)
    at = log.write(asked, T0, beside=1).at
    (slot, *_) = [log.write(slot, T0).at for slot in answers(asked)]
    before = settled(log.records)
    assert {(found.category, found.at) for found in before.wrong} >= {("misplaced", at), ("misplaced", slot)}
    assert f"its task is in another partition, {at}" in named(before)
    join = Joined(log)
    for record in [*log.records, log.write(control(), T0 + 605_000)]:
        join.read(record)
    report = settled(log.records)
    assert named(report) == ""
    assert [(found.at, found.what, found.accounted) for found in report.of("misplaced")] == [
        (at, "wrong_partition", True)
    ]
    assert report.dead_letters == {"wrong_partition": 1, "unknown_task": SIZE}


KEYED = ("access", "jobs", "agents", "adapters", "experiments", "groups", "batches", "turns")


@pytest.mark.parametrize("label", [label for label in KEYED if label in TOPICS])
def test_what_is_in_another_partition_than_its_key_is_named_whatever_it_is_about(label: str) -> None:
    log = Written()
    event = next(event for event in one_of_each() if isinstance(event, TOPICS[label].event))
    at = log.write(event, T0, beside=1).at
    assert ("misplaced", at) in {(found.category, found.at) for found in settled(log.records).wrong}


def test_an_answer_that_the_scorer_has_passed_without_a_reward_is_lost() -> None:
    log = Written()
    asked = task(group_size=SIZE, reward_sources=SOURCES)
    log.write(asked, T0)
    slots = [log.write(slot, T0) for slot in answers(asked)]
    log.write(reward(event_of(slots[0])), T0)
    reach = Reach(committed=passed(log.records, "scoring", labels=("responses",)), ends=log.ends)
    assert [(found.at, found.category) for found in recount(log.records, SETTINGS, reach).wrong] == [
        (slot.at, "lost") for slot in slots
    ]
    assert "the reward of format " in named(recount(log.records, SETTINGS, reach))


def test_a_whole_group_that_the_join_has_passed_and_not_written_is_lost() -> None:
    records = [record for record in whole() if BY_NAME[record.at.topic].label in ("tasks", "responses", "rewards")]
    held = [record for record in records if record.key == b"task-0"]
    log = Written()
    for record in held:
        log.write(event_of(record), record.timestamp_ms)
    reach = Reach(committed=passed(log.records, "streams"), ends=log.ends)
    (lost,) = recount(log.records, SETTINGS, reach).wrong
    assert (lost.category, lost.at) == ("lost", log.of("tasks")[0].at)
    before = {**reach.committed, ("streams", log.records[-1].at.topic, log.records[-1].at.partition): 5}
    assert recount(log.records, SETTINGS, Reach(committed=before, ends=log.ends)).balanced


@given(st.data())
@hypothesis.settings(max_examples=examples(40))
def test_a_log_at_work_balances_whatever_has_been_read_so_far(data: st.DataObject) -> None:
    # the join has read some of each partition, committed less, and more has come since
    log = Written()
    order = inputs(log)
    read = data.draw(st.integers(0, len(order)))
    committed = data.draw(st.integers(0, read))
    come = data.draw(st.integers(read, len(order)))
    now = Written(order[:come], ends(order[:come]))
    join = Joined(now)
    for record in order[:read]:
        join.read(record)
    reach = Reach(committed=passed(order[:committed], "streams"), ends=ends(now.records))
    report = recount(now.records, SETTINGS, reach)
    assert named(report) == ""
    if come:
        assert read == len(order) or sum(report.in_flight.values()) > 0 or report.counts["tasks"] == 0


@given(st.data())
@hypothesis.settings(max_examples=examples(15))
def test_looking_again_and_again_gives_what_one_look_gives(data: st.DataObject) -> None:
    records, ledger, begin = list(whole()), Ledger(SETTINGS), 0
    for end in [*sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=3))), len(records)]:
        for record in records[begin:end]:
            ledger.take(record)
        begin = end
        done = records[:end]
        last = ledger.report(Reach(committed=passed(done, "streams", "scoring"), ends=ends(done)))
    once = recount(records, SETTINGS, Reach(committed=passed(records, "streams", "scoring"), ends=ends(records)))
    assert (last.findings, last.counts, last.in_flight) == (once.findings, once.counts, once.in_flight)


def test_what_lies_before_the_time_asked_for_is_outside() -> None:
    records = list(whole())
    since = records[len(inputs(Written())) // 2].timestamp_ms
    first: dict[tuple[str, int], int] = {}
    for record in records:
        if record.timestamp_ms >= since or BY_NAME[record.at.topic].label in ("tasks", "adapters"):
            first.setdefault((record.at.topic, record.at.partition), record.at.offset)
    kept = [
        record for record in records if record.at.offset >= first.get((record.at.topic, record.at.partition), 10**9)
    ]
    begins = {tp: first.get(tp, end) for tp, end in ends(records).items()}
    report = recount(kept, SETTINGS, Reach(begins=begins, ends=ends(records), since_ms=since, settled=True))
    assert named(report) == ""
    assert report.counts["outside"] > 0
    assert 0 < report.counts["tasks"] < 21


def test_what_retention_has_cut_is_outside() -> None:
    records = list(whole())
    responses = TOPICS["responses"].name
    kept = [record for record in records if record.at.topic != responses or record.at.offset >= 10]
    begins = {(responses, partition): 10 for partition in range(2)}
    reach = Reach(begins=begins, ends=ends(records), retained=frozenset(begins), settled=True)
    report = recount(kept, SETTINGS, reach)
    assert named(report) == ""
    assert report.counts["outside"] > 0


def test_batches_without_a_trainer_wait() -> None:
    records = [record for record in whole() if BY_NAME[record.at.topic].label != "adapters"]
    report = settled(records)
    assert report.balanced
    assert report.in_flight["batches"] == 4


def test_a_forged_version_is_no_sign_of_a_trainer_that_should_have_trained_on_the_other_batches() -> None:
    kept = [record for record in whole() if BY_NAME[record.at.topic].label != "adapters"]
    records, at = appended(kept, trained(1, event_id="forged"))
    report = settled(records)
    assert {found.at for found in report.wrong} == {at}
    assert report.in_flight["batches"] == 3


def test_a_version_trained_twice_with_the_same_files_is_a_repetition() -> None:
    records, at = appended(list(whole()), trained(2, created_at=T0 + 5, metrics={"loss": 0.5}))
    report = settled(records)
    assert report.balanced
    assert at in [found.at for found in report.of("repeated")]


def test_a_decision_about_a_dead_letter_is_no_dead_letter() -> None:
    letter = event_of(next(record for record in whole() if BY_NAME[record.at.topic].label == "dead-letters"))
    source = (letter.source_topic, letter.source_partition, letter.source_offset)
    decision = type(letter)(
        **{name: getattr(letter, name) for name in letter.__slots__}
        | {"stage": "dlq", "reason": "dropped", "payload": None, "dead_letter_id": derive_id("dlq", *source, 1)}
    )
    before = settled(list(whole()))
    after = settled(appended(list(whole()), decision)[0])
    assert after.balanced
    assert after.dead_letters == before.dead_letters


def test_a_version_that_an_agent_refused_is_counted_once_with_its_reason() -> None:
    version = next(record for record in whole() if BY_NAME[record.at.topic].label == "adapters")
    refused = dead_letter(version, stage="policy", reason='bad_"adapter"', error="its files are others")
    records, _ = appended(list(whole()), refused)
    records, _ = appended(records, refused)  # two agents refuse it, in the same words
    report = settled(records)
    assert report.refused_adapters == {'bad_"adapter"': 1}
    assert '\nstreamward_adapters_refused_total{reason="bad_\\"adapter\\""} 1.0\n' in text(report, at_s=0)
    assert settled(list(whole())).refused_adapters == {}


def test_strangers_are_in_flight_until_their_time_is_over() -> None:
    log = Written()
    stray = log.write(response(task_id="nobody"), T0)
    reach = Reach(committed=passed(log.records, "streams"), ends=log.ends)
    assert recount(log.records, SETTINGS, reach).in_flight == {"events": 1}
    log.write(control(task_id="nobody"), T0 + 700_000)
    reach = Reach(committed=passed(log.records, "streams"), ends=log.ends)
    assert [(found.category, found.at) for found in recount(log.records, SETTINGS, reach).wrong] == [
        ("phantom", stray.at)
    ]


def test_what_was_given_up_before_its_task_came_does_not_count_and_the_task_is_not_lost() -> None:
    log = Written()
    join = Joined(log)
    asked = task(task_id="later", group_size=SIZE, reward_sources=SOURCES)
    early = answers(asked, "early")
    expired = control(task_id="later")
    for event, ms in (*((slot, T0) for slot in early), (expired, T0 + 700_000), (asked, T0 + 800_000)):
        join.read(log.write(event, ms))
    assert len(log.of("dead-letters")) == SIZE
    reach = Reach(committed=passed(log.records, "streams", "scoring"), ends=log.ends)
    report = recount(log.records, SETTINGS, reach)
    assert named(report) == ""
    assert report.in_flight["tasks"] == 1
    slots = answers(asked, "again")
    scores = [reward(slot, source=source.name) for slot in slots for source in SOURCES]
    for event in (*slots, *scores):
        join.read(log.write(event, T0 + 800_001))
    assert len(log.of("groups")) == 1
    assert named(settled(log.records)) == ""


@pytest.mark.parametrize("sampled_again", [True, False])
def test_a_task_delivered_again_after_it_was_evicted_has_a_second_group_that_repeats_the_first(
    sampled_again: bool,
) -> None:
    log = Written()
    join = Joined(log)
    asked = task(group_size=SIZE, reward_sources=SOURCES)

    def answer(sampling: str, ms: int) -> None:
        slots = answers(asked, sampling)
        for event in (asked, *slots, *verdicts(slots, random.Random(1))):
            join.read(log.write(event, ms))

    answer("first", T0)
    join.read(log.write(control(kind="evict"), T0 + 10))
    answer("second" if sampled_again else "first", T0 + 20)
    first, second = (made for _, made in groups_of(log.records))
    assert first.group_id == second.group_id and first.created_at != second.created_at
    report = settled(log.records)
    assert named(report) == ""
    assert "repeated" in {found.category for found in report.findings}


def test_a_task_delivered_again_after_it_was_evicted_is_in_flight_until_its_group_comes() -> None:
    log = Written()
    join, asked = Joined(log), task(group_size=SIZE, reward_sources=SOURCES)
    slots = answers(asked)
    for event in (asked, *slots, *verdicts(slots, random.Random(1))):
        join.read(log.write(event, T0))
    join.read(log.write(control(kind="evict"), T0 + 10))
    for event in (asked, *answers(asked, "second")):
        join.read(log.write(event, T0 + 20))
    report = recount(log.records, SETTINGS, Reach(ends=ends(log.records), committed=passed(log.records, "streams")))
    assert named(report) == ""
    assert report.in_flight["events"] == SIZE


def test_a_group_that_was_recorded_without_slots_and_metadata_since_it_was_too_large_balances() -> None:
    log = Written()
    join, asked = Joined(log), task(group_size=SIZE, reward_sources=SOURCES, metadata={"note": "n"})
    slots = answers(asked)
    for event in (asked, *slots, *verdicts(slots, random.Random(1))):
        join.read(log.write(event, T0))
    ((record, _),) = groups_of(log.records)
    empty = {"dropped_reason": "too_large", "responses": (), "left_out": (), "metadata": {}}
    assert named(settled(rewritten(log.records, record.at, lambda group: replace(group, **empty)))) == ""


def joined_under(**rule: str) -> Written:
    log = Written()
    join = Joined(log, SETTINGS.model_copy(update={"advantages": Advantages(**rule)}))
    asked = task(group_size=SIZE, reward_sources=SOURCES, metadata={"note": "n"})
    slots = answers(asked)
    for event in (asked, *slots, *verdicts(slots, random.Random(1))):
        join.read(log.write(event, T0))
    return log


def first_best(rewards: list[float], *, eps: float, ddof: int) -> list[float]:
    return [1.0, *[-1.0] * (len(rewards) - 1)]


def last_turn(episodes: list[Episode], rule: Advantages) -> list[list[float]]:
    return [[*[0.0] * (len(episode.rewards) - 1), 1.0] for episode in episodes]


@pytest.mark.parametrize("rule", [{"formula": f"{__name__}:first_best"}, {"credit": f"{__name__}:last_turn"}])
def test_a_group_by_a_rule_of_the_users_own_balances_with_the_checksum_of_its_source(rule: dict[str, str]) -> None:
    log = joined_under(**rule)
    ((_, group),) = groups_of(log.records)
    assert group.metadata.keys() == {"note", *(f"{name}_sha256" for name in rule)}
    assert named(settled(log.records)) == ""


def test_metadata_that_neither_task_nor_formula_has_are_named() -> None:
    log = joined_under(formula="grpo")
    ((record, _),) = groups_of(log.records)
    added = {"formula_sha256": "0" * 64, "colour": "red", "note": "n"}
    report = settled(rewritten(log.records, record.at, lambda group: replace(group, metadata=added)))
    differing, undeclared = sorted(named(report).splitlines())
    assert differing.startswith(f"contradictory {record.at}: its metadata are not those of its task ")
    assert differing.endswith(": formula_sha256")
    assert undeclared == f"contradictory {record.at}: nothing that is installed adds such metadata to a group: colour"


def test_a_formula_that_is_not_known_is_named() -> None:
    log = joined_under(formula="grpo")
    ((record, _),) = groups_of(log.records)
    report = settled(rewritten(log.records, record.at, lambda group: replace(group, formula="median")))
    assert "its formula is median, and there are grpo, " in named(report)


@pytest.mark.parametrize(("more", "wrong"), [(0, False), (1, True)])
def test_a_group_that_leaves_tokens_in_a_response_balances_if_it_counts_them(more: int, wrong: bool) -> None:
    log = Written()
    join, asked = Joined(log), task(group_size=SIZE, reward_sources=SOURCES)
    slots = answers(asked)
    for event in (asked, *slots, *verdicts(slots, random.Random(1))):
        join.read(log.write(event, T0))
    ((record, group),) = groups_of(log.records)
    first, *others = group.responses
    left = TokensElsewhere(completion_tokens=first.completion_tokens + more, loss_tokens=first.loss_tokens)
    nothing = {"completion_token_ids": TokenIds(), "logprobs": Logprobs(), "loss_mask": LossMask()}
    members = (replace(first, elsewhere=left, **nothing), *others)
    found = named(settled(rewritten(log.records, record.at, lambda group: replace(group, responses=members))))
    assert ("slot 0 has another prompt, tokens, logprobs" in found, bool(found)) == (wrong, wrong)


@pytest.mark.parametrize(("commit", "wrong"), [("1" * 40, False), ("2" * 40, True)])
def test_a_group_that_names_another_program_than_its_response_is_named(commit: str, wrong: bool) -> None:
    log = Written()
    join, asked = Joined(log), task(group_size=SIZE, reward_sources=SOURCES)
    slots = [replace(one, agent_id="calc", program=PROGRAM) for one in answers(asked)]
    for event in (asked, *slots, *verdicts(slots, random.Random(1))):
        join.read(log.write(event, T0))
    ((record, group),) = groups_of(log.records)
    first, *others = group.responses
    members = (replace(first, program=replace(PROGRAM, commit=commit)), *others)
    found = named(settled(rewritten(log.records, record.at, lambda group: replace(group, responses=members))))
    assert ("finish reason or program than" in found, bool(found)) == (wrong, wrong)


def test_a_window_that_is_full_and_was_not_cut_is_lost() -> None:
    records = [record for record in whole() if BY_NAME[record.at.topic].label not in ("batches", "adapters")]
    report = settled(records)
    assert "fills batch 0 of default" in named(report)
    assert "fills batch 0 of other" in named(report)


def test_batches_count_what_they_dropped_beyond_those_they_name() -> None:
    log = whole_log()
    at, first = next((record.at, event_of(record)) for record in log.of("batches") if event_of(record).dropped)
    assert isinstance(first, Batch)
    # what is not named must be counted, and only a batch that names a thousand may do so
    changed = type(first)(
        **{name: getattr(first, name) for name in first.__slots__}
        | {"dropped": first.dropped[1:], "metadata": {"dropped_unnamed": "1"}}
    )
    records = rewritten(log.records, at, lambda _: changed)
    assert f"contradictory {at}: it leaves 1 dropped groups unnamed" in named(settled(records))


@given(
    st.sampled_from([*FORMULAS]),
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12),
    st.sampled_from([0, 1]),
)
@example("grpo", [0.3, 0.30000001192092896], 0)
def test_the_second_implementation_of_the_formulas_agrees_with_the_first(
    formula: str, rewards: list[float], ddof: int
) -> None:
    spread = max(rewards) - min(rewards)
    mean, std, ours = expected_numbers(FORMULAS[formula], rewards, 1e-4, ddof)
    scale = max(map(abs, rewards), default=0.0)
    theirs = advantage_formulas.advantages(formula, rewards, eps=1e-4, ddof=ddof)
    grown = max(1.0, scale) / (std + 1e-4) if formula == "grpo" else max(1.0, scale)
    assert (mean, std) == pytest.approx(
        advantage_formulas.mean_and_std(rewards, ddof), rel=1e-9, abs=1e-9 * max(1.0, scale)
    )
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9 * grown) or spread < 1e-9


def test_groups_are_checked_at_all() -> None:
    assert len(groups_of(whole())) == 22
