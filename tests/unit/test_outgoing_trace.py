"""Requests to other servers have the trace of the operation that makes them, whichever module makes them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import JSONResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from gateway.http.door import Door
from gateway.http.limits import KeyLimits
from gateway.rooms.routes import TABLE
from plugins.agents.runs.agent_runner import AgentPlan, AgentRunner, AgentWork, TaskAttempt, WaitingPolicy
from plugins.data.synthetic_rows import AnswerModel
from plugins.environments.adapters.mcp_env import McpEnvironment
from plugins.environments.adapters.openenv_env import OpenEnvEnvironment
from plugins.environments.adapters.single_tool_env import UrlTool
from plugins.environments.environment_pool import EnvironmentPool
from plugins.environments.episodes.environment import Action
from plugins.environments.settings import Environments
from plugins.guardrails.rules.outside import ModerationEndpoint
from plugins.improve.datasets.provider_api import ProviderApi
from plugins.knowledge.embedders.server_vectors import ServerVectors
from plugins.people.logins.oidc import Issuer
from plugins.people.settings import People
from plugins.threads.acp.run_actions import RunActions
from plugins.tools.registry.remote_agent import RemoteAgent
from schemas.events import Coordinates, EpisodeStart, OutsideModel, Task, Tool, ToolCall
from streams.adapters.admission.sampling_batch import WaitingTask
from streams.egress import trace_headers, within_trace
from streams.egress.http_client import new_client
from streams.engines.outside.outside_model import OutsideModels
from streams.engines.protocol import Completion, SamplingRequest
from streams.engines.task_guard import GuardedAnswers, GuardedRequest, TaskGuard
from streams.engines.vllm.launch import wait_until_up
from streams.engines.vllm.servers import VllmServers
from streams.errors import RefusedError
from streams.observability.trace_context import parse
from streams.scorers.judge_client import JudgeClient, JudgeQuestion
from streams.settings.model import Outside, Policy, Scoring, Serve
from streams.stages.policy.rounds import BegunRound, PolicyRounds
from tests.import_graph import sources
from tests.lint.test_one_way_out import called
from tests.support.callers import BEARER, Known
from tests.support.doubles import plain_mcp
from tests.support.doubles.loopback_http import serving
from tests.support.factories import task

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-00"
FAR = Tool(name="t", description="d", parameters="{}")
TOOL = {"name": "t", "description": "d", "parameters": {"type": "object"}}


@pytest.fixture
def server() -> Iterator[tuple[str, list[str | None]]]:
    """A server on loopback, and the `traceparent` of each request: OpenEnv's /schema, MCP's /mcp, and 404."""
    traces: list[str | None] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            traces.append(self.headers["traceparent"])
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
            status, answer = 404, dict[str, Any]()
            if self.path in ("/schema", "/metadata"):
                status, answer = 200, {"action": {"properties": {"a": {"type": "string"}}}}
            elif self.path == "/mcp" and self.command == "POST":
                status = 200 if "id" in request else 202
                method, parameters = request["method"], request.get("params") or {}
                tools = [plain_mcp.described("add")]
                answer = {"jsonrpc": "2.0", "id": request.get("id"), **plain_mcp.answer(method, parameters, tools)}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with serving(Answers) as address:
        yield f"http://{address}", traces


def ask_vllm_until_up(url: str) -> None:
    class Ended:
        polls = 0

        def poll(self) -> int | None:
            self.polls += 1
            return None if self.polls == 1 else 1

    stop = threading.Event()
    stop.set()
    wait_until_up(url, Ended(), None, stop)  # type: ignore[arg-type]


def ask_vllm(url: str) -> None:
    (server,) = VllmServers(Policy(engine="vllm", servers=url)).servers
    server.ask("GET", "/health")


def ask_outside_model(url: str) -> None:
    models = OutsideModels(Outside(url=url, retries=0))
    request = SamplingRequest(sampling_id="s", task=task(), trace=parse(trace_headers().get("traceparent")))
    models.sample(OutsideModel(url=url, model="m"), [request])
    models.close()


def ask_model_of_rows(url: str) -> None:
    with new_client() as client:
        AnswerModel(client, url, "m", None).ask([])


USERS: dict[str, Callable[[str], object]] = {
    "plugins/data/commands.py": ask_model_of_rows,
    "plugins/environments/adapters/mcp_env.py": lambda url: McpEnvironment(f"{url}/none", "p"),
    "plugins/environments/adapters/openenv_env.py": lambda url: OpenEnvEnvironment(url).reset(0),
    "plugins/environments/adapters/single_tool_env.py": lambda url: UrlTool(url, **TOOL)._invoke("t", {}),
    "plugins/guardrails/rules/outside.py": lambda url: ModerationEndpoint(url, "", None, 5).scores("text"),
    "plugins/improve/datasets/provider_api.py": lambda url: ProviderApi(url, None).find_job("k"),
    "plugins/knowledge/embedders/server_vectors.py": lambda url: ServerVectors(url, "m").embed(["text"]),
    "plugins/people/logins/oidc.py": lambda url: Issuer(People().model_copy(update={"oidc_issuer": url})).begin(),
    "plugins/tools/registry/remote_agent.py": lambda url: RemoteAgent(url, "", 5).offer(FAR),
    "streams/engines/outside/outside_model.py": ask_outside_model,
    "streams/engines/vllm/launch.py": ask_vllm_until_up,
    "streams/engines/vllm/servers.py": ask_vllm,
    "streams/scorers/judge_client.py": lambda url: JudgeClient(Scoring(judge_url=url, judge_model="m")).ask(
        JudgeQuestion(text="q", max_tokens=1, limit="")
    ),
}  # fmt: skip
"""A request of each module that makes a client."""


def test_every_module_that_makes_a_client_is_tried_here() -> None:
    makes = {"new_client", "new_async_client", "open_socket"}
    users = {source.path for source in sources() if called(source) & makes}
    assert {path for path in users if not path.startswith("streams/egress/")} == USERS.keys()


@pytest.mark.parametrize("path", USERS)
def test_a_request_of_a_module_has_the_trace_around_it_and_none_without(
    path: str, server: tuple[str, list[str | None]]
) -> None:
    url, traces = server
    with suppress(Exception), within_trace(TRACE):  # the answer is 404: each module has an error of its own for it
        USERS[path](url)
    assert traces and set(traces) == {TRACE}
    traces.clear()
    with suppress(Exception):
        USERS[path](url)
    assert traces and set(traces) == {None}


def test_a_header_that_a_caller_sets_stays(server: tuple[str, list[str | None]]) -> None:
    url, traces = server
    with within_trace(TRACE), new_client() as client:
        client.get(url, headers={"traceparent": OTHER})
    assert traces == [OTHER]


def test_each_step_of_an_environment_in_its_process_has_the_trace_of_its_caller(
    server: tuple[str, list[str | None]],
) -> None:
    url, traces = server
    settings = json.dumps({"prompt": "p"})
    with closing(EnvironmentPool(Environments(servers=f"mcp:{url}/mcp", network=True))) as pool:
        with within_trace(TRACE):
            environment = pool.open(EpisodeStart(name=f"mcp:{url}/mcp", settings=settings, seed=0))
            environment.reset(0)
        assert traces and set(traces) == {TRACE}
        action = Action("", (ToolCall(id="1", name="add", arguments='{"a": 1, "b": 2}'),))
        for trace in (OTHER, None):
            traces.clear()
            with within_trace(trace):
                environment.step(action)
            assert traces == [trace], "the same session, whose connection began in another trace"


# --- operations -------------------------------------------------------------------------------------------------------


def test_what_a_request_to_our_server_calls_has_its_trace() -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse(await asyncio.to_thread(trace_headers))(scope, receive, send)

    http = TestClient(Door(application, TABLE, Known("admin"), KeyLimits(Serve())))
    traced = BEARER | {"traceparent": TRACE}
    assert http.get("/auth/permissions", headers=traced).json() == {"traceparent": TRACE}
    assert http.get("/auth/permissions", headers=BEARER).json() == {}


def test_a_tool_of_a_run_is_called_in_the_trace_of_the_request_that_began_the_run() -> None:
    async def refused(*_: Any) -> Any:
        raise AssertionError

    async def call() -> dict[str, str]:
        actions = RunActions(refused, refused, refused)  # type: ignore[arg-type]
        with within_trace(TRACE):
            return cast(dict[str, str], await actions._apart(trace_headers))

    assert asyncio.run(call()) == {"traceparent": TRACE}


def test_a_guard_of_tasks_looks_at_each_in_its_own_trace() -> None:
    seen: list[str | None] = []

    class Looks(TaskGuard):
        def admit(self, request: SamplingRequest) -> GuardedRequest:
            seen.append(trace_headers().get("traceparent"))
            return GuardedRequest(request)

        def review(self, request: SamplingRequest, completions: list[Completion]) -> GuardedAnswers:
            seen.append(trace_headers().get("traceparent"))
            return GuardedAnswers(completions)

    rounds = object.__new__(PolicyRounds)
    rounds._guard = Looks()
    requests = [SamplingRequest(sampling_id="s", task=task(), trace=trace) for trace in (parse(TRACE), None)]
    guarded = [rounds._admit(request) for request in requests]
    rounds._review(cast(BegunRound, SimpleNamespace(guarded=guarded)), [[], []])
    assert seen == [TRACE, None] * 2


@pytest.mark.parametrize("where", ["record", "task", "none"])
def test_an_agent_works_in_the_trace_of_its_task(where: str) -> None:
    seen: list[str | None] = []

    def work(_: Task) -> AgentWork:
        seen.append(trace_headers().get("traceparent"))
        raise RefusedError("seen")

    runner = object.__new__(AgentRunner)
    runner._nonce, runner._plan = "n", cast(AgentPlan, SimpleNamespace(agent_id="a", work=work))
    given = task(traceparent=TRACE if where == "task" else None)
    waiting = WaitingTask(given, Coordinates("tasks", 0, 0), None, 0, parse(TRACE) if where == "record" else None)
    runner._run(TaskAttempt(cast(WaitingPolicy, None), waiting, "s", deque()), 0)
    assert seen == [None if where == "none" else TRACE]
