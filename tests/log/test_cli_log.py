"""The commands that look into a real log."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from schemas.events import (
    AdapterEvent,
    AdapterFile,
    AdapterKind,
    Message,
    Reward,
    RewardSource,
    Task,
    derive_id,
)
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.topics import LABELS, topics
from streams.settings.model import Broker, Kafka, Settings
from streams.tools import doctor
from tests.support.commands import invoke, rows_of
from tests.support.factories import adapter_event
from tests.support.processes import command, environment, write

pytestmark = pytest.mark.kafka


@pytest.fixture
def log(settings: Settings) -> Settings:
    """Settings whose topics exist."""
    admin.apply_topics(settings)
    return settings


def a_task(number: int, text: str = "1 + 1 =") -> Task:
    return Task(
        task_id=derive_id("cli", number),
        created_at=number,
        policy="default",
        reward_sources=(RewardSource(name="exact"),),
        messages=(Message(role="user", content=text),),
    )


def a_version(version: int, kind: AdapterKind = "trained", **more: Any) -> AdapterEvent:
    return adapter_event(kind, version, created_at=1_700_000_000_000 + version, actor="trainer", **more)


def write_at(settings: Settings, label: str, *payloads: tuple[bytes, bytes, int]) -> None:
    """Write raw (key, payload, timestamp in ms)."""
    with Producer(settings) as producer:
        for key, payload, at in payloads:
            producer.send_bytes(topics(settings.topics)[label].name, key, payload, timestamp_ms=at)


# --- topics -----------------------------------------------------------------------------------------------------------


def test_topics_are_created_once_and_then_listed(settings: Settings) -> None:
    before = invoke(settings, "admin", "topics", "list")
    assert [row["partitions"] for row in rows_of(before)] == [None] * len(LABELS)
    assert "streamward admin topics apply" in before.stderr

    assert {row["result"] for row in rows_of(invoke(settings, "admin", "topics", "apply"))} == {"created"}
    assert {row["result"] for row in rows_of(invoke(settings, "admin", "topics", "apply"))} == {"unchanged"}

    write(settings, a_task(1), a_task(2))
    listed = {row["label"]: row for row in rows_of(invoke(settings, "admin", "topics", "list"))}
    assert listed["tasks"] == {
        "label": "tasks",
        "name": f"{settings.topics.prefix}tasks",
        "partitions": 2,
        "records": 2,
        "event": "Task",
        "key": "task_id",
    }
    assert listed["groups"]["partitions"] == 1


def test_topics_describe_gives_offsets_and_configuration(log: Settings) -> None:
    write(log, *(a_task(number) for number in range(5)))
    (described,) = rows_of(invoke(log, "admin", "topics", "describe", "tasks"))
    assert sum(row["records"] for row in described["partitions"]) == 5
    assert all(row["first"] == 0 and row["next"] == row["records"] for row in described["partitions"])
    assert described["config"]["cleanup.policy"] == "delete"
    assert len(rows_of(invoke(log, "admin", "topics", "describe"))) == len(LABELS)


def test_topics_describe_of_a_missing_topic_is_not_found(settings: Settings) -> None:
    result = invoke(settings, "admin", "topics", "describe", "tasks")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "streamward admin topics apply" in result.stderr


def test_a_process_of_the_loop_refuses_to_start_without_topics(settings: Settings) -> None:
    kafka = settings.kafka.model_copy(update={"request_timeout_s": 5.0})  # so long a topic may take to be listed
    for name in ("policy", "scoring", "streams", "train"):
        result = invoke(settings.model_copy(update={"kafka": kafka}), name)
        assert result.exit_code == 3
        assert "does not exist; create it with `streamward admin topics apply`" in result.stderr


# --- tasks ------------------------------------------------------------------------------------------------------------

GOOD = '{"prompt": "1 + 1 =", "answer": "2"}'
BAD = '{"promt": "1 + 1 =", "answer": "2"}'


def in_log(settings: Settings, label: str) -> list[dict[str, Any]]:
    return rows_of(invoke(settings, "events", "tail", label, "--until-end"))


def test_a_file_submitted_twice_is_in_the_log_once(log: Settings, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(f'{GOOD}\n{{"prompt": "2 + 2 =", "answer": "4"}}\n{GOOD}\n')
    first, second = (invoke(log, "tasks", "submit", str(file)) for _ in range(2))
    assert "2 sent, 0 known, 1 repeated, 0 bad" in first.stderr
    assert "0 sent, 2 known, 1 repeated, 0 bad" in second.stderr
    sent = [row["event"]["task_id"] for row in in_log(log, "tasks")]
    for result, state in ((first, "sent"), (second, "known")):
        rows = [{"task_id": task_id, "state": state, "source": f"tasks.jsonl:{n}"} for n, task_id in enumerate(sent, 1)]
        assert sorted(rows_of(result), key=str) == sorted(rows, key=str)


def test_a_file_with_a_bad_line_is_refused_whole_unless_told_to_skip(log: Settings, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(f"{GOOD}\n{BAD}\n")
    result = invoke(log, "tasks", "submit", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "tasks.jsonl:2: there is no field promt; did you mean prompt?" in result.stderr
    assert "--skip-bad" in result.stderr
    assert in_log(log, "tasks") == []

    result = invoke(log, "tasks", "submit", "--skip-bad", str(file))
    assert (result.exit_code, [row["state"] for row in rows_of(result)]) == (0, ["sent"])
    assert "tasks.jsonl:2: " in result.stderr and "1 sent, 0 known, 0 repeated, 1 bad" in result.stderr


def test_a_table_becomes_tasks_with_what_the_options_say(log: Settings, tmp_path: Path) -> None:
    file = tmp_path / "capitals.csv"
    file.write_text("country,capital,continent\nFrance,Paris,Europe\nPeru,Lima,America\n")
    said = ["--map", "prompt=country", "--map", "answer=capital", "--group-size", "4", "--max-tokens", "9"]
    said += ["--scorer", 'length={"limit": 8}', "--system", "Which capital?", "--epochs", "2", "--policy", "p"]
    result = invoke(log, "tasks", "submit", str(file), *said)
    assert "not used: continent" in result.stderr
    found = [row["event"] for row in in_log(log, "tasks")]
    assert {row["task_id"] for row in rows_of(result)} == {event["task_id"] for event in found}
    asked = [(event["messages"][1]["content"], event["metadata"].get("epoch")) for event in found]
    assert sorted(asked, key=str) == [("France", "2"), ("France", None), ("Peru", "2"), ("Peru", None)]
    assert {(event["policy"], event["group_size"], event["sampling"]["max_tokens"]) for event in found} == {("p", 4, 9)}
    for wrong, message in (
        ("promt=country", "did you mean prompt?"),
        ("country=prompt", "a task has no field country; did you mean --map prompt=country?"),
        ("prompt", "expected FIELD=COLUMN"),
    ):
        refused = invoke(log, "tasks", "submit", str(file), "--map", wrong)
        assert refused.exit_code == 2 and message in refused.stderr


@pytest.mark.parametrize(("name", "text"), [("a.csv", ""), ("a.csv", "prompt,answer\n"), ("a.jsonl", "\n")])
def test_a_file_without_a_task_is_refused(settings: Settings, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    result = invoke(settings, "tasks", "submit", str(tmp_path / name))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"nothing was submitted: there is no task in {name}" in result.stderr


def test_a_file_that_is_not_there_is_not_found(settings: Settings) -> None:
    result = invoke(settings, "tasks", "submit", "nowhere.jsonl")
    assert result.exit_code == 3
    assert "nowhere.jsonl" in result.stderr


def test_generated_tasks_can_be_piped_or_sent_and_are_the_same(log: Settings) -> None:
    asked = ["tasks", "generate", "sums", "--count", "3", "--seed", "7", "--purpose", "eval", "--policy", "p"]
    printed = invoke(log, *asked)
    assert [row["purpose"] for row in rows_of(printed)] == ["eval"] * 3
    piped = invoke(log, "tasks", "submit", "-", input=printed.stdout)
    assert [row["state"] for row in rows_of(piped)] == ["sent"] * 3
    sent = invoke(log, *asked, "--submit")
    assert [row["state"] for row in rows_of(sent)] == ["known"] * 3
    assert {row["event"]["task_id"] for row in in_log(log, "tasks")} == {row["task_id"] for row in rows_of(printed)}


def test_an_unknown_family_is_not_found(settings: Settings) -> None:
    result = invoke(settings, "tasks", "generate", "sum", "--count", "1")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "did you mean sums?" in result.stderr


# --- the processes of the loop ----------------------------------------------------------------------------------------


def test_agents_run_by_hand_answer_and_score_and_drain_when_told(log: Settings, tmp_path: Path) -> None:
    env = environment(log) | {"STREAMWARD_POLICY__ENGINE": "scripted"}
    invoke(log, "tasks", "generate", "sums", "--count", "2", "--group-size", "2", "--submit")
    agents = [
        subprocess.Popen(
            command(name), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=tmp_path
        )
        for name in ("policy", "scoring")
    ]
    try:
        rewards = invoke(log, "events", "tail", "rewards", "--from", "start", "-n", "4")
        assert [row["event"]["source"] for row in rows_of(rewards)] == ["mix"] * 4
    finally:
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        ends = [(*agent.communicate(timeout=300), agent.returncode) for agent in agents]
    assert [(out, code) for out, _, code in ends] == [("", 0)] * 2, ends


# --- events -----------------------------------------------------------------------------------------------------------


def test_tail_prints_every_event_with_its_coordinates(log: Settings) -> None:
    write(log, *(a_task(number, f"{number} + 1 =") for number in range(10)))
    result = invoke(log, "events", "tail", "tasks", "--until-end")
    rows = rows_of(result)
    assert {row["event"]["messages"][0]["content"] for row in rows} == {f"{number} + 1 =" for number in range(10)}
    assert len({(row["partition"], row["offset"]) for row in rows}) == 10
    assert {row["topic"] for row in rows} == {f"{log.topics.prefix}tasks"}
    assert all(row["timestamp"] > 1_600_000_000_000 for row in rows)


def test_tail_of_an_empty_topic_ends_at_once(log: Settings) -> None:
    result = invoke(log, "events", "tail", "groups", "--until-end")
    assert (result.exit_code, result.stdout) == (0, "")


def times(result: Result) -> list[int]:
    return [row["timestamp"] for row in rows_of(result)]


def test_tail_begins_where_it_is_told(settings: Settings) -> None:
    from schemas.serde import encode

    log = settings.model_copy(update={"topics": settings.topics.model_copy(update={"retention_days": 0})})
    admin.apply_topics(log)  # for ever kept, and so of any time
    at = [1_700_000_000_000 + 1000 * number for number in range(12)]  # 2023-11-14T22:13:20Z, one a second
    write_at(log, "tasks", *((b"k%d" % number, encode(a_task(number)), when) for number, when in enumerate(at)))

    def tail(*args: str) -> list[int]:
        return times(invoke(log, "events", "tail", "tasks", "--until-end", *args))

    assert sorted(tail()) == at
    assert tail("--from", "end") == []
    assert tail("--from", "-5") == at[-5:]
    assert tail("--from", "-100") == at
    assert sorted(tail("--from", "2023-11-14T22:13:28Z")) == at[8:]
    assert tail("--from", "2030-01-01") == []
    assert tail("--from", "-5", "-n", "2") == at[-5:-3]


def test_tail_shows_poison_with_its_reason_goes_on_and_ends_with_1(log: Settings) -> None:
    write_at(log, "tasks", (b"k", b"not avro", 0))
    write(log, a_task(1))
    result = invoke(log, "events", "tail", "tasks", "--until-end")
    rows = rows_of(result, code=1)
    assert [row["poison"]["reason"] for row in rows if "poison" in row] == ["not_avro"]
    assert len([row for row in rows if "event" in row]) == 1

    table = invoke(log, "events", "tail", "tasks", "--until-end", "--output", "table")
    assert table.exit_code == 1
    assert "POISON not_avro: " in table.stdout


def test_tail_as_a_table_has_the_columns_of_the_event_and_no_raw_control_characters(log: Settings) -> None:
    write(log, a_task(1, "evil \x1b[2J\n1 + 1 ="))
    result = invoke(log, "events", "tail", "tasks", "--until-end", "--output", "table")
    header, line = result.stdout.splitlines()
    assert header.split() == ["time", "at", "task", "purpose", "policy", "slots", "sources", "asks"]
    assert line.endswith(r"exact       evil \x1b[2J\n1 + 1 =")
    assert a_task(1).task_id[:8] in line


def test_tail_of_several_topics_names_the_fields_in_each_line(log: Settings) -> None:
    response_id = derive_id("sampling", 0)
    reward = Reward(
        reward_id=derive_id(response_id, "exact"),
        response_id=response_id,
        task_id=a_task(1).task_id,
        created_at=1,
        policy="default",
        slot=3,
        source="exact",
        value=0.5,
        scorer_version="1",
    )
    write(log, a_task(1), reward)
    result = invoke(log, "events", "tail", "tasks", "rewards", "--until-end", "--output", "table")
    text = result.stdout
    assert "rewards[" in text
    assert "slot 3  source exact  value 0.5" in text
    assert "asks 1 + 1 =" in text


def test_a_tail_that_ends_shows_several_topics_in_the_order_of_time(log: Settings) -> None:
    """More records than one poll returns: what comes with the first must not go before what comes with the next."""
    from schemas.serde import encode

    key, base, pairs = b"one task", int(time.time() * 1000) - 60_000, 1500
    task, reward = encode(a_task(1)), b"poison"
    write_at(log, "tasks", *((key, task, base + 2 * number) for number in range(pairs)))
    write_at(log, "rewards", *((key, reward, base + 2 * number + 1) for number in range(pairs)))
    result = invoke(log, "events", "tail", "tasks", "rewards", "--until-end", "--output", "jsonl")
    times = [json.loads(line)["timestamp"] for line in result.stdout.splitlines()]
    assert times == list(range(base, base + 2 * pairs))


def test_a_live_tail_shows_what_comes_after_it_began_until_ctrl_c(log: Settings, tmp_path: Path) -> None:
    write(log, a_task(1))
    tail = command("events", "tail", "tasks", "--from", "-1")
    pipe = subprocess.PIPE
    with subprocess.Popen(tail, stdout=pipe, stderr=pipe, text=True, env=environment(log), cwd=tmp_path) as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["event"]["task_id"] == a_task(1).task_id
        write(log, a_task(2))
        assert json.loads(child.stdout.readline())["event"]["task_id"] == a_task(2).task_id
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=300)
    assert (out, err, child.returncode) == ("", "", 130)


@pytest.mark.parametrize("words", [["events", "tail", "tasks", "--from", "-1"], ["query", "tasks", "--follow"]])
def test_a_command_that_waits_for_records_ends_when_its_reader_leaves(
    log: Settings, tmp_path: Path, words: list[str]
) -> None:
    """As in `| grep -m 1`: no other record comes, so nothing is written that would fail."""
    write(log, a_task(1))
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command(*words), stdout=pipe, stderr=pipe, text=True, env=environment(log), cwd=tmp_path
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        assert a_task(1).task_id in child.stdout.readline()
        child.stdout.close()
        try:
            code = child.wait(timeout=300)
        finally:
            child.kill()
        assert (code, child.stderr.read()) == (0, "")


# --- adapters ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(log: Settings) -> Settings:
    """Two versions, the first one judged and promoted."""
    write(
        log,
        a_version(
            1,
            parent_version=0,
            uri="/store/default/1",
            first_batch=0,
            last_batch=0,
            recipe={"loss": "dapo"},
            metrics={"loss": 0.25},
            files=(AdapterFile(path="adapter_model.safetensors", sha256="ab" * 32, bytes=1234),),
        ),
        a_version(1, "promoted", expected_version=0),
        a_version(1, "evaluated", suite="sums/n=64/seed=1", metrics={"exact": 0.875, "n": 64.0}),
        a_version(2, parent_version=1, first_batch=0, last_batch=1),
    )
    return log


def test_adapters_list_shows_the_state_of_each_version(trained: Settings) -> None:
    rows = {row["version"]: row for row in rows_of(invoke(trained, "adapters", "list"))}
    assert {number: row["status"] for number, row in rows.items()} == {0: "superseded", 1: "primary", 2: "trained"}
    assert rows[2]["parent_version"] == 1
    assert rows[2]["batches"] == "0-1"
    assert rows[1]["held_out"] == {"sums/n=64/seed=1": {"exact": 0.875, "n": 64.0}}
    assert "0.875 (n 64)" in invoke(trained, "adapters", "list", "--output", "table").stdout


def test_adapters_show_tells_the_whole_life_of_a_version(trained: Settings) -> None:
    (row,) = rows_of(invoke(trained, "adapters", "show", "1"))
    assert row["recipe"] == {"loss": "dapo"}
    assert row["files"] == [{"path": "adapter_model.safetensors", "bytes": 1234, "sha256": "ab" * 32}]
    assert [event["kind"] for event in row["events"]] == ["trained", "promoted", "evaluated"]
    table = invoke(trained, "adapters", "show", "1", "--output", "table")
    assert table.exit_code == 0, table.stderr
    for shown in ("recipe", "dapo", "adapter_model.safetensors", "promoted", "2023-11-14T22:13:20.001Z"):
        assert shown in table.stdout


def test_adapters_show_of_an_unknown_version_is_not_found(trained: Settings) -> None:
    for args, says in (
        (["3"], "the newest is"),
        (["1", "--policy", "other"], "has no policy 'other', only default"),
    ):
        result = invoke(trained, "adapters", "show", *args)
        assert (result.exit_code, result.stdout) == (3, "")
        assert says in result.stderr


# --- doctor and broker ------------------------------------------------------------------------------------------------


def states(result: Result) -> dict[str, str]:
    return {row["check"]: row["state"] for row in map(json.loads, result.stdout.splitlines())}


def test_doctor_finds_missing_and_wrong_topics(settings: Settings) -> None:
    result = invoke(settings, "doctor")
    assert (result.exit_code, states(result)["topics"]) == (3, "failed")
    assert "streamward admin topics apply" in result.stdout

    admin.apply_topics(settings)
    assert {states(invoke(settings, "doctor"))[check] for check in ("broker", "topics", "trainer")} == {"ok"}
    broker, *others = doctor.examine(lambda: (settings, {}))  # nothing names this Kafka
    assert (broker.state, "topics" in {one.check for one in others if one.state == "ok"}) == ("warning", True)
    assert broker.what.endswith("is the default, and this folder has no node")
    assert broker.do == "Set kafka.bootstrap, or start a node here with `streamward admin broker start`"

    result = invoke(settings, "--set", "topics.partitions=3", "doctor")
    assert (result.exit_code, states(result)["topics"]) == (2, "failed")
    assert "has 2 partitions, expected 3" in result.stdout

    result = invoke(settings, "--set", "topics.max_record_bytes=2000000", "doctor")
    created_with = topics(settings.topics)["tasks"].config["max.message.bytes"]
    assert f"tasks has max.message.bytes={created_with}, the settings have 20" in result.stdout
    assert result.exit_code == 0  # a warning


def test_the_broker_is_started_found_refused_twice_and_stopped(tmp_path: Path) -> None:
    settings = Settings(broker=Broker(data_dir=tmp_path / "kafka"))
    started = invoke(settings, "admin", "broker", "start", "--port", "0")
    try:
        (node,) = rows_of(started)
        assert "from STREAMWARD_KAFKA__BOOTSTRAP: leave it out to use this node" in started.stderr
        assert started.stderr.endswith("Next: streamward admin topics apply\n")
        assert rows_of(invoke(settings, "admin", "broker", "status")) == [node]

        again = invoke(settings, "admin", "broker", "start")
        assert again.exit_code == 4
        assert str(node["pid"]) in again.stderr

        elsewhere = invoke(
            settings, "--set", "kafka.bootstrap=127.0.0.1:1", "--set", "kafka.request_timeout_s=1", "doctor"
        )
        assert elsewhere.exit_code == 5
        assert f"An embedded node runs at {node['bootstrap']}: leave kafka.bootstrap out" in elsewhere.stdout

        admin.apply_topics(Settings(kafka=Kafka(bootstrap=node["bootstrap"])))
        invoke(settings, "admin", "broker", "stop")
        restarted = invoke(settings, "admin", "broker", "start")
        assert restarted.exit_code == 0 and "Next:" not in restarted.stderr
    finally:
        stopped = invoke(settings, "admin", "broker", "stop")
    assert (stopped.exit_code, stopped.stdout) == (0, "")
    status = invoke(settings, "admin", "broker", "status")
    assert (status.exit_code, status.stdout) == (3, "")
    assert "start it with `streamward admin broker start`" in status.stderr
    (node,) = rows_of(restarted)
    gone = settings.model_copy(update={"kafka": Kafka(bootstrap=node["bootstrap"], request_timeout_s=1.0)})
    listed = invoke(gone, "admin", "topics", "list")
    assert (listed.exit_code, listed.stdout) == (5, "")
    assert f"{node['bootstrap']}, is stopped; start it with `streamward admin broker start`" in listed.stderr
