"""Tasks that name an agent, all the way: runs, turns, responses, rewards, groups; and a manager that is killed."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openai import OpenAI

from schemas.events import AdvantagedGroup, AgentEvent, Batch, Message, Response, Reward, Task, TrajectoryEvent
from streams.engines.rendering.chat_template import ChatTemplate
from streams.errors import EventError, SettingsError
from streams.settings.model import Batches, Settings
from streams.stages.scoring import scoring_agent as scoring
from streamward import AgentManager, ConversationTracker
from tests.support.agent_server import serving, settings_of, turns
from tests.support.commands import invoke
from tests.support.models.chat import KEEPS, chat_tokenizer
from tests.support.processes import command, environment, read, running, said, spawn, until
from trainer.step.token_chains import chains

pytestmark = pytest.mark.kafka

AGENT = """
import json, os, sys, time, urllib.request

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

def ask(messages):
    body = json.dumps({"model": "sums", "messages": messages, "tools": [ADD]}).encode()
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]

def first_of(count):
    for number in range(count):
        try:
            os.close(os.open(os.path.join(sys.argv[1], f"run-{number}"), os.O_CREAT | os.O_EXCL))
            return number
        except FileExistsError:
            pass

number = first_of(1000)
messages = [{"role": "user", "content": os.environ["STREAMWARD_PROMPT"]}]
messages.append(ask(messages))
if "wait" in sys.argv and number:
    time.sleep(60)
if "sub-agent" in sys.argv:
    ask([{"role": "system", "content": "You check sums."}, {"role": "user", "content": "9"}])
messages.append({"role": "user", "content": "8" if number % 2 else "9"})
print(ask(messages)["content"])
sys.exit("I gave up" if number == 3 else 0)
"""
"""It says what it was told to, and may have a sub-agent; every other run is right, and one fails."""


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path) -> Settings:
    made = settings_of(kafka_bootstrap, tmp_path, {"replies": []})
    # which runs are right depends on the order in which they begin, and a group of equal ones is to be a batch as well
    return made.model_copy(update={"batches": Batches(groups=1, zero_variance="keep")})


@pytest.fixture
def agent(tmp_path: Path) -> list[str]:
    """The command line of an agent, without arguments."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "numbers").mkdir()
    return [f"{sys.executable} {tmp_path / 'agent.py'} {tmp_path / 'numbers'}"]


def run(settings: Settings, *arguments: str) -> str:
    result = invoke(settings, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def asked_to_run(folder: Path) -> tuple[str, ...]:
    """Return the command that runs the agent over the tasks in `folder`, without its program."""
    tasks, runs = str(folder / "tasks.jsonl"), str(folder / "runs")
    return ("agents", "run", "adder", "--output", "jsonl", "--tasks", tasks, "--folder", runs)


@pytest.fixture
def scorers(settings: Settings) -> Iterator[None]:
    """Scoring, while the test runs."""
    stop = threading.Event()
    thread = threading.Thread(target=scoring.run, args=(settings,), kwargs={"stop": stop})
    thread.start()
    yield
    stop.set()
    thread.join()


def test_tasks_of_an_agent_become_groups_that_the_trainer_gets(
    settings: Settings, agent: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    lines = [{"prompt": f"{n} + {8 - n} =", "answer": 8, "group_size": 4} for n in range(2)]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with serving(settings):
        request.getfixturevalue("scorers")
        with running(settings, tmp_path, "streams"):
            asked = (*asked_to_run(tmp_path), "--parallel", "8", "--command", f"{agent[0]} sub-agent")
            ended = run(settings, *asked)
            assert json.loads(ended) == {"completed": 7, "failed": 1}
            until(lambda: len(read(settings, Batch)) == 2, "two batches", folder=tmp_path)
            run(settings, "audit")
    groups = [group for _, group in read(settings, AdvantagedGroup)]
    assert sorted(len(group.responses) for group in groups) == [3, 4]
    rewards = Counter(reward.value for _, reward in read(settings, Reward))
    assert rewards == {1.0: 3, 0.0: 4}
    called = turns(settings, "adder")
    for group in groups:
        for member in group.responses:
            assert member.program is not None
            assert (member.agent_id, member.program.file) == ("adder", "agent.py")
            assert member.program.sha256 == hashlib.sha256(AGENT.encode()).hexdigest()
            assert 0 < member.loss_mask.trained_tokens < len(member.completion_token_ids)
            assert len(member.branches) == 1  # its sub-agent
            own = [one for one in called if one.trajectory_id == member.response_id]
            sampled = Counter(token for one in own for token in one.completion_token_ids)
            rows = chains(group, member)
            assert (len(own), len(rows)) == (3, 2)
            assert sampled == Counter(
                token for row in rows for token, mine in zip(row.tokens, row.loss_mask, strict=True) if mine
            )
            assert member.loss_tokens == sampled.total()
    [registered] = [event for _, event in read(settings, AgentEvent) if event.agent_id == "adder"]
    assert (registered.agent_id, registered.type, registered.model_id) == ("adder", "PROMPT_BASED", "sums")
    assert len(called) == 24
    again = run(settings, *asked)
    assert json.loads(again) == {"runs": 0}


def test_runs_that_the_server_refuses_for_good_are_failed_responses_at_once(
    settings: Settings, agent: list[str], tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "4 + 4 =", "answer": 8, "group_size": 2}\n')
    another = settings.model_copy(update={"policy": settings.policy.model_copy(update={"name": "another"})})
    with serving(another):
        ended = run(settings, *asked_to_run(tmp_path), "--command", agent[0])
    assert json.loads(ended) == {"refused": 2}
    found = sorted((response for _, response in read(settings, Response)), key=lambda response: response.slot)
    assert [response.slot for response in found] == [0, 1]
    for response in found:
        assert response.error is not None
        assert response.error.startswith("refused: the server does not begin run")
        assert "the task is for policy sums, and this server has another" in response.error
    assert not read(settings, TrajectoryEvent)


@pytest.mark.kills
def test_after_kill_9_of_the_manager_each_run_ends_once_and_none_that_ended_runs_again(
    settings: Settings, agent: list[str], tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "4 + 4 =", "answer": 8, "group_size": 4}\n')
    with serving(settings):
        asked = asked_to_run(tmp_path)
        with (tmp_path / "agents.log").open("w") as log:
            waiting = [*asked, "--parallel", "2", "--command", f"{agent[0]} wait"]
            manager = spawn(command(*waiting), env=environment(settings), stderr=log, stdout=log)
        # the first run ends, two begin and wait, the last does not begin
        until(lambda: len(turns(settings, "adder")) == 4, "two runs to wait", folder=tmp_path)
        manager.kill()
        manager.wait()
        (tmp_path / "numbers" / "run-3").touch()
        assert [response.error for _, response in read(settings, Response)] == [None]
        ended = run(settings, *asked, "--command", agent[0])
        assert json.loads(ended) == {"completed": 2, "failed": 2}, said(tmp_path)
    errors = Counter(response.error for _, response in read(settings, Response))
    gone = "failed: manager_gone: the manager that started its process did not see it end"
    assert errors == {None: 2, gone: 2}
    kinds = Counter((event.trajectory_id, event.kind) for _, event in read(settings, TrajectoryEvent))
    assert len(kinds) == 8 and set(kinds.values()) == {1}
    assert [task.agent for _, task in read(settings, Task)] == ["adder"]


class Adder(AgentManager):
    """An agent that is a function of this process: two turns, or none for what is no sum."""

    def _process_one(self, agent_id: str, prompt: dict[str, Any]) -> None:
        messages = list(prompt["messages"])
        client = OpenAI(base_url=f"{self.base_url(agent_id)}/v1", api_key="none")
        for more in (None, "and that plus 1?"):
            if more is not None:
                messages.append({"role": "user", "content": more})
            if "+" not in prompt["prompt"]:
                raise ValueError("that is no sum")
            answer = client.chat.completions.create(model="sums", messages=messages)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})


def test_prompts_come_back_as_conversations_with_the_tokens_of_the_log(
    settings: Settings, agent: list[str], tmp_path: Path
) -> None:
    with serving(settings):
        by_function = Adder("adder", settings=settings, folder=tmp_path / "runs")
        found = by_function.deploy(["1 + 1 =", [{"role": "user", "content": "what?"}], "2 + 2 ="], group_size=2)
        by_command = AgentManager("other", command=agent[0], settings=settings, folder=tmp_path / "runs")
        [completion] = by_command.deploy(["3 + 3 ="])
        tokenizer = chat_tokenizer(KEEPS)
        trainer = SimpleNamespace(temperature=1.0, max_completion_length=64, processing_class=tokenizer)
        rolled = by_function.rollout_func(["4 + 4 =", "what?"], trainer)
    assert [one.error for one in found] == [None, None, *["failed: ValueError: that is no sum"] * 2, None, None]
    assert [one.slot for one in found] == [0, 1] * 3
    assert [message["content"] for message in found[0].messages[::2]] == ["1 + 1 =", "and that plus 1?"]
    assert found[0].messages[-1] == {"role": "assistant", "content": found[0].text}
    assert ConversationTracker(settings).get_completion_history(found[0].trajectory_id) == list(found[0].messages)
    recorded = {response.response_id: response for _, response in read(settings, Response)}
    for one in (*found, completion):
        response = recorded[one.trajectory_id]
        assert one.completion_ids == tuple(response.completion_token_ids)
        assert one.completion_mask == tuple(response.loss_mask)
        assert len(one.completion_ids) == len(one.logprobs) == len(one.completion_mask)
        assert bool(one.prompt_ids) == (one.error is None)
    said = [turn for turn in turns(settings, "adder") if turn.trajectory_id == found[0].trajectory_id]
    sampled = [token for turn in said for token in turn.completion_token_ids]
    marked = zip(found[0].completion_ids, found[0].completion_mask, strict=True)
    assert [token for token, mine in marked if mine] == sampled
    assert completion.error is None
    assert rolled.keys() >= {"prompt_ids", "completion_ids", "logprobs", "env_mask"}  # what TRL takes
    first = {name: each[0] for name, each in rolled.items()}
    assert len(first["completion_ids"]) == len(first["logprobs"]) == len(first["env_mask"])
    assert set(first["env_mask"]) == {0, 1} and first["prompt_ids"]
    failed = {name: each[1] for name, each in rolled.items() if name != "trajectory_id"}
    assert failed.pop("error") == "failed: ValueError: that is no sum"
    prompt = list(ChatTemplate(tokenizer).ids([Message(role="user", content="what?")]))
    assert failed == {
        "prompt_ids": prompt,
        "completion_ids": [tokenizer.eos_token_id],
        "logprobs": [0.0],
        "env_mask": [0],
    }


def test_a_manager_without_an_agent_or_with_an_odd_prompt_says_so(settings: Settings) -> None:
    for given, why in (({}, "name the agent"), ({"command": "a", "entry_point": "b"}, "either a command or an entry")):
        with pytest.raises(SettingsError, match=why):
            AgentManager("adder", settings=settings, **given)  # type: ignore[arg-type]
    with pytest.raises(EventError, match="has `role` and `content`"):
        Adder("adder", settings=settings).deploy([[{"role": "user"}]])
