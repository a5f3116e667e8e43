"""A route is declared once, on the function that answers it; everything else is derived from that.

    @REST.post("/adapters/{policy}/promote", may="adapters.promote", sends={…}, example=DECISION)
    def promote_adapter(self, request: Request, policy: str, body: PromoteBody) -> AdapterDecisionAnswer:
        '''Make a version primary.'''

    Route ──► RouteTable: what the door lets in, and the dialect of errors    Application: how its body is read
          └─► openapi.py: the operation, its types, statuses and examples

The functions are methods of a class that holds what they need. A method is named as its operation, its
docstring describes it, and its types are those of the body and the answer. It may take `request`, `body` (read), `raw`
(the bytes), `query`, and each parameter of its path by name. One that is not `async` runs in a thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from types import UnionType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from starlette.requests import HTTPConnection
from starlette.routing import compile_path

from gateway.http import errors
from gateway.http.body import Answer, PathQuery
from gateway.http.errors import Dialect
from schemas.older_forms import PATHS, OlderForm, OlderPaths, older_form
from streams.access.roles import Action
from streams.errors import CallError

T = TypeVar("T", bound=Answer)
H = TypeVar("H", bound=Callable[..., Any])
LoginAction = Literal["auth.login", "auth.refresh", "auth.logout", "auth.oidc"]
"""Logins and logouts, which need no key; the action in the event of such a request."""
May = Action | LoginAction | None
"""The right that a role needs; None: open to all."""
LOGIN_ACTIONS: tuple[LoginAction, ...] = get_args(LoginAction)
DECLARED = "declared_route"
"""The attribute of a function that answers a route."""
BODY_BYTES = 1024 * 1024
"""Longest body of a route that declares nothing else."""
BODY_VALUES = 10_000
"""Most values in a JSON body."""
LARGE_BODY: Mapping[str, Any] = {"max_bytes": None, "max_values": 100_000}
"""For a route that takes a task, many questions, or a file."""
CONVERSATION: Mapping[str, Any] = {"max_bytes": None, "max_values": 50_000}
"""For a route that takes a conversation: its messages are compared with those of earlier turns."""


@dataclass(frozen=True)
class Interface:
    """Paths of routes, and the dialect of their errors. Its methods declare a route; `declared` are fields of Route."""

    prefixes: tuple[str, ...] = ("",)
    """Prefixes: each route is served below all of them, and described below the first."""
    dialect: Dialect = errors.OPENAI
    described_in: str = ""
    """The page of docs/ that lists them and links their description; empty: they are in openapi.json."""
    older: OlderPaths = ()
    """Paths of older versions, whose clients get an error that names the current one."""
    key_prefix: str = ""
    """Its clients send only keys with this prefix, so users put it in front of ours; the door removes it."""

    def get(self, path: str, *, may: May, **declared: Any) -> Route:
        """Declare a route that reads."""
        return Route("GET", path, self, may=may, **declared)

    def post(self, path: str, *, may: May, **declared: Any) -> Route:
        """Declare a route that takes something."""
        return Route("POST", path, self, may=may, **declared)

    def put(self, path: str, *, may: May, **declared: Any) -> Route:
        """Declare a route that replaces something."""
        return Route("PUT", path, self, may=may, **declared)

    def patch(self, path: str, *, may: May, **declared: Any) -> Route:
        """Declare a route that changes a part of something."""
        return Route("PATCH", path, self, may=may, **declared)

    def delete(self, path: str, *, may: May, **declared: Any) -> Route:
        """Declare a route that deletes."""
        return Route("DELETE", path, self, may=may, **declared)


LONGEST_KEY = 200
"""Characters of an Idempotency-Key."""
IDEMPOTENCY_KEY: Mapping[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "a request that is sent again with it has its effect once",
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY},
}
ANYWHERE = (503, 504)
"""Statuses of every route that needs a key."""
PLAIN = Interface()
OPENAI = Interface(("/v1",))
REST = Interface(("", "/api/v1"), errors.REST)
MCP = Interface(described_in="mcp.md")


def idempotency_key(request: HTTPConnection) -> str | None:
    """Return what tells this request from others. Raises CallError for one that is empty or too long."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= LONGEST_KEY:
        raise CallError(
            "invalid", f"Idempotency-Key has {len(key)} characters; 1 to {LONGEST_KEY} are allowed", "Idempotency-Key"
        )
    return key


class MethodTool(NamedTuple):
    """A method of a JSON-RPC route as a tool of MCP."""

    method: str
    parameters: type[BaseModel]
    may: Action
    description: str


class Reply(NamedTuple, Generic[T]):
    """An answer, and headers of its response."""

    answer: T
    headers: Mapping[str, str]


def _answer_type(returns: Any) -> Any:
    """Return the model that a method returns; None if it returns a response, or nothing."""
    model = None
    for kind in get_args(returns) if get_origin(returns) in (Union, UnionType) else (returns,):
        if get_origin(kind) is Reply:
            kind = get_args(kind)[0]
        if issubclass(kind, Answer):
            model = kind if model is None else model | kind
    return model


@dataclass(frozen=True, eq=False)
class Route:
    """A route of the server: what it needs, takes and answers. It decorates the method that answers it."""

    method: str
    path: str
    interface: Interface = PLAIN
    _: KW_ONLY
    may: May
    further: Mapping[str, Action] = field(default_factory=dict)
    """Fields of the body that need another right, and that right."""
    takes: Any = None
    """The type of the body, or its OpenAPI description by media type if it is not JSON; default: that of the method's
    `body`."""
    query: type[PathQuery] | None = None
    """The type of the query; default: that of the method's `query`."""
    parameters: Sequence[Mapping[str, Any]] = ()
    """Parameters of header and query that are read one by one."""
    answers: Any = None
    """The type of the answer, or its OpenAPI description by media type; default: the method's. None: no body."""
    status: int = 200
    refuses: Sequence[int] | None = None
    """Additional statuses; default: 404, and for a POST 409."""
    also: Mapping[int, str] = field(default_factory=dict)
    """Other statuses without a body, and what they mean."""
    streams: bool = False
    """Whether the answer may be streamed, as for calls of agents."""
    page: bool = False
    """Whether a browser gets the answer, and refusals, as a page."""
    max_bytes: int | None = BODY_BYTES
    """Longest body, at most serve.max_body_mb; None: serve.max_body_mb."""
    max_values: int = BODY_VALUES
    """Most values of a body in JSON."""
    max_numbers: int = 0
    """Of a body in JSON, in addition: values in lists of numbers."""
    ids: str = ""
    """Where valid names are listed; used in "not found" messages."""
    at_once: int = 0
    """Requests that are answered at the same time; 0: any number."""
    sends: Any = None
    """An example of the body."""
    example: Any = None
    """An example of the answer."""
    tools: Mapping[str, str | MethodTool] = field(default_factory=dict)
    """Its names as MCP tools, and their descriptions; empty: the route's description. Of JSON-RPC: its methods."""
    toolsets: tuple[str, ...] = ("log",)
    """The sets of MCP that have these tools."""
    name: str = ""
    description: str = ""
    arguments: tuple[str, ...] = ()
    """The parameters of the method."""

    def __call__(self, handler: H) -> H:
        """Declare that a method of a room answers this route."""
        types = get_type_hints(handler)
        declared = replace(
            self,
            takes=types.get("body") if self.takes is None else self.takes,
            query=types.get("query") if self.query is None else self.query,
            answers=_answer_type(types["return"]) if self.answers is None else self.answers,
            name=handler.__name__,
            description=inspect.getdoc(handler) or "",
            arguments=tuple(inspect.signature(handler).parameters)[1:],
        )
        setattr(handler, DECLARED, declared)
        return handler

    @property
    def refusals(self) -> Sequence[int]:
        """The additional statuses."""
        if self.refuses is not None:
            return self.refuses
        return (404,) if self.method in ("GET", "DELETE") else (404, 409)

    @property
    def paths(self) -> list[str]:
        """Every path where it is."""
        return [prefix + self.path for prefix in self.interface.prefixes]

    @property
    def path_names(self) -> tuple[str, ...]:
        """The parameters of its path."""
        return tuple(compile_path(self.path)[2])

    @property
    def models(self) -> list[type[BaseModel]]:
        """The models of its query and its body."""
        return [model for model in (self.query, self.takes) if model is not None]

    @property
    def takes_json(self) -> bool:
        """Whether its body is JSON."""
        return self.takes is not None and not isinstance(self.takes, Mapping)

    @property
    def is_open(self) -> bool:
        """Whether it needs no key."""
        return self.may is None or self.may in LOGIN_ACTIONS


def routes_of(room: type) -> list[Route]:
    """Return the routes that a room declares, in their order."""
    return [getattr(member, DECLARED) for member in vars(room).values() if hasattr(member, DECLARED)]


class RouteMatch(NamedTuple):
    """The route of a request, and the parameters in its path."""

    route: Route
    parameters: dict[str, str]


class RouteTable:
    """Routes by method and path; the first match counts."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self.key_prefixes = frozenset(route.interface.key_prefix for route in self.routes) - {""}
        self._patterns = [(compile_path(path)[0], route) for route in self.routes for path in route.paths]
        older = dict.fromkeys(each for route in self.routes for each in route.interface.older)
        self._older = (*PATHS, *older)
        self._beginnings = [
            (f"{prefix}/{route.path.split('/')[1]}/", route.interface.dialect)
            for route in self.routes
            for prefix in route.interface.prefixes
        ]

    def find(self, method: str, path: str) -> RouteMatch | None:
        """Return the route of a request; None if not found. HEAD has the route of GET."""
        method = "GET" if method == "HEAD" else method
        for pattern, route in self._patterns:
            if route.method == method and (match := pattern.match(path)) is not None:
                return RouteMatch(route, match.groupdict())
        return None

    def at(self, path: str) -> Route | None:
        """Return the first route of a path, whatever its method; None if not found."""
        return next((route for pattern, route in self._patterns if pattern.match(path) is not None), None)

    def older_form(self, path: str) -> OlderForm | None:
        """Return the older form with this path, if any."""
        return older_form(path, self._older)

    def dialect(self, path: str) -> Dialect:
        """Return the error dialect of a path, whatever the method.

        A path without a route has that of routes with the same first word; OpenAI's if there are none.
        """
        if (route := self.at(path)) is not None:
            return route.interface.dialect
        return next((dialect for start, dialect in self._beginnings if f"{path}/".startswith(start)), errors.OPENAI)
