"""`streamward agents`, `events tail turns` and the views of turns, on a real log: what they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from schemas.conventions import RatedAnswer, feedback
from schemas.events import AgentEvent, Reward, RewardSource, derive_id
from streams.kafka.producer import Producer, encoded
from streams.kafka.times import now_ms
from streams.kafka.topics import topic_of
from streams.settings.model import Archive, Settings
from streamward import ConversationTracker
from tests.support.agent_calls import ADD, Recorded, system, user
from tests.support.commands import invoke, rows_of
from tests.support.factories import T0, trajectory
from tests.support.log.shared_node import own_topics
from tests.support.processes import command, environment, spawn, until

pytestmark = pytest.mark.kafka
FIRST, SECOND = derive_id("s1", 0), derive_id("s1", 1)


def said(about: str, value: float, **how: Any) -> Reward:
    return feedback(RatedAnswer(about, trajectory().task_id, "default", 0, T0), value, now_ms=T0, **how)


@pytest.fixture(scope="module")
def made(kafka_bootstrap: str) -> Settings:
    """A log with a run that has ended, of two calls and a title, and one that is open."""
    settings = own_topics(kafka_bootstrap, {"policy_partitions": 1})
    run, other = Recorded(FIRST), Recorded(SECOND)
    first = run.call([system("You add."), user("4 + 7 =")], [ADD])
    run.call([system("Name this conversation."), user("4 + 7 =")])
    run.call([*run.history(first), user("and 5?")], [ADD])
    other.call([user("4 + 7 =")], slot=1)
    registered = AgentEvent(
        event_id=derive_id("calc", 0), agent_id="calc", created_at=T0, kind="registered", name="calc",
        type="RL_TRAINED", model_id="default", reward_sources=(RewardSource(name="numeric"),),
    )  # fmt: skip
    events = (
        registered, trajectory("started"), *run.turns, trajectory(turns=3),
        trajectory("started", trajectory_id=SECOND, slot=1), *other.turns,
        said(first.turn_id, 0.5, source="ada", reason="slow"), said(FIRST, 1, source="bob", reason=None),
    )  # fmt: skip
    with Producer(settings) as producer:
        for number, event in enumerate(events):
            topic = topic_of(type(event), settings.topics)
            producer.send_bytes(topic.name, *encoded(event, topic), timestamp_ms=now_ms() + number)
    return settings


def run(settings: Settings, *args: str) -> Result:
    result = invoke(settings, *args)
    assert result.exit_code == 0, result.output
    return result


def rows(settings: Settings, *args: str) -> list[dict[str, Any]]:
    return rows_of(run(settings, *args))


def test_agents_are_listed_with_their_runs_and_calls(made: Settings) -> None:
    (row,) = rows(made, "agents", "list")
    assert (row["agent"], row["type"], row["runs"], row["open"], row["calls"]) == ("calc", "RL_TRAINED", 2, 1, 4)
    assert row["rewards"] == ["numeric"]
    assert "calc" in run(made, "agents", "list", "--output", "table").stdout


def test_runs_say_what_was_delivered_and_what_was_not(made: Settings) -> None:
    found = {row["trajectory"]: row for row in rows(made, "agents", "list", "calc")}
    assert found[FIRST]["calls"] == "2 of 3 calls delivered; 1 auxiliary"
    assert (found[FIRST]["state"], found[SECOND]["state"]) == ("completed", "open")
    [left_out] = found[FIRST]["left_out"]
    assert (left_out["turn"], left_out["what"]) == (1, "auxiliary") and "tools" in left_out["reason"]


def test_a_run_is_shown_call_by_call(made: Settings) -> None:
    found = [(row["turn"], row["what"], row["fate"]) for row in rows(made, "agents", "show", FIRST[:8])]
    assert found == [
        (0, "first", "conversation"),
        (1, "auxiliary", "auxiliary"),
        (2, "extends", "conversation"),
    ]
    table = run(made, "agents", "show", FIRST, "--output", "table").stdout
    assert "2 of 3 calls delivered; 1 auxiliary" in table and "it continues turn 0" in table
    assert "numeric" in table


def test_feedback_is_shown_with_the_answer_or_run_that_it_is_about(made: Settings) -> None:
    found = rows(made, "agents", "show", FIRST)
    assert [row["feedback"] for row in found] == [["0.5 (slow) from ada"], [], []]
    assert "1 from bob" in run(made, "agents", "show", FIRST, "--output", "table").stdout
    answers = rows(made, "query", "SELECT answer_id, feedback FROM runs ORDER BY feedback NULLS LAST")
    assert [tuple(row.values()) for row in answers] == [(FIRST, 0.75), (SECOND, None)]


def test_a_run_or_an_agent_that_is_unknown_is_not_found_with_those_there_are(made: Settings) -> None:
    for args, said in ((("list", "nobody"), "there are calc"), (("show", "nothing"), "no run begins with 'nothing'")):
        result = invoke(made, "agents", *args)
        assert result.exit_code == 3 and said in result.stderr


def test_a_tail_follows_calls_and_ends_a_run_with_what_it_came_to(made: Settings) -> None:
    found = [row for row in rows(made, "agents", "tail", "--until-end") if row["trajectory"] == FIRST]
    assert [row["what"] for row in found] == ["started", "first", "auxiliary", "extends", "completed"]
    assert found[-1]["answer"] == "2 of 3 calls delivered; 1 auxiliary"
    assert "completed" in run(made, "agents", "tail", "calc", "--until-end", "--output", "table").stdout
    followed = rows(made, "agents", "show", FIRST, "--follow")
    assert [row["what"] for row in followed] == ["started", "first", "auxiliary", "extends", "completed"]


def lines_of(file: Path) -> list[bytes]:
    return file.read_bytes().split(b"\n")[:-1] if file.exists() else []


def test_interactions_are_followed_and_a_follower_killed_in_a_line_is_completed(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = own_topics(kafka_bootstrap, {"policy_partitions": 1}, archive=Archive(store=str(tmp_path / "archive")))

    def write(name: str) -> None:
        alone: dict[str, Any] = {"sampling_id": None, "slot": None}
        run = Recorded(name)
        run.call([user(f"Who is {name}?")], task_id=name, **alone)
        alone |= {"trajectory_id": name, "task_id": name, "group_size": None, "purpose": "serve"}
        with Producer(settings) as producer:
            for event in (trajectory("started", **alone), *run.turns, trajectory(**alone)):
                producer.send(event)

    file = tmp_path / "logs" / "agent_interactions.jsonl"
    write("ada")
    asked = ("export", str(file.parent), "--format", "interactions")
    with spawn(command(*asked, "--follow"), env=environment(settings)) as follower:
        until(lambda: len(lines_of(file)) == 1, "the line of a run that has ended")
        write("bob")
        until(lambda: len(lines_of(file)) == 2, "the line of a run that ends while it is followed")
        follower.kill()
    file.write_bytes(file.read_bytes()[:-20])
    write("eve")
    assert rows(settings, *asked) == [{"file": str(file), "lines": 2}]
    assert rows(settings, *asked) == [{"file": str(file), "lines": 0}]
    assert [json.loads(line)["input"] for line in lines_of(file)] == ["Who is ada?", "Who is bob?", "Who is eve?"]

    run(settings, "admin", "archive", "sync")
    for source in ("log", "archive"):
        whole = tmp_path / f"from {source}"
        (told,) = rows(settings, "export", str(whole), "--format", "conversations", "--test", "0", "--source", source)
        assert (told["responses"], told["examples"]) == (3, 3)
    logged, archived = ((tmp_path / f"from {source}" / "train.jsonl").read_bytes() for source in ("log", "archive"))
    assert logged == archived
    first = json.loads(logged.splitlines()[0])
    assert [message["role"] for message in first["messages"]] == ["user", "assistant"] and first["tools"] == []


def test_events_tail_prints_turns(made: Settings) -> None:
    table = run(made, "events", "tail", "turns", "--until-end", "--output", "table").stdout
    assert "extends" in table and "reply 2" in table
    assert len(rows(made, "events", "tail", "turns", "trajectories", "agents", "--until-end")) == 8


def test_turns_can_be_queried(made: Settings) -> None:
    sql = "SELECT number, continuity, len(completion_token_ids) AS n, reply.content AS said FROM turns "
    found = rows(made, "query", f"{sql} WHERE trajectory_id = '{FIRST}' ORDER BY number")
    assert [(row["number"], row["continuity"], row["n"], row["said"]) for row in found] == [
        (0, "first", 2, "reply 0"),
        (1, "auxiliary", 2, "reply 1"),
        (2, "extends", 2, "reply 2"),
    ]
    (ended,) = rows(made, "query", "SELECT agent_id, ending, turns FROM trajectories WHERE kind = 'ended'")
    assert ended == {"agent_id": "calc", "ending": "completed", "turns": 3}


def test_a_tracker_says_of_each_call_what_it_was_to_those_before_it_and_why(made: Settings) -> None:
    tracker = ConversationTracker(made)
    tracked = tracker.get_turns(FIRST)
    assert [(turn.number, turn.continuity, turn.left_out) for turn in tracked] == [
        (0, "first", None),
        (1, "auxiliary", "auxiliary"),
        (2, "extends", None),
    ]
    assert tracked[2].parent_id == tracked[0].turn_id and "continues turn 0" in tracked[2].reason
    assert tracker.get_discontinuities(FIRST) == [tracked[1]]
    assert tracked[1].reason == "another system prompt, and no tools"
    assert tracker.get_turns("nothing") == []


def test_runs_are_a_table_of_their_own(made: Settings) -> None:
    found = rows(
        made,
        "query",
        "SELECT ending, turns, failed_turns, versions, prompt_tokens, sampled_tokens FROM runs "
        "ORDER BY ending NULLS LAST",
    )
    assert [list(row.values()) for row in found] == [
        ["completed", 3, 0, [0], 15, 6],
        [None, 1, 0, [0], 3, 2],
    ]
    assert [row["answer_id"] for row in rows(made, "runs", "list", "--agent", "calc")] == [SECOND, FIRST]
