"""The application: each request goes to the method that declares its route.

    request ──► route ──► its body and query, read ──► the method, in a thread if it waits ──► its model as JSON
                  └──► CallError ──► the dialect of the route

Calls bypass Starlette's middleware, which does nothing for them; Starlette answers unknown paths, /openapi.json, and
mounted applications.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.http import errors, openapi
from gateway.http.body import read, read_query
from gateway.http.intake import Intake, read_apart
from gateway.http.principal import decide_at_door, principal_of
from gateway.http.request_record import CLIENT_LEFT, denied, record_of
from gateway.http.route import Reply, Route, RouteTable, routes_of
from streams.errors import CallError

TITLE = "Streamward"
DESCRIPTION = Route("GET", "/openapi.json", may="models.read")


class Application(Starlette):
    """Answers the routes of rooms."""

    def __init__(self, rooms: Iterable[object], *, version: str, max_body_bytes: int, keys: bool = False) -> None:
        """`max_body_bytes`: for routes without a lower limit; `keys`: whether a door asks for keys."""
        super().__init__()
        self.router.redirect_slashes = False
        self.add_route(DESCRIPTION.path, self._describe, include_in_schema=False)
        self._describing = asyncio.Lock()
        self.add_exception_handler(HTTPException, self._no_such_path)
        self._version, self._keys = version, keys
        self._description: dict[str, Any] | None = None
        self._endpoints: dict[Route, Endpoint] = {}
        for room in rooms:
            for route in routes_of(type(room)):
                self._add(Endpoint(route, getattr(room, route.name), max_body_bytes))
        self.table = RouteTable(self._endpoints)

    def _add(self, endpoint: Endpoint) -> None:
        route = endpoint.route
        self._endpoints[route] = endpoint
        for path in route.paths:  # for the answer to a method that a path does not have
            self.add_route(path, endpoint.answer, methods=[route.method], include_in_schema=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        match = self.table.find(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if match is None:
            await super().__call__(scope, receive, send)
            return
        scope["path_params"] = match.parameters
        response = await self._endpoints[match.route].answer(Request(scope, receive, send))
        await response(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the description of these routes."""
        if self._description is None:
            self._description = openapi.document(self.table.routes, title=TITLE, version=self._version, keys=self._keys)
        return self._description

    async def _describe(self, _: Request) -> Response:
        """Return the description as JSON. It takes a second to make; other requests are answered meanwhile."""
        async with self._describing:
            description = await asyncio.to_thread(self.openapi)
        return JSONResponse(description)

    async def _no_such_path(self, request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)  # noqa: S101 - it handles no other
        older = self.table.older_form(request.url.path)
        detail = exc.detail if older is None else older.text
        error = CallError("not_found", f"{request.method} {request.url.path}: {detail}")
        response = errors.response(error, self.table.dialect(request.url.path))
        response.status_code = exc.status_code
        response.headers.update(exc.headers or {})  # Allow, of a method that a path does not have
        return response


class Endpoint:
    """A route, with the method that answers it."""

    def __init__(self, route: Route, method: Callable[..., Any], max_body_bytes: int) -> None:
        self.route = route
        max_bytes, bound = max_body_bytes, "serve.max_body_mb"
        if route.max_bytes is not None and route.max_bytes < max_body_bytes:
            max_bytes, bound = route.max_bytes, "the most that this route takes"
        self._intake = Intake(
            max_bytes=max_bytes,
            bound=bound,
            max_values=route.max_values,
            max_numbers=route.max_numbers,
            uncounted=route.takes if isinstance(route.takes, Mapping) else (),
        )
        self._call = method if inspect.iscoroutinefunction(method) else partial(errors.apart, method)
        self._turns: AbstractAsyncContextManager[None] = nullcontext()
        if route.at_once:
            self._turns = asyncio.Semaphore(route.at_once)

    async def answer(self, request: Request) -> Response:
        """Return the response to a request."""
        try:
            arguments = {name: await self._argument(name, request) for name in self.route.arguments}
            self._check_further(request, arguments.get("body"))
            async with self._turns:
                return self._response(await self._call(**arguments))
        except CallError as exc:
            if exc.kind == "not_found":
                exc.way_out = exc.way_out or self.route.ids
            return errors.response(exc, self.route.interface.dialect)
        except ClientDisconnect:
            return Response(status_code=CLIENT_LEFT)

    def _check_further(self, request: Request, body: Any) -> None:
        """Raise CallError for a field of the body that needs a right which its sender lacks."""
        principal, record = principal_of(request), record_of(request)
        for path, action in self.route.further.items():
            if principal is None or _value(body, path) is None:
                continue
            decision = decide_at_door(principal, action, None if record is None else record.agent_id)
            if not decision.allowed:
                raise denied(request, action, f"{path}: {decision.why}", path)

    async def _argument(self, name: str, request: Request) -> Any:
        """Return what the method takes by this name. Raises CallError."""
        if name == "request":
            return request
        if name == "raw":
            return await self._intake.body(request)
        if name == "body":
            return await read_apart(partial(read, self.route.takes), await self._intake.body(request))
        if name == "query":
            assert self.route.query is not None  # noqa: S101 - its route declares one
            return read_query(self.route.query, request.query_params.multi_items())
        return request.path_params[name]

    def _response(self, result: Any) -> Response:
        if isinstance(result, Response):
            return result
        if result is None:
            return Response(status_code=self.route.status)
        answer, headers = result if isinstance(result, Reply) else (result, None)
        return errors.json_response(answer, self.route.status, headers)


def _value(body: Any, path: str) -> Any:
    """Return a field of a body, or of an object in it; None if it is not set."""
    for step in path.split("."):
        body = body.get(step) if isinstance(body, Mapping) else getattr(body, step, None)
    return body
