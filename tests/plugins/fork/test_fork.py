"""A run is forked at a turn: its recorded tokens are the prompt, and only what follows them is learned from."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plugins.agents.runs.agent_process import ProgramRun
from plugins.agents.runs.run_server import AgentServer
from plugins.environments.episode_agent import EpisodeAgent
from plugins.environments.episode_replay import read_episodes, replay_episodes
from plugins.environments.episodes.environment import Environment
from plugins.environments.listed import open_listed
from plugins.fork.forking import make_forks
from schemas import serde
from schemas.events import EpisodeStart, Response, RewardSource, Task, derive_id
from schemas.tokens import TokenIds
from streams.engines.protocol import SamplingRequest
from streams.engines.scripted.scripted_engine import ScriptedEngine
from streams.settings.model import Settings
from streams.stages.agents.recording.run_end import TrajectoryEnd
from streams.stages.policy import policy_agent
from streams.tools.audit.reading import Audit
from streams.tools.forks.forked_task import ForkOrder, fork
from streams.tools.forks.moments import Moment, MomentKey
from tests.plugins.environments.test_episode_agent import Countdown
from tests.support.agent_calls import Recorded, user
from tests.support.agent_server import check_audit, serving, settings_of, turns
from tests.support.beside import running_beside
from tests.support.commands import invoke, rows_of
from tests.support.factories import response, task
from tests.support.gates import gated
from tests.support.log.held_out_tasks import CLEAN, LEAKED, evaluate
from tests.support.processes import read, write

SCORER = (RewardSource(name="environment"),)


@pytest.fixture(scope="module")
def settings(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return settings_of(kafka_bootstrap, tmp_path_factory.mktemp("forks"), {}, acknowledge_s=60)


@pytest.fixture(scope="module")
def url(settings: Settings) -> Iterator[str]:
    with serving(settings) as url:
        yield url


def play(url: str, asked: Task, environment: Environment, attempt: str = "") -> TrajectoryEnd:
    """Play a task once, as `agents run --environments` does, and return how it ended."""
    stop = threading.Event()
    with (
        closing(EpisodeAgent(url, lambda _: environment, time_limit_s=60)) as agent,
        closing(AgentServer(url, "environment", stop)) as server,
    ):
        work = agent.work(asked)
        known = server.begin(asked, derive_id(asked.task_id, attempt), 0, {}, work.observed)
        run = ProgramRun("environment", known.trajectory_id, asked, f"{server.url}/{known.trajectory_id}", Path())
        end = work.run(run, stop)
        server.end(known.trajectory_id, end)
    return end


def episode(settings: Settings, url: str, name: str, environment: Environment | None = None, **changes: Any) -> str:
    """Record an episode of `guess` in which the model repeats what it reads; return the run's id."""
    start = EpisodeStart(name="guess", seed=5)
    whole: dict[str, Any] = {"policy": "sums", "environment": start, "agent": "environment", "max_turns": 4}
    asked = task(**whole | {"task_id": name, "group_size": 2, "reward_sources": SCORER} | changes)
    write(settings, asked)
    play(url, asked, environment or open_listed("guess"))
    return derive_id(derive_id(name, ""), 0)


def fork_of(settings: Settings, *words: str) -> Task:
    """Fork by the command, and return the one task that it wrote."""
    (row,) = rows_of(invoke(settings, "fork", *words, "--output", "jsonl"))
    assert row["state"] == "sent"
    return next(event for _, event in read(settings, Task) if event.task_id == row["task_id"])


def prompt_of(settings: Settings, run: str, number: int) -> list[int]:
    """Return the tokens of a call, added up by hand."""
    of_run = [turn for turn in turns(settings, "environment") if turn.trajectory_id == run]
    parts = [(*turn.prompt_token_ids, *turn.completion_token_ids) for turn in of_run[:number]]
    return [token for part in (*parts, of_run[number].prompt_token_ids) for token in part]


# --- tokens -----------------------------------------------------------------------------------------------------------


TOKENIZER = ScriptedEngine.tokenizer_digest


def moments() -> Iterator[Moment]:
    """Yield a thousand moments of runs of random lengths, with tokens that no rendering gives."""
    dice = random.Random(0)
    for number in range(250):
        run, messages = Recorded(derive_id("run", number)), [user(f"question {number}")]
        for _ in range(4):
            tokens = TokenIds.of(dice.choices(range(256), k=dice.randrange(1, 9)))
            made = run.call(messages, prompt_token_ids=tokens, tokenizer_digest=TOKENIZER)
            messages = [*run.history(made), user(f"and {dice.random()}?")]
        asked = task(task_id=f"task-{number}", group_size=1)
        for turn in run.turns:
            key = MomentKey(asked.task_id, turn.trajectory_id, turn.number)
            yield Moment(key=key, task=asked, turn=turn, response=None, chains=run.chains)


def test_a_thousand_forks_have_the_recorded_tokens_bit_for_bit() -> None:
    engine, equal, ids = ScriptedEngine('{"answers": "echo", "context_tokens": 100000}'), 0, set[str]()
    for moment in moments():
        decoded = serde.decode(serde.encode(fork(moment, ForkOrder(), now_ms=1)), Task)
        assert isinstance(decoded, Task)
        [[answer]] = engine.sample([SamplingRequest(sampling_id="s", task=decoded)])
        path = moment.chains.path(moment.turn.turn_id) if moment.turn is not None else []
        parts = [part for node in path for part in (node.turn.prompt_token_ids, node.turn.completion_token_ids)]
        by_hand = [token for part in parts[:-1] for token in part]
        equal += list(answer.prompt_token_ids) == by_hand and answer.error is None
        ids.add(decoded.task_id)
    assert (equal, len(ids)) == (1000, 1000)


def test_tokens_of_another_tokenizer_are_no_prompt() -> None:
    made = fork(next(moments()), ForkOrder(), now_ms=1)
    assert made.fork is not None
    other = replace(made, fork=replace(made.fork, tokenizer_digest="other"))
    [[answer]] = ScriptedEngine().sample([SamplingRequest(sampling_id="s", task=other)])
    assert answer.error is not None and "whose tokens are of another tokenizer; serve its model" in answer.error


def test_the_same_order_gives_the_same_task_and_another_one_another() -> None:
    moment = next(moments())
    first = fork(moment, ForkOrder(), now_ms=1)
    assert fork(moment, ForkOrder(), now_ms=2).task_id == first.task_id
    others = [ForkOrder(version=3), ForkOrder(group_size=4), ForkOrder(mode="recheck")]
    assert len({first.task_id, *(fork(moment, other, now_ms=1).task_id for other in others)}) == 4


def test_a_fork_of_what_is_not_learned_from_is_not_learned_from() -> None:
    moment = next(moments())
    held_out = replace(moment, task=replace(moment.task or task(), purpose="eval"))
    assert fork(held_out, ForkOrder(scorers=SCORER), now_ms=1).purpose == "eval"
    again = fork(moment, ForkOrder(mode="recheck"), now_ms=1)
    assert (again.purpose, again.adapter_version) == ("eval", moment.version)
    asked_by_a_user = replace(moment, task=None)
    assert fork(asked_by_a_user, ForkOrder(), now_ms=1).purpose == "serve"
    assert fork(asked_by_a_user, ForkOrder(scorers=SCORER), now_ms=1).purpose == "train"


def test_an_answer_without_turns_is_forked_at_its_only_call() -> None:
    asked, answer = task(task_id="t"), response(task_id="t", prompt_token_ids=(5, 6, 7))
    key = MomentKey("t", answer.response_id, 0)
    moment = Moment(key=key, task=asked, turn=None, response=answer, chains=Recorded().chains)
    made = fork(moment, ForkOrder(), now_ms=1)
    assert made.fork is not None and list(made.fork.token_ids) == [5, 6, 7] and made.messages == asked.messages


# --- over the log -----------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.kafka


def test_an_episode_begins_again_at_its_turn_and_only_what_follows_is_learned_from(
    settings: Settings, url: str
) -> None:
    run = episode(settings, url, "whole")
    made = fork_of(settings, run, "--turn", "2", "--group-size", "3")
    assert (made.group_size, made.purpose, made.environment) == (3, "train", EpisodeStart(name="guess", seed=5))
    before = prompt_of(settings, run, 2)
    assert made.fork is not None and list(made.fork.token_ids) == before
    play(url, made, open_listed("guess"))
    again = derive_id(derive_id(made.task_id, ""), 0)
    first, *rest = [turn for turn in turns(settings, "environment") if turn.trajectory_id == again]
    assert list(first.prompt_token_ids) == before and first.messages == made.messages
    assert len(rest) == 1, "two of its four turns are the recorded ones"
    (answer,) = [event for _, event in read(settings, Response) if event.response_id == again]
    assert list(answer.prompt_token_ids) == before, "a prompt bears no loss"
    sampled = len(first.completion_token_ids) + len(rest[0].completion_token_ids)
    assert answer.error is None and sum(answer.loss_mask) == sampled == answer.completion_tokens
    (of_log,) = read_episodes(settings, again)
    (compared,) = replay_episodes([of_log], lambda _: open_listed("guess"))
    assert (compared.differs, compared.turns) == (None, 4)
    check_audit(settings)
    assert Audit(settings).look().counts["forks"] >= 1
    known = rows_of(invoke(settings, "fork", run, "--turn", "2", "--group-size", "3", "--output", "jsonl"))
    assert [row["state"] for row in known] == ["known"]


def test_lineage_is_in_sql_and_many_are_forked_by_a_condition(settings: Settings, url: str) -> None:
    for name in ("many-a", "many-b"):
        episode(settings, url, name)
    done = invoke(
        settings, "fork", "--where", "task_id LIKE 'many-%' AND turn = turns - 1", "--output", "jsonl"
    )  # fmt: skip
    made = {row["task_id"]: row for row in rows_of(done)}
    assert len(made) == 2
    rows = rows_of(invoke(settings, "query", "FROM forks WHERE of_task LIKE 'many-%'", "--output", "jsonl"))
    assert {row["task_id"]: (row["of_run"], row["turn"]) for row in rows} == {
        name: (row["of_run"], 3) for name, row in made.items()
    }


def test_another_result_of_a_tool_follows_the_recorded_tokens(settings: Settings, url: str, tmp_path: Path) -> None:
    run = episode(settings, url, "other-result")
    (tmp_path / "result").write_text("higher\n")
    made = fork_of(settings, run, "--turn", "1", "--mode", "tool-result", str(tmp_path / "result"))
    point = made.fork
    assert point is not None and made.messages[-1].content == "higher"
    kept = list(point.token_ids[: point.recorded_tokens])
    assert kept == prompt_of(settings, run, 1)[: len(kept)] and len(kept) < len(point.token_ids)
    assert bytes(point.token_ids[point.recorded_tokens :]).decode() == "\nuser: higher\nassistant: "
    assert play(url, made, open_listed("guess")).ending == "completed"
    check_audit(settings)


def test_an_environment_that_shows_something_else_is_refused_by_name(settings: Settings, url: str) -> None:
    run = episode(settings, url, "changed", Countdown())
    refused = invoke(settings, "fork", run, "--turn", "1")
    assert refused.exit_code == 1 and "guess: its recorded actions do not lead to turn 1" in refused.output
    assert not [
        event for _, event in read(settings, Task) if event.fork is not None and event.fork.task_id == "changed"
    ]


def test_a_run_of_a_fork_begins_with_the_messages_of_its_task_or_is_refused(settings: Settings, url: str) -> None:
    run = episode(settings, url, "own-words")
    made = fork_of(settings, run, "--turn", "1")
    other = replace(made, fork=None, messages=(*made.messages[:-1], user("something else")))
    stop = threading.Event()
    with closing(AgentServer(url, "environment", stop)) as server:
        known = server.begin(made, "own", 0, {})
        context = ProgramRun("environment", known.trajectory_id, other, f"{server.url}/{known.trajectory_id}", Path())
        with closing(EpisodeAgent(url, lambda _: open_listed("guess"), time_limit_s=60)) as agent:
            end = agent.work(other).run(context, stop)
        server.end(known.trajectory_id, end)
    assert end.ending == "failed" and "its first call has other messages or tools than its task" in end.reason


@gated
def test_a_question_that_a_suite_holds_out_by_now_is_forked_to_be_evaluated(made: Settings) -> None:
    asked = {
        text: task(task_id=text[-12:], messages=(user(text),), verifier='{"answer": "11"}') for text in (CLEAN, LEAKED)
    }
    answers = [response(task_id=one.task_id, sampling_id=one.task_id) for one in asked.values()]
    write(made, *asked.values(), *answers)
    evaluate(made, LEAKED, policy=asked[LEAKED].policy)
    keys = [MomentKey(answer.task_id, answer.response_id, 0) for answer in answers]
    forks = make_forks(made, keys, ForkOrder())
    assert (forks.held_out, forks.refused) == (1, ())
    assert [each.purpose for each in forks.tasks] == ["train", "eval"]


def test_the_audit_finds_forks_that_are_none(made: Settings) -> None:
    moment = next(moments())
    sound = fork(moment, ForkOrder(), now_ms=1)
    assert sound.fork is not None and moment.turn is not None and moment.task is not None
    point = sound.fork
    forged = TokenIds.of([7] * len(point.token_ids))
    points = {
        "learns": point,
        "elsewhere": replace(point, turn=9),
        "tokens": replace(point, token_ids=forged),
        "rechecked": replace(point, mode="recheck"),
    }
    write(made, replace(moment.task, purpose="eval"), replace(moment.turn, task_id=moment.task.task_id))
    write(made, *(replace(sound, task_id=name, fork=changed) for name, changed in points.items()))
    found = sorted({finding.what.partition(",")[0] for finding in Audit(made).look().wrong if "fork" in finding.what})
    assert found == [
        "it forks a held-out task",
        f"it forks turn 9 of {point.trajectory_id}",
    ]
    wrong = [finding.what for finding in Audit(made).look().wrong]
    assert sum("its recorded tokens are not those of" in what for what in wrong) == 1
    assert sum("it is a recheck, and is of purpose train" in what for what in wrong) == 1


# --- one call again ---------------------------------------------------------------------------------------------------


def test_a_recorded_call_is_repeated_by_a_version_and_a_lower_score_is_an_exit_code(made: Settings) -> None:
    settings = made.model_copy(update={"policy": made.policy.model_copy(update={"engine": "scripted"})})
    asked = task(
        policy=settings.policy.name,
        task_id="t",
        verifier='{"answer": "11"}',
        group_size=1,
        purpose="serve",
        reward_sources=(),
    )
    answer = response(
        policy=settings.policy.name,
        task_id="t",
        text="11",
        prompt_token_ids=(5, 6, 7),
        tokenizer_digest=TOKENIZER,
        group_size=1,
    )
    write(settings, asked, answer)
    words = ("ask", "--again", answer.response_id, "--versions", "0", "--scorer", "exact", "--output", "jsonl")
    agent = ScriptedEngine('{"answers": "wrong"}')
    with running_beside(lambda stop: policy_agent.run(settings, stop=stop, engine=agent)):
        same = invoke(settings, *words)
        worse = invoke(settings, *words, "--min-score-delta", "0")
    recorded, again = rows_of(same)
    assert (recorded["score"], again["score"], again["delta"]) == (1.0, 0.0, -1.0)
    assert again["answer"].startswith("[-11-] {+") and worse.exit_code == 1
    forks = {event.task_id for _, event in read(settings, Task) if event.fork is not None and event.fork.task_id == "t"}
    repeated = [event for _, event in read(settings, Response) if event.task_id in forks]
    assert [list(event.prompt_token_ids) for event in repeated] == [[5, 6, 7]] * 2
    refused = invoke(settings, "ask", "--again", "x")
    assert refused.exit_code == 2 and "give TEXT, or --again TURN with --versions" in refused.output
