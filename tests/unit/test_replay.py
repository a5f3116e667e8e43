"""What a replay is made of, without a broker: names, selections, recorded lag, resuming, and comparing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import SecretStr

from schemas.events import Coordinates, ExperimentEvent
from streams.errors import SettingsError
from streams.evaluation import suite_tasks as evaluate
from streams.kafka.times import parse_time
from streams.scorers import named_sources
from streams.settings.load import load, save
from streams.settings.model import Batches, Kafka, Settings
from streams.stages.batches import BatchWindow, Cutter
from streams.stages.tasks import suites
from streams.tools.replay import comparison, experiments
from streams.tools.replay.comparison import ComparisonSide
from streams.tools.replay.held_out import HeldOutSuite
from streams.tools.replay.recorded_lag import Trained
from streams.tools.replay.selection import Selection, from_plain
from tests.support.factories import T0, group

HOUR_MS = 3_600_000

# --- names and settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "dr-grpo", "x_1", "0" * 60])
def test_a_name_that_fits_topics_and_folders_is_taken(name: str) -> None:
    experiments.check_name(name)


@pytest.mark.parametrize("name", ["", "-a", "A", "a.b", "a/b", "..", "a b", "0" * 61, "a\n"])
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="expected 1 to 60 of a-z"):
        experiments.check_name(name)


def test_an_experiment_has_a_log_and_a_folder_of_its_own_and_is_kept_for_ever() -> None:
    own = experiments.settings_of(Settings(), "dr", Path("there"), {"advantages.formula": "dr_grpo"}, "the options")
    assert (own.topics.prefix, own.policy.name) == ("streamward.experiment.dr.", "dr")
    assert (own.topics.retention_days, own.trainer.off_policy) == (0, True)
    assert (own.adapters.store, own.trainer.checkpoints) == ("there/adapters", Path("there/checkpoints"))
    assert own.advantages.formula == "dr_grpo" and own.batches == Settings().batches


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batches.gruops": 2}, "the options: no setting is called 'batches.gruops'; did you mean batches.groups?"),
        ({"batches.groups": 0}, "batches.groups, from the options: Input should be greater than or equal to 1"),
        ({"trainer.loss": "cispo"}, "loss cispo reads epsilon_high as the cap"),
        ({"policy.name": "other"}, "the options: policy.name is set by the experiment itself"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_where_they_came_from(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        experiments.settings_of(Settings(), "dr", Path("there"), changes, "the options")
    assert says in str(raised.value)


def test_what_was_recorded_gives_the_settings_again() -> None:
    changes = {"advantages.formula": "rloo", "trainer.learning_rate": 0.5, "batches.groups": 3}
    own = experiments.settings_of(Settings(), "dr", Path("there"), changes, "the options")
    known = experiments.fold(None, _event(settings=experiments.deciding(own), metadata={"folder": "there"}))
    other = Settings.model_validate({"batches": {"groups": 7}})  # was changed since
    assert experiments.of(other, known) == own


def _event(**changes: Any) -> ExperimentEvent:
    whole: dict[str, Any] = {
        "event_id": "id", "experiment": "dr", "created_at": T0, "kind": "started", "policy": "default",
        "actor": "replay", "reason": "asked for", "code_version": "1",
    }  # fmt: skip
    return ExperimentEvent(**{**whole, **changes})


def test_an_experiment_is_what_its_first_event_says_and_as_far_as_its_last_one() -> None:
    first = experiments.fold(None, _event(selection={"policy": "default"}, counts={"tasks": 1}))
    then = experiments.fold(
        first, _event(kind="stopped", created_at=T0 + 1, reason="asked to stop", counts={"groups": 2})
    )
    assert (then.created_at, then.kind, then.reason) == (T0, "stopped", "asked to stop")
    assert (then.selection, then.counts) == ({"policy": "default"}, {"tasks": 1, "groups": 2})
    assert [event.kind for event in then.events] == ["started", "stopped"]


def test_the_file_loads_the_same_settings_and_holds_no_secret(tmp_path: Path) -> None:
    kafka = Kafka(
        security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="me", sasl_password=SecretStr("hush"),
        client={"ssl.key.password": SecretStr("hush"), "debug": SecretStr("broker")},
    )  # fmt: skip
    settings = Settings(kafka=kafka, batches=Batches(groups=3))
    path = save(settings, tmp_path, by="streamward replay run x")
    text = path.read_text()
    assert "hush" not in text and "STREAMWARD_KAFKA__SASL_PASSWORD" in text and "kafka.client: ssl.key.password" in text
    again = load(file=path, env={"STREAMWARD_KAFKA__SASL_PASSWORD": "hush"})
    assert again.batches == settings.batches and again.kafka.sasl_password == kafka.sasl_password
    assert set(again.kafka.client) == {"debug"}


# --- what is chosen ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1970-01-02", 24 * HOUR_MS), ("90s", 10 * HOUR_MS - 90_000), ("2h", 8 * HOUR_MS), ("0.5h", 9.5 * HOUR_MS)],
)
def test_a_time_is_a_moment_or_an_age(text: str, expected: float) -> None:
    assert parse_time(text, "--since", asked_ms=10 * HOUR_MS) == expected


@pytest.mark.parametrize("text", ["", "soon", "start", "-20", "2 hours", "h", "5y"])
def test_what_is_neither_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^--until .*: expected a time as ISO 8601"):
        parse_time(text, "--until")


NUMBERS = st.none() | st.integers(0, 2**40)
TEXTS = st.none() | st.text(max_size=5)


@given(
    st.builds(
        Selection, policy=st.text(max_size=5), since_ms=NUMBERS, until_ms=NUMBERS, first=NUMBERS, next=NUMBERS,
        key=TEXTS, scenario=TEXTS, where=TEXTS,
        asked=st.dictionaries(st.sampled_from(["since", "where"]), st.text(max_size=4)).map(lambda d: tuple(d.items())),
    )
)  # fmt: skip
def test_a_selection_comes_back_from_its_event(selection: Selection) -> None:
    assert from_plain(selection.plain()) == selection


# --- the lag that was recorded ----------------------------------------------------------------------------------------


def test_the_newest_version_is_that_of_the_moment() -> None:
    trained = Trained([(200, 2), (100, 1), (250, 1), (300, 3)])  # version 1 was announced by two trainers
    assert [trained.newest(at) for at in (0, 99, 100, 199, 200, 260, 300, 999)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (trained.lag(1, 300), trained.lag(3, 300), trained.lag(5, 300)) == (2, 0, 0)
    assert Trained([]).newest(5) == 0


def cut(off_policy: bool, lag: int, **metadata: str) -> tuple[BatchWindow, Any]:
    cutter = Cutter(Batches(groups=2, max_policy_lag=lag), off_policy)
    return cutter.reduce(
        BatchWindow(), group(adapter_version=9, metadata=metadata), Coordinates("groups", 0, 0), doubled=False
    )


@pytest.mark.parametrize(
    ("off_policy", "lag", "metadata", "reason"),
    [
        (True, 1, {"policy_lag": "1"}, None),
        (True, 0, {"policy_lag": "1"}, "stale"),
        (True, 1, {}, "unknown_version"),
        (True, 1, {"policy_lag": "-1"}, "unknown_version"),
        (False, 1, {"policy_lag": "1"}, "unknown_version"),
    ],
)
def test_batches_of_an_experiment_go_by_the_recorded_lag(
    off_policy: bool, lag: int, metadata: dict[str, str], reason: str | None
) -> None:
    window, _ = cut(off_policy, lag, **metadata)
    assert [dropped.reason for dropped in window.dropped] == ([] if reason is None else [reason])
    assert [entry.lag for entry in window.entries] == ([1] if reason is None else [])


# --- scorers and scores -----------------------------------------------------------------------------------------------


def test_scorers_are_a_name_and_perhaps_settings() -> None:
    first, second = named_sources(["exact", 'length={"limit": 6}'])
    assert (first.name, first.settings, first.weight) == ("exact", "{}", 1.0)
    assert (second.name, second.settings) == ("length", '{"limit": 6}')


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["exakt"], "did you mean exact?"),
        (["length=6"], "expected a JSON object"),
        (["length={"], "is not JSON"),
        (["exact", "exact"], "--scorer exact is given twice"),
    ],
)
def test_a_scorer_that_cannot_be_is_refused(options: list[str], says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        named_sources(options)
    assert says in str(raised.value)


def test_scores_stand_side_by_side_where_the_questions_are_equal() -> None:
    first = ComparisonSide(
        "a", True, 2, {("sums", 0): {"exact": 0.5, "n": 100.0}, ("sums", 2): {"exact": 0.9, "n": 100.0}}
    )
    second = ComparisonSide(
        "b", False, 1, {("sums", 0): {"exact": 0.75, "n": 50.0}, ("more", 0): {"exact": 1.0, "n": 1.0}}
    )
    rows = [
        (row["suite"], row["version"], row["a"], row["b"], row["difference"]) for row in comparison.rows(first, second)
    ]
    assert rows == [("more", 0, None, 1.0, None), ("sums", 0, 0.5, 0.75, 0.25), ("sums", 2, 0.9, None, None)]
    (_, both, _) = comparison.rows(first, second)
    assert both["within"] == pytest.approx(1.96 * (0.25 / 100 + 0.1875 / 50) ** 0.5)


# --- questions --------------------------------------------------------------------------------------------------------


def test_another_judge_makes_another_question_and_another_suite() -> None:
    (asked,) = evaluate.evaluation(suites.generated("sums", count=1, seed=0), policy="p", version=3, now_ms=0)
    plain = HeldOutSuite(suite=suites.generated("sums", count=1, seed=0))
    judged = replace(plain, scorers=named_sources(['regex={"pattern": "x"}']))
    assert plain.with_scorers(asked) is asked
    other = judged.with_scorers(asked)
    assert other.task_id != asked.task_id and other.messages == asked.messages
    assert other.metadata["suite"] == 'sums/n=1/seed=0/regex={"pattern": "x"}'
    assert [source.name for source in other.reward_sources] == ["regex"]
    assert judged.with_scorers(asked) == other
