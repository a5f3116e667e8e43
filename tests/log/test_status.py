"""`streamward status`: who lives, what is waited for, what was dropped; from a real log and real groups."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.log.loop_motion import LoopState
from gateway.log.own_call import call_room
from schemas.events import DeadLetter, DroppedGroup, Response
from streams.cli.root import cli
from streams.demo.settings_file import leave_settings
from streams.kafka.record import dead_letter
from streams.kafka.retry import BrokerOutage
from streams.kafka.times import now_ms
from streams.settings.load import ENV_CONFIG, to_env
from streams.settings.model import Batches, Serve, Settings
from streams.stages.scoring.breaker import GROUP_WAITS, PAUSED, PAUSED_REASON
from streams.tools.standstill import standstills
from streams.tools.status import look
from streams.tools.unreachable_tasks import unreached
from streams.tools.waiting import clock
from tests.support.commands import invoke
from tests.support.factories import batch, group, member, one_of_each, promoted, response, task, trained
from tests.support.log.members import member_of
from tests.support.processes import read, write
from trainer.batch_source import Presence

pytestmark = pytest.mark.kafka


def run(settings: Settings, *args: str) -> Result:
    return invoke(settings, "status", *args)


def shown(settings: Settings) -> dict[str, Any]:
    result = run(settings, "--output", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def processes(settings: Settings) -> dict[str, dict[str, Any]]:
    found = shown(settings)["processes"]
    return {" ".join(filter(None, (row["process"], row["policy"], row["agent"]))): row for row in found}


def test_a_new_log_says_that_nobody_lives_and_with_which_commands_each_begins(made: Settings) -> None:
    found = processes(made)
    assert list(found) == ["streams", "scoring", "policy default", "trainer default"]
    assert {row["alive"] for row in found.values()} == {0}
    assert found["trainer default"]["waits_for"] == (
        "nobody: start `streamward train` (waits for batch 0: 0 of 16 groups)"
    )
    table = run(made, "--output", "table").stdout
    assert "dropped in the last hour: nothing" in table and "free at" in table


def test_after_a_run_it_says_that_the_run_has_ended(
    made: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "run.toml"
    config.write_text("# Written by `streamward up`\n")
    assert shown(made)["ended"] is None and leave_settings(config)
    env = to_env(made) | {ENV_CONFIG: None}  # a file that is named goes before the one here
    result = CliRunner().invoke(cli, ["status", "--output", "table"], env=env)
    assert "`streamward up` has ended with all its processes" in result.stdout


def test_train_tasks_that_no_trainer_lets_in_are_seen_as_held_back(made: Settings) -> None:
    settings = made.model_copy(update={"batches": Batches(groups=1, max_policy_lag=0)})
    write(settings, *(task(task_id=f"t{n}", policy="lab") for n in range(3)))
    write(settings, batch(policy="lab", sequence=0))
    assert list(processes(settings)) == ["streams", "scoring", "policy lab", "trainer lab"]
    found = processes(settings)
    assert found["policy lab"]["lag"] == 3
    assert (
        "held back: up to 3 tasks wait for the trainer: batch 0 is cut and not trained (`streamward train`)"
        in (found["policy lab"]["waits_for"])
    )
    assert "start `streamward --set policy.name=lab train` (1 batches to train)" in found["trainer lab"]["waits_for"]
    write(settings, trained(1, policy="lab"), promoted(1, policy="lab"))
    assert "up to 3 tasks to answer" in processes(settings)["policy lab"]["waits_for"]
    assert "held back" not in processes(settings)["policy lab"]["waits_for"]
    (row,) = shown(settings)["policies"]
    assert (row["policy"], row["primary"], row["newest"], row["batches"], row["waiting_batches"]) == ("lab", 1, 1, 1, 0)


def test_who_submits_more_than_is_answered_without_a_trainer_is_told_so_and_so_is_who_asks_doctor(
    made: Settings,
) -> None:
    settings = made.model_copy(update={"batches": Batches(groups=1, max_policy_lag=1)})
    for count, says in ((2, ""), (3, "Up to 3 tasks of policy default wait, and no trainer lives: 2 train tasks are")):
        args = ["tasks", "generate", "sums", "--count", str(count), "--submit"]
        result = invoke(settings, *args)
        assert result.exit_code == 0
        assert (says in result.stderr) and ("wait" in result.stderr) == bool(says)
    assert "start `streamward train`" in result.stderr

    def doctor() -> str:
        return invoke(settings, "doctor", "--output", "table").stdout

    assert "no batches wait for a trainer of policy default, and none lives" in doctor()
    write(settings, batch(sequence=0))
    assert "1 batch waits for a trainer of policy default, and none lives" in doctor()


def test_tasks_of_an_agent_that_nobody_runs_are_shown_and_doctor_says_what_is_missing(made: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = made.model_copy(update={"serve": Serve(port=port)})
    write(settings, *(task(task_id=f"t{n}", agent="guide") for n in range(3)), task(task_id="t3"))
    found = processes(settings)
    assert (found["policy default"]["lag"], found["agents default guide"]["lag"]) == (1, 3)
    assert found["agents default guide"]["waits_for"].startswith(
        "nobody: start `streamward agents run guide ...` (3 tasks to run, the oldest for "
    )
    assert "agents default guide" in run(settings, "--output", "table").stdout
    asked = ["doctor", "--output", "table"]
    said = invoke(settings, *asked).stdout
    assert "3 tasks of policy default wait for agent guide: no process serves them" in said
    assert f"http://127.0.0.1:{port}, which answers the calls of agents, does not: " in said


def test_what_waits_for_a_policy_is_counted_without_the_newest_tasks_of_other_policies(made: Settings) -> None:
    write(made, *(task(task_id=f"t{n}", policy="first") for n in range(5)))
    asked = [task(task_id=f"t{n}", policy="second") for n in range(5, 8)]
    write(made, *asked)
    found = processes(made)
    assert (found["policy first"]["lag"], found["policy second"]["lag"]) == (5, 3)
    assert "up to 3 tasks to answer" in found["policy second"]["waits_for"]
    few = made.model_copy(update={"batches": Batches(groups=1, max_policy_lag=0)})
    (said,) = unreached(few, asked)
    assert "Up to 3 tasks of policy second wait, and no trainer lives" in said


def test_who_names_a_deadline_that_the_trainer_is_too_slow_for_is_told_how_many_it_reaches(made: Settings) -> None:
    settings = made.model_copy(update={"batches": Batches(groups=1, max_policy_lag=0)})
    for version in (1, 2, 3):  # a version every 100 s
        write(settings, batch(sequence=version - 1), trained(version, created_at=100_000 * version), promoted(version))
    asked = [task(task_id=f"t{n}", deadline_at=now_ms() + 350_000) for n in range(6)]
    write(settings, *asked)
    with Presence(settings, BrokerOutage(settings.kafka, threading.Event())):
        deadline = time.monotonic() + 300
        while not processes(settings)["trainer default"]["alive"]:
            assert time.monotonic() < deadline
        (said,) = unreached(settings, asked)
        assert "Up to 6 tasks of policy default wait, and about 4 train tasks will be answered" in said
        assert unreached(settings, [*asked[1:], task(deadline_at=now_ms() + 900_000)]) == []
        assert unreached(settings, [task(), task(purpose="eval", deadline_at=1)]) == []


def test_what_was_dropped_is_counted_by_reason_for_the_last_hour_only(made: Settings) -> None:
    unanswered = [group(task_id=f"t{n}", dropped_reason="unanswered", responses=()) for n in range(3)]
    stale = DroppedGroup(group_id="g", offset=9, reason="stale")
    also = DroppedGroup(group_id="h", offset=1, reason="unanswered")  # counted where it says so itself
    letter = next(event for event in one_of_each() if isinstance(event, DeadLetter))
    write(made, *unanswered, batch(dropped=(stale, also)), letter)
    assert sorted((one["what"], one["stage"], one["reason"], one["count"]) for one in shown(made)["dropped"]) == [
        ("group", "advantages", "unanswered", 3),
        ("group", "batches", "stale", 1),
        ("record", letter.stage, letter.reason, 1),
    ]
    assert look(made, now_ms=now_ms() + 3_601_000).dropped == []


def test_groups_that_do_not_differ_are_explained_with_answers_and_what_was_expected(made: Settings) -> None:
    """The same sentence in `doctor`."""
    settings = made.model_copy(update={"batches": Batches(groups=2, zero_variance="keep")})
    asked = [task(task_id=f"flat{n}", group_size=2, verifier='{"answer": "blue"}') for n in range(4)]
    answers = [
        response(task_id=one.task_id, slot=slot, group_size=2, text=f"tall {slot}") for one in asked for slot in (0, 1)
    ]
    write(settings, *asked, *answers)
    at = {(one.task_id, one.slot): record.at for record, one in read(settings, Response)}
    for n, one in enumerate(asked):
        members = tuple(
            member(
                slot,
                partition=at[one.task_id, slot].partition,
                offset=at[one.task_id, slot].offset,
                completion_token_ids=(n, slot),
            )
            for slot in (0, 1)
        )
        write(settings, group(task_id=one.task_id, responses=members))
    (policy,) = shown(settings)["policies"]
    assert policy["last_step"] == {"reward": 0.0, "n": 4, "groups": 2, "differed": 0, "cut": 0, "distinct": 4}
    said = shown(settings)["diagnoses"]["default"]
    assert said.startswith(
        "nothing is learnt: none of the last 4 groups differed in reward, since no answer is right: "
    )
    assert "'tall 0' (expected 'blue')" in said
    assert f"default: {said}" in run(settings, "--output", "table").stdout
    findings = invoke(settings, "doctor", "--output", "jsonl").stdout.splitlines()
    (finding,) = [row for row in map(json.loads, findings) if row["check"] == "learning"]
    assert f"{finding['what']}. {finding['do']}" == f"policy default: {said}"


def test_a_scorer_that_fails_is_named_with_its_last_error_until_its_answers_are_decided_about(made: Settings) -> None:
    write(made, response())
    record, _ = next(iter(read(made, Response)))
    letter = dead_letter(record, stage="scoring", reason="score_failed", error=f"own:own: it raised. {GROUP_WAITS}")
    write(made, letter)
    assert shown(made)["failing"] == [
        {"scorer": "own:own", "answers": 1, "first_error": "own:own: it raised", "last_error": "own:own: it raised"}
    ]
    assert (
        "1 answers of the last hour have no score, the last: own:own: it raised"
        in run(made, "--output", "table").stdout
    )
    trainer = processes(made)["trainer default"]
    assert trainer["is_held_up"] and processes(made)["scoring"]["is_held_up"]
    assert "waits for batch 0: 0 of 16 groups; group of task t1 lacks a score since 20" in trainer["waits_for"]
    findings = invoke(made, "doctor", "--output", "jsonl").stdout
    assert "policy default: group of task t1 lacks a score since 20" in findings and "tasks resubmit" in findings
    assert "Repair own:own, then `streamward admin rescore --failed`" in findings
    assert look(made, now_ms=now_ms() + 3_601_000).failing == []


def test_a_paused_scorer_has_dropped_nothing_and_is_shown_until_what_it_holds_is_scored(made: Settings) -> None:
    write(made, response())
    record, _ = next(iter(read(made, Response)))
    error = PAUSED.format(
        scorer="caps:caps", last="exception: it raised", cause="It failed 20 times in a row", pause_s=30
    )
    write(made, dead_letter(record, stage="scoring", reason=PAUSED_REASON, error=error))
    found = shown(made)
    assert (found["dropped"], found["paused"]) == ([], [error])
    assert "scoring: caps:caps is paused: exception: it raised." in run(made, "--output", "table").stdout
    assert look(made, now_ms=now_ms() + 3_601_000).paused == [error], "however long"
    with member_of(made, "scoring", ["responses"]) as agent:
        while not agent.poll(timeout_s=0.2):
            pass
        agent.commit({(record.at.topic, record.at.partition): record.at.offset + 1})
    assert shown(made)["paused"] == []


def test_a_fleet_counts_as_the_process_of_a_policy_that_has_none_of_its_own(made: Settings) -> None:
    deadline = time.monotonic() + 300
    with member_of(made, "policy-@default", ["tasks"]) as agents:
        while processes(made)["policy default"]["alive"] != 1:
            assert time.monotonic() < deadline
            agents.poll(timeout_s=0.2)
        assert {name for name in processes(made) if name.startswith("policy ")} == {"policy default"}
    assert {row["alive"] for row in processes(made).values()} == {0}


def test_a_trainer_and_an_agent_count_while_they_are_members_of_their_groups(made: Settings) -> None:
    def await_members(wanted: dict[str, int]) -> None:
        deadline = time.monotonic() + 300
        while {name: row["alive"] for name, row in processes(made).items() if name in wanted} != wanted:
            assert time.monotonic() < deadline
            agent.poll(timeout_s=0.2)

    with (
        member_of(made, "policy-default", ["tasks"]) as agent,
        Presence(made, BrokerOutage(made.kafka, threading.Event())) as presence,
    ):
        await_members({"policy default": 1, "trainer default": 1})
        presence.commit(7)
        (where,) = processes(made)["trainer default"]["members"]
        assert where.endswith("127.0.0.1")
    assert {row["alive"] for row in processes(made).values()} == {0}


def test_a_policy_without_a_trainer_is_stuck_in_the_same_words_for_status_and_rest(made: Settings) -> None:
    write(made, task(), response(), batch())
    now = now_ms()
    (fresh,) = standstills(made, look(made, now_ms=now), now)
    assert fresh.motion == "moves"
    later = now + 600_000
    (row,) = standstills(made, look(made, now_ms=later), later)
    assert row.motion == "stuck" and row.since_ms is not None and now - 60_000 < row.since_ms <= now
    assert f"default is stuck since {clock(row.since_ms)} (10 min): 1 batch waits for trainer, and no process" in str(
        row
    )
    assert str(row).endswith("What to do: start `streamward train`")
    (shown_row,) = shown(made)["motion"]
    (answered,) = call_room(LoopState, "get_status", {}, made, actor="ann", source="live").data
    assert (answered.policy, answered.motion, answered.waits_for) == ("default", "moves", row.cause.waits_for)
    assert shown_row["motion"] == "moves" and "default moves" in run(made, "--output", "table").stdout


def test_a_policy_with_nothing_to_do_is_idle_however_old_its_records_are(made: Settings) -> None:
    write(made, batch(), trained(1), promoted(1))
    later = now_ms() + 600_000
    (row,) = standstills(made, look(made, now_ms=later), later)
    assert row.motion == "idle" and str(row).startswith("default is idle: no task waits; newest record 10 min ago")


def test_a_group_without_a_score_says_until_when_it_counts_and_what_to_do(made: Settings) -> None:
    settings = made.model_copy(update={"batches": Batches(groups=1, max_policy_lag=0)})
    write(settings, response())
    record, _ = next(iter(read(settings, Response)))
    error = f"own:own: it raised. {GROUP_WAITS}"
    with member_of(settings, "scoring", ["responses"]) as agent:
        while not agent.poll(timeout_s=0.2):
            pass
        agent.commit({(record.at.topic, record.at.partition): record.at.offset + 1})
    write(settings, dead_letter(record, stage="scoring", reason="score_failed", error=error))
    later = now_ms() + 60_000
    state = look(settings, now_ms=later)
    state.processes = [replace(process, alive=1) for process in state.processes]
    (row,) = standstills(settings, state, later)
    assert "the group of task t1 lacks a score (own:own: it raised); it is given up at 20" in str(row)
    assert "streamward admin rescore --failed" in str(row)
