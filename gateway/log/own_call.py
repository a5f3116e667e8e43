"""A route without a server: its method over the log itself, for a user of the command line.

    fields ──► path, query and body, read as those of a request ──► the method of a room ──► its model

The user sees and may do everything, as with a server without keys.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from gateway.http.body import Answer, Body, checked
from gateway.http.principal import request_of_user
from gateway.http.route import DECLARED, Route
from gateway.log.open_log import OpenLog
from streams.errors import CallError, SettingsError
from streams.kafka.followed import FollowedOnDemand
from streams.settings.model import Settings

if TYPE_CHECKING:
    from streams.tools.archive.history import Source


def route_of(room: type, method: str) -> Route:
    """Return the route that a method of a room answers."""
    route: Route = getattr(getattr(room, method), DECLARED)
    return route


def call_room(
    room: type, method: str, fields: Mapping[str, Any], settings: Settings, *, actor: str, source: Source
) -> Answer:
    """Return what a method of a room answers to these fields, by their names in path, query or body.

    Raises SettingsError for fields that its route does not take so, and what the method raises.
    """
    route = route_of(room, method)
    arguments: dict[str, Any] = {name: fields[name] for name in route.path_names}
    if "request" in route.arguments:
        arguments["request"] = request_of_user(actor)
    bodies: dict[str, Any] = {"query": route.query, "body": route.takes}
    arguments |= {name: _read(bodies[name], fields) for name in route.arguments if name in bodies}
    with ExitStack() as stack:
        answer = getattr(room(*_needs(room, settings, source, stack)), method)(**arguments)
        result: Answer = asyncio.run(answer) if inspect.iscoroutine(answer) else answer
        return result


def _needs(room: type, settings: Settings, source: Source, stack: ExitStack) -> list[Any]:
    """Return what a room is made with: the settings, the log as it knows it, and context managers of the settings.

    A parameter with a default is for servers alone.
    """
    types, needs = get_type_hints(vars(room)["__init__"]), list[Any]()
    for name, parameter in inspect.signature(room).parameters.items():
        kind = types.get(name, OpenLog)
        if parameter.default is not parameter.empty:
            continue
        if name == "settings":
            needs.append(settings)
        elif kind is OpenLog:
            needs.append(stack.enter_context(OpenLog(settings, source=source)))
        elif get_origin(kind) is FollowedOnDemand:
            needs.append(stack.enter_context(FollowedOnDemand(get_args(kind)[0], settings)))
        else:
            needs.append(stack.enter_context(kind(settings)))
    return needs


def _read(model: type[Body], fields: Mapping[str, Any]) -> Body:
    try:
        return checked(model, {name: value for name, value in fields.items() if name in model.model_fields})
    except CallError as exc:
        raise SettingsError(exc.message) from exc
