"""`streamward replay` on a real log: what they print, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from schemas.events import AdapterEvent, Reward
from streams.cli.root import cli
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.settings.load import load
from streams.settings.model import Settings
from streams.tools.replay import experiments
from tests.support import factories
from tests.support.commands import invoke, rows_of
from tests.support.log.replay_source import NUMBER, SIZE, append, shaped, trained, write
from tests.support.log.shared_node import own_prefix
from tests.support.processes import command, environment, read, spawn

pytestmark = pytest.mark.kafka
SUITE = "sums/n=4/seed=0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the module's own, in which the commands run."""
    here, there = os.getcwd(), tmp_path_factory.mktemp("cli-replay")
    os.chdir(there)
    yield there
    os.chdir(here)


@pytest.fixture(scope="module")
def source(kafka_bootstrap: str, folder: Path) -> Settings:
    settings = shaped(
        Settings.model_validate({"kafka": {"bootstrap": kafka_bootstrap}, "topics": {"prefix": own_prefix()}})
    )
    write(settings)
    return settings


@pytest.fixture(scope="module")
def dr(source: Settings) -> dict[str, Any]:
    """What the run of an experiment printed."""
    (row,) = rows_of(
        invoke(source, "replay", "run", "dr", "--advantage", "dr_grpo", "--scenario", "even", "--no-train")
    )
    return row


def test_a_run_prints_what_came_of_it_and_where_its_settings_are(source: Settings, dr: dict[str, Any]) -> None:
    assert (dr["experiment"], dr["state"], dr["tasks"], dr["batches"]) == ("dr", "finished", NUMBER // 2, 2)
    own = load(file=Path(dr["config"]), env={})
    assert (own.policy.name, own.advantages.formula, own.trainer.off_policy) == ("dr", "dr_grpo", True)
    assert own.topics.prefix == f"{source.topics.prefix}experiment.dr."
    described = CliRunner().invoke(cli, ["--config", dr["config"], "admin", "topics", "list"])
    assert {row["label"]: row["records"] for row in rows_of(described)}["groups"] == NUMBER // 2


def test_an_odd_event_of_an_experiment_does_not_hide_the_others(source: Settings, dr: dict[str, Any]) -> None:
    odd = replace(experiments.read(source)["dr"].events[0], event_id="odd", experiment="../../odd\0")
    with Producer(source) as producer:
        producer.send(odd)
    listed = {row["experiment"]: row for row in rows_of(invoke(source, "replay", "list"))}
    assert (listed["dr"]["state"], listed["../../odd\0"]["state"]) == ("finished", "unreadable")
    assert "policy.name" in listed["../../odd\0"]["reason"]


def test_a_name_that_no_command_gives_is_cut_in_the_table_and_odd_times_are_named_once(
    source: Settings, dr: dict[str, Any]
) -> None:
    forged = replace(experiments.read(source)["dr"].events[0], event_id="long", experiment="n" * 3000)
    with Producer(source) as producer:
        producer.send(forged)
        for second in range(10):
            tp = (topics(source.topics)["experiments"].name, 0)
            producer.send_bytes(tp, b"odd", b"no event", timestamp_ms=second)
    table = invoke(source, "replay", "list", "--output", "table")
    assert "n" * 200 in table.stdout and "unreadable" in table.stdout
    assert max(map(len, table.stdout.splitlines())) < 3000
    assert table.stderr.count("its record time is") == 1
    assert all(len(line) < 10_000 for line in invoke(source, "replay", "list").stdout.splitlines())


def test_a_condition_in_sql_chooses_tasks(source: Settings) -> None:
    (plan,) = rows_of(
        invoke(source, "replay", "plan", "some", "--no-train", "--where", "scenario = 'odd' -- and no more")
    )
    assert (plan["tasks"], plan["scenarios"], plan["groups"], plan["steps"]) == (4, {"odd": 4}, 4, 0)
    wrong = invoke(source, "replay", "plan", "some", "--where", "scenari = 'odd'")
    assert wrong.exit_code == 2 and "scenari" in wrong.stderr


def test_a_new_reward_of_recorded_answers_is_two_bars_and_samples_nothing(source: Settings, folder: Path) -> None:
    words = ("--scorer", 'length={"limit": 4}', "--no-train", "--show")
    done = invoke(source, "replay", "run", "short", *words)
    assert done.exit_code == 0, done.output
    first, second, cost, plot = done.stderr.splitlines()[-4:]
    assert first.split()[:3] == ["recorded", "reward", "0.333"] and second.split()[:2] == ["length", "0.500"]
    assert second.count("█") == 40 and first.count("█") == 27
    assert cost.startswith(f"{NUMBER * SIZE} answers of ") and "; 0 tokens sampled, 0 versions trained" in cost
    assert "<svg" in Path(plot.removeprefix("Plot: ")).read_text()


def test_a_plan_with_a_scorer_says_how_many_scores(source: Settings) -> None:
    (plan,) = rows_of(invoke(source, "replay", "plan", "some", "--scorer", 'length={"limit": 9}'))
    assert (plan["rewards_to_score"], plan["groups_at_most"], plan["steps"]) == (NUMBER * SIZE, NUMBER, NUMBER // 2)


def test_lists_and_shows_where_an_experiment_came_from(source: Settings, dr: dict[str, Any]) -> None:
    (row,) = [row for row in rows_of(invoke(source, "replay", "list")) if row["experiment"] == "dr"]
    assert (row["policy"], row["state"], row["groups"], row["newest"]) == ("default", "finished", NUMBER // 2, 0)
    (shown,) = rows_of(invoke(source, "replay", "show", "dr"))
    assert shown["selection"] == {"policy": "default", "scenario": "even", "--scenario": "even"}
    assert shown["changed"] == {"advantages.formula": "dr_grpo", "trainer.off_policy": "True"}
    assert any(text.startswith(f"{source.topics.prefix}responses[") for text in shown["ranges"])
    assert [event["kind"] for event in shown["events"]] == ["started", "finished"]
    table = invoke(source, "replay", "show", "dr", "--output", "table").stdout
    assert "code_version" in table and "finished  replay" in table
    assert "dr" in invoke(source, "replay", "list", "--output", "table").stdout


def test_compares_an_experiment_with_the_policy_it_came_from(source: Settings, dr: dict[str, Any]) -> None:
    nothing = invoke(source, "replay", "compare", "dr", "default")
    assert nothing.exit_code == 3
    assert "dr has no held-out score; evaluate it with `streamward replay evaluate dr`" in nothing.stderr
    own = load(file=Path(dr["config"]), env={})
    for settings, policy, exact in ((source, "default", 0.25), (own, "dr", 0.75)):
        with Producer(settings) as producer:
            producer.send(evaluated(policy, exact))
    (row,) = rows_of(invoke(source, "replay", "compare", "default", "dr"))
    assert (row["suite"], row["version"], row["default"], row["dr"], row["n"]) == (SUITE, 0, 0.25, 0.75, [4, 4])
    assert row["difference"] == 0.5 and row["within"] == pytest.approx(1.96 * (2 * 0.1875 / 4) ** 0.5)
    assert "0.75" in invoke(source, "replay", "compare", "default", "dr", "--output", "table").stdout


def evaluated(policy: str, exact: float) -> AdapterEvent:
    return factories.evaluated(0, exact, tasks=4, policy=policy, created_at=1, suite=SUITE, outcomes=())


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("replay", "run", "Up!"), 2, "experiment 'Up!': expected 1 to 60 of a-z"),
        (("replay", "run", "x", "--scorer", "exakt"), 2, "did you mean exact?"),
        (("replay", "run", "x", "--scorer", "length={}"), 2, "--scorer length={}: length.limit: Field required"),
        (("replay", "run", "x", "--since", "soon"), 2, "--since soon: expected a time as ISO 8601"),
        (("replay", "run", "x", "--policy", "nobody"), 3, "no train task of policy nobody is in the range"),
        (("replay", "run", "x", "--recipe", "nowhere.toml"), 3, "nowhere.toml: No such file"),
        (("replay", "evaluate", "x"), 3, " has no experiment 'x'"),
        (("replay", "show", "drr"), 3, "has no experiment 'drr'; did you mean dr?"),
        (("replay", "compare", "dr", "nobody"), 3, "'nobody' is neither an experiment nor a policy"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else None,
)
def test_what_cannot_be_is_refused_with_its_exit_code(
    source: Settings, dr: dict[str, Any], args: tuple[str, ...], code: int, says: str
) -> None:
    result = invoke(source, *args)
    assert result.exit_code == code, result.output
    assert says in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (
            "[trainer]\nlerning_rate = 1",
            "no setting is called 'trainer.lerning_rate'; did you mean trainer.learning_rate?",
        ),
        ("[trainer]\nlearning_rate = -1", "trainer.learning_rate, from bad.toml: Input should be greater than 0"),
        ("[trainer]\noff_policy = true", "bad.toml: trainer.off_policy is set by the experiment itself; leave it out"),
        ("[model]\nbase = 'x'", "bad.toml: model does not belong in a recipe"),
        ("[trainer", "bad.toml: not TOML"),
    ],
)
def test_a_bad_recipe_is_refused(source: Settings, folder: Path, recipe: str, says: str) -> None:
    (folder / "bad.toml").write_text(recipe)
    result = invoke(source, "replay", "run", "x", "--recipe", "bad.toml")
    assert (result.exit_code, says in result.stderr) == (2, True), result.stderr


def test_records_that_cannot_be_read_make_the_exit_code_1_unless_they_are_to_be_skipped(
    source: Settings, folder: Path
) -> None:
    name = topics(source.topics)["responses"].name
    with Producer(source) as producer:
        producer.send_bytes((name, partition_of("task-1", source.topics.partitions)), b"task-1", b"no event")
    once = invoke(source, "replay", "run", "spoilt", "--key", "task-1", "--no-train")
    assert once.exit_code == 1 and "1 records could not be read and were left out" in once.stderr
    again = invoke(source, "replay", "run", "spoilt", "--key", "task-1", "--no-train", "--skip-bad")
    assert rows_of(again)[0]["unreadable"] == 1


@pytest.mark.kills
def test_a_run_that_is_killed_and_one_that_ctrl_c_stops_go_on_with_the_same_command(
    settings: Settings, tmp_path: Path
) -> None:
    source = shaped(settings)
    end_ms = write(source)
    append(source, [trained(version) for version in range(2, 40)], end_ms)
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import time\nfrom streams.scorers import entry_point\n\n"
        "@entry_point('slow/1')\ndef slow(task, response, settings):\n"
        "    time.sleep(0.2)\n    return len(response.text)\n"
    )
    options = ("--scorer", "slow:slow", "--since", "9999d", "--no-train", "--output", "jsonl")
    arguments = command("replay", "run", "slow", *options)
    env = environment(source) | {"STREAMWARD_SCORING__MODULES": "slow,."}

    def started() -> subprocess.Popen[str]:
        return spawn(arguments, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wrote(rewards: int) -> None:
        """Return once the experiment has so many rewards; some time passes between two of them."""
        deadline = time.monotonic() + 300
        name = f"{source.topics.prefix}experiment.slow.rewards"
        own = source.model_copy(update={"topics": source.topics.model_copy(update={"prefix": name[: -len("rewards")]})})
        while name not in admin.describe(source) or len(list(admin.read_topic(own, "rewards"))) < rewards:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)

    process = started()
    try:
        wrote(1)
        process.kill()
        process.communicate(timeout=300)
        process = started()
        wrote(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        assert (process.returncode, json.loads(out)["state"]) == (130, "stopped"), err
        assert "Run the same command again to resume" in err and "Traceback" not in err
        process = started()
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, json.loads(out)["state"], json.loads(out)["groups"]) == (0, "finished", NUMBER), err
    kinds = [event.kind for event in experiments.find(source, "slow").events]
    assert kinds == ["started", "started", "stopped", "started", "finished"]
    own = load(file=tmp_path / ".streamward/experiments/slow/streamward.toml", env={})
    rewards = [reward.reward_id for _, reward in read(own, Reward)]
    assert len(rewards) == len(set(rewards)) == NUMBER * SIZE
