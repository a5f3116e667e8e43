"""The answer of a run whose client calls once more when it has it: `agents run`, HTTP, Python, and readers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from plugins.agents.agent_manager import AgentManager
from schemas.events import Response, TrajectoryEvent, derive_id
from streams.settings.model import Settings
from tests.support.agent_server import check_audit, serving, settings_of
from tests.support.commands import invoke
from tests.support.documented import as_documented
from tests.support.processes import read

pytestmark = pytest.mark.kafka
SCRIPT = {
    "context_tokens": 1_000_000,
    "replies": [
        {"when": "Scan the conversation", "reply": "Nothing to save."},
        {"when": "Name this", "reply": "A sum"},
        {"when": "4 + 7", "reply": "11"},
    ],
}
CLIENT = """
import json, os, sys, urllib.request

def call(system, messages, tool):
    tools = [{"type": "function", "function": {"name": tool, "parameters": {"type": "object"}}}] if tool else []
    body = {"model": "sums", "messages": [{"role": "system", "content": system}, *messages]}
    body |= {"tools": tools} if tools else {}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]

def answer(prompt):
    question = [{"role": "user", "content": prompt}]
    call("You name conversations.", [{"role": "user", "content": "Name this: " + prompt}], None)
    text = call("You code.", question, "run")
    history = [*question, {"role": "assistant", "content": text}, {"role": "user", "content": "Scan the conversation"}]
    call("You keep memories.", history, "save_memory")
    return text
"""
"""A client like Qwen Code: a title first, and a call for memories when it has its answer."""


@pytest.fixture(scope="module")
def settings(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return settings_of(kafka_bootstrap, tmp_path_factory.mktemp("answers"), SCRIPT, acknowledge_s=60)


@pytest.fixture(scope="module")
def url(settings: Settings) -> Iterator[str]:
    with serving(settings) as url:
        yield url
    check_audit(settings)


@pytest.fixture
def client_file(tmp_path: Path) -> Path:
    file = tmp_path / "client.py"
    file.write_text(CLIENT + "\nif __name__ == '__main__':\n    text = answer(os.environ['STREAMWARD_PROMPT'])\n"
                    "    if sys.argv[1:] != ['quiet']: print(text)\n")  # fmt: skip
    return file


def ran(settings: Settings, file: Path, agent: str, *options: str, quiet: bool = False) -> list[Response]:
    """Run the client over a task by `agents run`, and return its responses."""
    tasks = file.with_name("tasks.jsonl")
    tasks.write_text(json.dumps({"task_id": agent, "prompt": "what is 4 + 7?", "answer": "11", "group_size": 2}))
    line = f"{sys.executable} {file}" + (" quiet" if quiet else "")
    folder = str(file.parent / "runs")
    done = invoke(
        settings, "agents", "run", agent, "--tasks", str(tasks), "--command", line, "--folder", folder, *options
    )
    assert done.exit_code == 0 and '"completed": 2' in done.stdout, done.output
    return [event for _, event in read(settings, Response) if event.agent_id == agent]


@pytest.mark.usefixtures("url")
def test_the_answer_that_the_command_prints_is_the_response(settings: Settings, client_file: Path) -> None:
    for made in ran(settings, client_file, "prints"):
        assert (made.error, made.text, made.branches, made.steps) == (None, "11", (), 1)


@pytest.mark.usefixtures("url")
def test_a_command_that_prints_nothing_has_an_answer_in_doubt_or_the_one_that_is_set(
    settings: Settings, client_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for made in ran(settings, client_file, "quiet", quiet=True):
        assert made.error is not None and made.error.startswith("doubtful_answer: turn 1 answers '11', and turn 2")
        assert "'Nothing to save.'" in made.error and made.error in caplog.text
    shown = invoke(settings, "agents", "list", "quiet", "--output", "jsonl")
    assert all("'Nothing to save.'" in json.loads(line)["doubt"] for line in shown.stdout.splitlines())
    query = "SELECT reason FROM runs WHERE agent_id = 'quiet'"
    rows = invoke(settings, "query", query, "--output", "jsonl").stdout.splitlines()
    assert len(rows) == 2 and all("doubtful_answer" in row for row in rows)
    for rule, text in (("first_agent", "11"), ("last_call", "Nothing to save.")):
        made_by_rule = ran(settings, client_file, rule, "--answer", rule, quiet=True)
        assert [(made.error, made.text) for made in made_by_rule] == [(None, text)] * 2


def begun(url: str, name: str) -> str:
    """Begin a run over HTTP, have it answer and keep memories, and return its address and the id of its answer."""
    run = f"{url}/agents/http/trajectories/{derive_id(name, 0)}"
    sampling = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 50}
    body = {"task_id": f"task-{name}", "sampling_id": name, "slot": 0, "group_size": 1, "policy": "sums"}
    httpx.post(f"{run}/begin", json={**body, "purpose": "train", "sampling": sampling}, timeout=300).raise_for_status()
    return run


def answered(run: str) -> str:
    client, question = OpenAI(base_url=f"{run}/v1", api_key="none", max_retries=0), "what is 4 + 7?"
    messages: list[Any] = [{"role": "system", "content": "You code."}, {"role": "user", "content": question}]
    answer = client.chat.completions.create(model="sums", messages=messages)
    messages[0]["content"] = "You keep memories."
    messages += [{"role": "assistant", "content": "11"}, {"role": "user", "content": "Scan the conversation"}]
    client.chat.completions.create(model="sums", messages=messages)
    return answer.id


def test_an_end_over_http_names_the_answer_by_the_id_that_its_client_got(settings: Settings, url: str) -> None:
    for number, said in enumerate(("id", "turn", "output", "rule", "nothing")):
        run = begun(url, f"s-{said}")
        answer_id = answered(run)
        body = {
            "id": {"answer": answer_id},
            "turn": {"answer": answer_id.removeprefix("chatcmpl-")},
            "output": {"output": "\x1b" * 60_000 + "\x00\ufffd\uffff The answer: 11"},
            "rule": {"answer_rule": "first_agent"},
            "nothing": {},
        }[said]
        end = {"ending": "completed", "reason": "it answered", **body}
        refused = httpx.post(f"{run}/end", json={**end, "answer": "chatcmpl-nobody"}, timeout=300)
        assert refused.status_code == 400 and "no answer with the id 'nobody'" in refused.text
        ended = httpx.post(f"{run}/end", json=end, timeout=300)
        as_documented(ended)
        (made,) = (event for _, event in read(settings, Response) if event.sampling_id == f"s-{said}")
        (event,) = (event for _, event in read(settings, TrajectoryEvent)
                    if event.sampling_id == f"s-{said}" and event.kind == "ended")  # fmt: skip
        assert ended.json()["error"] == made.error
        assert (made.error is None, made.text) == ((True, "11") if number < 4 else (False, ""))
        named = answer_id.removeprefix("chatcmpl-") if number < 3 else None
        assert (event.answer_turn, event.answer_rule) == (named, "first_agent" if said == "rule" else None)


@pytest.mark.parametrize("returned", ["text", "response"])
def test_an_agent_in_a_thread_returns_its_answer(settings: Settings, url: str, returned: str) -> None:
    class Keeper(AgentManager):
        def _process_one(self, agent_id: str, prompt: dict[str, Any]) -> object:
            answer_id = answered(self.base_url(agent_id))
            return "It is 11" if returned == "text" else type("Completion", (), {"id": answer_id})()

    (made,) = Keeper(f"keeper-{returned}", settings=settings).deploy(["what is 4 + 7?"])
    assert (made.error, made.text) == (None, "11")
    assert [message["content"] for message in made.messages] == ["You code.", "what is 4 + 7?", "11"]
