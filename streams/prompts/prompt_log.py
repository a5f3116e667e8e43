"""The prompts of the log, followed, and the commands about them.

    prompts ──► a thread that follows ──► PromptState of each ──► resolve
    create, activate, withdraw ──► event with the sequence it expects ──► prompts ──► own fold has passed it ──► answer

Not covered: whether a policy is in training with a prompt; streams/improve/prompts/activation.py asks the jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from schemas.events import Message, PromptEvent, PromptKind, PromptVariable, derive_id, problems, prompt_digest
from schemas.faults import nearest_own
from schemas.serde import Poison
from streams.errors import EventError, NotFoundError, RefusedError
from streams.kafka import times
from streams.kafka.admin import read_topic
from streams.kafka.followed import FollowedTopic
from streams.kafka.record import Record, cut
from streams.prompts.prompt_state import AliasTarget, PromptState, PromptVersion, fold, refusal
from streams.prompts.prompt_use import PromptReference, Resolver, resolve
from streams.settings.model import Settings

TRIES = 20
"""Events that other processes may write meanwhile, until a command gives up."""

log = logging.getLogger("streamward.prompts")


class NewVersion(NamedTuple):
    """A version, and whether it was made now."""

    version: PromptVersion
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptText:
    """A version of a prompt to write."""

    prompt: str
    messages: tuple[Message, ...]
    variables: tuple[PromptVariable, ...] = ()
    actor: str
    reason: str
    job_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """An alias that is to mean a version."""

    prompt: str
    alias: str
    version: int
    actor: str
    reason: str
    expect: int | None = None
    """The version that it means until now, 0: none yet; None: whatever it is."""
    job_id: str | None = None
    metrics: Mapping[str, float] | None = None


class PromptLog(FollowedTopic):
    """Every prompt, followed in a thread. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        super().__init__(settings, "prompts")
        self._partitions = settings.topics.policy_partitions
        self._states: dict[str, PromptState] = {}

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def states(self) -> Mapping[str, PromptState]:
        """Every prompt that has a version, by its name. Raises LogError once the log cannot be read."""
        with self._changed:
            self._raise_error()
            return {name: state for name, state in sorted(self._states.items()) if state.versions}

    def state(self, prompt: str) -> PromptState:
        """Return a prompt after the records that were read. Raises LogError once the log cannot be read."""
        with self._changed:
            self._raise_error()
            return self._states.get(prompt) or PromptState(prompt=prompt)

    def get(self, prompt: str) -> PromptState:
        """Return a prompt that exists. Raises NotFoundError."""
        state = self.state(prompt)
        if not state.versions:
            raise NotFoundError(f"there is no prompt {prompt[:80]!r}; {nearest_own(prompt, self.states)}")
        return state

    def resolve(self, reference: PromptReference, unit: str) -> PromptVersion:
        """Return the version for a thread or a task. Raises NotFoundError."""
        return resolve({reference.name: self.get(reference.name)}, reference, unit)

    # --- commands -----------------------------------------------------------------------------------------------------

    def create(self, text: PromptText) -> NewVersion:
        """Write a version, and return it; the one that has the same text, if there is one.

        Raises EventError for a text that cannot be one, RefusedError if others write all the time, LogError.
        """
        digest = prompt_digest(text.messages, text.variables)
        for _ in range(TRIES):
            state = self.state(text.prompt)
            if (same := state.with_text(digest)) is not None:
                _check_named(state, same.number)
                return NewVersion(same, False)
            event = self._event(
                state,
                "created",
                text.actor,
                text.reason,
                version=len(state.versions) + 1,
                digest=digest,
                variables=text.variables,
                messages=text.messages,
                job_id=text.job_id,
            )
            if self.append(event) and (version := self.state(text.prompt).with_text(digest)) is not None:
                return NewVersion(version, True)
        raise RefusedError(f"prompt {text.prompt}: others wrote first {TRIES} times; try again")

    def activate(self, order: Activation) -> AliasTarget:
        """Let an alias mean a version, and return what it means then. The same again writes nothing.

        Raises EventError, NotFoundError for an unknown version, RefusedError if the alias means another version than
        was expected, LogError.
        """
        for _ in range(TRIES):
            state = self.get(order.prompt)
            if state.version(order.version) is None:
                known = len(state.versions)
                raise NotFoundError(f"prompt {order.prompt} has no version {order.version}; its newest is {known}")
            _check_named(state, order.version)
            target = state.aliases.get(order.alias)
            if target is not None and target.version == order.version:
                return target
            _check_expected(order, target)
            event = self._event(
                state,
                "activated",
                order.actor,
                order.reason,
                version=order.version,
                alias=order.alias,
                job_id=order.job_id,
                metrics=dict(order.metrics or {}),
            )
            if self.append(event):
                return self.state(order.prompt).aliases[order.alias]
        raise RefusedError(f"prompt {order.prompt}: others wrote first {TRIES} times; try again")

    def withdraw(self, prompt: str, version: int, *, actor: str, reason: str) -> None:
        """Let a version be named no more. The same again writes nothing.

        Raises EventError, NotFoundError for an unknown version, RefusedError while an alias means it, LogError.
        """
        for _ in range(TRIES):
            state = self.get(prompt)
            if version in state.withdrawn:
                return
            event = self._event(state, "withdrawn", actor, reason, version=version)
            if state.version(version) is None:
                raise NotFoundError(f"prompt {prompt} has no version {version}; its newest is {len(state.versions)}")
            if (problem := refusal(state, event)) is not None:
                raise RefusedError(f"prompt {prompt}: {problem}")
            if self.append(event):
                return
        raise RefusedError(f"prompt {prompt}: others wrote first {TRIES} times; try again")

    def append(self, event: PromptEvent) -> bool:
        """Write an event; return whether this record of it took effect. Raises EventError that says what is wrong."""
        check(event)
        place = self._write(event)
        return self.state(event.prompt).effective.get(event.event_id) == place

    def _event(self, state: PromptState, kind: PromptKind, actor: str, reason: str, **fields: Any) -> PromptEvent:
        event = event_of(state, kind, actor=actor, reason=reason, now_ms=times.now_ms())
        return replace(event, **fields)

    def _take(self, record: Record) -> None:
        event = record.decode_placed(PromptEvent, self._partitions)
        if isinstance(event, Poison):
            log.warning("skipped: %s", cut(event.error), extra=record.log_extra)
            return
        before = self._states.get(event.prompt) or PromptState(prompt=event.prompt)
        self._states[event.prompt] = fold(before, event, record.at)


def event_of(state: PromptState, kind: PromptKind, *, actor: str, reason: str, now_ms: int) -> PromptEvent:
    """Return the next event of a prompt, without what is of its kind alone."""
    return PromptEvent(
        event_id=derive_id(state.prompt, kind, state.sequence),
        prompt=state.prompt,
        created_at=now_ms,
        kind=kind,
        sequence=state.sequence,
        actor=actor,
        reason=reason,
    )


def check(event: PromptEvent) -> None:
    """Raise EventError with the first thing that is wrong with an event: what a reader of the log says of it, too."""
    if problem := next(problems(event), None):
        raise EventError(f"prompt {event.prompt[:140]}: {problem}")


def read(settings: Settings) -> dict[str, PromptState]:
    """Return the prompts of this log by name, as it is now. Raises NotFoundError without the topic, LogError."""
    states: dict[str, PromptState] = {}
    for record in read_topic(settings, "prompts"):
        event = record.decode_placed(PromptEvent, settings.topics.policy_partitions)
        if isinstance(event, Poison):
            continue
        before = states.get(event.prompt) or PromptState(prompt=event.prompt)
        states[event.prompt] = fold(before, event, record.at)
    return {name: state for name, state in sorted(states.items()) if state.versions}


def resolver(settings: Settings) -> Resolver:
    """Return the function that finds versions; its first call reads the log, and raises as that."""
    states = cache(lambda: read(settings))
    return lambda reference, unit: resolve(states(), reference, unit)


def _check_named(state: PromptState, version: int) -> None:
    """Raise RefusedError for a version that was withdrawn."""
    if (problem := state.withdrawal(version)) is not None:
        raise RefusedError(f"prompt {state.prompt}: {problem}")


def _check_expected(order: Activation, target: AliasTarget | None) -> None:
    """Raise RefusedError if an alias means another version than the one it was decided against."""
    if order.expect is None or order.expect == (0 if target is None else target.version):
        return
    meaning = "nothing yet" if target is None else f"version {target.version}"
    if target is not None and target.version is None:
        meaning = f"{len(target.arms)} versions, by the live comparison of job {target.event.job_id}"
    raise RefusedError(
        f"prompt {order.prompt}: {order.alias} means {meaning}, and version {order.expect} was expected; look at it "
        "and decide again"
    )
