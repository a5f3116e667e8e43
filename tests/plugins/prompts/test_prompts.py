"""Prompts on a real log: commands, tasks and HTTP say the same, and a task keeps the version it was rendered with."""

from __future__ import annotations

import importlib
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from plugins.agents.agent_manager import AgentManager
from plugins.prompts.versions import prompt_log, prompt_use
from plugins.prompts.versions.prompt_log import Activation, PromptLog, PromptText
from plugins.prompts.versions.prompt_use import PromptReference
from schemas.conversation import MessageIn
from schemas.events import Message, PromptEvent, PromptVariable, RequestEvent, Task, Turn
from streams.access.roles import ROLES
from streams.errors import RefusedError
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.load import load
from streams.settings.model import Settings
from streams.stages.tasks import suites
from tests.support.agent_server import serving, settings_of
from tests.support.commands import invoke, rows_of
from tests.support.documented import HOOKS
from tests.support.factories import group, job_event, job_spec, member, prompt_event
from tests.support.log.keys import open_keys
from tests.support.log.unchecked import write_unchecked
from tests.support.processes import read, until, write

pytestmark = pytest.mark.kafka
EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "key_chain"
QUERIES = [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(12)]


def texts(*contents: str) -> list[PromptText]:
    return [
        PromptText(prompt="greet", messages=(Message(role="system", content=text),), actor="ann", reason="try")
        for text in contents
    ]


def activation(version: int, **changes: Any) -> Activation:
    whole: dict[str, Any] = {"prompt": "greet", "alias": "production", "actor": "ann", "reason": "try"}
    return Activation(version=version, **whole | changes)


def test_writers_at_once_number_their_versions_without_a_gap_and_the_same_text_once(made: Settings) -> None:
    with PromptLog(made) as one, PromptLog(made) as other, ThreadPoolExecutor(8) as pool:
        wanted = texts(*(f"Say {number % 6}." for number in range(12)))
        list(pool.map(lambda pair: (one, other)[pair[0] % 2].create(pair[1]), enumerate(wanted)))
    [state] = prompt_log.PROMPTS.read(made).values()
    assert [version.number for version in state.versions] == list(range(1, 7))
    assert {version.messages[0].content for version in state.versions} == {f"Say {number}." for number in range(6)}
    audited = invoke(made, "audit")
    assert audited.exit_code == 0, audited.output


def test_an_alias_moves_only_from_the_version_that_was_expected(made: Settings) -> None:
    with PromptLog(made) as log:
        for text in texts("One.", "Two.", "Three."):
            log.create(text)
        assert log.activate(activation(1, expect=0)).version == 1
        with pytest.raises(RefusedError, match="production means version 1, and version 0 was expected"):
            log.activate(activation(2, expect=0))
        assert log.activate(activation(2, expect=1)).version == 2
        with pytest.raises(RefusedError, match="production means version 2, and version 1 was expected"):
            log.activate(activation(2, expect=1))
        assert log.activate(activation(2)).version == log.activate(activation(2, expect=2)).version == 2  # repetitions
        for _ in range(2):  # a job that was killed after its decision decides again
            assert log.activate(activation(3, expect=2, job_id="job-1")).version == 3
        with pytest.raises(RefusedError, match="production means version 3, and version 2 was expected"):
            log.activate(activation(3, expect=2, job_id="job-2"))
    assert sum(event.kind == "activated" for _, event in read(made, PromptEvent)) == 3
    typed = invoke(made, "improve", "prompts", "activate", "greet", "production", "3", "--expected", "1")
    words = "production means version 3, and version 1 was expected"
    assert (typed.exit_code, words in typed.stderr) == (4, True), typed.stderr


def test_a_version_is_withdrawn_by_command_or_over_http_and_then_named_by_nothing_new(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": [{"when": "Hi.", "reply": "Hello."}]})
    with serving(settings) as url, httpx.Client(event_hooks=HOOKS, timeout=300) as client, PromptLog(settings) as log:
        for text in texts("One.", "Two.", "Three."):
            log.create(text)
        log.activate(activation(1))
        withdraw = f"{url}/prompts/templates/greet/withdraw"
        meant = invoke(settings, "improve", "prompts", "withdraw", "greet", "1")
        words = "prompt greet: production means version 1; let it mean another one first"
        assert (meant.exit_code, words in meant.stderr) == (4, True), meant.stderr
        refused = client.post(withdraw, json={"version": 1})
        assert (refused.status_code, refused.json()["error"]["message"]) == (409, words)
        assert client.post(withdraw, json={"version": 4}).status_code == 404
        typed = invoke(settings, "improve", "prompts", "withdraw", "greet", "2", "--reason", "names a person")
        assert typed.exit_code == 0, typed.stderr
        sent = client.post(withdraw, json={"version": 3, "reason": "too long"})
        assert (sent.status_code, sent.json()["withdrawn"]) == (200, "too long")
        assert client.post(withdraw, json={"version": 3}).json() == sent.json()  # a repetition
        rows = client.get(f"{url}/prompts/templates").json()["data"]
        assert [row["withdrawn"] for row in rows] == [None, "names a person", "too long"]
        for status, path, body in (
            (409, "prompts/templates/greet/activate", {"alias": "production", "version": 2}),
            (409, "prompts/templates", {"name": "greet", "template": "Two."}),
            (404, "v1/responses", {"model": "sums", "input": "Hi.", "prompt": {"id": "greet", "version": "2"}}),
        ):
            answer = client.post(f"{url}/{path}", json=body)
            assert (answer.status_code, "version 2 was withdrawn by" in answer.text) == (status, True), answer.text
    (tmp_path / "task.jsonl").write_text(json.dumps({"prompt": "Hi.", "answer": "Hello.", "prompt_version": "greet@3"}))
    task = invoke(settings, "tasks", "submit", str(tmp_path / "task.jsonl"))
    assert task.exit_code != 0 and "version 3 was withdrawn by" in task.stderr, task.stderr
    shown = invoke(settings, "improve", "prompts", "show", "greet@2", "--output", "jsonl")
    assert (json.loads(shown.stdout)["withdrawn"], "Two." in shown.stdout) == ("names a person", True), shown.stderr
    audited = invoke(settings, "audit")
    assert audited.exit_code == 0, audited.output


BOTH = {"role": "system", "content": "{{a}} and {{b}}"}
LOOKUP = {"id": "c1", "name": "get", "arguments": '{"key": "fox"}'}
ASKED = {"role": "assistant", "content": "", "tool_calls": [LOOKUP]}
TOLD = {"role": "tool", "content": "{{a}}", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([BOTH], "{{b}} is not declared; add b to variables, with its type"),
        ([ASKED, {"role": "user", "content": "{{a}}"}], "messages[0] makes call 'c1'; add its result, of role tool"),
        ([ASKED, TOLD, TOLD], "messages[2] is the result of call 'c1'; expected a call of the answer before it"),
        ([ASKED, TOLD] * 2, "messages[2] makes call 'c1'; expected an id that no other call of the prompt has"),
        (
            [{**ASKED, "tool_calls": [{**LOOKUP, "arguments": '{"key": "{{a}}"}'}]}, TOLD],
            "messages[0]: arguments of get have a {{variable}}; expected it in a content alone",
        ),
    ],
)
def test_a_bad_prompt_gets_the_same_words_from_the_command_the_server_and_the_log(
    kafka_bootstrap: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, messages: list[dict[str, Any]], says: str
) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": []})
    bad: dict[str, Any] = {"messages": messages, "variables": {"a": "string"}}
    words = f"prompt greet: {says}"
    with serving(settings) as url, httpx.Client(event_hooks=HOOKS, timeout=300) as client:
        file = tmp_path / "messages.json"
        file.write_text(json.dumps(bad["messages"]), encoding="utf-8")
        words_of_body = ("--messages", f"@{file}", "--variables", json.dumps(bad["variables"]))
        typed = invoke(settings, "improve", "prompts", "create", "greet", *words_of_body)
        assert (typed.exit_code, typed.stderr.strip().splitlines()[-1]) == (2, f"Error: {words}")
        sent = client.post(f"{url}/prompts/templates", json={"name": "greet", **bad})
        assert (sent.status_code, sent.json()["error"]["message"]) == (400, words)
    sent_messages = tuple(MessageIn.model_validate(message).message for message in messages)
    text: dict[str, Any] = {"messages": sent_messages, "variables": (PromptVariable(name="a"),)}
    event = prompt_event(**text)
    write_unchecked(settings, event)
    with caplog.at_level(logging.WARNING, "streamward.prompts"), PromptLog(settings) as log:
        assert log.states == {}
    assert says in caplog.text


def test_the_example_s_prompt_has_calls_and_results_and_a_call_begins_with_them(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    desk = importlib.import_module("front_desk")
    shown = [message for example in desk.EXAMPLES for message in desk.worked(*example)]
    file = tmp_path / "prompt.json"
    file.write_text(json.dumps([{"role": "system", "content": desk.SYSTEM}, *shown]))
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": [{"when": "guest: fox-lamp", "reply": "Hm."}]})
    with serving(settings) as url, httpx.Client(event_hooks=HOOKS, timeout=300) as client:
        made = invoke(
            settings, "improve", "prompts", "create", "desk", "--messages", f"@{file}", "--alias", "production"
        )
        assert made.exit_code == 0, made.stderr
        [version] = client.get(f"{url}/prompts/templates").json()["data"]
        body = {"model": "sums", "prompt": {"id": "desk"}, "messages": [{"role": "user", "content": "guest: fox-lamp"}]}
        client.post(f"{url}/v1/chat/completions", json=body).raise_for_status()
    wanted = [MessageIn.model_validate(message).message for message in shown]
    assert sum(len(message.tool_calls) for message in wanted) == 4
    assert [MessageIn.model_validate(message).message for message in version["messages"][1:]] == wanted
    [turn] = [turn for _, turn in read(settings, Turn)]
    assert list(turn.messages[1:-1]) == wanted
    calls = [(call.name, json.loads(call.arguments)) for message in turn.messages for call in message.tool_calls]
    assert calls[:2] == [("guest", {"name": "sheep-wolf"}), ("room", {"name": "tiger-camel"})]


def test_a_task_keeps_the_version_that_its_prompt_meant_when_it_was_written(made: Settings, tmp_path: Path) -> None:
    with PromptLog(made) as log:
        for text in texts("Answer in {{language}}.", "Reply in {{language}}, in one word."):
            log.create(replace(text, variables=(PromptVariable(name="language"),)))
        log.activate(activation(1))
        lines = [
            {
                "prompt": f"{n} + 1 =",
                "answer": n + 1,
                "prompt_version": {"name": "greet", "variables": {"language": "a {{b}}"}},
            }
            for n in range(3)
        ]
        file = tmp_path / "tasks.jsonl"
        file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        assert invoke(made, "tasks", "submit", str(file)).exit_code == 0
        log.activate(activation(2))
        assert invoke(made, "tasks", "submit", str(file)).exit_code == 0
        assert invoke(made, "tasks", "submit", str(file)).exit_code == 0  # adds nothing
    tasks = [task for _, task in read(made, Task)]
    assert [str(task.prompt_version) for task in tasks] == ["greet@1"] * 3 + ["greet@2"] * 3
    assert {task.messages[0].content for task in tasks} == {"Answer in a {{b}}.", "Reply in a {{b}}, in one word."}
    assert [task.messages[1].content for task in tasks[:3]] == ["0 + 1 =", "1 + 1 =", "2 + 1 ="]


def test_a_missing_or_extra_variable_is_named_alike_in_a_file_and_over_http(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": []})
    line = {"prompt": "Hi.", "answer": "x", "prompt_version": {"name": "greet@1", "variables": {"nome": "Ann"}}}
    words = "prompt_version: prompt greet@1: variable name (string) has no value; give it one"
    with serving(settings) as url, httpx.Client(event_hooks=HOOKS, timeout=300) as client:
        write(settings, prompt_event())
        file = tmp_path / "tasks.jsonl"
        file.write_text(json.dumps(line), encoding="utf-8")
        typed = invoke(settings, "tasks", "submit", str(file))
        assert words in typed.stderr and typed.exit_code == 1
        sent = client.post(f"{url}/tasks", json=line)
        assert (sent.status_code, sent.json()["error"]["message"]) == (400, words)


def test_what_each_version_earned_is_one_query_and_two_are_compared_on_equal_questions(
    made: Settings, tmp_path: Path
) -> None:
    with PromptLog(made) as log:
        for text in texts("One.", "Two."):
            log.create(text)
    file = tmp_path / "tasks.jsonl"
    file.write_text(
        "\n".join(json.dumps({"prompt": f"{n} + 1 =", "answer": n + 1}) for n in range(4)), encoding="utf-8"
    )
    for version in (1, 2):
        assert invoke(made, "tasks", "submit", str(file), "--prompt", f"greet@{version}").exit_code == 0
    with Producer(made) as producer:
        for _, task in read(made, Task):
            assert task.prompt_version is not None
            value = float(task.prompt_version.version - 1)
            answer = member(0, reward=value, components={"exact": value}, response_id=task.task_id)
            about = {"task_id": task.task_id, "metadata": dict(task.metadata), "reward_mean": value}
            producer.send(group(responses=(answer,), prompt_version=str(task.prompt_version), **about))
    sql = (
        "SELECT version, count(*) AS tasks, avg(reward) AS reward FROM prompt_rewards GROUP BY version ORDER BY version"
    )
    shown = invoke(made, "query", sql, "--output", "jsonl")
    assert rows_of(shown) == [
        {"version": 1, "tasks": 4, "reward": 0.0},
        {"version": 2, "tasks": 4, "reward": 1.0},
    ]
    compared = json.loads(invoke(made, "improve", "prompts", "compare", "greet", "2", "1", "--output", "jsonl").stdout)
    assert [row["mean_reward"] for row in compared["versions"]] == [1.0, 0.0]
    against = compared["comparison"]
    assert (against["n"], against["gain"], against["mean_reward"]) == (4, 1.0, 1.0)


def test_a_policy_in_training_keeps_its_prompt_until_its_job_ends(made: Settings) -> None:
    with PromptLog(made) as log:
        for text in texts("One.", "Two."):
            log.create(text)
        log.activate(activation(1))
        version = log.get("greet").versions[0]
    spec = job_spec(prompt_version=prompt_use.use(version, PromptReference.parse("greet@production"), {}))
    write(made, job_event("created", spec=spec))
    refused = invoke(made, "improve", "prompts", "activate", "greet", "production", "2")
    assert (refused.exit_code, "policy default is in training with greet@1 until job job-1 ends" in refused.stderr) == (
        4,
        True,
    )
    write(made, job_event("cancelled", 1))
    assert invoke(made, "improve", "prompts", "activate", "greet", "production", "2").exit_code == 0


def test_a_tenant_sees_and_names_prompts_of_its_own_alone(kafka_bootstrap: str, tmp_path: Path) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": []}, auth="keys")
    admin.apply_topics(settings)
    with open_keys(settings) as person:
        keys = {tenant: person.create(role="trainer", actor="ann", tenant=tenant).text for tenant in ("red", "blue")}
    with serving(settings) as url, httpx.Client(event_hooks=HOOKS, timeout=300) as client:

        def ask(tenant: str, method: str, path: str, body: Any = None) -> httpx.Response:
            return client.request(method, url + path, headers={"Authorization": f"Bearer {keys[tenant]}"}, json=body)

        made = ask("red", "POST", "/prompts/templates", {"name": "greet", "template": "The plan is secret."})
        assert (made.status_code, made.json()["name"]) == (201, "red.greet")
        assert ask("blue", "GET", "/prompts/templates").json()["data"] == []
        line = {"input": "?", "prompt_version": "red.greet@1"}
        stolen = ask("blue", "POST", "/tasks", line)
        assert (stolen.status_code, "there is no prompt 'blue.red.greet'" in stolen.text) == (400, True)
        assert "secret" not in stolen.text
        assert ask("red", "POST", "/tasks", line | {"prompt_version": "greet@1"}).status_code == 201


def test_an_alias_is_moved_by_those_alone_who_may_promote_whichever_route_they_ask(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": []}, auth="keys")
    admin.apply_topics(settings)
    with open_keys(settings) as person:
        keys = {role: person.create(role=role, actor="ann").text for role in ROLES}
        keys["red"] = person.create(role="submitter", actor="ann", tenant="red").text
    with serving(settings) as url, httpx.Client(event_hooks=HOOKS, timeout=300) as client:

        def ask(role: str, path: str, body: Any) -> httpx.Response:
            return client.request("POST", url + path, headers={"Authorization": f"Bearer {keys[role]}"}, json=body)

        moved = {"name": "sums", "template": "Answer.", "alias": "production"}
        assert ask("admin", "/prompts/templates", moved).status_code == 201
        assert ask("submitter", "/prompts/templates", {"name": "sums", "template": "Twice."}).status_code == 201
        search = {"agent_id": "sums", "prompt": "sums", "config": {"alias": "production"}, "training_queries": QUERIES}
        for role in ("submitter", "trainer", "red"):
            for prefix in ("", "/api/v1"):
                for path, body in (
                    ("/prompts/templates", moved | {"template": "EVIL"}),
                    ("/prompts/optimize", search),
                    ("/finetune/jobs", search | {"type": "PROMPT_ENGINEERING"}),
                ):
                    refused = ask(role, prefix + path, body)
                    error = refused.json()["error"]
                    assert (refused.status_code, "adapters.promote is for" in error["message"]) == (403, True), path
                    assert error["param"].endswith("alias")
        config = {"reward_sources": [{"name": "os:getcwd"}]}
        runs_code = ask("submitter", "/prompts/optimize", search | {"config": config})
        assert (runs_code.status_code, "code.run" in runs_code.text) == (403, True), runs_code.text
        assert ask("trainer", "/prompts/optimize", search | {"config": {}}).status_code == 201
        assert ask("admin", "/prompts/optimize", search).status_code == 201
    [state] = prompt_log.PROMPTS.read(settings).values()
    assert (len(state.versions), state.aliases["production"].version) == (2, 1)
    refusals = [event for _, event in read(settings, RequestEvent) if not event.allowed]
    assert {event.action for event in refusals} == {"adapters.promote", "code.run"} and len(refusals) == 19


def test_a_call_names_a_prompt_and_its_conversation_keeps_the_version(kafka_bootstrap: str, tmp_path: Path) -> None:
    replies = [{"when": "Hi.", "reply": "Hello."}, {"when": "Again.", "reply": "Hello again."}]
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": replies})
    with serving(settings) as url, httpx.Client(event_hooks=HOOKS, timeout=300) as client, PromptLog(settings) as log:
        for text in texts("Greet {{name}}.", "Welcome {{name}}."):
            log.create(replace(text, variables=(PromptVariable(name="name"),)))
        log.activate(activation(1))
        prompt = {"id": "greet", "variables": {"name": "<|im_end|> {{name}}"}}
        first = client.post(f"{url}/v1/responses", json={"model": "sums", "input": "Hi.", "prompt": prompt}).json()
        log.activate(activation(2))
        body = {"model": "sums", "input": "Again.", "prompt": prompt, "previous_response_id": first["id"]}
        assert client.post(f"{url}/v1/responses", json=body).status_code == 200

        def missing() -> Any:
            answer = client.post(
                f"{url}/v1/responses", json={"model": "sums", "input": "Hi.", "prompt": {"id": "greet"}}
            )
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
            return answer.json()["error"]["message"]

        says = "prompt greet@2: variable name (string) has no value; give it one"
        until(lambda: missing() == says, "the server has read where the alias points")
        fresh = client.post(f"{url}/v1/responses", json={"model": "sums", "input": "Hi.", "prompt": prompt})
        assert fresh.status_code == 200
    turns = sorted((turn for _, turn in read(settings, Turn)), key=lambda turn: turn.created_at)
    assert [turn.prompt_version for turn in turns] == ["greet@1", "greet@1", "greet@2"]
    assert [turn.prompt_alias for turn in turns] == ["production"] * 3
    assert turns[0].messages[0].content == "Greet <|im_end|> {{name}}." and turns[1].parent_id == turns[0].turn_id


def of_protocol(protocol: str, texts: list[str], **extra: Any) -> dict[str, Any]:
    """Return a call whose messages are of user and model in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    name = "input" if protocol == "responses" else "messages"
    return {"model": "sums", name: messages, **({"max_tokens": 64} if protocol == "messages" else {}), **extra}


@pytest.mark.parametrize("protocol", ["chat/completions", "messages", "responses"])
def test_a_client_that_sends_its_conversation_again_keeps_the_version_that_it_began_with(
    kafka_bootstrap: str, tmp_path: Path, protocol: str
) -> None:
    replies = [{"when": "Hi.", "reply": "Hello."}, {"when": "Again.", "reply": "Hello again."}]
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": replies})
    with serving(settings) as url, httpx.Client(event_hooks=HOOKS, timeout=300) as client, PromptLog(settings) as log:
        for text in texts("Greet {{name}}.", "Welcome {{name}}."):
            log.create(replace(text, variables=(PromptVariable(name="name"),)))
        log.activate(activation(1))
        prompt = {"id": "greet", "variables": {"name": "Ann"}}

        def ask(*said: str, **extra: Any) -> httpx.Response:
            body = of_protocol(protocol, list(said), **{"prompt": prompt, **extra})
            return client.post(f"{url}/v1/{protocol}", json=body)

        assert ask("Hi.").status_code == 200
        log.activate(activation(2))
        assert ask("Hi.", "Hello.", "Again.").status_code == 200
        assert ask("Hi.", "Hello, you.", "Again.").status_code == 200
        words = "prompt greet@2: variable name (string) has no value; give it one"
        missing = ask("Hi.", prompt={"id": "greet"})
        assert (missing.status_code, words in missing.text) == (400, True)
        unknown = ask("Hi.", prompt={"id": "great"})
        assert (unknown.status_code, "there is no prompt 'great'" in unknown.text) == (404, True)
    turns = sorted((turn for _, turn in read(settings, Turn)), key=lambda turn: turn.created_at)
    assert [(turn.prompt_version, turn.prompt_alias) for turn in turns] == [
        ("greet@1", "production"),
        ("greet@1", "production"),
        ("greet@2", "production"),
    ]
    assert turns[0].messages[0].content == "Greet Ann." and turns[1].parent_id == turns[0].turn_id


def test_a_prompt_is_refused_by_name_where_a_protocol_has_no_messages_and_counted_where_it_has(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": []})
    with serving(settings) as url, httpx.Client(event_hooks=HOOKS, timeout=300) as client, PromptLog(settings) as log:
        log.create(texts("Be kind.")[0])
        body = {"model": "sums", "prompt": {"id": "greet@1"}}
        refused = client.post(f"{url}/v1/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
        assert "a prompt of the log has messages" in refused.json()["error"]["message"]
        counts = []
        for extra in ({}, {"prompt": {"id": "greet", "version": "1"}}, {"system": "Be kind."}):
            sent = {"model": "sums", "messages": [{"role": "user", "content": "Hi."}], **extra}
            counts.append(client.post(f"{url}/v1/messages/count_tokens", json=sent).json()["input_tokens"])
        assert counts[1] == counts[2] > counts[0]


def test_a_suite_names_a_prompt_and_is_another_suite_once_its_alias_moves(made: Settings, tmp_path: Path) -> None:
    with PromptLog(made) as log:
        for text in texts("Greet in {{language}}.", "Welcome in {{language}}."):
            log.create(replace(text, variables=(PromptVariable(name="language"),)))
        log.activate(activation(1))
        prompt = {"name": "greet", "variables": {"language": "French"}}
        other = {"name": "greet@2", "variables": {"language": "x"}}
        example = (Message(role="user", content="1 + 1 ="), Message(role="assistant", content="2"))
        log.create(replace(texts("?")[0], prompt="example", messages=example))
        lines: list[dict[str, Any]] = [
            {"prompt": "Hello.", "answer": "Bonjour."},
            {"prompt": "Bye.", "answer": "Adieu.", "prompt_version": other},
        ]
        (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        suite = tmp_path / "suite.yaml"
        parts: dict[str, dict[str, Any]] = {
            "file": {"file": "two.jsonl", "prompt": prompt},
            "made": {"generator": "sums", "count": 1, "prompt": "example@1"},
        }
        suite.write_text(json.dumps({"name": "greetings", "scenarios": parts}), encoding="utf-8")
        first = suites.of_file(made, suite)
        assert [str(task.prompt_version) for task in first.questions] == ["greet@1", "greet@2", "example@1"]
        assert [task.messages[0].content for task in first.questions][:2] == ["Greet in French.", "Welcome in x."]
        log.activate(activation(2))
        assert suites.of_file(made, suite).name != first.name
    parts["file"]["prompt"] = {"name": "greet@2"}
    suite.write_text(json.dumps({"name": "greetings", "scenarios": parts}), encoding="utf-8")
    words = "prompt_version: prompt greet@2: variable language (string) has no value; give it one"
    refused = invoke(made, "evaluate", "--suite", str(suite))
    assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr


def test_recorded_tasks_are_asked_again_with_another_prompt_in_an_experiment_of_their_own(
    made: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scripted = made.model_copy(update={"policy": made.policy.model_copy(update={"engine": "scripted"})})
    with PromptLog(scripted) as log:
        for text in texts("Answer.", "Answer in {{language}}."):
            log.create(replace(text, variables=(PromptVariable(name="language"),) if "{{" in str(text) else ()))
    line = {"system": "Be brief.", "group_size": 2}
    lines = [line | {"prompt": f"{n % 3} + 1 =", "answer": n % 3 + 1, "metadata": {"n": str(n)}} for n in range(4)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert invoke(scripted, "tasks", "submit", "tasks.jsonl").exit_code == 0
    refused = invoke(scripted, "replay", "run", "x", "--prompt", "greet@1")
    assert (refused.exit_code, "add --no-train" in refused.stderr) == (2, True)
    missing = invoke(scripted, "replay", "run", "x", "--no-train", "--prompt", "greet@2")
    assert "prompt greet@2: variable language (string) has no value; give it one" in missing.stderr
    others = {"a": ("greet@1",), "b": ("greet@2", "--values", '{"language": "French"}')}
    for name, prompt in others.items():
        for _ in range(2):  # repeating it adds nothing
            done = invoke(scripted, "replay", "run", name, "--no-train", "--prompt", *prompt, "--output", "jsonl")
            assert (done.exit_code, json.loads(done.stdout)["groups"]) == (0, 3), done.stderr
    again = invoke(scripted, "replay", "run", "a", "--no-train", "--prompt", "greet@2", "--values", '{"language": "x"}')
    assert (again.exit_code, "exists (finished) with prompt=greet@1 {}" in again.stderr) == (4, True)
    log_of_b = load(file=tmp_path / ".streamward" / "experiments" / "b" / "streamward.toml")
    asked = [task for _, task in read(log_of_b, Task)]
    assert {task.messages[0].content for task in asked} == {"Answer in French."} and len(asked) == 3
    shown = invoke(
        log_of_b, "query", "SELECT prompt, version, count(*) AS n FROM prompt_rewards GROUP BY ALL", "--output", "jsonl"
    )
    assert json.loads(shown.stdout) == {"prompt": "greet", "version": 2, "n": 3}, shown.stderr
    compared = invoke(scripted, "replay", "compare", "a", "b", "--output", "jsonl")
    assert compared.exit_code == 0, (compared.stdout, compared.stderr)
    [row] = rows_of(compared)
    assert row["suite"].startswith("recorded@"), row


def test_a_prompt_based_agent_answers_calls_and_tasks_with_the_prompt_it_is_registered_with(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": [{"when": "Hi.", "reply": "Hello."}]})
    with serving(settings) as url, httpx.Client(event_hooks=HOOKS, timeout=300) as client, PromptLog(settings) as log:
        log.create(texts("Be kind.")[0])
        log.create(replace(texts("In {{x}}.")[0], variables=(PromptVariable(name="x"),)))
        log.activate(activation(1))
        agent = {"agent_id": "host", "model_id": "sums", "prompt": "greet"}
        made = client.post(f"{url}/rl/agents", json=agent)
        assert (made.status_code, made.json()["prompt"]) == (201, "greet@production"), made.text
        for changes, status, problem in (
            ({"type": "FINE_TUNED"}, 400, "an agent of type FINE_TUNED answers as it was trained"),
            ({"prompt": "great@1"}, 404, "there is no prompt 'great'"),
            ({"prompt": "greet@2"}, 400, "prompt greet@2: variable x (string) has no value; give it one"),
        ):
            refused = client.post(f"{url}/rl/agents", json=agent | changes)
            assert (refused.status_code, problem in refused.json()["error"]["message"]) == (status, True), refused.text
        for path in ("agents/host/v1", "v1"):
            said = client.post(f"{url}/{path}/chat/completions", json=of_protocol("chat/completions", ["Hi."]))
            assert said.status_code == 200, said.text
        task = client.post(f"{url}/tasks", json={"input": "Hi?", "agent": "host"})
        assert task.status_code == 201, task.text
        for door in (("tasks", "submit"), ("agents", "run", "host", "--command", "true", "--tasks")):
            file = tmp_path / f"{door[1]}.jsonl"
            file.write_text(json.dumps({"prompt": f"Hi, {door[1]}!", "purpose": "serve", "agent": "host"}))
            submitted = invoke(settings, *door, str(file))
            assert submitted.exit_code == 0, submitted.output
        AgentManager("host", command="true", settings=settings, folder=tmp_path / "runs").deploy(["Hi there!"])
    turns = sorted((turn for _, turn in read(settings, Turn)), key=lambda turn: turn.created_at)
    assert [turn.prompt_version for turn in turns] == ["greet@1", None]
    assert [str(task.prompt_version) for _, task in read(settings, Task)] == ["greet@1"] * 4
