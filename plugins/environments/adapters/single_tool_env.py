"""One tool: a function of a module, or a URL that takes the arguments as JSON.

    function:module:name ──► signature, docstring ──► JSON Schema, description ──► the function with the arguments
    https://host/path ────► POST {arguments}, with a credential if the settings have one ──► the body of a 2xx answer

A function's answer is its text, or JSON of any other value, models and dataclasses included; an exception, or a value
that is not JSON, becomes an error answer. An async function is awaited. Redirects are not followed, so a listed host
cannot send a call to another.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import inspect
import json
from collections.abc import Callable
from typing import Any

import httpx2
from pydantic import BaseModel, PydanticUserError, ValidationError, create_model

from plugins.environments.adapters.offered_tools import OfferedTools
from plugins.environments.episodes.environment import EpisodeError
from schemas.events import Tool
from schemas.tool_text import offer_problems
from streams.egress.address_guard import UrlOrigin
from streams.egress.http_client import AnswerTooLarge, fetch, new_client
from streams.processes.worker_pipe import describe_exception
from streams.references import describe_module

ANSWER_S = 300.0
"""Of a URL; environments.timeout_s is the limit of a call, and usually less."""
MOST_BYTES = 256 * 1024
"""Of an answer."""


class SingleTool(OfferedTools):
    """A base class: one tool, described by its settings."""

    def __init__(self, endpoint: str, default: Tool, prompt: str, system: str, described: dict[str, Any]) -> None:
        """`described`: settings in the place of what `default` says. Raises TypeError, EpisodeError: bad_settings."""
        super().__init__(endpoint, prompt, system)
        if unknown := sorted(described.keys() - {"name", "description", "parameters"}):
            raise TypeError(f"there is no setting {unknown[0]!r}")
        parameters = described.get("parameters")
        self._tool = Tool(
            name=described.get("name") or default.name,
            description=described.get("description") or default.description,
            parameters=json.dumps(parameters) if parameters else default.parameters,
        )
        if problem := next(offer_problems([self._tool]), None):
            raise EpisodeError(f"{endpoint}: {problem}", reason="bad_settings")

    def _begin(self) -> tuple[Tool, ...]:
        return (self._tool,)


class ModuleFunction(SingleTool):
    """A function of a module."""

    def __init__(self, reference: str, prompt: str = "", system: str = "", **described: Any) -> None:
        """`reference`: module:function. Raises EpisodeError: missing_package, unknown_environment, bad_settings."""
        self._function = _function(reference)
        self._model = _arguments_of(reference, self._function)
        text = inspect.getdoc(self._function) or ""
        default = Tool(
            name=reference.partition(":")[2],
            description=text.partition("\n\n")[0],
            parameters=json.dumps(self._model.model_json_schema()),
        )
        super().__init__(f"function:{reference}", default, prompt, system, described)
        self.version = str(getattr(self._function, "scorer_version", "1"))

    def _invoke(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        try:
            checked = self._model.model_validate(arguments, strict=False)
        except ValidationError as exc:
            return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in exc.errors()), False
        values = {field: getattr(checked, field) for field in checked.model_fields_set}
        try:
            result = self._function(**values)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
        except Exception as exc:  # a tool's own code may raise anything
            return describe_exception(name, exc), False
        return _answer_text(name, result)


class UrlTool(SingleTool):
    """A URL that takes the arguments as the body of a POST."""

    def __init__(self, url: str, prompt: str = "", system: str = "", credential: str = "", **described: Any) -> None:
        """Raises EpisodeError: bad_settings without a description, which a URL does not have."""
        default = Tool(name="call", parameters='{"type": "object"}')
        super().__init__(url, default, prompt, system, described)
        if not self._tool.description:
            raise EpisodeError(f"{url}: description is missing; models read what a tool is for", reason="bad_settings")
        self.version = "1"
        self._url = url
        headers = {"authorization": f"Bearer {credential}"} if credential else {}
        self._client = new_client(UrlOrigin.LISTED, headers=headers)

    def _invoke(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        try:
            status, body = fetch(
                self._client, "POST", self._url, limit_s=ANSWER_S, most_bytes=MOST_BYTES, json=arguments
            )
        except AnswerTooLarge as exc:
            return f"{self._url} answered with {exc}", False
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise EpisodeError(f"{self._url}: no answer: {exc}", reason="crashed") from exc
        text = body.decode(errors="replace")
        return (text, True) if 200 <= status < 300 else (f"{self._url} answered {status}: {text[:2000]}", False)

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def _function(reference: str) -> Callable[..., Any]:
    """Return a function. Raises EpisodeError."""
    module_name, _, function_name = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as exc:
        message = f"function:{reference} cannot be loaded: {exc}; install it with Streamward, or put it on PYTHONPATH"
        raise EpisodeError(message, reason="missing_package") from exc
    function = getattr(module, function_name, None)
    if not inspect.isfunction(function):
        error = f"{describe_module(module)} has no function {function_name!r}"
        raise EpisodeError(error, reason="unknown_environment")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        error = f"function:{reference} yields its answer in parts, and a call has one answer; return it"
        raise EpisodeError(error, reason="bad_settings")
    return function


def _answer_text(name: str, result: Any) -> tuple[str, bool]:
    """Return what a function returned as a text, and whether it could be one."""
    try:
        text = result if isinstance(result, str) else json.dumps(result, allow_nan=False, default=_plain)
        text.encode()
    except Exception as exc:  # a model's own code may raise anything
        return f"{name} returned a value that JSON does not have: {exc}"[:500], False
    return text, True


def _plain(value: Any) -> Any:
    """Return a model or a dataclass as an object. Raises TypeError for other values, sets too: they have no order."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def _arguments_of(reference: str, function: Callable[..., Any]) -> Any:
    """Return the model of a function's arguments. Raises EpisodeError(bad_settings)."""
    try:
        signature = inspect.signature(function, eval_str=True)
        fields: dict[str, Any] = {}
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise ValueError(f"parameter {name} cannot be given by its name; remove the / after it")
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ValueError(f"parameter {name} takes any number of values; name each")
            kind = Any if parameter.annotation is parameter.empty else parameter.annotation
            fields[name] = (kind, ... if parameter.default is parameter.empty else parameter.default)
        return create_model(function.__name__, **fields)
    except (ValueError, TypeError, NameError, PydanticUserError) as exc:
        raise EpisodeError(f"function:{reference}: its arguments have no schema: {exc}", reason="bad_settings") from exc
