"""Two tenants and one server: what one has is, for the other, what nobody has, on every route and by every method.

what blue has ──► red asks for it, and for the same that nobody has ──► the same answer, without a word of blue's
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jwt
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st
from pydantic import SecretStr
from streamward_client import ApiError, AsyncClient

from gateway.rooms.routes import TABLE
from plugins.agents.runs.agent_process import AgentProcess, run_process
from plugins.agents.runs.agent_runner import AgentPlan, AgentWork, run
from plugins.jobs.api import rpc as jobs
from plugins.jobs.api.rest import JOBS_LISTED
from plugins.people.access import tokens
from plugins.people.access.access_log import AccessLog
from plugins.people.logins import logins
from plugins.people.settings import People
from schemas.events import JobEvent, RequestEvent, Reward, Turn
from streams.kafka import admin
from streams.settings.model import Batches, Settings
from streams.stages.tasks.submit import submit
from tests.support.agent_server import serving, settings_of
from tests.support.callers import AGENTS_MAY
from tests.support.commands import invoke
from tests.support.documented import document
from tests.support.factories import task
from tests.support.processes import read, until
from tests.support.rooms import entrances
from tests.support.thoroughness import examples
from tests.unit.test_door import application, paths

pytestmark = pytest.mark.kafka
CLIENT = Path(__file__).parents[3] / "clients" / "python"
SCRIPT = {"replies": [{"when": "azure", "reply": "ultramarine"}, {"when": "?", "reply": "fine"}]}
ROWS = [{"messages": [{"role": "user", "content": f"azure {n} ="}], "answer": str(n)} for n in range(20)]
EXAMPLES = [{"messages": [{"role": "user", "content": "azure"}, {"role": "assistant", "content": "blue"}]}]
QUERIES = [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(12)]
SECRETS = ("azure", "ultramarine", "blue", "monday")
"""What only blue says, in names, contents and keys."""
REDS = ("red", "rita")
"""Who is of tenant red: a key, and a person who has logged in."""
PASSWORD = "correct horse battery"
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


class Names(NamedTuple):
    """What a request can name."""

    job: str
    file: str
    answer: str
    trajectory: str
    agent: str
    policy: str
    key: str
    tenant: str
    task: str


NOBODYS = Names(
    job="0000aaaa-0000-5000-8000-000000000000",
    file=f"file-{3:064x}",
    answer="0000bbbb-0000-5000-8000-000000000001",
    trajectory="nobodys-walk",
    agent="stork",
    policy="grey.coach",
    key="sunday",
    tenant="grey",
    task="nobodys-task",
)


class Tenants(NamedTuple):
    """A server, its keys by who has them, rita's access token among them, and what blue has."""

    settings: Settings
    url: str
    keys: dict[str, str]
    blues: Names

    def ask(self, who: str, method: str, path: str, **how: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.keys[who]}", **how.pop("headers", {})}
        return httpx.request(method, self.url + path, headers=headers, timeout=300, **how)


@pytest.fixture(scope="module")
def tenants(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    folder = tmp_path_factory.mktemp("tenants")
    found = settings_of(kafka_bootstrap, folder, SCRIPT, max_body_mb=1, auth="keys")
    signs = People(signing_key=folder / "signing.pem")
    settings = found.model_copy(update={"batches": Batches(groups=4, max_policy_lag=0), "people": signs})
    admin.apply_topics(settings)
    with AccessLog(settings) as person:
        keys = {who: person.create(role="admin", actor="ann", tenant=who).text for who in ("red", "blue")}
        keys["operator"] = person.create(role="admin", actor="ann").text
        logins.rotate(person, folder / "signing.pem", actor="ann", reason="asked for", revoke=False)
        logins.create_user(person, "rita", PASSWORD, ["admin"], actor="ann", tenant="red")
    with serving(settings) as url:
        entered = httpx.post(f"{url}/auth/login", json={"username": "rita", "password": PASSWORD}, timeout=300)
        made = Tenants(settings, url, {**keys, "rita": entered.json()["access_token"]}, NOBODYS)
        yield made._replace(blues=blues(made))


def blues(server: Tenants) -> Names:
    """Have blue make one of everything; return what it is called."""

    def done(path: str, body: Any = None, **how: Any) -> Any:
        answer = server.ask("blue", "POST", path, json=body, **how)
        assert answer.is_success, answer.text
        return answer.json()

    file = done("/v1/files", **upload(EXAMPLES, "azure.jsonl"))["id"]
    job = done("/finetune/jobs", order(), headers={"Idempotency-Key": "monday"})["id"]
    done("/finetune/peft", {"agent_id": "blue.coach", "training_file": file})
    done("/tasks", {"task_id": "patrol", "input": "azure?"})
    answer = done("/agents/heron/trajectories/long-walk/v1/responses", {"model": "sums", "input": "azure?"})
    turn = answer["id"].removeprefix("resp_")
    return Names(job, file, turn, "long-walk", "heron", "blue.coach", "monday", "blue", "patrol")


def upload(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return {"files": {"file": (name, content)}, "data": {"purpose": "fine-tune"}}


def order(**changes: Any) -> dict[str, Any]:
    return {
        "type": "RL_TRAINING",
        "agent_id": "sums",
        "training_queries": QUERIES,
        "config": {"n_iterations": 3},
        **changes,
    }


# --- what can be asked: every route and method, with everything that a request can name ------------------------------

CHAT = {"model": "sums", "messages": [{"role": "user", "content": "?"}]}
METHODS: dict[str, Callable[[Names], dict[str, Any]]] = {
    "training.start_grpo": lambda n: {**order(agent_id=n.policy), "type": None},
    "training.get_status": lambda n: {"job_id": n.job},
    "training.evaluate": lambda n: {"job_id": n.job},
    "training.export_trajectories": lambda n: {"job_id": n.job},
    "training.list_jobs": lambda n: {"agent_id": n.policy},
    "training.cancel": lambda n: {"job_id": n.job, "idempotency_key": n.key},
    "training.pause": lambda n: {"job_id": n.job},
    "training.resume": lambda n: {"job_id": n.job},
}
BODIES: dict[str, Callable[[Names], Any]] = {
    "/v1/chat/completions": lambda n: CHAT,
    "/v1/completions": lambda n: {"model": "sums", "prompt": "?"},
    "/v1/responses": lambda n: {"model": "sums", "input": "?", "previous_response_id": f"resp_{n.answer}"},
    "/v1/messages": lambda n: {**CHAT, "max_tokens": 9},
    "/v1/messages/count_tokens": lambda n: CHAT,
    "/v1/feedback": lambda n: {"id": n.answer, "value": 1},
    "/v1/fine_tuning/jobs": lambda n: {
        "model": "sums",
        "training_file": n.file,
        "method": {"type": "reinforcement", "reinforcement": {"grader": {}}},
    },
    "/finetune/jobs": lambda n: order(tenant=n.tenant),
    "/finetune/peft": lambda n: {"agent_id": n.policy, "training_file": n.file},
    "/tasks": lambda n: {"task_id": f"{n.task}-sent", "input": "?"},
    "/rewards": lambda n: {"task_id": n.task, "score": 1, "scoring_agent_id": "ann", "response_id": n.answer},
    "/score": lambda n: {"scorer": "exact", "texts": ["11"], "answer": "11"},
    "/query": lambda n: {"sql": "SELECT task_id FROM tasks"},
    "/adapters/{policy}/promote": lambda n: {"version": 0, "expected": 0, "reason": "better"},
    "/adapters/{policy}/reject": lambda n: {"version": 0, "reason": "worse"},
    "/adapters/{policy}/retire": lambda n: {"version": 1, "reason": "worse"},
    "/adapters/{policy}/rollback": lambda n: {"expected": 0, "reason": "worse"},
    "/jsonrpc": lambda n: [
        {"jsonrpc": "2.0", "method": name, "params": given(n), "id": name} for name, given in METHODS.items()
    ],
}
MORE: tuple[tuple[str, str, Callable[[Names], Any]], ...] = (
    ("POST", "/finetune/peft", lambda n: {"agent_id": "red.coach", "config": {"groups_of": n.policy}}),
    ("POST", "/finetune/peft", lambda n: {"agent_id": "red.coach", "training_file": n.file}),
    ("POST", "/v1/feedback", lambda n: {"id": n.trajectory, "value": 1}),
    ("POST", "/tasks", lambda n: {"input": "?", "tenant": n.tenant}),
    ("POST", "/tasks", lambda n: {"input": "?", "policy": n.policy}),
    ("POST", "/rewards", lambda n: {"task_id": f"{n.tenant}.{n.task}", "score": 1, "scoring_agent_id": "ann"}),
    ("GET", "/groups/{tenant}.{task_id}", lambda n: None),
    ("GET", "/adapters?policy={policy}", lambda n: None),
    ("POST", "/finetune/jobs", lambda n: order(agent_id=n.policy)),
    ("POST", "/finetune/jobs", lambda n: order(config={"n_iterations": 4})),  # with the same key as another's
    ("GET", "/v1/fine_tuning/jobs?after={job}", lambda n: None),
    ("GET", "/v1/files?after={file}", lambda n: None),
)


class Question(NamedTuple):
    """One request, for whatever names it is given."""

    method: str
    path: str
    body: Callable[[Names], Any]

    def asked(
        self, server: Tenants, names: Names, who: str = "red", headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """Return status and body of the answer, with what differs from one request to the next taken out."""
        path = self.path.replace("{job_id}", names.job).replace("{file_id}", names.file)
        path = path.replace("{agent_id}", names.agent).replace("{trajectory_id}", names.trajectory)
        path = path.replace("{policy}", names.policy).replace("{tenant}", names.tenant).replace("{task_id}", names.task)
        path = path.replace("{name}", names.policy).replace("{job}", names.job).replace("{file}", names.file)
        path = path.replace("{policy}", names.policy).replace("{task_id}", names.trajectory)
        path = path.replace("{label}", "turns").replace("{partition}/{offset}", "0/0")
        how: dict[str, Any] = {
            "headers": {"Idempotency-Key": names.key, "X-Stainless-Retry-Count": "1", **(headers or {})}
        }
        if (body := self.body(names)) is not None:
            how["json"] = body
        answer = server.ask(who, self.method, path, **how)
        text = answer.text
        for name, value in names._asdict().items():
            text = text.replace(value, f"<{name}>")
        return answer.status_code, re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", ID.sub("<id>", text))


def questions() -> list[Question]:
    app = application()
    found = set(paths(app.routes))
    every = []
    for method, path in sorted(found):
        if method == "HEAD" or path == "/healthz":
            continue
        bare = re.sub(r"^(?:/api/v1|/agents/\{agent_id\}(?:/trajectories/\{trajectory_id\})?)(?=/)", "", path)
        every.append(Question(method, path, BODIES.get(bare, lambda n: None)))
    return [*every, *(Question(*one) for one in MORE)]


QUESTIONS = questions()


def test_every_method_is_asked() -> None:
    assert set(METHODS) == set(jobs.ACTIONS)
    asked = {question.path for question in QUESTIONS} | {"/healthz"}
    assert asked >= set(application().openapi()["paths"]) | {"/jsonrpc"}


def without_names(server: Tenants, answer: tuple[int, str]) -> tuple[int, str]:
    status, text = answer
    for names in (NOBODYS, server.blues):
        for name, value in names._asdict().items():
            text = text.replace(value, f"<{name}>")
    return status, text


def is_told_nothing(server: Tenants, question: Question, names: Names, who: str) -> None:
    """Names are left out of both answers: a tenant may have called things of its own so, in an earlier question."""
    nobodys = question.asked(server, NOBODYS, who)
    said = question.asked(server, names, who)
    assert without_names(server, said) == without_names(server, nobodys), question
    assert said[0] < 500, question
    assert not [word for word in SECRETS if word in said[1]], question


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: f"{one.method} {one.path}")
def test_what_another_tenant_has_is_what_nobody_has(tenants: Tenants, question: Question) -> None:
    for who in REDS:
        is_told_nothing(tenants, question, tenants.blues, who)


ENTRANCES = entrances()


def test_a_token_of_ours_for_another_audience_opens_no_entrance(tenants: Tenants) -> None:
    path = tenants.settings.of_plugin(People).signing_key
    assert path is not None
    key, token = tokens.read_private_key(path.read_bytes(), path), tenants.keys["rita"]
    claims, head = jwt.decode(token, options={"verify_signature": False}), jwt.get_unverified_header(token)
    for audience, accepted in ((claims["aud"], True), ("other", False), (["other"], False), ("", False)):
        signed = jwt.encode(claims | {"aud": audience}, key.private, "ES256", headers=head)
        who = tenants._replace(keys={**tenants.keys, "rita": signed})
        refused = {path for path in ENTRANCES if who.ask("rita", "POST", path, json={}).status_code == 401}
        assert refused == (set() if accepted else {*ENTRANCES}), audience


OF_ONE_WALK = {"agent", "trajectory"}
"""A tenant's own trajectory, of an earlier question, is refused to another agent."""


@hypothesis_settings(max_examples=examples(25))
@given(st.data())
def test_no_other_way_of_naming_it_tells_more(tenants: Tenants, data: st.DataObject) -> None:
    question = data.draw(st.sampled_from(QUESTIONS))
    kept = data.draw(st.sets(st.sampled_from(Names._fields)))
    if kept & OF_ONE_WALK:
        kept |= OF_ONE_WALK
    cut = data.draw(st.sampled_from([None, 8]))
    changed = {field: getattr(tenants.blues, field)[: cut if field in ("job", "answer") else None] for field in kept}
    is_told_nothing(tenants, question, NOBODYS._replace(**changed), data.draw(st.sampled_from(REDS)))


def test_a_key_of_an_agent_is_refused_whatever_is_no_agents_also_if_it_says_which_agent_it_is(tenants: Tenants) -> None:
    with AccessLog(tenants.settings) as person:
        key = person.create(role="admin", actor="ann", agent_id=tenants.blues.agent).text
    bound = tenants._replace(keys={"bound": key})
    until_known(bound, "bound")
    refused = 0
    for question in QUESTIONS:
        for path in {question.path, question.path.replace("{agent_id}", "other")}:
            match = TABLE.find(question.method, path.partition("?")[0])
            assert match is not None
            if match.route.is_open or question.path.endswith("/jsonrpc"):  # each call of a batch is decided by itself
                continue
            if match.route.may in AGENTS_MAY and match.parameters.get("agent_id") != "other":
                continue
            status, text = question._replace(path=path).asked(bound, tenants.blues, "bound", {"X-Agent-ID": "heron"})
            assert (status, "may only act as agent" in text) == (403, True), (question.method, path, text)
            refused += 1
    assert refused > len(QUESTIONS) / 2


def test_a_person_has_what_a_key_of_the_same_tenant_has(tenants: Tenants) -> None:
    file = tenants.ask("red", "POST", "/v1/files", **upload(ROWS[:2], "reds.jsonl")).json()
    for path in ("/v1/files", f"/v1/files/{file['id']}", "/v1/fine_tuning/jobs", "/v1/models"):
        by_key, by_person = (tenants.ask(who, "GET", path).json() for who in REDS)
        assert by_key == by_person
    assert tenants.ask("rita", "DELETE", f"/v1/files/{file['id']}").is_success
    assert tenants.ask("red", "GET", f"/v1/files/{file['id']}").status_code == 404


def test_blue_has_everything_as_it_was_and_the_operator_sees_it_all(tenants: Tenants) -> None:
    for who in ("blue", "operator"):
        found = tenants.ask(who, "GET", f"/v1/fine_tuning/jobs/{tenants.blues.job}").json()
        assert (found["status"], found["organization_id"]) == ("queued", "blue")
        assert tenants.ask(who, "GET", f"/v1/files/{tenants.blues.file}/content").text.startswith('{"messages"')
        listed = tenants.ask(who, "GET", "/v1/fine_tuning/jobs?limit=1000").json()["data"]
        assert tenants.blues.job in [one["id"] for one in listed]
        assert {one["organization_id"] for one in listed} >= {"blue"} and (len(listed) == 2) == (who == "blue")
    assert {event.tenant for _, event in read(tenants.settings, JobEvent)} <= {"red", "blue"}
    assert {turn.agent_id.partition(".")[0] for _, turn in read(tenants.settings, Turn)} <= {"red", "blue"}
    assert read(tenants.settings, Reward) == []


@pytest.mark.parametrize("by", [None, "job", "policy,month", "session", "tenant", "tenant,month"])
def test_costs_are_summed_for_each_key_by_whatever_it_asks(tenants: Tenants, by: str | None) -> None:
    query = "" if by is None else f"?by={by}"
    for who in ("operator", "blue", "red"):
        answer = tenants.ask(who, "GET", f"/costs{query}")
        assert answer.status_code == 200, (who, answer.text)
        rows = answer.json()["data"]
        assert {row["tenant"] for row in rows} <= {who} or who == "operator"
        assert rows or who == "red"


def test_a_tenant_names_only_scorers_that_the_operator_allows_in_jobs_and_tasks(tenants: Tenants) -> None:
    judged = [{"name": "judge", "settings": {"rubric": "Is it polite?"}}]
    sources: dict[str, Any] = {"reward_sources": judged}
    job = tenants.ask("red", "POST", "/finetune/jobs", json=order(config={"n_iterations": 3, **sources}))
    task = tenants.ask("red", "POST", "/tasks", json={"input": "?", **sources})
    assert (job.status_code, task.status_code) == (400, 403)
    for answer in (job, task):
        assert "scorer 'judge' is none that tenants may name; serve.tenant_scorers allows exact" in answer.text


def test_what_was_asked_is_in_the_log_without_a_body_or_a_key(tenants: Tenants) -> None:
    chat = {"model": "sums", "messages": [{"role": "user", "content": "azure?"}]}
    assert tenants.ask("blue", "POST", "/agents/owl/v1/chat/completions", json=chat).is_success
    key_id = tenants.keys["blue"].split("_")[1]

    def owls() -> list[RequestEvent]:
        return [one for _, one in read(tenants.settings, RequestEvent) if one.agent_id == "owl"]

    until(owls, "an event of the request")
    [event] = owls()
    assert (event.subject_id, event.tenant, event.role, event.action) == (key_id, "blue", "admin", "chat.call")
    assert (event.allowed, event.status, event.method) == (True, 200, "POST")
    assert event.prompt_tokens and event.completion_tokens
    raw = b"".join(record.payload or b"" for record in admin.read_topic(tenants.settings, "requests"))
    for hidden in (*(key[-40:] for key in tenants.keys.values()), "azure", "ultramarine"):
        assert hidden.encode() not in raw

    def printed(*args: str) -> list[dict[str, Any]]:
        found = invoke(tenants.settings, "admin", "access", "audit", "--output", "jsonl", *args)
        assert found.exit_code == 0, found.output
        return [json.loads(line)["event"] for line in found.stdout.splitlines()]

    assert {one["tenant"] for one in printed("--tenant", "blue", "--since", "1h")} == {"blue"}
    assert {one["allowed"] for one in printed("--denied")} <= {False}
    assert {one["subject_id"] for one in printed("--key", key_id)} == {key_id}
    sql = "SELECT tenant, requests > 0, completion_tokens > 0 FROM key_use WHERE tenant = 'blue' AND name IS NULL"
    used = invoke(tenants.settings, "query", "--output", "csv", sql)
    assert used.stdout.splitlines()[1:] == ["blue,true,true"], used.output


def test_the_same_bytes_of_two_tenants_are_two_files(tenants: Tenants) -> None:
    sent = upload(EXAMPLES, "mine.jsonl")
    reds = tenants.ask("red", "POST", "/v1/files", **sent).json()
    assert (reds["id"] != tenants.blues.file, reds["filename"]) == (True, "mine.jsonl")
    assert [one["id"] for one in tenants.ask("red", "GET", "/v1/files").json()["data"]] == [reds["id"]]
    assert len(tenants.ask("operator", "GET", "/v1/files").json()["data"]) == 2
    assert tenants.ask("red", "DELETE", f"/v1/files/{reds['id']}").is_success
    assert tenants.ask("blue", "GET", f"/v1/files/{tenants.blues.file}").is_success


def test_an_answer_is_continued_and_rated_by_whoever_it_is_of_alone(tenants: Tenants) -> None:
    more = {"model": "sums", "input": "?", "previous_response_id": f"resp_{tenants.blues.answer}"}
    assert tenants.ask("red", "POST", "/agents/heron/v1/responses", json=more).status_code == 404
    assert tenants.ask("blue", "POST", "/agents/heron/v1/responses", json=more).is_success
    with AccessLog(tenants.settings) as person:
        key = person.create(role="submitter", actor="ann", tenant="blue", agent_id="other").text
    other = tenants._replace(keys={"other": key})
    until_known(other, "other")
    found = other.ask("other", "POST", "/agents/other/v1/responses", json=more)
    assert (found.status_code, found.json()["error"]["param"]) == (404, "previous_response_id")


def until_known(server: Tenants, who: str) -> None:
    """Return once the server, which follows the log of keys, has read of this one."""
    until(lambda: server.ask(who, "GET", "/v1/models").status_code != 401, "the server knows the key")


def test_runs_of_an_agent_and_its_programs_send_the_key_of_their_server(tenants: Tenants, tmp_path: Path) -> None:
    with AccessLog(tenants.settings) as person:
        key = person.create(role="submitter", actor="ann", agent_id="adder").text
    until_known(tenants._replace(keys={"adder": key}), "adder")
    code = """if True:
        import json, os, urllib.request
        body = json.dumps({"model": "sums", "messages": [{"role": "user", "content": "?"}]}).encode()
        headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()"""
    program = AgentProcess(command=(sys.executable, "-S", "-c", code))
    submit(tenants.settings, [task(task_id="keyed", policy="sums", agent="adder", purpose="eval", group_size=2)])
    plan = AgentPlan(
        agent_id="adder",
        work=lambda _: AgentWork(partial(run_process, program)),
        server=tenants.url,
        key=SecretStr(key),
        parallel=2,
        folder=tmp_path,
        until_done=True,
    )
    assert run(tenants.settings, plan, stop=threading.Event()) == {"completed": 2}


def test_a_server_describes_itself_by_the_words_of_the_committed_description(tenants: Tenants) -> None:
    served, committed = tenants.ask("operator", "GET", "/openapi.json").json(), document()
    assert {*committed["paths"]} - {*served["paths"]} == {"/auth/oidc/login", "/auth/oidc/callback"}
    assert all(committed["paths"][path] == said for path, said in served["paths"].items())


# --- the client in clients/python ------------------------------------------------------------------------------------


def test_the_example_of_the_python_client_asks_orders_looks_and_reads_an_error(tenants: Tenants) -> None:
    where = {"STREAMWARD_URL": tenants.url, "STREAMWARD_KEY": tenants.keys["operator"], "PYTHONPATH": str(CLIENT)}
    example = [sys.executable, str(CLIENT / "examples" / "order_job.py")]
    done = subprocess.run(example, env=where, capture_output=True, text=True, timeout=300)
    said = ID.sub("ID", done.stdout).splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert said[0].startswith("sums@0 says ") and said[1] == "job ID is queued"
    assert said[2] == f"404 not_found: {JOBS_LISTED}"


def test_the_python_client_does_the_same_in_asyncio_and_says_who_may(tenants: Tenants) -> None:
    async def asked() -> str:
        async with AsyncClient(tenants.url, tenants.keys["red"]) as client:
            await client.upload_file(("azure.jsonl", json.dumps(EXAMPLES[0]).encode()), "fine-tune")
            found = (await client.list_files(limit=1))["data"][0]
            content = await client.get_file_content(found["id"])
            await client.delete_file(found["id"])
            with pytest.raises(ApiError, match="is of a tenant") as raised:
                await client.try_environment({"environment": "calculator"})
            assert (raised.value.status, raised.value.code) == (403, "permission_denied")
            return content.decode()

    assert asyncio.run(asked()) == json.dumps(EXAMPLES[0])
