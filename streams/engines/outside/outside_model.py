"""Ask an outside model: a version of a policy that another server answers for, by its URL and its name there.

    SamplingRequest ──► POST {url}/chat/completions, once a slot ──► text, the server's counts of tokens ──► Completion

Only `outside.url` is used: an event may name any URL, but prompts and the key are sent nowhere else. The key is only in
the environment (`outside.key_env`). A tenant's task is sent only if `outside.tenants` has the tenant.

An answer has a text and token counts, but no tokens and no logprobs, so it can be scored and compared, but never
trained on: its group enters no batch (streams/stages/batches.py). An answer without counts is a failed slot, since its
cost would be unknown; so is one that was filtered, or calls a tool.

Not covered: tools, which tasks that the policy answers directly do not have; and detecting a change of the server's
model.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeGuard

import httpx2

from schemas import json_text
from schemas.events import FinishReason, Message, OutsideModel
from streams.egress.http_client import AnswerTooLarge, bearer, fetch, new_client
from streams.egress.retry_budget import budget_of
from streams.engines.protocol import Completion, SamplingRequest, TokenCounts, failed_slot, failed_slots, uniform
from streams.errors import EventError
from streams.observability.trace_context import sending
from streams.settings.model import Outside

MOST_BYTES = 4 * 1024 * 1024
"""Longest answer accepted."""
AGAIN = (408, 409, 425, 429)
"""Statuses after which the same request may succeed, in addition to server errors."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 8.0
"""Before the first retry, and at most."""
ENDS: dict[object, FinishReason] = {"stop": "stop", "length": "length"}


def check(model: OutsideModel, rule: Outside) -> None:
    """Check that this model may be used here. Raises EventError (outside_url)."""
    if rule.url is None or model.url != rule.url.rstrip("/"):
        expected = "it is not set" if rule.url is None else f"it is {rule.url}"
        raise EventError(
            f"outside model {model.model} at {model.url[:200]}: prompts are sent to outside.url alone, and {expected}; "
            "set it to this URL if the model there may answer, or find out who wrote this event",
            reason="outside_url",
        )


def identity(model: OutsideModel) -> str:
    """Return the digest of URL and name that a response records instead of those of weights and tokenizer."""
    return hashlib.sha256(f"{model.url}\x1f{model.model}".encode()).hexdigest()


class _OneTryError(Exception):
    """A request that failed; `again`: the same one may succeed."""

    def __init__(self, problem: str, *, again: bool = False) -> None:
        super().__init__(problem)
        self.again = again


class OutsideModels:
    """Answers of outside models. Call `close` at the end."""

    def __init__(self, rule: Outside) -> None:
        """Do not connect yet."""
        self._rule = rule
        headers = bearer(os.environ.get(rule.key_env), rule.key_env)
        self._client = new_client(headers=headers)
        self._pool = ThreadPoolExecutor(rule.parallel, "outside")

    def close(self) -> None:
        """Close the connections; answers in progress are awaited."""
        self._pool.shutdown(cancel_futures=True)
        self._client.close()

    def sample(self, model: OutsideModel, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        """Answer every slot of every request; a slot that the server does not answer has failed. Raises EventError
        (outside_url) for a model that may not be used.
        """
        check(model, self._rule)
        answers = [
            [self._pool.submit(self._slot, model, request, slot) for slot in range(request.task.group_size)]
            if self._rule.takes(request.task.tenant)
            else None
            for request in requests
        ]
        return [
            failed_slots(request, self._not_sent(request)) if slots is None else [slot.result() for slot in slots]
            for request, slots in zip(requests, answers, strict=True)
        ]

    def ask(self, model: OutsideModel, messages: Sequence[Message], max_tokens: int) -> str:
        """Return a short answer, to check that the model works. Raises EventError with the server's message."""
        check(model, self._rule)
        body = self._body(model, messages, {"max_tokens": max_tokens, "max_completion_tokens": max_tokens})
        try:
            return self._post(model, body, slot=0).text
        except _OneTryError as exc:
            raise EventError(str(exc), reason="outside_model") from exc

    def _not_sent(self, request: SamplingRequest) -> str:
        return (
            f"its task is of tenant {request.task.tenant}, whose texts are not sent to an outside model; add it to "
            "outside.tenants if they may be"
        )

    def _slot(self, model: OutsideModel, request: SamplingRequest, slot: int) -> Completion:
        """Return the answer to one slot, after up to `outside.retries` retries."""
        sampling = request.sampling
        body = self._body(
            model,
            request.messages,
            {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_tokens,
                "max_completion_tokens": sampling.max_tokens,
                "stop": list(sampling.stop) or None,
                "seed": int(uniform(request.draw_key, slot, 0) * 2**31),
            },
        )
        for attempt in range(self._rule.retries + 1):
            try:
                with sending(request.trace):
                    return self._post(model, body, slot)
            except _OneTryError as exc:
                if not exc.again or attempt == self._rule.retries:
                    return failed_slot(slot, str(exc))
            time.sleep(budget_of(model.url).pause_s(attempt + 1, FIRST_PAUSE_S, LONGEST_PAUSE_S))
        raise AssertionError("not reached")

    def _body(self, model: OutsideModel, messages: Sequence[Message], values: dict[str, Any]) -> dict[str, Any]:
        """Return a request with those of `values` that the server accepts (`outside.parameters`)."""
        taken = {name: values[name] for name in self._rule.request_parameters if values.get(name) is not None}
        return {"model": model.model, "messages": [_plain(message) for message in messages], **taken}

    def _post(self, model: OutsideModel, body: dict[str, Any], slot: int) -> Completion:
        """Return the answer to one request. Raises _OneTryError."""
        url, rule = f"{model.url}/chat/completions", self._rule
        try:
            limits: dict[str, Any] = {"limit_s": rule.timeout_s, "most_bytes": MOST_BYTES}
            status, answer = fetch(self._client, "POST", url, **limits, json=body)
        except (httpx2.HTTPError, httpx2.InvalidURL, AnswerTooLarge) as exc:
            raise _OneTryError(f"outside model at {url}: {exc or type(exc).__name__}", again=True) from exc
        if status != 200:
            text = answer[:200].decode(errors="replace")
            raise _OneTryError(
                f"outside model at {url} answered HTTP {status}: {text!r}; check outside.url, the variable "
                f"{rule.key_env} with its key, and outside.parameters",
                again=status in AGAIN or status >= 500,
            )
        try:
            return _completion(json_text.parse(answer), slot)
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise _OneTryError(f"outside model at {url} sent no chat completion that can be used: {exc}") from exc


def _completion(answer: Any, slot: int) -> Completion:
    """Return the answer in a chat completion. Raises ValueError, LookupError, TypeError, AttributeError for a malformed
    one."""
    choice, usage = answer["choices"][0], answer.get("usage") or {}
    ending, prompt, written = choice.get("finish_reason"), usage.get("prompt_tokens"), usage.get("completion_tokens")
    if ending not in ENDS:
        raise ValueError(f"finish_reason is {ending!r}, expected stop or length")
    if not (_is_count(prompt) and _is_count(written)):
        raise ValueError(
            f"usage is {usage!r}, expected prompt_tokens and completion_tokens: without them it has no cost"
        )
    content = choice["message"].get("content") or ""
    if not isinstance(content, str):
        raise ValueError(f"content is {str(content)[:80]}, expected a text")
    return Completion(
        slot=slot,
        text=content,
        finish_reason=ENDS[ending],
        prompt_token_ids=(),
        completion_token_ids=(),
        logprobs=(),
        counts=TokenCounts(prompt, written),
    )


def _is_count(number: object) -> TypeGuard[int]:
    return type(number) is int and 0 <= number < 2**31


def _plain(message: Message) -> dict[str, Any]:
    """Return a message in the form of chat completions, without unset fields."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    more = {"name": message.name, "tool_call_id": message.tool_call_id, "tool_calls": calls or None}
    present = {name: value for name, value in more.items() if value is not None}
    return {"role": message.role, "content": message.content, **present}
