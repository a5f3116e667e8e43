"""A prompt that a task, a call, an agent or a job names: the version, with its values.

    NAME@3, NAME@production, NAME ──► PromptReference ──► resolve ──► PromptVersion ──► with values ──► PromptUse

NAME alone is NAME@production. The version is chosen once, when a task is written or a call begins, and is recorded with
it; moving the alias later has no effect on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from plugins.prompts.versions.prompt_state import PromptState, PromptVersion
from schemas.events import ALIAS, PROMPT_NAME, PromptUse, prompt_use_problems
from schemas.faults import nearest, nearest_own
from streams.errors import EventError, NotFoundError

DEFAULT_ALIAS = "production"


class PromptReference(NamedTuple):
    """A prompt by its name, and a version of it by number or alias."""

    name: str
    version: int | None = None
    alias: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.version if self.alias is None else self.alias}"

    @classmethod
    def parse(cls, text: str) -> PromptReference:
        """Parse NAME, NAME@3 or NAME@ALIAS. Raises EventError."""
        name, at, rest = text.partition("@")
        if PROMPT_NAME.fullmatch(name) is None or (at and not (rest.isdecimal() or ALIAS.fullmatch(rest))):
            raise EventError(f"{text[:140]!r} names no prompt; expected NAME, NAME@3 or NAME@ALIAS")
        if rest.isdecimal():
            return cls(name, version=int(rest[:9]))
        return cls(name, alias=rest or DEFAULT_ALIAS)


def resolve(states: Mapping[str, PromptState], reference: PromptReference, unit: str) -> PromptVersion:
    """Return the version that a reference means for a thread or a task. Raises NotFoundError."""
    state = states.get(reference.name)
    if state is None or not state.versions:
        raise NotFoundError(f"there is no prompt {reference.name[:80]!r}; {nearest_own(reference.name, states)}")
    number = reference.version
    if reference.alias is not None:
        target = state.aliases.get(reference.alias)
        if target is None:
            raise NotFoundError(
                f"prompt {reference.name} has no alias {reference.alias[:80]!r}; "
                f"{nearest(reference.alias, state.aliases)}. `streamward improve prompts activate` sets one"
            )
        number = target.version_for(unit)
    if (problem := state.withdrawal(number or 0)) is not None:
        raise NotFoundError(f"prompt {reference.name}: {problem}")
    version = state.version(number or 0)
    if version is None:
        raise NotFoundError(f"prompt {reference.name} has no version {number}; its newest is {len(state.versions)}")
    return version


def use(version: PromptVersion, reference: PromptReference, values: Mapping[str, Any]) -> PromptUse:
    """Return a version with the values of its variables. Raises EventError, naming missing or extra ones."""
    prompt = PromptUse(
        name=version.name,
        version=version.number,
        alias=reference.alias,
        values=json.dumps(dict(values), ensure_ascii=False),
        variables=version.variables,
        messages=version.messages,
    )
    if problem := next(prompt_use_problems(prompt), None):
        raise EventError(problem)
    return prompt
