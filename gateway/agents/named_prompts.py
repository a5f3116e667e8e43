"""The prompt of a call: a version of the log's prompts, before the messages that the client sent.

    prompt: {id, version, variables} ──► version, sticky by conversation ──► its messages, and then the call's own

A conversation keeps the version that it began with, wherever an alias has moved since. A call that continues none is
placed by its trajectory, its user or its own content, so that a retry gets the same version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import Field

from gateway.http.body import Body
from schemas.events import PromptUse
from streams.access.tenants.tenant_names import named
from streams.errors import CallError, EventError, NotFoundError
from streams.prompts import prompt_use
from streams.prompts.prompt_log import PromptLog
from streams.prompts.prompt_use import PromptReference
from streams.stages.agents.recording.calls import ModelCall


class PromptParameter(Body):
    """A prompt of the log."""

    id: str = Field(min_length=1, max_length=200, description="its name, or NAME@3, or NAME@ALIAS")
    version: str | None = Field(None, min_length=1, max_length=64, description="a number or an alias")
    variables: dict[str, Any] | None = Field(None, description="the value of each variable: data, never run")

    @property
    def reference(self) -> str:
        """The prompt as it is named elsewhere."""
        return self.id if self.version is None else f"{self.id}@{self.version}"


def without_prompts() -> PromptLog:
    """Raise NotFoundError: this server reads no prompts."""
    raise NotFoundError("this server reads no prompts of a log")


async def with_prompt(
    call: ModelCall, parameter: PromptParameter, prompts: Callable[[], PromptLog], tenant: str | None, user: str | None
) -> ModelCall:
    """Return a call that begins with a prompt. Raises CallError for one that there is not, or with other variables."""
    try:
        reference = PromptReference.parse(named(tenant, parameter.reference))
        log = await asyncio.to_thread(prompts)
        values = parameter.variables or {}
        if (began := _began_with(call, log, reference, values)) is not None:
            return replace(call, prompt_version=began)
        version = log.resolve(reference, call.trajectory_id or user or call.request_digest)
        use = prompt_use.use(version, reference, values)
        return replace(call, messages=prompt_use.before(use, call.messages), prompt_version=use)
    except NotFoundError as exc:
        raise CallError("not_found", str(exc), "prompt") from exc
    except EventError as exc:
        raise CallError("invalid", str(exc), "prompt") from exc


def _began_with(
    call: ModelCall, log: PromptLog, reference: PromptReference, values: dict[str, Any]
) -> PromptUse | None:
    """Return the version that a conversation began with, if it began with one of this prompt. Raises NotFoundError."""
    versions = log.get(reference.name).versions
    for version in versions:
        if reference.version not in (None, version.number):
            continue
        try:
            use = prompt_use.use(version, reference, values)
        except EventError:  # this version has other variables
            continue
        if call.messages[: len(version.messages)] == use.render():
            return use
    return None
