"""The prompts of the log, followed, and the commands about them.

    prompts ──► a thread that follows ──► PromptState of each ──► resolve
    create, activate, withdraw ──► event with the sequence it expects ──► prompts ──► own fold has passed it ──► answer

Not covered: whether a policy is in training with a prompt; plugins/prompts/search/activation.py checks the jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from plugins.prompts.versions import prompt_state
from plugins.prompts.versions.prompt_state import AliasTarget, PromptState, PromptVersion, refusal
from plugins.prompts.versions.prompt_use import PromptReference, resolve
from schemas.events import Message, PromptEvent, PromptKind, PromptVariable, derive_id, prompt_digest
from schemas.faults import nearest_own
from streams.errors import NotFoundError, RefusedError
from streams.kafka import times
from streams.kafka.named_states import Registry, RegistryShape
from streams.settings.model import Settings


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
    """A request to point an alias to a version."""

    prompt: str
    alias: str
    version: int
    actor: str
    reason: str
    expect: int | None = None
    """The version that it is expected to mean now; 0: none yet; None: any."""
    job_id: str | None = None
    metrics: Mapping[str, float] | None = None


PROMPTS = RegistryShape(
    "prompts",
    "prompt",
    PromptEvent,
    lambda name: PromptState(prompt=name),
    refusal,
    prompt_state.fold,
    is_there=lambda state: bool(state.versions),
)


class PromptLog(Registry[PromptEvent, PromptState]):
    """Every prompt, followed in a thread. Use as a context manager; methods may be called from any thread."""

    SHAPE = PROMPTS

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        super().__init__(settings, PROMPTS)

    def get(self, prompt: str) -> PromptState:
        """Return a prompt. Raises NotFoundError."""
        state = self.state(prompt)
        if not state.versions:
            raise NotFoundError(f"there is no prompt {prompt[:80]!r}; {nearest_own(prompt, self.states)}")
        return state

    def resolve(self, reference: PromptReference, unit: str) -> PromptVersion:
        """Return the version for a thread or a task. Raises NotFoundError."""
        return resolve({reference.name: self.get(reference.name)}, reference, unit)

    def create(self, text: PromptText) -> NewVersion:
        """Write a version and return it; an existing one with the same text is returned instead.

        Raises EventError for an invalid text, RefusedError after too many conflicting writes, LogError.
        """
        digest = prompt_digest(text.messages, text.variables)

        def version(state: PromptState) -> PromptEvent | None:
            if (same := state.with_text(digest)) is not None:
                _check_named(state, same.number)
                return None
            event = event_of(state, "created", actor=text.actor, reason=text.reason, now_ms=times.now_ms())
            return replace(
                event,
                version=len(state.versions) + 1,
                digest=digest,
                variables=text.variables,
                messages=text.messages,
                job_id=text.job_id,
            )

        state, is_new = self.decide(text.prompt, version)
        made = state.with_text(digest)
        assert made is not None, "it took effect, or was there"  # noqa: S101
        return NewVersion(made, is_new)

    def activate(self, order: Activation) -> AliasTarget:
        """Point an alias to a version, and return its new target. Repeating it writes nothing.

        Raises EventError, NotFoundError for an unknown version, RefusedError if the alias means another version than
        was expected, LogError.
        """

        def meaning(state: PromptState) -> PromptEvent | None:
            _check_known(state, order.version)
            _check_named(state, order.version)
            target = state.aliases.get(order.alias)
            _check_expected(order, target)
            if target is not None and target.version == order.version:
                return None
            event = event_of(state, "activated", actor=order.actor, reason=order.reason, now_ms=times.now_ms())
            metrics = dict(order.metrics or {})
            return replace(event, version=order.version, alias=order.alias, job_id=order.job_id, metrics=metrics)

        self.get(order.prompt)
        return self.decide(order.prompt, meaning)[0].aliases[order.alias]

    def withdraw(self, prompt: str, version: int, *, actor: str, reason: str) -> None:
        """Withdraw a version, so that it can no longer be named. Repeating it writes nothing.

        Raises EventError, NotFoundError for an unknown version, RefusedError while an alias means it, LogError.
        """

        def end(state: PromptState) -> PromptEvent | None:
            if version in state.withdrawn:
                return None
            _check_known(state, version)
            event = event_of(state, "withdrawn", actor=actor, reason=reason, now_ms=times.now_ms())
            return replace(event, version=version)

        self.get(prompt)
        self.decide(prompt, end)


def event_of(state: PromptState, kind: PromptKind, *, actor: str, reason: str, now_ms: int) -> PromptEvent:
    """Return the next event of a prompt, without the fields of its kind."""
    return PromptEvent(
        event_id=derive_id(state.prompt, kind, state.sequence),
        prompt=state.prompt,
        created_at=now_ms,
        kind=kind,
        sequence=state.sequence,
        actor=actor,
        reason=reason,
    )


def _check_known(state: PromptState, version: int) -> None:
    """Raise NotFoundError for a version that was never made."""
    if state.version(version) is None:
        raise NotFoundError(f"prompt {state.prompt} has no version {version}; its newest is {len(state.versions)}")


def _check_named(state: PromptState, version: int) -> None:
    """Raise RefusedError for a version that was withdrawn."""
    if (problem := state.withdrawal(version)) is not None:
        raise RefusedError(f"prompt {state.prompt}: {problem}")


def _check_expected(order: Activation, target: AliasTarget | None) -> None:
    """Raise RefusedError if an alias no longer means the version that the decision was based on.

    A decision that the same job made before does not count: a killed job repeats its decision.
    """
    if order.expect is None or order.expect == (0 if target is None else target.version):
        return
    if target is not None and order.job_id is not None and target.event.job_id == order.job_id:
        return
    meaning = "nothing yet" if target is None else f"version {target.version}"
    if target is not None and target.version is None:
        meaning = f"{len(target.arms)} versions, by the live comparison of job {target.event.job_id}"
    raise RefusedError(
        f"prompt {order.prompt}: {order.alias} means {meaning}, and version {order.expect} was expected; look at it "
        "and decide again"
    )
