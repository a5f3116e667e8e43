"""Answer agents' generations with vLLM servers, one streamed request each, in token ids.

    submit ──► a thread ──► the conversation's server, verified ──► POST /v1/completions, streamed ──► TokenStream
                                  ▲        │                                  │
                                  └────────┘ tried again, also elsewhere,     └── cancelled: the connection closes,
                                             until the first token came           and vLLM stops

A conversation goes to the same server each time (servers.py), which has its beginning in its prefix cache. The prompt
is rendered here and sent as ids. Stop texts are looked for here, as the in-process engine does, so that the record does
not depend on which engine answered. The draws do: vLLM has its own random numbers, seeded by draw key and slot. An
answer with a token that was already seen is not retried: it ends with an error. Not covered: forced forms of an answer.
vLLM's logprobs are those after its grammar has removed tokens, but the log needs the policy's own.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Literal

from streams.egress.http_client import RequestDeadline
from streams.engines import quantized_base
from streams.engines.base_model import Base, load_base
from streams.engines.constraint import Constraint
from streams.engines.protocol import EngineCounts, TextScores, check_folder, check_generation
from streams.engines.rendering.template_rendering import ChatRendering
from streams.engines.token_stream import Drawn, Generation, TokenStream
from streams.engines.vllm.completions_api import (
    needs_processed,
    processed_needed,
    stream_body,
    stream_chunk,
    unanswerable,
)
from streams.engines.vllm.server_adapters import VllmAdapters
from streams.engines.vllm.server_proof import Loaded
from streams.engines.vllm.servers import VllmServer
from streams.errors import (
    BadAnswer,
    EventError,
    RefusedError,
    ServerError,
    ServerUnavailable,
    StreamwardError,
)
from streams.settings.model import Policy, Settings

log = logging.getLogger("streamward.vllm")


class StreamedAnswer:
    """A stream, and the request that fills it."""

    def __init__(self, stream: TokenStream, loaded: Loaded | None) -> None:
        self.stream, self.loaded = stream, loaded
        self._request: RequestDeadline | None = None
        stream.when_cancelled = lambda: self.end("cancelled")

    @property
    def name(self) -> str:
        """Name of its adapter; empty for the base."""
        return "" if self.loaded is None else self.loaded.name

    def begin(self, request: RequestDeadline) -> None:
        """Store the function that ends the request; call it if the answer has already ended."""
        self._request = request
        if self.stream.done:
            request.end()

    def end(self, ending: Literal["cancelled", "error"], error: str | None = None) -> None:
        """End it, and its request."""
        self.stream.finish(ending, error=error)
        if self._request is not None:
            self._request.end()


class VllmTokenEngine:
    """A `TokenEngine` over the servers in `policy.servers`."""

    name = "vllm"

    def __init__(self, policy: Policy, base: Base) -> None:
        """Verify the servers. Raises as `VllmAdapters` does."""
        self.base_digest, self.tokenizer_digest = base.base_digest, base.tokenizer_digest
        self._adapters = VllmAdapters(policy, base)
        self._prompts, self._proof = self._adapters.prompts, self._adapters.proof
        self.context_tokens, self.token_table = self._proof.context_tokens, base.token_table
        self._versions: dict[int, Loaded | None] = {0: None}
        self._lock, self._changing = threading.Lock(), threading.Lock()
        """Guards the fields below, and loading and unloading on the servers."""
        self._open = set[StreamedAnswer]()
        self._users = Counter[str]()
        """Open answers, by the name of their adapter."""
        self._is_closed = False
        self._tokens_drawn = self._prompt_tokens = 0

    def load(self, version: int, adapter: Path | None) -> None:
        """Make `version` ready from its verified local folder; see `TokenEngine.load`.

        Raises EventError: bad_adapter, not_served, or store_unreachable while no server can be asked.
        """
        check_folder(version, adapter)
        replaced = self._versions.get(version)
        if adapter is None or (replaced is not None and replaced.source == adapter):
            return
        with self._changing:
            loaded = self._adapters.put(version, adapter)
            try:
                self._adapters.load_now(loaded)
            except EventError:
                self._unload_if_unused(loaded)
                raise
            self.context_tokens = self._proof.context_tokens
            with self._lock:
                self._versions[version] = loaded
            if replaced is not None:
                self._unload_if_unused(replaced)

    def unload(self, version: int) -> None:
        """Take no more generations for `version`, unless it is the base; see `TokenEngine.unload`."""
        with self._lock:
            loaded = self._versions.pop(version, None) if version else None
        if loaded is not None:
            with self._changing:
                self._unload_if_unused(loaded)

    def constrain(self, grammar: str) -> Constraint:
        """Refuse: see the module."""
        error = "policy.engine=vllm cannot force a form: vLLM would report other logprobs than the policy's"
        error += "; use policy.engine=transformers, or ask for the form in the prompt"
        raise EventError(error, reason="bad_constraint")

    def submit(self, generation: Generation) -> TokenStream:
        """Begin to answer; see `TokenEngine.submit`."""
        sampling, servers = generation.sampling, self._adapters.servers.servers
        unfit = unanswerable(sampling)
        is_unprocessed = all(server.reports_unprocessed for server in servers)
        if unfit is None and is_unprocessed and needs_processed(sampling, self.token_table):
            unfit = processed_needed(sampling, self.token_table, servers[0].url)
        with self._lock:
            if self._is_closed:
                raise RefusedError("the engine is closed and takes no more generations; start another")
            check_generation(generation, self, self._versions)
            if unfit is not None:
                raise EventError(unfit, reason="bad_sampling")
            answer = StreamedAnswer(TokenStream(generation), self._versions[generation.version])
            self._open.add(answer)
            self._users[answer.name] += 1
            self._adapters.pool.submit(self._answer, answer)
        return answer.stream

    def score(self, version: int, tokens: tuple[int, ...], top: int) -> TextScores:
        """Refuse: vLLM's servers offer scores by their own protocol."""
        error = "policy.engine=vllm scores no texts here"
        way_out = (
            "send the call to a server of policy.servers, which answers echo itself, or use policy.engine=transformers"
        )
        raise EventError(f"{error}; {way_out}", reason="cannot_score")

    def counts(self) -> EngineCounts:
        """Return the present work; the content of a server's cache is unknown here."""
        running = sum(server.in_flight for server in self._adapters.servers.servers)
        return EngineCounts(
            rows_running=running,
            rows_waiting=max(0, len(self._open) - running),
            prompt_tokens_run=self._prompt_tokens,
            tokens_drawn=self._tokens_drawn,
        )

    def close(self) -> None:
        """End every stream, unload our adapters from the servers that answer, and release everything else."""
        with self._lock:
            self._is_closed = True
            unfinished = tuple(self._open)
        for answer in unfinished:
            answer.end("error", "the engine was closed")
        for version in tuple(self._versions):
            self.unload(version)
        self._adapters.close()

    # --- one answer --------------------------------------------------------------------------------------------------

    def _answer(self, answer: StreamedAnswer) -> None:
        """Fill a stream, and end it in any case."""
        generation, stream = answer.stream.generation, answer.stream
        key = generation.conversation or str(generation.prompt_token_ids)
        try:
            if not stream.done:
                self._adapters.servers.run(key.encode(), lambda server: self._fill_from(server, answer))
        except StreamwardError as exc:
            stream.finish("error", error=str(exc))
        except Exception as exc:  # the readers of the stream must get any error
            log.exception("a generation failed")
            stream.finish("error", error=f"{type(exc).__name__}: {exc}")
        finally:
            self._forget(answer)

    def _fill_from(self, server: VllmServer, answer: StreamedAnswer) -> None:
        """Have one server fill a stream. Raises errors that allow a retry, while no token was seen."""
        stream = answer.stream
        if stream.done:
            return
        try:
            sampling = stream.generation.sampling
            self._adapters.request(server, answer.loaded, sampling, lambda model: self._stream(server, model, answer))
        except (ServerUnavailable, ServerError, BadAnswer) as exc:
            if stream.done:  # its own request was ended
                return
            if not stream.drawn:
                raise
            stream.finish("error", error=f"{server.url}, in the middle of its answer: {exc}")
            if isinstance(exc, ServerUnavailable):
                server.pause(exc)

    def _stream(self, server: VllmServer, model: str, answer: StreamedAnswer) -> None:
        """Push a server's tokens, up to the end. Raises as `VllmServer.stream` does."""
        stream, generation = answer.stream, answer.stream.generation
        prompt = generation.prompt_token_ids
        room = min(generation.sampling.max_tokens, self._proof.context_tokens - len(prompt))
        body = {"model": model, **stream_body(generation, room, self.token_table)}
        tokens, reason = list[int](), None
        with closing(server.stream("/v1/completions", body, answer.begin, generation.trace)) as events:
            for number, event in enumerate(events):
                chunk = stream_chunk(event, model=model, prompt=prompt, is_first=number == 0)
                reason = chunk.finish_reason
                for drawn in chunk.drawn:
                    self._push(stream, tokens, drawn, room)
                    if stream.done:
                        return
        raise BadAnswer(
            f"the server gave finish_reason {reason!r} after {len(tokens)} of {room} tokens, the last of them "
            f"{tokens[-1:]}, where model.base ends no turn; do both have the same files?"
        )

    def _push(self, stream: TokenStream, tokens: list[int], drawn: Drawn, room: int) -> None:
        """Push a token, and end the stream if it ends the answer. Raises BadAnswer."""
        if self.token_table.first_unknown(drawn[:1]) is not None:
            raise BadAnswer(f"the server drew id {drawn[0]}, which the tokenizer does not have")
        tokens.append(drawn[0])
        stream.push(*drawn)
        match = self._prompts.first_stop(tokens, stream.generation.sampling.stop)
        if match is not None or drawn[0] in self.token_table.ends:
            stream.finish("stop", stop=None if match is None else match.stop)
        elif len(tokens) == room:
            stream.finish("length")

    def _forget(self, answer: StreamedAnswer) -> None:
        """Forget an answer, and unload its adapter if it was the last one of a version that is not served any more."""
        with self._lock:
            self._open.discard(answer)
            self._users[answer.name] -= 1
            self._tokens_drawn += len(answer.stream.drawn)
            self._prompt_tokens += len(answer.stream.generation.prompt_token_ids) if answer.stream.drawn else 0
            is_served = self._versions.get(answer.stream.generation.version) is answer.loaded
        if not is_served and answer.loaded is not None:
            with self._changing:
                self._unload_if_unused(answer.loaded)

    def _unload_if_unused(self, loaded: Loaded) -> None:
        """Unload an adapter that no version and no answer needs. Hold `_changing`."""
        with self._lock:
            served = {version.name for version in self._versions.values() if version is not None}
            is_used = loaded.name in served or self._users[loaded.name] > 0
        if not is_used:
            self._adapters.unload(loaded)


def build_tokens(settings: Settings) -> tuple[VllmTokenEngine, ChatRendering]:
    """Return the engine over policy.servers and its rendering, by model.base. Raises SettingsError if one is unfit."""
    quantized_base.refuse(settings.model, "engine vllm")
    base = load_base(settings.model.model_copy(update={"device": "cpu"}))
    engine = VllmTokenEngine(settings.policy, base)
    return engine, ChatRendering(base.tokenizer, base.token_table, base.tokenizer_digest)
