"""The second engine, which answers with the tokens of the same base model.

settings ──► engine, rendering ──► ready: the version is loaded ──► submit, or complete: all slots of a task
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from plugins.fallback.fallback_settings import Fallback
from streams.engines.build import build_tokens
from streams.engines.protocol import Completion, Engine, SamplingRequest, TokenEngine, failed_slot
from streams.engines.sampling_step import ServedCall
from streams.engines.sharing import SharedTokenEngine, TokenEngineShare
from streams.engines.token_stream import Generation, TokenStream
from streams.errors import EventError, RefusedError, SettingsError
from streams.settings.model import Settings

LOADED = 2
"""Number of versions of a policy that stay loaded."""


class OtherEngine:
    """A token engine with the versions that it was asked for. Call `close` at the end."""

    def __init__(self, settings: Settings, rule: Fallback, first: Engine | TokenEngine) -> None:
        """`first`: the engine that it answers for. Raises SettingsError if it cannot start, or has another base."""
        changed = {"engine": rule.engine, "servers": rule.servers, "script": rule.script}
        policy = settings.policy.model_copy(update=changed)
        self.engine, self._rendering = build_tokens(settings.model_copy(update={"policy": policy}))
        for name in ("base_digest", "tokenizer_digest"):
            if getattr(self.engine, name) != getattr(first, name):
                self.engine.close()
                raise SettingsError(
                    f"fallback.engine={rule.engine} has another {name.partition('_')[0]} than "
                    f"policy.engine={settings.policy.engine}, so its tokens would be no answer; use the same model"
                )
        self._shared, self._lock = SharedTokenEngine(self.engine), threading.Lock()
        self._shares: dict[str, TokenEngineShare] = {}
        self._versions: dict[str, list[int]] = {}

    def close(self) -> None:
        """Release the engine."""
        self.engine.close()

    async def submit(self, call: ServedCall) -> list[TokenStream]:
        """Begin to answer a call. Raises EventError, RefusedError."""
        share = await asyncio.to_thread(self._ready, call.policy, call.version, call.folder(call.version))
        return [share.submit(generation) for generation in call.generations]

    def complete(self, request: SamplingRequest, version: int, folder: Path | None) -> list[Completion]:
        """Return the answers to a task, once all slots are sampled. Raises EventError, RefusedError."""
        task = request.task
        share = self._ready(task.policy, version, folder)
        prompt = request.fork_tokens(self.engine.tokenizer_digest) or self._rendering.first(task.messages, ())
        streams = [
            share.submit(
                Generation(
                    prompt_token_ids=prompt,
                    sampling=task.sampling,
                    draw_key=request.draw_key,
                    slot=slot,
                    version=version,
                    trace=request.trace,
                )
            )
            for slot in range(task.group_size)
        ]
        return [self._completion(stream) for stream in streams]

    def _ready(self, policy: str, version: int, folder: Path | None) -> TokenEngineShare:
        """Return the engine with a version loaded. Raises EventError."""
        with self._lock:
            share = self._shares.setdefault(policy, self._shared.share(policy))
            versions = self._versions.setdefault(policy, [])
            if version and version not in versions:
                if folder is None:
                    raise EventError(f"version {version} has no files here", reason="unknown_version")
                share.load(version, folder)
                versions.append(version)
                for old in versions[:-LOADED]:
                    share.unload(old)
                del versions[:-LOADED]
            return share

    def _completion(self, stream: TokenStream) -> Completion:
        """Return the answer of a stream, once it has ended."""
        tokens, logprobs = tuple(zip(*stream, strict=True)) or ((), ())
        slot = stream.generation.slot
        if stream.ending not in ("stop", "length"):
            return failed_slot(slot, f"fallback: {stream.error or stream.ending}")
        text = self._rendering.text(tokens)
        return Completion(
            slot=slot,
            text=text.partition(stream.stop)[0] if stream.stop else text,
            finish_reason="stop" if stream.ending == "stop" else "length",
            prompt_token_ids=stream.generation.prompt_token_ids,
            completion_token_ids=tokens,
            logprobs=logprobs,
        )


FAILURES = (EventError, RefusedError)
"""Errors of an engine that says at once that it does not answer."""
