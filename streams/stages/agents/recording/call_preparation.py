"""Prepare a call: find the trajectory that it continues, its version, its prompt and the constraint of its answer.

ModelCall ──► Conversation ──► version, loaded ──► recorded tokens + rendering of what is new ──► PreparedCall
    └── form: grammar, by the model's way to write calls ──► compiled by the engine ──► Constraint ──┘
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from dataclasses import dataclass, replace

from schemas.events import TrajectoryEvent, derive_id
from streams.engines.constraint import Constraint
from streams.engines.protocol import TokenEngine
from streams.engines.rendering.answer_form import schema_alone
from streams.engines.rendering.rendering import Rendering
from streams.engines.sampling_step import ServedCall
from streams.engines.token_stream import AnswerOrigin, Generation
from streams.errors import CallError, CallErrorKind, EventError
from streams.kafka import times
from streams.observability import trace_context
from streams.stages.agents.recording.call_prompts import CallPrompt, CallPrompts
from streams.stages.agents.recording.calls import ModelCall
from streams.stages.agents.recording.conversations import Conversation, Conversations
from streams.stages.agents.recording.served_versions import PolicyVersions


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A call that has a version and a prompt."""

    call: ModelCall
    conversation: Conversation
    prompt: CallPrompt
    tokens: tuple[int, ...]
    """The tokens of the prompt, as the engine gets them."""
    policy: str
    version: int
    trained_batches: int | None
    """`Version.recorded_batches` of that version."""
    turn_ids: tuple[str, ...]
    """Seeds, one for each choice."""
    started_at: int
    constraint: Constraint | None
    """`call.form` as the engine's constraint."""
    origin: AnswerOrigin | None = None
    """Where the answer is from; None: from `version`, and the engine."""

    def generation(self, choice: int) -> Generation:
        """Return the engine's request for a choice."""
        sampling, conversation = self.call.sampling, self.conversation
        key = self.turn_ids[0] if sampling.seed is None else str(sampling.seed)
        if sampling.seed is not None and conversation.began is not None:  # the seed of the task, and so of all its runs
            key = f"{key}/{conversation.slot}/{len(conversation.called)}"
        return Generation(
            prompt_token_ids=self.tokens,
            sampling=sampling,
            draw_key=key,
            slot=choice,
            version=self.version,
            constraint=self.constraint,
            conversation=conversation.trajectory_id,
            trace=None if conversation.began is None else trace_context.parse(conversation.began.traceparent),
        )


class CallPreparation:
    """Prepares the calls of one policy, in one event loop."""

    def __init__(
        self, versions: PolicyVersions, conversations: Conversations, rendering: Rendering, prompts: CallPrompts
    ) -> None:
        self._versions, self._conversations, self._prompts = versions, conversations, prompts
        self._engine, self._rendering = versions.engine, rendering
        self._nonce, self._begun = uuid.uuid4().hex, itertools.count()

    async def prepare(self, call: ModelCall) -> PreparedCall:
        """Return a call that can be answered; its conversation then has one more open call. Raises CallError."""
        constraint = await compile_constraint(call, self._engine, self._rendering)
        conversation, started_at = self._conversations.find_continued(call), times.now_ms()
        if conversation is None:
            conversation = self._new_conversation(call, started_at)
        call = _end_after_one_call(_as_answered(call, conversation.began), self._rendering)
        beginning = conversation.trajectory_id, call.request_digest, self._nonce, next(self._begun)
        turn_ids = tuple(derive_id(*beginning, choice) for choice in range(call.count))
        conversation.open_calls += 1  # from here on it is not ended or forgotten
        try:
            version = self._versions.version_for(call.model, conversation.task_id, conversation.adapter_version)
            await self.load(version)
            prompt = await self._prompts.of(call, conversation)
            conversation.check_open()
        except BaseException:  # CancelledError too: a client that hangs up leaves no call open
            conversation.open_calls -= 1
            raise
        conversation.called.add(turn_ids[0])
        return PreparedCall(
            call=call,
            conversation=conversation,
            prompt=prompt,
            tokens=(*prompt.recorded, *prompt.new),
            policy=self._versions.policy,
            version=version,
            trained_batches=self._versions.router.adapters.versions[version].recorded_batches,
            turn_ids=turn_ids,
            started_at=started_at,
            constraint=constraint,
        )

    def served_call(self, prepared: PreparedCall, longest_s: float) -> ServedCall | None:
        """Return the call as steps in front of the engine get it; None for the run of a task, which passes none."""
        call, router, versions = prepared.call, self._versions.router, self._versions
        if prepared.conversation.sampling_id is not None or call.observed is not None:
            return None

        def earlier() -> int:
            others = {number for number, version in router.adapters.versions.items() if version.outside is not None}
            return router.adapters.primary_without(router.unusable | others | {prepared.version})

        return ServedCall(
            agent_id=call.agent_id,
            subject=prepared.conversation.subject_of(call),
            policy=prepared.policy,
            version=prepared.version,
            turn_id=prepared.turn_ids[0],
            generations=tuple(prepared.generation(choice) for choice in range(call.count)),
            messages=call.messages,
            tools=call.tools,
            calls_freely=call.tool_choice == "auto" and call.one_call is None,
            form=None if call.form is None else str(call.form),
            prompt_version=None if call.prompt_version is None else str(call.prompt_version),
            names_version="@" in call.model,
            in_canary=router.serving_here.candidate is not None,
            cache_control=call.cache_control,
            limit_s=min(call.limit_s or longest_s, longest_s),
            earlier=earlier,
            folder=versions.folder,
        )

    def as_answered(self, prepared: PreparedCall, origin: AnswerOrigin | None) -> PreparedCall:
        """Return a call with the version that answers it."""
        number = prepared.version if origin is None or origin.version is None else origin.version
        batches = self._versions.router.adapters.versions[number].recorded_batches
        return replace(prepared, version=number, trained_batches=batches, origin=origin)

    async def prepare_text(self, call: ModelCall) -> tuple[int, tuple[int, ...]]:
        """Return the version and the tokens of a call that scores a text: the version it names, or the primary. A
        candidate scores only calls that name it, so the texts of an evaluation have one version. Raises CallError.
        """
        pin = None if "@" in call.model else self._versions.router.serving_here.primary
        version = self._versions.version_for(call.model, "", pin)
        await self.load(version)
        prompt = await self._prompts.of(call, None)
        return version, (*prompt.recorded, *prompt.new)

    async def load(self, version: int) -> None:
        """Return once the engine has a version. Raises CallError."""
        if self._versions.use(version):
            return
        try:
            await asyncio.to_thread(self._versions.load, version)
        except EventError as exc:
            kind: CallErrorKind = "busy" if exc.reason == "store_unreachable" else "invalid"
            raise CallError(kind, str(exc), "model") from exc

    def _new_conversation(self, call: ModelCall, now: int) -> Conversation:
        """Return a new trajectory for a call; it is remembered once its first turn is recorded."""
        name = call.trajectory_id or derive_id("trajectory", call.agent_id, self._nonce, next(self._begun))
        conversation = Conversation(name, name, call.agent_id, now, now, subject=call.subject)
        conversation.continues = self._conversations.conversation_of(call, self._versions.policy)
        if call.trajectory_id is not None:
            self._conversations.by_id[name] = conversation  # another call that names it meanwhile is of the same
        return conversation


def _as_answered(call: ModelCall, began: TrajectoryEvent | None) -> ModelCall:
    """Return a call as its run answers it: the task decides how tokens are drawn, whatever the client requests. The
    client's stop texts also apply, since it may not be able to read a longer answer.
    """
    if began is None or began.sampling is None:
        return call
    requested, drawn = call.sampling, began.sampling
    names = ("temperature", "top_p", "max_tokens", "seed")
    ignored = [name for name in names if getattr(requested, name) != getattr(drawn, name)]
    stop = tuple(dict.fromkeys((*drawn.stop, *requested.stop)))
    return replace(call, sampling=replace(drawn, stop=stop), ignored=tuple(dict.fromkeys((*call.ignored, *ignored))))


def _end_after_one_call(call: ModelCall, rendering: Rendering) -> ModelCall:
    """Return a call that stops at its first tool call, if its client accepts only one. The text that ends a tool call
    is then a stop text, so nothing after it is sampled, in any engine, and a replay ends there, too. If a model's tool
    calls have no such text, the parameter is reported as ignored.
    """
    if call.one_call is None or rendering.call_end == "":
        return call
    if rendering.call_end is None:
        return replace(call, one_call=None, ignored=(*call.ignored, call.one_call))
    return replace(call, sampling=replace(call.sampling, stop=(*call.sampling.stop, rendering.call_end)))


async def compile_constraint(call: ModelCall, engine: TokenEngine, rendering: Rendering) -> Constraint | None:
    """Return the engine's constraint for the form of a call, None without one. Raises CallError if it cannot be
    forced."""
    if call.form is None:
        return None
    try:
        return await asyncio.to_thread(engine.constrain, rendering.grammar(call.form, call.tools))
    except EventError as exc:
        problem = await asyncio.to_thread(_locate, call, engine, str(exc))
        parameter = call.form_parameter
        raise CallError("unsupported", f"{parameter} cannot be forced on the answer: {problem}", parameter) from exc


def _locate(call: ModelCall, engine: TokenEngine, problem: str) -> str:
    """Return the problem, with the name of the tool whose parameters have it."""
    for tool in call.tools:
        if call.form is not None and tool.name in call.form.tools:
            try:
                engine.constrain(schema_alone(tool.parameters, is_object=True))
            except EventError as exc:
                return f"in the parameters of tool {tool.name}: {exc}"
    return problem
