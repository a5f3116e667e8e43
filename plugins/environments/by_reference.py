"""Environments by reference. Only worker processes load one, since it may run any user's code.

module:Class     one's own: a class with `version`, `reset(seed)` and `step(action)`
gymnasium:ID     an environment that Gymnasium knows        gymnasium_env.py
llamagym:module:Class:ID   one of Gymnasium, with the three methods of LlamaGym's agents  llamagym_env.py
textarena:ID     a game of TextArena for one player         textarena_env.py
openenv:URL      an environment behind a server of OpenEnv  openenv_env.py
mcp:SERVER       the tools of an MCP server                 mcp_env.py
http(s)://URL, function:module:name   one tool              single_tool_env.py
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from plugins.environments.adapters.adapted import AdaptedEnvironment
from plugins.environments.environment_kind import kind_of
from plugins.environments.episodes.environment import Environment, EpisodeError
from streams.references import describe_module

ADAPTERS = {
    "gymnasium": ("plugins.environments.adapters.gymnasium_env", "GymnasiumEnvironment"),
    "llamagym": ("plugins.environments.adapters.llamagym_env", "LlamaGymEnvironment"),
    "textarena": ("plugins.environments.adapters.textarena_env", "TextArenaEnvironment"),
    "openenv": ("plugins.environments.adapters.openenv_env", "OpenEnvEnvironment"),
    "mcp": ("plugins.environments.adapters.mcp_env", "McpEnvironment"),
    "function": ("plugins.environments.adapters.single_tool_env", "ModuleFunction"),
    "http": ("plugins.environments.adapters.single_tool_env", "UrlTool"),
    "https": ("plugins.environments.adapters.single_tool_env", "UrlTool"),
}
"""Module and class of each kind of reference that is not one's own."""
URLS = ("http", "https")
"""Kinds with a URL as the whole reference."""
SERVERS = ("openenv", "mcp", "a2a", *URLS)
"""Kinds that refer to a server: a URL, or a command that starts one."""
WITH_CREDENTIAL = ("mcp", *URLS)
"""Kinds that may send a credential of the settings."""
NOT_STEPPED = {
    "verifiers": (
        "environments of verifiers call the model themselves and have no step that an agent could take; run their "
        "rollout as an agent, with `streamward agents run --command` (docs/environments.md, verifiers)"
    ),
    "a2a": "an agent of another server is no environment; it can be a tool of registered agents (docs/agents.md)",
}
"""Kinds that look like references and cannot be had as one, and what to do instead."""


def check_kind(name: str) -> None:
    """Raise EpisodeError(unknown_environment) for a kind of reference that cannot be stepped."""
    kind = name.partition(":")[0]
    if kind in NOT_STEPPED:
        raise EpisodeError(f"{name} is not opened: {NOT_STEPPED[kind]}", reason="unknown_environment")


def is_reference(name: str) -> bool:
    """Return whether a name is a reference, and no listed environment."""
    return ":" in name


def is_server(name: str) -> bool:
    """Return whether a reference names a server."""
    return name.partition(":")[0] in SERVERS


def imported_module(name: str) -> str:
    """Return the user's module that a reference imports; empty if it imports none."""
    kind, _, rest = name.partition(":")
    if kind not in ADAPTERS:
        return kind
    if kind in ("function", "llamagym"):
        return rest.partition(":")[0]
    return rest.partition(":")[0] if kind == "gymnasium" and ":" in rest else ""  # gymnasium:module:ID registers the ID


def host_of(name: str) -> str | None:
    """Return the host that a reference leads to; None if it names no address."""
    return urlsplit(name.partition(":")[2]).hostname if is_server(name) else None


def settings_to_open(names: Iterable[str]) -> dict[str, list[str]]:
    """Return what the settings `environments.modules` and `environments.servers` need to list for these references."""
    settings: dict[str, list[str]] = {}
    for name in names:
        if kind_of(name) is not None:
            continue
        if is_server(name):
            settings.setdefault("servers", []).append(name)
        elif module := imported_module(name):
            settings.setdefault("modules", []).extend((module, "."))
    return settings


def load(name: str, settings: dict[str, Any], credential: str = "") -> Environment:
    """Return the environment of a reference, made with `settings`; `credential`: of its server.

    Raises EpisodeError: unknown_environment, missing_package, bad_settings, bad_result; and whatever its code raises.
    """
    kind, _, rest = name.partition(":")
    module, attribute = ADAPTERS.get(kind, (kind, rest))
    try:
        imported = importlib.import_module(module)
    except ImportError as exc:
        way_out = "install it with Streamward, or put it on PYTHONPATH"
        if kind in ADAPTERS:
            way_out = f"pip install 'streamward[{'mcp' if kind == 'mcp' else 'environments'}]'"
        raise EpisodeError(f"{name} cannot be loaded: {exc}; {way_out}", reason="missing_package") from exc
    factory = getattr(imported, attribute, None)
    if factory is None:
        error = f"{describe_module(imported)} has no class {attribute!r}"
        raise EpisodeError(error, reason="unknown_environment")
    secret = {"credential": credential} if credential and kind in WITH_CREDENTIAL else {}
    try:
        if kind in ADAPTERS:
            environment: Environment = factory(name if kind in URLS else rest, **settings, **secret)
            return environment
        return AdaptedEnvironment(name, factory(**settings))
    except TypeError as exc:
        raise EpisodeError(f"{name}: settings {sorted(settings)}: {exc}", reason="bad_settings") from exc
