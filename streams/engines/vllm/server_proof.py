"""Verify a vLLM server before use: its base, its kind of logprobs, and its adapter.

    server ──► the models it lists ──► its base on the probe ──► logprobs of the draw? ──► introduced
                                       an adapter: loaded, listed, as predicted on the probe ──► verified

Results, failures included, are remembered until the server was unreachable or has lost an adapter, which is when it may
have been restarted: another request would not change its weights.

An adapter that another agent loaded under our name (which carries the hash of the files) with other bytes is refused,
not replaced: vLLM caches prompt prefixes by name.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streams.engines.rendering.prompts import Prompts
from streams.engines.vllm.completions_api import PLAIN, SLACK, prompt_logprobs
from streams.engines.vllm.probe import QUESTION, SAME_BASE, Probe, change, noise
from streams.engines.vllm.servers import VllmServer
from streams.errors import BadAnswer, RequestRejected, ServerError, SettingsError, WrongModel
from streams.settings.model import Policy

log = logging.getLogger("streamward.vllm")

UNSURE = -0.05
"""Nats; a first token with at most this logprob shows whether logprobs are before or after top_p."""
PROBED = (3, 6, 12, 24, 48, 96)
"""Lengths of prefixes of the probe, tried until the model is unsure of the next token."""


@dataclass(eq=False, slots=True)
class Loaded:
    """An adapter on the servers."""

    version: int
    source: Path  # where it was fetched to
    name: str
    seen_as: str  # the path under which the servers find our copy
    predicted: list[float] = field(default_factory=list)  # logprobs of the probe; empty: not checked


class Proof:
    """Verifies servers. Threads share it."""

    def __init__(self, policy: Policy, probe: Probe | None, prompts: Prompts) -> None:
        """`probe` has the predictions of our own weights; without it, a server's list is trusted."""
        self.context_tokens = prompts.context_tokens
        """Context length of model.base and every server verified so far."""
        self._policy, self._probe = policy, probe
        self._ids = probe.tokens if probe else prompts.plain(QUESTION)
        without_token = len(prompts.token_table.without_token)
        self._padding = f"; {without_token} ids without a token have a share in them" if without_token else ""

    def ready(self, server: VllmServer, loaded: Loaded | None) -> str:
        """Return the model name to request, once `server` is verified to serve `loaded` (None: the base) under it.
        Raises WrongModel if it does not, SettingsError if it accepts no adapters, ServerUnavailable if it does not
        answer, BadAnswer if its answer cannot be checked.
        """
        with server.lock:
            for adapter in ("", loaded.name if loaded else ""):
                if adapter in server.unfit:
                    raise WrongModel(server.unfit[adapter])
                try:
                    if not adapter and server.base is None:
                        self._introduce(server)
                    elif loaded is not None and adapter and adapter not in server.verified:
                        self._verify(server, loaded)
                except WrongModel as exc:
                    server.unfit[adapter] = str(exc)
                    raise
                except (RequestRejected, ServerError) as exc:  # not the fault of the task that waits
                    raise BadAnswer(str(exc)) from exc
            return loaded.name if loaded else str(server.base)

    def _introduce(self, server: VllmServer) -> None:
        """Find the name of its base, and check that it is model.base and which logprobs it reports."""
        cards = _cards(server)
        bases = [name for name, card in cards.items() if not card.get("parent")]
        expected = self._policy.server_model
        if (expected not in bases) if expected else len(bases) != 1:
            raise WrongModel(
                f"{server.url} lists the models {bases}, expected {expected or 'one'}; set policy.server_model to the "
                "name of the base model there"
            )
        name = expected or bases[0]
        longest = cards[name].get("max_model_len")
        if type(longest) is int and 0 < longest < self.context_tokens:
            log.warning("%s has room for %d tokens, model.base for %d", server.url, longest, self.context_tokens)
            self.context_tokens = longest
        if self._probe:
            server.base_logprobs = self._probe_logprobs(server, name)
            apart = noise(self._probe.base_logprobs, server.base_logprobs)
            if apart > SAME_BASE:
                raise WrongModel(
                    f"{server.url}: the logprobs of {name} are {apart:.3g} nats off those of model.base (root mean "
                    f"square, at most {SAME_BASE} expected{self._padding}); start it with the folder of model.base"
                )
            log.info("%s: the logprobs of %s are within %.2g nats of model.base", server.url, name, apart)
        server.is_processed = self._reports_processed(server, name)
        server.base = name

    def _verify(self, server: VllmServer, loaded: Loaded) -> None:
        """Load the adapter unless the server lists it. Raises WrongModel if other weights are served under its name."""
        was_listed = loaded.name in _cards(server)
        if not was_listed:
            self._load(server, loaded)
        try:
            self._compare(server, loaded)
        except (ServerError, RequestRejected):
            if not was_listed:
                raise
            # loaded by another agent, perhaps from a folder that is gone: load it again from ours
            server.ask("POST", "/v1/unload_lora_adapter", {"lora_name": loaded.name})
            self._load(server, loaded)
            self._compare(server, loaded)
        server.verified.add(loaded.name)
        log.info("%s serves %s", server.url, loaded.name)

    def _load(self, server: VllmServer, loaded: Loaded) -> None:
        try:
            server.ask("POST", "/v1/load_lora_adapter", {"lora_name": loaded.name, "lora_path": loaded.seen_as})
        except (RequestRejected, ServerError) as exc:
            if isinstance(exc, RequestRejected) and exc.status in (404, 405) and "lora" not in exc.said.lower():
                raise SettingsError(
                    f"{exc}; it takes no adapters at run time: start it with --enable-lora and, in its environment, "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
                ) from exc
            if loaded.name not in _cards(server):  # else another agent was faster
                raise WrongModel(
                    f"{exc} (it was told to load {loaded.seen_as}; where it does not see policy.server_folder under "
                    "this path, set policy.server_adapters)"
                ) from exc
        else:
            server.loaded_here.add(loaded.name)
        if loaded.name not in _cards(server):
            raise WrongModel(f"{server.url} took {loaded.name} and does not list it")

    def _compare(self, server: VllmServer, loaded: Loaded) -> None:
        if not self._probe:
            return
        difference = change(
            predicted=loaded.predicted,
            predicted_base=self._probe.base_logprobs,
            seen=self._probe_logprobs(server, loaded.name),
            seen_base=server.base_logprobs,
        )
        if not difference.is_served:
            raise WrongModel(f"{server.url} lists {loaded.name} and answers with other weights: {difference}")
        log.info("%s: %s shows %s", server.url, loaded.name, difference)
        if not difference.is_detectable:
            log.warning(
                "%s changes too little to be told from its base, so what %s lists is trusted: %s",
                *(loaded.name, server.url, difference),
            )

    def _probe_logprobs(self, server: VllmServer, model: str) -> list[float]:
        """Return a server's logprobs of the probe."""
        body = {"prompt": list(self._ids), "max_tokens": 1, "temperature": 0.0, "return_token_ids": True}
        with server.alone():
            answer = server.ask("POST", "/v1/completions", {"model": model, **body, "prompt_logprobs": 0, **PLAIN})
        return prompt_logprobs(answer, model=model, prompt=self._ids)

    def _reports_processed(self, server: VllmServer, model: str) -> bool:
        """Return whether its logprobs are those after temperature and top_p. Raises WrongModel if they are not
        logprobs. With a top_p near 0 one token is left: its logprob is 0 after top_p, and that of greedy decoding
        before. If the model is too sure at every length tried, they count as those before.
        """
        for length in PROBED:
            body = {"model": model, "prompt": list(self._ids[:length]), "max_tokens": 1, "logprobs": 1, **PLAIN}
            greedy, narrow = (
                _first_logprob(server.ask("POST", "/v1/completions", body | sampling), server.url)
                for sampling in ({"temperature": 0.0, "seed": 0}, {"temperature": 1.0, "top_p": 1e-6, "seed": 0})
            )
            if greedy < UNSURE:
                return narrow > greedy / 2
        return False


def _cards(server: VllmServer) -> dict[str, dict[str, Any]]:
    """Return a server's models, by name."""
    answer = server.ask("GET", "/v1/models")
    try:
        cards = {str(card["id"]): dict(card) for card in answer["data"]}
        "".join(cards).encode()  # a name that cannot be sent is not a model's
        return cards
    except (LookupError, TypeError, ValueError) as exc:
        raise BadAnswer(f"{server.url}/v1/models lists no models but {str(answer)[:100]!r}") from exc


def _first_logprob(answer: Any, url: str) -> float:
    """Return the logprob of the first token. Raises WrongModel if the value cannot be a logprob."""
    try:
        logprobs = answer["choices"][0]["logprobs"]
        values = [float(logprobs["token_logprobs"][0]), *map(float, logprobs["top_logprobs"][0].values())]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise BadAnswer(f"{url}/v1/completions gives no logprobs: {exc!r}") from exc
    if any(value > SLACK for value in values):
        raise WrongModel(f"{url} reports logits for logprobs; start it without --logprobs-mode, or processed_logprobs")
    return values[0]
