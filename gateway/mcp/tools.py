"""The tools of our MCP server: routes of the server, under the names that an assistant calls.

    TOOLS ──► the route of each ──► JSON Schema of its input: what path, query and body of the route take
    arguments ──► ToolRequest: method, path, query, body ──► the server, as any request

So a tool may do what its caller's key may, refuses in the same words, and leaves the same event of its request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from pydantic import BaseModel
from starlette.routing import compile_path

from gateway.agents.protocols import AgentProtocols
from gateway.http.mcp_paths import Toolset
from gateway.http.route import DECLARED, Route
from gateway.jobs import rpc
from gateway.jobs.job_costs import JobCosts
from gateway.jobs.rest import TrainingJobs
from gateway.jobs.rpc import EvaluateParameters, JsonRpc
from gateway.log.adapters import PublishedAdapters
from gateway.log.dataset_list import BuiltDatasets
from gateway.log.groups import TaskGroups
from gateway.log.recorded_runs import RecordedRuns
from gateway.log.rewards import OutsideRewards
from gateway.log.run_verdicts import RunVerdictRoutes
from gateway.log.scores import ScorerTrials
from gateway.log.statements import Statements
from gateway.log.tasks import SentTasks
from schemas.faults import excerpt_of
from schemas.json_arguments import from_json_texts
from streams.access.roles import Action
from streams.errors import CallError

CONTROL: tuple[Toolset, ...] = ("log", "control")
SCORING: tuple[Toolset, ...] = ("log", "scoring")
NOT_FOR_TOOLS = frozenset({"stream", "stream_options"})
"""Fields of a body that a tool does not have: it answers once."""
MOST_TASKS = 100
EXCERPT = 40
"""Most characters of a wrong argument in a message."""


def in_path(name: str, parameter: str) -> str:
    """Return a name as a part of a path. Raises CallError for one that would lead to another route.

    A quoted slash is a slash again where it is read, and clients of HTTP drop `.` and `..`.
    """
    if name in (".", "..") or "/" in name:
        raise CallError("not_found", f"nothing has the {parameter} {name[:80]!r}; a name has no slash", parameter)
    return quote(name, safe="")


class ToolRequest(NamedTuple):
    """A request to the server."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes | None


@dataclass(frozen=True)
class LogTool:
    """A tool: a route, and its description for an assistant."""

    name: str
    answers: Callable[..., Any]
    """The method of a room that answers it."""
    description: str
    toolsets: Sequence[Toolset] = ("log",)
    changes: bool = False
    """Whether something is different afterwards."""
    list_name: str = ""
    """The argument that has a list of bodies, each of which is a request; empty: the arguments are one."""

    @property
    def route(self) -> Route:
        """The route that answers."""
        route: Route = getattr(self.answers, DECLARED)
        return route

    @property
    def may(self) -> Action:
        """The action that the caller's role has to allow."""
        return cast(Action, self.route.may)  # no tool logs people in

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of its arguments."""
        schema = _merge_schemas(self._path_names, self._models)
        if not self.list_name:
            return schema
        bodies = {"type": "array", "items": schema, "minItems": 1, "maxItems": MOST_TASKS}
        definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
        return _object({self.list_name: bodies}, [self.list_name]) | definitions

    def requests(self, arguments: Mapping[str, Any]) -> list[ToolRequest]:
        """Return the requests that a call is. Raises CallError for arguments that the tool does not have."""
        self._check_names(arguments)
        arguments = from_json_texts(arguments, self.input_schema)
        if not self.list_name:
            return [self.request(arguments)]
        bodies = arguments.get(self.list_name)
        if not isinstance(bodies, list) or not 1 <= len(bodies) <= MOST_TASKS:
            got = f" (got {excerpt_of(bodies, EXCERPT)!r})" if isinstance(bodies, str) else ""
            problem = f"tool {self.name} needs {self.list_name}, a list of 1 to {MOST_TASKS} objects{got}"
            raise CallError("invalid", problem, self.list_name)
        if not all(isinstance(body, dict) for body in bodies):
            raise CallError("invalid", f"tool {self.name}: each of {self.list_name} is an object", self.list_name)
        return [self.request(body) for body in bodies]

    def request(self, arguments: Mapping[str, Any]) -> ToolRequest:
        """Return one request with these arguments."""
        rest = dict(arguments)
        path = self.route.paths[0]
        for name in self._path_names:
            value = rest.pop(name, None)
            if not isinstance(value, str) or not value:
                raise CallError("invalid", f"tool {self.name} needs {name}, a text", name)
            path = path.replace("{" + name + "}", in_path(value, name))
        if self.route.takes_json:
            return ToolRequest(self.route.method, path, {}, self._body(rest))
        return ToolRequest(self.route.method, path, _query(rest), None)

    @property
    def _path_names(self) -> tuple[str, ...]:
        return tuple(compile_path(self.route.path)[2])

    @property
    def _models(self) -> list[type[BaseModel]]:
        return [model for model in (self.route.query, self.route.takes) if model is not None]

    def _body(self, fields: Mapping[str, Any]) -> bytes:
        return json.dumps(fields).encode()

    def _check_names(self, arguments: Iterable[str]) -> None:
        names = self.input_schema["properties"]
        for name in arguments:
            if name not in names:
                problem = f"tool {self.name} has no argument {name[:80]!r}, only {', '.join(names) or 'none'}"
                raise CallError("invalid", problem, name[:80])


@dataclass(frozen=True)
class RpcTool(LogTool):
    """A tool that is a method of JSON-RPC."""

    answers: Callable[..., Any] = JsonRpc.call_jsonrpc
    description: str = ""
    method: str = ""
    parameters: type[BaseModel] = EvaluateParameters

    @property
    def may(self) -> Action:
        """The action that the caller's role has to allow."""
        return rpc.ACTIONS[self.method]

    @property
    def _models(self) -> list[type[BaseModel]]:
        return [self.parameters]

    def _body(self, fields: Mapping[str, Any]) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": self.method, "params": fields}).encode()


TOOLS: tuple[LogTool, ...] = (
    LogTool(
        "submit_tasks",
        SentTasks.submit_task,
        "Submit tasks: questions that the policy answers and scorers judge. Each has the fields of POST /tasks.",
        changes=True,
        list_name="tasks",
    ),
    LogTool(
        "query_log",
        Statements.query_log,
        "Ask the log in SQL (DuckDB): one statement that reads. `SHOW TABLES` lists the views.",
    ),
    LogTool(
        "show_group",
        TaskGroups.get_group,
        "Show the answers to a task side by side, with their rewards.",
    ),
    LogTool(
        "why_dropped",
        TaskGroups.get_group,
        "Say what the group of a task taught, or why it taught nothing: see `verdict` and `why`.",
    ),
    LogTool("list_runs", RecordedRuns.list_runs, "List served runs, the newest first, with their figures."),
    LogTool("show_run", RecordedRuns.get_run, "Show a run: turns, tool calls, scores and verdict."),
    LogTool("list_datasets", BuiltDatasets.list_datasets, "List the data sets that were built, and from what."),
    LogTool("judge_run", RunVerdictRoutes.judge_run, "Give a run a person's verdict, with the reason.", changes=True),
    LogTool("list_versions", PublishedAdapters.list_adapters, "List policies and their adapter versions.", CONTROL),
    LogTool("promote", PublishedAdapters.promote_adapter, "Make a version of a policy primary.", CONTROL, changes=True),
    LogTool(
        "reject",
        PublishedAdapters.reject_adapter,
        "Reject a version for good.",
        CONTROL,
        changes=True,
    ),
    LogTool("roll_back", PublishedAdapters.rollback_adapter, "Return to an earlier version.", CONTROL, changes=True),
    LogTool("start_job", TrainingJobs.create_training_job, "Order a training job.", CONTROL, changes=True),
    LogTool("job_status", TrainingJobs.get_training_job, "Say how far a job is.", CONTROL),
    LogTool("job_metrics", TrainingJobs.get_training_metrics, "Show the curves and evaluations of a job.", CONTROL),
    LogTool("costs", JobCosts.list_costs, "Sum what jobs used and cost.", CONTROL),
    RpcTool(
        name="evaluate",
        description="Measure a version that a job made on the questions that the job holds out.",
        toolsets=CONTROL,
        changes=True,
        method="training.evaluate",
    ),
    LogTool("score", ScorerTrials.try_scorer, "Say what a scorer gives texts, and write nothing.", SCORING),
    LogTool(
        "record_reward",
        OutsideRewards.give_reward,
        "Record a score from outside for an answer to a task.",
        SCORING,
        changes=True,
    ),
    LogTool(
        "ask",
        AgentProtocols.create_chat_completion,
        "Ask a version of a policy.",
        ("policy",),
        changes=True,
    ),
)


def tools_of(toolset: Toolset, actions: frozenset[Action] | None = None) -> list[LogTool]:
    """Return the tools of a set that these actions allow; None: all of them."""
    return [tool for tool in TOOLS if toolset in tool.toolsets and (actions is None or tool.may in actions)]


def _merge_schemas(path_names: Sequence[str], models: Iterable[type[BaseModel]]) -> dict[str, Any]:
    """Return one object with the parameters of a path and the fields of these models."""
    properties: dict[str, Any] = {name: {"type": "string"} for name in path_names}
    required: list[str] = list(path_names)
    definitions: dict[str, Any] = {}
    for model in models:
        schema = model.model_json_schema()
        properties |= {name: part for name, part in schema["properties"].items() if name not in NOT_FOR_TOOLS}
        required += schema.get("required", [])
        definitions |= schema.get("$defs", {})
    return _object(properties, required) | ({"$defs": definitions} if definitions else {})


def _object(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _query(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters of a query as it has them."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in fields.items()
        if value is not None
    }
