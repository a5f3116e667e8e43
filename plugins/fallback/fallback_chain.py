"""Answer with another engine or version where the one that was asked gives no first token.

    call ──► targets: as asked, then the chain of its policy ──► paused for its tenant? ──► the next one
                                                             └─► first token in first_token_s ──► the answer
                                                             └─► none, an error ──► counted ──► the next one
    none answers ──► again, until the client's time or patience_s is over

The chain is that of the policy that was asked. Nothing changes after the first token: a stream that breaks off then is
an error. Header, body and turn name the version that answered; the turn and a header also the one that was asked, and
why it did not. A call that names a version gets no other one. An engine is paused for a tenant whose calls fail in a
row, so no tenant's calls pause it for another; then one call in pause_s tries it.

A serve task gets the second engine alone, once its round failed. Not covered: an engine that answers nonsense.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from plugins.fallback.fallback_settings import Fallback
from plugins.fallback.other_engine import FAILURES, OtherEngine
from streams.access.tenants.tenant_names import tenant_in
from streams.engines.protocol import Completion, Engine, SamplingRequest, TokenEngine
from streams.engines.sampling_step import Begins, RoundVersion, Samples, SamplingStep, ServedCall
from streams.engines.token_stream import ORIGIN, AnswerOrigin, TokenStream
from streams.errors import CallError, StreamwardError
from streams.settings.model import Settings
from streams.stages.scoring.breaker import CircuitBreaker

TASKS = "tasks"
"""The engine of rounds, as its breaker knows it."""
ASKED_VERSION, REASON = "asked_version", "fallback_reason"
LOOK_S = 0.2
"""How often targets are tried again while none answers."""

log = logging.getLogger("streamward.fallback")


class FallbackTarget(NamedTuple):
    """One way to answer a call."""

    version: int
    other: OtherEngine | None
    """None: the engine that was asked."""

    @property
    def label(self) -> str:
        """The engine, as a breaker knows it."""
        return "engine" if self.other is None else "server"


class NotAnsweredError(Exception):
    """A target gave no first token; its text is a word for why."""

    def __init__(self, reason: str, error: CallError) -> None:
        super().__init__(reason)
        self.reason, self.error = reason, error


class FallbackChain(SamplingStep):
    """The breakers of a server or a policy agent, and what answers instead."""

    def __init__(self, rule: Fallback, engine: Engine | TokenEngine, other: OtherEngine | None) -> None:
        self._rule, self._engine, self._other = rule, engine, other
        self._breaker = CircuitBreaker(rule)

    def close(self) -> None:
        """Release the second engine."""
        if self._other is not None:
            self._other.close()

    async def begin(self, call: ServedCall, begin: Begins) -> list[TokenStream]:
        """Return the streams of the first target that gives a token. Raises CallError."""
        targets = list(self._targets(call))
        if len(targets) == 1:
            return await begin(call)
        until = time.monotonic() + min(call.limit_s, self._rule.patience_s)
        reason, error = "paused", CallError("busy", "the engine is paused; try again")
        while True:
            for target in targets:
                breaker = f"{tenant_in(call.agent_id) or ''}/{target.label}"
                if not self._may_try(breaker):
                    continue
                try:
                    streams = await self._first_tokens(call, target, begin, until)
                except NotAnsweredError as exc:
                    self._breaker.note(breaker, time.monotonic(), failed=True)
                    reason, error = exc.reason, exc.error
                    continue
                except BaseException:  # CancelledError too: it says nothing about the engine, another call tries it
                    self._breaker.pass_over(breaker, time.monotonic())
                    raise
                self._breaker.note(breaker, time.monotonic(), failed=False)
                if target != targets[0]:
                    self._mark(streams, call, target, reason)
                return streams
            if time.monotonic() + LOOK_S >= until:
                raise error
            await asyncio.sleep(LOOK_S)

    def _targets(self, call: ServedCall) -> Iterator[FallbackTarget]:
        """Yield what may answer a call, in order, each once."""
        seen = {FallbackTarget(call.version, None)}
        yield from seen
        for name in self._rule.chain(call.policy):
            other = self._other if name == "server" else None
            version = call.earlier() if name == "earlier" else {"server": call.version, "base": 0}[name]
            target = FallbackTarget(version, other)
            is_other_version = call.names_version and version != call.version
            is_forced = other is not None and call.form is not None  # compiled for the engine that was asked
            if target not in seen and not is_other_version and not is_forced:
                seen.add(target)
                yield target

    def _may_try(self, breaker: str) -> bool:
        """Return whether an engine may be asked; a paused one by one call at a time."""
        if not self._breaker.is_paused(breaker):
            return True
        if breaker in self._breaker.due(time.monotonic()):
            self._breaker.begin_trial(breaker)
            return True
        return False

    async def _first_tokens(
        self, call: ServedCall, target: FallbackTarget, begin: Begins, until: float
    ) -> list[TokenStream]:
        """Return the streams of a target once each has a token or its end. Raises NotAnsweredError, and CallError for a
        call that cannot be answered."""
        streams: list[TokenStream] = []
        limit_s = min(self._rule.first_token_s, until - time.monotonic())
        late = CallError("busy", f"no token came within {limit_s:.3g} s (fallback.first_token_s); try again")
        try:
            async with asyncio.timeout(limit_s):
                if target.other is None:
                    streams += await begin(replace(call, version=target.version))
                else:
                    streams += await target.other.submit(call)
                for stream in streams:
                    await _first_token(stream)
        except TimeoutError as exc:
            raise NotAnsweredError("no_token", late) from exc
        except FAILURES as exc:
            raise NotAnsweredError("failed", CallError("busy", f"{exc}; try again")) from exc
        except CallError as exc:
            if exc.kind not in ("busy", "internal"):
                raise
            raise NotAnsweredError("failed", exc) from exc
        finally:
            failed = [stream for stream in streams if stream.ending == "error" and not stream.drawn]
            if failed or any(not stream.drawn and not stream.done for stream in streams):
                for stream in streams:
                    stream.cancel()
        if failed:
            raise NotAnsweredError("failed", CallError("internal", f"the engine failed: {failed[0].error}"))
        return streams

    def _mark(self, streams: list[TokenStream], call: ServedCall, target: FallbackTarget, reason: str) -> None:
        """Say of an answer which version gave it, and which was asked."""
        engine = self._engine if target.other is None else target.other.engine
        for stream in streams:
            stream.origin = _origin(engine, target.version, f"{call.policy}@{call.version}", reason)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def sample(self, requests: list[SamplingRequest], served: RoundVersion, sample: Samples) -> list[list[Completion]]:
        """Return the answers to serve tasks; where the engine fails, those of the second engine."""
        other = self._other
        if other is None or not any("server" in self._rule.chain(request.task.policy) for request in requests):
            return sample(requests)
        answers, problem = list[list[Completion]](), None
        if self._may_try(TASKS):
            try:
                answers = sample(requests)
            except StreamwardError as exc:
                problem = exc
            failed = problem is not None
            self._breaker.note(TASKS, time.monotonic(), failed=failed, for_good=failed)
        slots_of = answers or [[] for _ in requests]
        reason = "failed" if answers or problem is not None else "paused"
        for number, request in enumerate(requests):
            slots = slots_of[number]
            if slots and not any(slot.error for slot in slots):
                continue
            completions = self._instead(other, request, served, reason)
            if completions:
                slots_of[number] = completions
            elif not slots and problem is not None:
                raise problem
            elif not slots:
                slots_of[number] = sample([request])[0]  # it is paused, and nothing else answers
        return slots_of

    def _instead(
        self, other: OtherEngine, request: SamplingRequest, served: RoundVersion, reason: str
    ) -> list[Completion]:
        """Return the second engine's answers to a task; none if it has not all."""
        policy = request.task.policy
        if "server" not in self._rule.chain(policy):
            return []
        try:
            completions = other.complete(request, *served)
        except FAILURES as exc:
            log.warning("task %s: the second engine does not answer either: %s", request.task.task_id, exc)
            return []
        if any(slot.error for slot in completions):
            return []
        origin = _origin(other.engine, served.version, f"{policy}@{served.version}", reason)
        return [replace(slot, origin=origin) for slot in completions]


def build_fallback(settings: Settings, engine: Engine | TokenEngine) -> FallbackChain | None:
    """Return the step; None without a chain. Raises SettingsError if the second engine cannot start."""
    rule = settings.of_plugin(Fallback)
    if not rule.chains:
        return None
    return FallbackChain(rule, engine, OtherEngine(settings, rule, engine) if rule.engine else None)


async def _first_token(stream: TokenStream) -> None:
    """Return once a stream has a token, or has ended."""
    async with aclosing(stream.batches()) as batches:
        async for _ in batches:
            return


def _origin(engine: Engine | TokenEngine, version: int, model: str, reason: str) -> AnswerOrigin:
    notes = {ORIGIN + ASKED_VERSION: model, ORIGIN + REASON: reason}
    return AnswerOrigin(version=version, engine=engine.name, base_digest=engine.base_digest, notes=notes)
