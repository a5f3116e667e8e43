"""Data sets of promoted runs: the same bytes from the same ranges, and nothing of one task on both sides of a split."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from plugins.improve.curation.verdicts import PlacedVerdict
from plugins.improve.datasets import dataset_files
from plugins.improve.datasets.dataset_build import ComposedDataset, DatasetOrder, compose, folder_name
from plugins.improve.datasets.dataset_files import MANIFEST
from plugins.improve.datasets.dataset_rebuild import difference, rebuild
from plugins.improve.datasets.dataset_rows import conversations, pair
from plugins.improve.datasets.dataset_rule import DatasetRule
from plugins.improve.datasets.dataset_shares import OVER_MACHINES, OVER_SCENARIO, keep_shares, place
from plugins.improve.datasets.judged_runs import JudgedRun
from plugins.improve.datasets.source_ranges import ranges_now
from schemas import key_source
from schemas.conventions import CONVERSATION
from schemas.events import (
    Coordinates,
    CurationEvent,
    CurationJudge,
    Event,
    JudgeAgreement,
    Message,
    Response,
    RunVerdict,
    ToolCall,
    TrajectoryEvent,
    Turn,
    derive_id,
)
from streams.engines.rendering.chat_template import ChatTemplate
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.rows.near_duplicates import Clusters, ComparedText, compared_text, jaccard, join_similar, shingles
from streams.stages.agents.trajectories.fold import fold
from streams.stages.tasks.resubmit import ORIGIN
from streams.tools.query.finished import Finished
from streams.tools.query.splits import origin_of
from tests.support.agent_calls import ADD, Recorded, assistant, system, user
from tests.support.factories import PROGRAM, adapter_event, curation_event, response, task
from tests.support.models.chat_tiny import chat_tokenizer
from tests.support.subject_keys import SubjectKeys
from tests.support.talks import TALK, served, talk
from tests.unit.test_finished import SETTINGS, Appended, answered, chat, end, opinion
from trainer.examples import from_file

JUDGE = CurationJudge(
    model="good-judge",
    endpoint="http://judge/v1",
    prompt_version="transcript/1",
    prompt_digest="c" * 64,
    answer="{}",
    verdict="promote",
    prompt_tokens=9,
    completion_tokens=3,
)
AGREEMENT = JudgeAgreement(runs=80, kappa=0.8, low=0.7, min_runs=50, min_kappa=0.6, window=500, counted=(0,))
T = TypeVar("T", bound=Event)
ALL = DatasetRule(policy="default", eval_share=0.0)


def verdict(log: Appended, answer_id: str, decision: RunVerdict = "promote", **changes: Any) -> CurationEvent:
    """Write a verdict on the run that ended last."""
    topic = changes.pop("of", "trajectories")
    labeller, actor = changes.get("labeller", "person"), changes.get("actor", "ann")
    about: dict[str, Any] = {
        "event_id": derive_id(answer_id, labeller, actor, decision),
        "task_id": answer_id,
        "answer_id": answer_id,
        "policy": "default",
        "source_topic": f"streamward.{topic}",
        "source_offset": len(log.records[f"streamward.{topic}"]) - 1,
        "verdict": decision,
    }
    event = curation_event(**about | changes)
    log.write(event)
    return event


def asked(name: str, question: str, reply: str = "11") -> Recorded:
    """Return a run of one call, without a task."""
    run = Recorded(name)
    alone: dict[str, Any] = {"task_id": name, "sampling_id": None, "slot": None}
    run.call([system("You add."), user(question)], [ADD], reply=assistant(reply), **alone)
    return run


def judged(*questions: str, **changes: Any) -> Appended:
    """Return a log with a promoted run for each question."""
    log = Appended()
    for number, question in enumerate(questions):
        run = asked(f"run-{number}", question)
        log.write(*run.turns, end(run))
        verdict(log, f"run-{number}", **changes)
    return log


def composed(log: Appended, rule: DatasetRule = ALL, name: str = "coach") -> ComposedDataset:
    order = DatasetOrder(name=name, rule=rule, actor="ann", reason="a test")
    return compose(SETTINGS, order, ranges_now(log), log, "0 abc")


def lines(made: ComposedDataset, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in made.contents[name].decode().split("\n")[:-1]]


def manifest(made: ComposedDataset) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(made.contents[MANIFEST])
    return read


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_promoted_run_is_a_conversation_with_its_tools_a_label_and_its_tokens_as_tokens_of_chain() -> None:
    run = chat()
    log = Appended(*run.turns, end(run))
    verdict(log, "chat-1", rationale="it used the tool")
    made = composed(log)
    (line,) = lines(made, "train.jsonl")
    assert [message["role"] for message in line["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    call = {"name": "add", "arguments": '{"a": 4, "b": 7}'}
    assert line["messages"][2]["tool_calls"] == [{"id": "c1", "type": "function", "function": call}]
    assert [tool["function"]["name"] for tool in line["tools"]] == ["add"]
    assert all("weight" not in message for message in line["messages"])
    (label,) = lines(made, "train.labels.jsonl")
    assert (label["answer_id"], label["labeller"], label["rationale"]) == ("chat-1", "person", "it used the tool")
    (sampled,) = lines(made, "train.tokens.jsonl")
    (chain,) = sampled["chains"]
    first, _, last = run.turns
    assert chain["prompt_ids"] == list(first.prompt_token_ids)
    assert chain["completion_ids"] == [*first.completion_token_ids, *last.prompt_token_ids, *last.completion_token_ids]
    assert chain["loss_mask"] == [1, 1, 0, 0, 0, 1, 1]


def talked(*replies: str) -> tuple[Appended, list[str]]:
    """Return a log with a conversation of a run for each reply, and the ids of its runs."""
    runs = talk(*replies)
    return Appended(*(event for run in runs for event in run)), [f"run{place}" for place in range(len(runs))]


def weights(made: ComposedDataset) -> dict[str, int]:
    """Return the weight of every answer in the rows."""
    messages = [message for row in lines(made, "train.jsonl") for message in row["messages"]]
    return {said["content"]: said.get("weight", 1) for said in messages if said["role"] == "assistant"}


def test_a_promoted_conversation_is_one_row_with_the_runs_that_were_judged_however_it_goes_on() -> None:
    log, ids = talked("one", "two")
    verdict(log, TALK, runs=tuple(ids))
    made = composed(log)
    assert (made.event.counts["train"], weights(made)) == (1, {"one": 1, "two": 1})
    (label,), (sampled,) = lines(made, "train.labels.jsonl"), lines(made, "train.tokens.jsonl")
    assert label["answer_id"] == sampled["answer_id"] == TALK
    assert sampled["chains"][0]["loss_mask"] == [1, 1, 0, 0, 1, 1]
    log.write(*talk("one", "two", "three")[2])
    assert composed(log).contents["train.jsonl"] == made.contents["train.jsonl"]


def test_an_answer_that_a_person_rejected_bears_no_loss_in_its_conversation() -> None:
    log, ids = talked("one", "two")
    verdict(log, TALK, runs=tuple(ids))
    verdict(log, "run1", "reject", task_id=TALK, runs=("run1",))
    made = composed(log)
    assert (weights(made), made.event.counts["left out: rejected"]) == ({"one": 1, "two": 0}, 1)


@pytest.mark.parametrize(
    ("whole", "rows", "reason"),
    [("reject", {"one": 0, "two": 1}, "rejected"), ("promote", {"one": 1, "two": 1}, "in its conversation")],
)
def test_one_promoted_answer_is_a_row_unless_its_conversation_is(
    whole: RunVerdict, rows: dict[str, int], reason: str
) -> None:
    log, ids = talked("one", "two")
    verdict(log, TALK, whole, runs=tuple(ids))
    verdict(log, "run1", task_id=TALK, runs=("run1",))
    made = composed(log)
    assert (weights(made), made.event.counts[f"left out: {reason}"]) == (rows, 1)


def test_a_promoted_thread_of_tasks_is_one_row_with_each_answer() -> None:
    runs = served("one", "two")
    log = Appended(*(event for run in runs for event in run))
    (ended, *_) = [event for event in runs[0] if isinstance(event, TrajectoryEvent)]
    name, ids = ended.metadata[CONVERSATION], tuple(derive_id(f"s{place}", 0) for place in range(2))
    verdict(log, name, of="groups", runs=ids)
    made = composed(log)
    assert (made.event.counts["train"], weights(made)) == (1, {"one": 1, "two": 1})
    (label,) = {line["answer_id"]: line for line in lines(made, "train.labels.jsonl")}.values()
    assert (label["answer_id"], label["reward"], label["run_at"]) == (name, 0.25, "streamward.groups[0]@1")
    (sampled,) = lines(made, "train.tokens.jsonl")
    assert sum(sum(chain["loss_mask"]) for chain in sampled["chains"]) == 4
    log.write(*(event for run in served("three", first=2) for event in run))
    assert composed(log).contents["train.jsonl"] == made.contents["train.jsonl"]


def test_an_answer_to_a_task_is_a_row_with_the_tokens_of_its_response() -> None:
    log = Appended(*answered())
    answer_id = derive_id("t1", 0)
    verdict(log, answer_id, of="groups", task_id="t1")
    made = composed(log)
    assert [message["content"] for message in lines(made, "train.jsonl")[0]["messages"]][-1] == "11"
    (sampled,) = lines(made, "train.tokens.jsonl")
    there = response(task_id="t1", sampling_id="t1", slot=0)
    assert sampled["chains"][0]["completion_ids"] == list(there.completion_token_ids)
    assert sampled["chains"][0]["prompt_ids"] == list(there.prompt_token_ids)
    assert lines(made, "train.labels.jsonl")[0]["reward"] == 1.0


def test_what_a_client_put_into_the_assistants_mouth_has_weight_0() -> None:
    run = Recorded("shots")
    alone: dict[str, Any] = {"task_id": "shots", "sampling_id": None, "slot": None}
    run.call([user("1 + 1 ="), assistant("2"), user("4 + 7 =")], **alone)
    log = Appended(*run.turns, end(run))
    verdict(log, "shots")
    (line,) = lines(composed(log), "train.jsonl")
    assert [message.get("weight") for message in line["messages"]] == [None, 0, None, None]


def test_a_call_that_its_client_replaced_is_in_no_row() -> None:
    run = Recorded("replaced")
    alone: dict[str, Any] = {"task_id": "replaced", "sampling_id": None, "slot": None}
    call = ToolCall(id="c1", name="add", arguments='{"a": 40}')
    reply, question = Message(role="assistant", content="", tool_calls=(call,)), user("4 + 7 =")
    run.call([question], [ADD], reply=reply, **alone)
    own = replace(reply, tool_calls=(replace(call, arguments='{"a": 4}'),))
    run.call([question, own, Message(role="tool", content="11", tool_call_id="c1")], [ADD], **alone)
    log = Appended(*run.turns, end(run))
    verdict(log, "replaced")
    (line,) = lines(composed(log), "train.jsonl")
    assert [message.get("weight") for message in line["messages"]] == [None, 0, None, None]
    (sampled,) = lines(composed(log), "train.tokens.jsonl")
    assert [chain["completion_ids"] for chain in sampled["chains"]] == [[*run.turns[1].completion_token_ids]]


def test_runs_that_are_not_promoted_are_counted_by_reason() -> None:
    log = judged("4 + 7 =")
    for name, decision in (("no", "reject"), ("perhaps", "needs_human")):
        run = asked(name, "5 + 9 =")
        log.write(*run.turns, end(run))
        verdict(log, name, decision)  # type: ignore[arg-type]
    verdict(log, "gone", source_offset=99)
    log.write(replace(verdict(log, "theirs"), event_id=derive_id("theirs"), tenant="acme"))
    made = composed(log)
    counts = made.event.counts
    assert (counts["train"], counts["left out: rejected"], counts["left out: waiting for a person"]) == (1, 1, 1)
    assert (counts["left out: no longer in the log"], counts["left out: of another tenant"]) == (1, 1)


def test_a_policy_without_a_promoted_run_has_no_data_set_and_the_message_says_why() -> None:
    with pytest.raises(NotFoundError, match="no run of policy default has a verdict"):
        composed(Appended())
    log = Appended()
    run = asked("no", "5 + 9 =")
    log.write(*run.turns, end(run))
    verdict(log, "no", "reject")
    with pytest.raises(NotFoundError, match="1 judged runs of default and none fits \\(1 rejected\\)"):
        composed(log)


def test_a_text_of_a_run_is_data_in_every_file() -> None:
    said = 'x\u2028<|im_end|>\n{"messages": []}\u0085'
    made = composed(judged(said))
    assert lines(made, "train.jsonl")[0]["messages"][1]["content"] == said
    assert len(made.contents["train.jsonl"].decode().splitlines()) == 1


# --- the same bytes ---------------------------------------------------------------------------------------------------


def test_the_same_ranges_and_rule_give_the_same_bytes_whatever_came_since() -> None:
    log = judged("4 + 7 =", "What is the capital of France?")
    first = composed(log)
    run = asked("later", "5 + 9 =")
    log.write(*run.turns, end(run))
    verdict(log, "later")
    again = rebuild(SETTINGS, first.event, log)
    assert again.contents == first.contents
    assert again.event == first.event
    assert composed(log).event.digest != first.event.digest


def test_a_run_of_a_person_who_does_not_allow_training_is_left_out_and_an_older_set_stays_as_it_was() -> None:
    keys = SubjectKeys()
    key_source.use(keys)
    try:
        log = Appended()
        for name, person in (("run-0", "ann"), ("run-1", "bob")):
            run = asked(name, f"{name}?")
            log.write(*(replace(turn, subject=person) for turn in run.turns), replace(end(run), subject=person))
            verdict(log, name)
        before = composed(log)
        keys.restricted.add("ann")
        after = composed(log)
        keys.restricted = {"bob"}
        assert [len(manifest(made)["rows"]) for made in (before, after)] == [2, 1]
        assert after.event.counts["left out: no_training"] == 1 and after.event.metadata == {"no_training": "ann"}
        for made in (before, after):
            assert rebuild(SETTINGS, made.event, log).contents == made.contents
    finally:
        key_source.use(key_source.NoKeys())


def test_a_persons_verdict_after_the_build_changes_the_next_set_and_not_the_old_one() -> None:
    log = judged("4 + 7 =", "What is the capital of France?", labeller="gates", actor="curate")
    before = composed(log)
    taken_back = verdict(log, "run-0", "reject", source_offset=0)
    after = composed(log)
    assert [row["answer_id"] for row in manifest(before)["rows"]] == ["run-0", "run-1"]
    assert [row["answer_id"] for row in manifest(after)["rows"]] == ["run-1"]
    assert after.event.digest != before.event.digest
    again = rebuild(SETTINGS, before.event, log)
    assert again.contents == before.contents
    assert "streamward.curation[0]@0-2" in manifest(before)["ranges"]
    confirmed = judged("4 + 7 =", labeller="gates", actor="curate")
    by_rule = composed(confirmed)
    verdict(confirmed, "run-0", labeller="person", actor="ann", supersedes=taken_back.event_id)
    by_person = composed(confirmed)
    assert (by_rule.event.labellers, by_person.event.labellers) == ({"gates": 1}, {"person": 1})
    assert by_rule.event.event_id != by_person.event.event_id, "who promoted a row is part of it"


def test_the_digest_is_what_sha256sum_says_of_the_rows_and_the_event_id_follows_from_it(tmp_path: Path) -> None:
    made = composed(judged("4 + 7 ="))
    dataset_files.write(made.contents, tmp_path / "d")
    shell = "LC_ALL=C sha256sum *.jsonl | sha256sum"
    said = subprocess.run(["sh", "-c", shell], cwd=tmp_path / "d", capture_output=True, check=True, text=True).stdout
    assert said.split()[0] == made.event.digest
    assert made.event.event_id == derive_id("coach", "built", made.event.digest)


def made_by_the_page(log: Appended, share: float, seed: int) -> dict[str, bytes]:
    """Return the conversations of runs without a task; written from docs/improve.md, with nothing of ours."""
    turns, files = dict[str, list[Turn]](), dict[str, bytes]()
    for turn in sorted(events(log, Turn, "turns"), key=lambda turn: turn.number):
        turns.setdefault(turn.trajectory_id, []).append(turn)
    promoted = {one.answer_id for one in events(log, CurationEvent, "curation") if one.verdict == "promote"}
    ended = [one.trajectory_id for one in events(log, TrajectoryEvent, "trajectories") if one.kind == "ended"]
    runs = [run for run in ended if run in promoted]
    asked = {run: " ".join(m.content for m in turns[run][0].messages if m.role == "user") for run in runs}
    words = {run: re.findall(r"\w+", text.casefold()) for run, text in asked.items()}
    for run in runs:
        row: dict[str, Any] = {"messages": []}
        for turn in turns[run]:
            for message in (*turn.messages, turn.reply):
                line: dict[str, Any] = {"role": message.role, "content": message.content}
                line |= {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
                for call in message.tool_calls:
                    function = {"name": call.name, "arguments": call.arguments}
                    line.setdefault("tool_calls", []).append({"id": call.id, "type": "function", "function": function})
                was_sent = message.role == "assistant" and message is not turn.reply
                row["messages"].append(line | ({"weight": 0} if was_sent else {}))
        for tool in turns[run][0].tools:
            about = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters)}
            row.setdefault("tools", []).append({"type": "function", "function": about})
        cluster = [other for other in runs if words[other] == words[run]]
        oldest = min(cluster, key=lambda name: (turns[name][-1].created_at, name))
        draw = int.from_bytes(sha256(f"{seed}\x1f{oldest}".encode()).digest()[:8], "big") / 2**64
        name, text = "eval.jsonl" if draw < share else "train.jsonl", json.dumps(row, ensure_ascii=False)
        for character in "\x85\u2028\u2029":
            text = text.replace(character, f"\\u{ord(character):04x}")
        files[name] = files.get(name, b"") + text.encode() + b"\n"
    return files


def events(log: Appended, kind: type[T], label: str) -> list[T]:
    return [event for one in log.records[f"streamward.{label}"] if isinstance(event := one.decode(kind), kind)]


@pytest.mark.parametrize("seed", range(4))
def test_another_program_makes_the_bytes_of_a_set_from_the_page_alone(seed: int) -> None:
    log = Appended()
    for number in range(12):
        run, at = Recorded(f"run-{number}"), 2_000_000_000_000 - number
        alone: dict[str, Any] = {"task_id": run.trajectory_id, "sampling_id": None, "slot": None, "created_at": at}
        question = ("What is it?", "what  IS it", f"Who said {'abcdefgh'[number % 8]}? caf\u00e9\u2028")[number % 3]
        tools, call = [ADD] if number % 2 else [], ToolCall(id="c1", name="add", arguments='{"a": 4, "b": 7}')
        asks = [system("You add."), user("1 + 1 ="), assistant("2"), user(question)]
        reply = Message(role="assistant", content="", tool_calls=(call,)) if tools else assistant(f"\x85 {number}")
        first = run.call(asks, tools, reply=reply, **alone)
        result = Message(role="tool", content="11", tool_call_id="c1") if tools else user("And then?")
        run.call([*run.history(first), result], tools, reply=assistant("11"), **alone)
        log.write(*run.turns, end(run))
        verdict(log, run.trajectory_id, "reject" if number == 7 else "promote")
    made = composed(log, DatasetRule(policy="default", eval_share=0.5, seed=seed))
    ours = {name: content for name, content in made.contents.items() if name in ("train.jsonl", "eval.jsonl")}
    assert made_by_the_page(log, 0.5, seed) == ours and sum(content.count(b"\n") for content in ours.values()) == 11


def test_ranges_that_retention_has_deleted_are_refused_with_the_way_out() -> None:
    log = judged("4 + 7 =")
    made = composed(log)
    shorter = Appended()
    with pytest.raises(RefusedError, match="--source archive"):
        rebuild(SETTINGS, made.event, shorter)


def test_a_digest_that_differs_is_named_with_the_files() -> None:
    made = composed(judged("4 + 7 ="))
    other = composed(judged("4 + 8 ="))
    assert difference(made.event, made.event) is None
    assert "train.jsonl" in (difference(made.event, other.event) or "")


def test_a_folder_is_named_by_the_newest_verdict_and_not_by_the_clock(tmp_path: Path) -> None:
    made = composed(judged("4 + 7 =", "5 + 9 ="))
    assert made.event.created_at == 1000
    name = folder_name(made.event.created_at)
    assert name == "19700101T000001.000Z"
    folder, is_there = dataset_files.folder_for(tmp_path, name, made.event.digest, made.contents)
    dataset_files.write(made.contents, folder)
    assert (folder, is_there) == (tmp_path / name, False)
    assert dataset_files.folder_for(tmp_path, name, made.event.digest, made.contents) == (folder, True)
    other = composed(judged("4 + 8 =", "5 + 9 ="))
    beside, _ = dataset_files.folder_for(tmp_path, name, other.event.digest, other.contents)
    assert beside == tmp_path / f"{name}-{other.event.digest[:12]}"


# --- the split --------------------------------------------------------------------------------------------------------


def bare(name: str, question: str, **changes: Any) -> JudgedRun:
    """Return a judged answer to a task."""
    about = {name: changes.pop(name) for name in ("task_id", "thread", "metadata") if name in changes}
    asked_task = task(messages=(Message(role="user", content=question),), **{"task_id": name, **about})
    finished = Finished(
        position=Coordinates("streamward.groups", 0, 0),
        answer_id=name,
        task_id=asked_task.task_id,
        purpose="serve",
        task=asked_task,
    )
    return JudgedRun(PlacedVerdict(finished.position, curation_event(answer_id=name, **changes)), finished)


def test_a_run_whose_answer_is_in_doubt_is_in_no_row_and_no_pair() -> None:
    run, sure = Recorded("doubtful"), bare("sure", "1 + 1 =")
    first = run.call([system("You add."), user("4 + 7 =")], [ADD], reply=assistant("11"))
    run.call([system("You keep memories."), *run.history(first)[1:], user("Scan it.")], reply=assistant("Nothing."))
    finished = replace(sure.finished, run=fold(run.turns), response=response(error="doubtful", finish_reason="error"))
    doubtful = JudgedRun(sure.placed, finished)
    chat_of_it = JudgedRun(sure.placed, replace(finished, response=None))
    other = JudgedRun(sure.placed, replace(sure.finished, response=response(text="12")))
    assert conversations(doubtful) == [] and pair(doubtful, other) is pair(other, doubtful) is None
    assert pair(chat_of_it, other) is not None
    assert len(conversations(chat_of_it)) == 2, "a chat has no single answer"


def sides(rule: DatasetRule, *runs: JudgedRun) -> list[str]:
    return [row.split for row in place(runs, [None] * len(runs), rule)]


def halves(*pairs: tuple[JudgedRun, JudgedRun]) -> None:
    """Assert that both runs of each pair are on one side under many seeds, and not always on the same."""
    for first, second in pairs:
        seen = set()
        for seed in range(20):
            one, other = sides(DatasetRule(policy="p", eval_share=0.5, seed=seed), first, second)
            assert one == other
            seen.add(one)
        assert seen == {"train", "eval"}


def test_two_runs_of_one_task_are_on_one_side() -> None:
    halves((bare("a", "4 + 7 =", task_id="t"), bare("b", "another thing entirely", task_id="t")))


def test_a_question_that_was_sent_again_is_on_the_side_of_the_first() -> None:
    first, again = bare("a", "4 + 7 ="), bare("b", "What else?", metadata={ORIGIN: "a"})
    twice = bare("c", "And else?", metadata={ORIGIN: "a"})
    halves((first, again), (again, twice))


def test_a_thread_is_on_one_side() -> None:
    halves((bare("a", "4 + 7 =", thread="th"), bare("b", "and twice that?", thread="th")))


def test_a_question_that_differs_by_case_spaces_punctuation_or_unicode_form_is_on_one_side() -> None:
    halves((bare("a", "What is the Capital of France?"), bare("b", "what  is the capital of france")))
    halves((bare("a", "Wie heißt das Café?"), bare("b", "WIE HEISST DAS CAFE\u0301")))


def test_a_long_question_that_differs_by_a_word_is_on_one_side_and_one_that_differs_by_half_is_not() -> None:
    text = " ".join(f"word{number}" for number in range(60))
    near, far = text.replace("word59", "other"), " ".join(text.split()[:30]) + " and now something else " * 8
    halves((bare("a", text), bare("b", near)))
    rule = DatasetRule(policy="p", eval_share=0.5)
    assert any(len(set(sides(replace(rule, seed=seed), bare("a", text), bare("b", far)))) == 2 for seed in range(20))


def test_what_a_run_is_compared_with_is_on_its_side() -> None:
    first, second = bare("a", "4 + 7 ="), bare("b", "and twice that?", thread="th")
    rejected = bare("c", "4 + 7 =", thread="th", verdict="reject")
    for seed in range(20):
        rule = DatasetRule(policy="p", eval_share=0.5, seed=seed)
        assert len({row.split for row in place([first, second], [rejected, None], rule)}) == 1


WORDS = ("the", "sum", "of", "3", "and", "4", "is", "what", "please", "now", "tell", "me", "again", "soon")
TEXTS = st.lists(st.sampled_from(WORDS), max_size=11)
RUNS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([None, "x", "y"]), st.sampled_from([None, 0, 1, 2]), TEXTS),
    max_size=14,
)


@given(RUNS, st.integers(0, 1000))
@hypothesis_settings(max_examples=150, deadline=None)
def test_nothing_of_a_task_thread_resubmission_or_near_copy_is_on_both_sides(rows: Any, seed: int) -> None:
    runs = [
        bare(
            f"run-{number}",
            " ".join(text),
            task_id=f"t{task_number}",
            thread=thread,
            metadata={} if origin is None else {ORIGIN: f"t{origin}"},
        )
        for number, (task_number, thread, origin, text) in enumerate(rows)
    ]
    placed = place(runs, [None] * len(runs), DatasetRule(policy="p", eval_share=0.5, seed=seed))
    for one in placed:
        for other in placed:
            share = set(origin_of(one.run.finished).keys) & set(origin_of(other.run.finished).keys)
            first, second = (compared_text(row.run.finished.question) for row in (one, other))
            if share or are_alike(first, second, 0.8):
                assert one.split == other.split


def are_alike(first: ComparedText, second: ComparedText, bound: float) -> bool:
    """Whether two texts of fewer than 12 words are almost the same."""
    return first.words == second.words or (
        jaccard(shingles(first.words), shingles(second.words)) >= bound
        and first.frame != second.frame
        and first.numbers == second.numbers
    )


@given(st.lists(TEXTS, max_size=12), st.sampled_from([0.3, 0.5, 0.8, 1.0]))
@hypothesis_settings(max_examples=150, deadline=None)
def test_no_similar_pair_is_missed_by_looking_at_rare_words_alone(texts: list[list[str]], bound: float) -> None:
    clusters, naive = Clusters(len(texts)), Clusters(len(texts))
    join_similar([" ".join(text) for text in texts], bound, clusters)
    compared = [compared_text(" ".join(text)) for text in texts]
    for first, one in enumerate(compared):
        for second, other in enumerate(compared):
            if are_alike(one, other, bound):
                naive.join(first, second)
    rows = range(len(texts))
    assert [clusters.root(row) for row in rows] == [naive.root(row) for row in rows]


# --- short texts ------------------------------------------------------------------------------------------------------

OTHERS = " ".join(f"{kind}{number}" for number in range(9) for kind in ("word", "noun")).translate(
    str.maketrans("0123456789", "abcdefghij")
)
"""18 words."""


def joined(*texts: str) -> list[int]:
    clusters = Clusters(len(texts))
    join_similar(texts, 0.8, clusters)
    return [clusters.root(row) for row in range(len(texts))]


@pytest.mark.parametrize("place", range(18))
@pytest.mark.parametrize("change", ["replaced", "inserted", "left out"])
def test_a_question_of_eighteen_words_with_one_changed_is_almost_the_same(change: str, place: int) -> None:
    plain = OTHERS.split()
    changed = {
        "replaced": [*plain[:place], "another", *plain[place + 1 :]],
        "inserted": [*plain[:place], "another", *plain[place:]],
        "left out": [*plain[:place], *plain[place + 1 :]],
    }[change]
    assert joined(OTHERS, " ".join(changed)) == [0, 0]


def test_a_question_of_eighteen_words_with_two_changed_is_another_one() -> None:
    plain = OTHERS.split()
    assert joined(OTHERS, " ".join([*plain[:5], "x", *plain[6:12], "y", *plain[13:]])) == [0, 1]


TEMPLATES = {
    "numbers": [f"What is {first} + {second}?" for first in range(5) for second in range(5)],
    "operators": [
        f"Say what is {first} {sign} 7, and say nothing else in your whole answer" for first in (4, 5) for sign in "+-*"
    ],
    "generated sums": [
        f"State the final answer to the following arithmetic problem: {first} {sign} {second} ="
        for first in range(6)
        for second in range(6)
        for sign in "+-"
    ],
    "names": [f"What is the capital of {name}?" for name in ("France", "Spain", "Italy")],
    "names in a long text": [
        f"Please read with care, and then tell me in one word and nothing else what is the capital city of {name}"
        for name in ("France", "Spain", "Italy", "Malta", "Chad")
    ],
    "words": [
        f"Read the following word and answer with its plural form only, in lower case letters and nothing else: {word}"
        for word in ("house", "mouse", "ox", "child", "sheep")
    ],
    "a word of a short question": ["What is the opposite of hot?", "What is the opposite of cold?"],
    "characters": ["请用一个词回答下面的问题中国的首都是北京吗", "请用一个词回答下面的问题中国的首都是南京吗"],
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_questions_of_a_template_are_not_almost_the_same(name: str) -> None:
    texts = TEMPLATES[name]
    assert joined(*texts) == list(range(len(texts)))


def test_time_adds_younger_runs_and_a_cluster_keeps_its_side() -> None:
    rule = DatasetRule(policy="p", eval_share=0.5)
    runs = [bare(f"run-{number}", f"question number {number}, quite its own") for number in range(12)]
    assert sides(rule, *runs)[:8] == sides(rule, *runs[:8])


# --- shares -----------------------------------------------------------------------------------------------------------


def promoted(scenarios: Sequence[str], labeller: Any = "person") -> list[JudgedRun]:
    return [
        bare(f"{labeller}-{scenario}-{number}", f"question {number}", scenario=scenario, labeller=labeller)
        for number, scenario in enumerate(scenarios)
    ]


def test_no_scenario_has_more_than_its_share() -> None:
    runs = promoted(["sums"] * 95 + ["capitals"] * 5)
    kept, left_out = keep_shares(runs, DatasetRule(policy="p", max_scenario_share=0.6))
    counts = [run.verdict.scenario for run in kept].count("sums"), len(kept)
    assert counts == (7, 12) and left_out == {OVER_SCENARIO: 88}
    assert keep_shares(runs, DatasetRule(policy="p"))[0] == runs


def test_a_set_of_one_scenario_cannot_keep_a_share_below_1() -> None:
    kept, left_out = keep_shares(promoted(["sums"] * 9), DatasetRule(policy="p", max_scenario_share=0.9))
    assert (kept, left_out) == ([], {OVER_SCENARIO: 9})


def test_rounds_of_a_policys_own_judgement_cannot_fill_a_set() -> None:
    persons, judges = promoted(["sums"] * 4), promoted(["sums"] * 40, "gates")
    kept, left_out = keep_shares([*judges, *persons], DatasetRule(policy="p", max_machine_share=0.5))
    assert [run.verdict.labeller for run in kept].count("person") == 4
    assert (len(kept), left_out) == (8, {OVER_MACHINES: 36})
    alone, _ = keep_shares(judges, DatasetRule(policy="p", max_machine_share=0.5))
    assert alone == [], "without a person's verdict no share of machines holds"


def test_shares_are_shown_by_scenario_and_by_who_promoted() -> None:
    log = judged("4 + 7 =", "5 + 9 =", labeller="gates", actor="curate")
    run = asked("third", "What is the capital of France?")
    log.write(*run.turns, end(run))
    verdict(log, "third", scenario="capitals")
    made = manifest(composed(log))
    assert made["labeller_shares"] == {"gates": 0.6667, "person": 0.3333}
    assert made["scenario_shares"] == {"capitals": 0.3333, "sums": 0.6667}


def test_the_manifest_names_judges_rubrics_versions_and_every_rows_verdict() -> None:
    log = judged("4 + 7 =", labeller="judge", actor="curate", judge=JUDGE, agreement=AGREEMENT)
    made = manifest(composed(log))
    assert made["judges"] == [
        {
            "model": "good-judge",
            "endpoint": "http://judge/v1",
            "prompt_version": "transcript/1",
            "prompt_digest": "c" * 64,
            "rows": 1,
        }
    ]
    assert made["rubrics"] == [{"rubric": "sums@1", "digest": "a" * 64, "rows": 1}]
    assert made["versions"] == [{"version": 0, "digest": None}]
    assert made["rows"][0]["verdict_at"] == "streamward.curation[0]@0"


def test_the_manifest_names_the_base_models_that_answered_and_what_a_version_calls_them() -> None:
    log = judged("4 + 7 =", "5 + 9 =")
    (digest,) = {turn.base_digest for turn in asked("x", "4 + 7 =").turns}
    assert manifest(composed(log))["base_models"] == [{"digest": digest, "name": None, "rows": 2}]
    policy = asked("x", "4 + 7 =").turns[0].policy
    for number, (base, name) in enumerate(((digest, "smollm2"), ("e" * 64, "another")), start=1):
        log.write(adapter_event("trained", number, policy=policy, base_digest=base, recipe={"model.base": name}))
    assert manifest(composed(log))["base_models"] == [{"digest": digest, "name": "smollm2", "rows": 2}]


def test_the_manifest_names_the_programs_of_agents_and_how_many_rows_are_of_each() -> None:
    log = Appended()
    for number, program in enumerate((PROGRAM, None, PROGRAM)):
        task_id, first = f"t{number}", number * 2
        asked_for, *said, whole = answered(task_id, first)
        said = [replace(one, agent_id="calc", program=program) for one in said if isinstance(one, Response)]
        log.write(asked_for, *said, whole)
        verdict(log, derive_id(task_id, 0), of="groups", task_id=task_id, agent_id="calc")
    agents = manifest(composed(log))["agents"]
    assert agents == [
        {"agent_id": "calc", "program": asdict(PROGRAM), "rows": 2},
        {"agent_id": "calc", "program": None, "rows": 1},
    ]


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="--max-scenario-share 0"):
        DatasetRule(policy="p", max_scenario_share=0).check()
    with pytest.raises(SettingsError, match="--eval 1"):
        DatasetRule(policy="p", eval_share=1.0).check()


# --- pairs ------------------------------------------------------------------------------------------------------------


def rejected_run(log: Appended, name: str, question: str, version: int) -> None:
    run = asked(name, question, "no idea")
    log.write(*(replace(turn, adapter_version=version) for turn in run.turns), end(run))
    verdict(log, name, "reject")


def test_a_pair_has_the_rejected_run_of_the_earliest_version() -> None:
    log = judged("4 + 7 =")
    rejected_run(log, "late", "4 + 7 =", 3)
    rejected_run(log, "early", "4 + 7 =", 1)
    rejected_run(log, "other", "5 + 9 =", 0)
    made = composed(log)
    (pair,) = lines(made, "train.pairs.jsonl")
    assert pair["input"]["messages"][-1] == {"role": "user", "content": "4 + 7 ="}
    assert pair["preferred_output"] == [{"role": "assistant", "content": "11"}]
    assert pair["non_preferred_output"] == [{"role": "assistant", "content": "no idea"}]
    assert manifest(made)["rows"][0]["rejected"] == "early"
    assert made.event.counts["pairs"] == 1


def test_pairs_that_say_the_same_teach_nothing_and_are_left_out() -> None:
    log = judged("4 + 7 =")
    run = asked("same", "4 + 7 =")
    log.write(*run.turns, end(run))
    verdict(log, "same", "reject")
    assert "train.pairs.jsonl" not in composed(log).contents


# --- readers ----------------------------------------------------------------------------------------------------------


def written(made: ComposedDataset, folder: Path) -> Path:
    dataset_files.write(made.contents, folder)
    return folder


def test_our_own_trainer_reads_the_lines_and_learns_what_was_sampled_alone(tmp_path: Path) -> None:
    run = Recorded("shots")
    alone: dict[str, Any] = {"task_id": "shots", "sampling_id": None, "slot": None}
    run.call([user("21 22"), assistant("23"), user("24 25")], [], reply=assistant("26 27"), **alone)
    log = Appended(*run.turns, end(run))
    verdict(log, "shots")
    wrong = Recorded("wrong")
    wrong.call(
        [user("21 22"), assistant("23"), user("24 25")], [], reply=assistant("28"), **alone | {"task_id": "wrong"}
    )
    log.write(*wrong.turns, end(wrong))
    verdict(log, "wrong", "reject")
    folder, template = written(composed(log), tmp_path / "d"), ChatTemplate(chat_tokenizer())
    ((answer,),) = from_file.read(folder / "train.jsonl", "sft", template, 512).examples
    assert answer.loss_tokens == len(template.ids([assistant("26 27")], (), answer=False)) - 1, "without its role"
    ((chosen, rejected),) = from_file.read(folder / "train.pairs.jsonl", "dpo", template, 512).examples
    assert chosen.chains[0].context == rejected.chains[0].context


def test_hugging_face_datasets_reads_rows_labels_tokens_and_pairs_in_any_chunks(tmp_path: Path) -> None:
    from datasets import load_dataset

    run = chat()
    log = judged("4 + 7 =", "What is the capital of France?")
    log.write(*run.turns, opinion("chat-1", "chat-1", 1), end(run))
    verdict(log, "chat-1", agent_id="calc")
    rejected_run(log, "early", "4 + 7 =", 1)
    made = composed(log)
    folder = written(made, tmp_path / "d")
    for chunksize in (1, 10 << 20):
        cache = str(tmp_path / f"cache {chunksize}")
        for config, name in (("default", "train"), ("labels", "train.labels"), ("tokens", "train.tokens")):
            read = load_dataset(str(folder), config, cache_dir=cache, chunksize=chunksize)["train"].to_list()
            expected = lines(made, f"{name}.jsonl")
            assert [{key: row[key] for key in line} for row, line in zip(read, expected, strict=True)] == expected
        pairs = load_dataset(str(folder), "pairs", cache_dir=cache, chunksize=chunksize)["train"].to_list()
        assert pairs == lines(made, "train.pairs.jsonl")
