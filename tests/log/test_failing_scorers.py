"""A user's scorer that fails spends no data: groups wait, scoring pauses, and both go on once it is repaired.

responses ──► scoring, with a scorer that raises ──► dead letters, then a pause ──► repaired ──► rewards ──► groups
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.events import AdvantagedGroup, DeadLetter, LeftOut, Response, Reward, RewardSource, Task, derive_id
from streams.kafka.record import dead_letter
from streams.settings.model import Policy, Scoring, Settings
from streams.stages.tasks.resubmit import sent_again
from streams.tools.replay import held_out
from streams.tools.replay.copy import commit_ends
from tests.support.commands import invoke
from tests.support.factories import T0, group, response, task
from tests.support.processes import read, running, until, write

pytestmark = pytest.mark.kafka

HEAD = "from streamward import entry_point\n\n\n@entry_point('share/1')\ndef share(task, response, settings):\n"
RAISES = HEAD + "    return task.verifier['anwser']\n"
REPAIRED = HEAD + "    return float(task.verifier['answer'])\n"


def asked(number: int, slots: int) -> list[Task | Response]:
    """Return a train task that the scorer scores, and the response in each of its slots."""
    task_id, verifier = f"t{number}", json.dumps({"answer": number / 8})
    sources = (RewardSource(name="exact"), RewardSource(name="shares:share"))
    one = task(task_id=task_id, group_size=slots, verifier=verifier, reward_sources=sources)
    sampling = derive_id("sampling", task_id)
    answers = [response(task_id=task_id, sampling_id=sampling, slot=slot, group_size=slots) for slot in range(slots)]
    return [one, *answers]


def letters(settings: Settings, reason: str) -> list[DeadLetter]:
    return [letter for _, letter in read(settings, DeadLetter) if letter.reason == reason]


def shares(settings: Settings) -> list[Reward]:
    return [reward for _, reward in read(settings, Reward) if reward.source == "shares:share"]


def streamward(settings: Settings, *arguments: str) -> dict[str, object]:
    result = invoke(settings, *arguments, "--output", "jsonl")
    assert result.exit_code == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_a_scorer_that_raises_spends_nothing_and_after_its_repair_every_group_is_made(
    made: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = made.model_copy(update={"scoring": Scoring(modules="shares", retries=0, max_failures=4, pause_s=0.5)})
    scorer, log = tmp_path / "shares.py", tmp_path / "scoring.log"
    scorer.write_text(RAISES)
    with running(settings, tmp_path, "scoring", "streams"):
        write(settings, *asked(1, slots=2))
        until(lambda: len(letters(settings, "score_failed")) == 2, "letters of a small group", folder=tmp_path)
        write(settings, *asked(2, slots=3), *asked(3, slots=4))
        until(lambda: len(letters(settings, "scorer_paused")) == 1, "a pause", folder=tmp_path)
        assert log.read_text().count("scorer shares:share fails: exception:") == 1, "one loud line"
        assert shares(settings) == [], "an error in rewards would be final"
        again = invoke(settings, "admin", "rescore", "--failed", "--output", "jsonl")
        assert (again.exit_code, json.loads(again.stdout)["failed"]) == (1, 2)
        assert "2 failed again, the last: exception: shares:share raised KeyError: 'anwser'" in again.stderr
        scorer.write_text(REPAIRED)
        until(lambda: len(shares(settings)) == 7, "the scores that were held", folder=tmp_path)
        assert streamward(settings, "admin", "rescore", "--failed") == {
            "rewards": 2, "responses": 3, "failed": 0, "too_late": 0
        }  # fmt: skip
        until(lambda: len(read(settings, AdvantagedGroup)) == 3, "three groups", folder=tmp_path)
    groups = {group.task_id: group for _, group in read(settings, AdvantagedGroup)}
    assert {task_id: len(group.responses) for task_id, group in groups.items()} == {"t1": 2, "t2": 3, "t3": 4}
    assert {reward.task_id: reward.value for reward in shares(settings)} == {"t1": 1 / 8, "t2": 2 / 8, "t3": 3 / 8}
    assert "has changed on disk; scorers are loaded again" in log.read_text()
    assert "shares:share works again; 6 scores that were held for it follow" in log.read_text()
    assert streamward(settings, "admin", "rescore", "--failed")["rewards"] == 0, "nothing is scored twice"
    dropped = [letter for _, letter in read(settings, DeadLetter) if letter.stage == "dlq"]
    assert len(dropped) == 3, "no letter stays open"
    audit = invoke(settings, "audit")
    assert audit.exit_code == 0, audit.stdout


def test_an_evaluation_of_a_replay_ends_also_if_its_scorer_fails_on_everything(made: Settings) -> None:
    changes = {"scoring": Scoring(modules="nowhere", retries=0, max_failures=2), "policy": Policy(engine="scripted")}
    asks = {"verifier": '{"answer": "11"}', "reward_sources": (RewardSource(name="nowhere:share"),)}
    write(made, *(task(task_id=f"t{number}", purpose="eval", **asks) for number in range(2)))
    with held_out._agents(made.model_copy(update=changes)) as failed:
        until(lambda: bool(failed) or len(read(made, Reward)) == 8, "an end of the evaluation")
    assert failed == [] and {reward.value for _, reward in read(made, Reward)} == {None}


# --- what is lost all the same ----------------------------------------------------------------------------------------


def test_a_score_comes_too_late_for_a_group_that_has_left_and_its_letter_is_closed(made: Settings) -> None:
    one, answer, *_ = asked(1, slots=2)
    write(made, one, answer, dropped("t1", "unscored", "unscored", "unscored"))
    record = next(record for record, _ in read(made, Response))
    write(made, dead_letter(record, stage="scoring", reason="score_failed", error="it raised"))
    counts = {"rewards": 0, "responses": 0, "failed": 0, "too_late": 1}
    assert streamward(made, "admin", "rescore", "--failed") == counts
    assert streamward(made, "admin", "rescore", "--failed") == counts | {"too_late": 0}


def test_a_response_that_failed_for_good_after_a_pause_is_scored_too(made: Settings) -> None:
    # the letter of the pause is the first about this response, and a later one of the same stage has the same id
    exact = (RewardSource(name="exact"),)
    write(made, task(group_size=2, verifier='{"answer": 1}', reward_sources=exact), response(group_size=2))
    record = next(record for record, _ in read(made, Response))
    write(made, dead_letter(record, stage="scoring", reason="scorer_paused", error="exact is paused"))
    assert streamward(made, "admin", "rescore", "--failed")["rewards"] == 0, "the agent holds it"
    commit_ends(made, {"scoring": "responses"})
    assert streamward(made, "admin", "rescore", "--failed") == {
        "rewards": 1,
        "responses": 1,
        "failed": 0,
        "too_late": 0,
    }


def dropped(task_id: str, why: str, *reasons: str, **changes: str) -> AdvantagedGroup:
    """Return a group that was dropped, with the reason of each slot."""
    left_out = tuple(LeftOut(slot=slot, reason=reason) for slot, reason in enumerate(reasons))
    return group(task_id=task_id, dropped_reason=why, responses=(), left_out=left_out, **changes)


def resubmitted(settings: Settings, *options: str) -> dict[str, Task]:
    """Run `tasks resubmit`, and return all tasks in the log that were sent again, by the id of the lost one."""
    result = invoke(settings, "tasks", "resubmit", *options)
    assert result.exit_code == 0, result.stderr
    tasks = [one for _, one in read(settings, Task) if "resubmitted_from" in one.metadata]
    return {one.metadata["resubmitted_from"]: one for one in tasks}


def test_tasks_that_were_lost_are_sent_again_as_new_ones_that_name_them(made: Settings) -> None:
    write(
        made,
        *(task(task_id=f"t{number}", metadata={"source": f"file:{number}"}) for number in range(6)),
        dropped("t0", "unscored", "score_failed", "unscored"),
        dropped("t1", "too_few_scored", "too_few_scored", "score_failed"),
        dropped("t2", "unanswered", "unanswered", "unanswered"),
        dropped("t3", "incomplete", "unanswered", "incomplete"),
        dropped("t4", "unscored", "score_failed", purpose="eval"),
        group(task_id="t5", left_out=(LeftOut(slot=2, reason="score_failed"),)),
    )
    assert resubmitted(made, "--unscored", "--since", "1h").keys() == {"t0", "t1"}
    found = resubmitted(made, "--unscored", "--unanswered")
    assert found.keys() == {"t0", "t1", "t2", "t3"}
    lost = next(one for _, one in read(made, Task) if one.task_id == "t0")
    assert found["t0"].task_id != "t0" and found["t0"].metadata["source"] == "file:0"
    assert (found["t0"].messages, found["t0"].reward_sources) == (lost.messages, lost.reward_sources)
    assert len(read(made, Task)) == 10, "the second time those of the first were known"


def test_a_task_that_is_sent_again_has_as_much_time_as_the_lost_one_had() -> None:
    again = sent_again(task(deadline_at=T0 + 5_000), recorded_ms=T0 + 2_000, now_ms=T0 + 60_000)
    assert (again.created_at, again.deadline_at) == (T0 + 60_000, T0 + 63_000)
    assert sent_again(task(), recorded_ms=T0, now_ms=T0 + 60_000).deadline_at is None
