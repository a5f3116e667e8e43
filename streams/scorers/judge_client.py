"""The client of a judge's server: one question, one answer, or an error with the way out.

    JudgeQuestion ──► POST {judge_url}/chat/completions ──► JudgeReply: the bytes, tokens and cost
    JudgeReply ──► its text after the thoughts ──► own_object: the JSON object that is not a quotation

The scorer `judge` and the judge of transcripts (plugins/improve/curation) use it, so the limits, prices and
parameters of `scoring.judge_*` and the protection from forged verdicts are the same for both. The time limit covers the
whole answer (streams/egress/http_client.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from streams.scorers.verdict import ScoreError

if TYPE_CHECKING:
    from streams.settings.model import Scoring

MAX_ANSWER_BYTES = 1024 * 1024
"""Longest answer accepted."""
MAX_BRACES = 1000
"""Maximum opening braces in the judge's text: each may begin an object."""
_AGAIN = {408, 409, 425, 429}
_THOUGHT = re.compile(
    r"(?:\s*[<\[◁](think|thinking|thought|reasoning)[>\]▷].*?(?:[<\[◁]/\1[>\]▷]|\Z))+", re.DOTALL | re.IGNORECASE
)
_NOT_TAKEN = re.compile(
    r"unsupported|not supported|does not support|unrecognized|unknown|unexpected|not permitted|not allowed|"
    r"not available|deprecated|invalid value|must (?:be|contain)",
    re.IGNORECASE,
)
_TOO_MUCH = re.compile(r"too (?:large|high|long)|at most|maximum|exceed|greater than|less than", re.IGNORECASE)
_SPENT = re.compile(
    r"insufficient[_ ](?:quota|funds|balance|credit)|exceeded your current quota|credit balance|out of credit|"
    r"budget (?:has been |is )?(?:exceeded|spent)|payment required|billing[_ ]hard[_ ]limit",
    re.IGNORECASE,
)
_ENDS = (None, "stop", "eos_token", "stop_sequence", "end_turn")
"""Finish reasons with which servers mark a complete answer."""
_OF_REQUEST = {400, 413, 422}
"""Statuses about one request, e.g. a prompt that is too long: others may be answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeQuestion:
    """One request to the judge."""

    text: str
    max_tokens: int
    """Of the whole answer."""
    limit: str
    """The setting that provides it, for messages."""
    json_mode: bool = True
    """Ask the server for JSON (`response_format`)."""


class JudgeReply(NamedTuple):
    """The answer of the judge's server."""

    answer: bytes
    spent: dict[str, float]
    """Tokens and cost, if the server counts them."""


def missing_setting(scoring: Scoring) -> str | None:
    """Return the missing setting for the judge, with the way out, or None."""
    if scoring.judge_url is not None and scoring.judge_model is not None:
        return None
    return (
        "a task asks for the judge, and none is configured; set scoring.judge_url (up to /v1) and "
        "scoring.judge_model, and scoring.judge_key if the server wants one"
    )


class JudgeClient:
    """A client of the judge's server, shared by threads. Raises ScoreError(bad_settings) if none is configured."""

    def __init__(self, scoring: Scoring) -> None:
        if scoring.judge_url is None or scoring.judge_model is None:
            raise ScoreError(missing_setting(scoring) or "", reason="bad_settings")
        from streams.egress.http_client import bearer, new_client

        key = scoring.judge_key.get_secret_value() if scoring.judge_key else None
        self.model = scoring.judge_model
        self.url = scoring.judge_url.rstrip("/") + "/chat/completions"
        self._parameters = scoring.parameters_of_judge
        self._prices = {"prompt_tokens": scoring.judge_prompt_usd, "completion_tokens": scoring.judge_completion_usd}
        self._timeout_s = scoring.timeout_s
        self._client = new_client(headers=bearer(key, "scoring.judge_key"))

    def ask(self, question: JudgeQuestion) -> JudgeReply:
        """Return the answer of the judge's server.

        Raises ScoreError: judge_unreachable, timeout, judge_refused, judge_parameter, judge_budget, judge_answer.
        """
        values = {
            "temperature": 0,
            "max_tokens": question.max_tokens,
            "max_completion_tokens": question.max_tokens,
            "response_format": {"type": "json_object"} if question.json_mode else None,
        }
        body: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": question.text}]}
        body |= {name: values[name] for name in self._parameters if values[name] is not None}
        answer = self._post(body, question)
        return JudgeReply(answer, self._usage(answer))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _post(self, body: dict[str, Any], question: JudgeQuestion) -> bytes:
        import httpx2

        from streams.egress.http_client import AnswerTooLarge, fetch

        limits: dict[str, Any] = {"limit_s": self._timeout_s, "most_bytes": MAX_ANSWER_BYTES}
        try:
            status, answer = fetch(self._client, "POST", self.url, **limits, json=body)
        except AnswerTooLarge as exc:
            raise ScoreError(f"judge at {self.url} sent {exc}; check scoring.judge_url", reason="judge_answer") from exc
        except httpx2.TimeoutException as exc:
            raise ScoreError(
                f"judge at {self.url} did not answer within {self._timeout_s:g} s ({type(exc).__name__}); raise "
                "scoring.timeout_s, or give it less to do",
                reason="timeout",
                again=True,
            ) from exc
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise ScoreError(
                f"judge at {self.url} cannot be reached: {exc or type(exc).__name__}; check scoring.judge_url",
                reason="judge_unreachable",
                again=True,
            ) from exc
        if status != 200:
            raise self._refusal(status, answer, body, question)
        return answer

    def _refusal(self, status: int, answer: bytes, body: dict[str, Any], question: JudgeQuestion) -> ScoreError:
        """Return the error of a response that is not an answer, with the way out."""
        text, said = answer.decode(errors="replace"), f"HTTP {status}: {_start(answer)}"
        if status == 402 or (400 <= status < 500 and _SPENT.search(text)):
            return ScoreError(
                f"judge at {self.url} has no budget left ({said}); raise its limit or add credit where it is bought, "
                "or set scoring.judge_url and judge_model to another",
                reason="judge_budget",
            )
        name = _named_parameter(text, body) if status in (400, 422) else None
        if name in ("max_tokens", "max_completion_tokens") and _TOO_MUCH.search(text):
            return ScoreError(
                f"judge at {self.url} refuses {name} {body[name]} ({said}); lower {question.limit}",
                reason="judge_refused",
            )
        if name is not None and _NOT_TAKEN.search(text):
            return ScoreError(
                f"judge at {self.url} does not take the parameter {name} ({said}); set scoring.judge_parameters "
                f"without it, e.g. {_without(name, self._parameters)!r}",
                reason="judge_parameter",
            )
        refusal = ScoreError(
            f"judge at {self.url} answered {said}; check scoring.judge_url, judge_model and judge_key",
            reason="judge_refused",
            again=status in _AGAIN or status >= 500,
        )
        refusal.of_request = status in _OF_REQUEST
        return refusal

    def _usage(self, answer: bytes) -> dict[str, float]:
        """Return the tokens that an answer reports, if any, and their cost."""
        try:
            usage = json.loads(answer).get("usage")
        except (ValueError, AttributeError, RecursionError):  # `parse` refuses it
            return {}
        names = self._prices if isinstance(usage, dict) else ()
        tokens = {name: float(usage[name]) for name in names if type(usage.get(name)) is int}
        prices = {name: price for name, price in self._prices.items() if price is not None}
        cost = sum(count * prices[name] / 1e6 for name, count in tokens.items() if name in prices)
        return tokens | ({"cost_usd": cost} if tokens and prices else {})


def _named_parameter(text: str, body: dict[str, Any]) -> str | None:
    """Return the parameter of a request that an error names, or None."""
    from streams.settings.model import JUDGE_PARAMETERS  # which a worker of a scorer does without

    names = (name for name in body if name in JUDGE_PARAMETERS)
    return next((name for name in names if re.search(rf"\b{name}\b", text)), None)


def _without(name: str, parameters: Sequence[str]) -> str:
    """Return the parameters without one; the limit of tokens has two names."""
    other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}.get(name)
    return ", ".join([*(kept for kept in parameters if kept != name), *([other] if other else [])])


def text_of(reply: bytes, question: JudgeQuestion, url: str) -> str:
    """Return a judge's text after its thoughts, from a chat completion. Raises ScoreError(judge_answer)."""
    try:
        choice = json.loads(reply)["choices"][0]
        message = choice["message"]
        content = _content_of(message.get("content"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
        raise unreadable(f"judge at {url} sent no chat completion but {_start(reply)}") from exc
    _check_end(choice.get("finish_reason"), question, url)
    if refusal := message.get("refusal"):
        raise unreadable(f"judge at {url} refused to grade: {str(refusal)[:200]!r}")
    if not content.strip():
        thought = ", but a thought" if message.get("reasoning_content") or message.get("reasoning") else ""
        raise unreadable(f"judge at {url} sent a message without text{thought}")
    return _without_thought(content)


def own_object(content: str, key: str, quotable: str, url: str) -> dict[str, Any]:
    """Return the one JSON object with `key` in a judge's text that is not in `quotable` word for word. White space and
    escapes are ignored, since a quotation may be inside a JSON text; so is other text around it. Raises
    ScoreError(judge_answer); a retry may succeed.
    """
    quoted = _bare(quotable)
    own = [value for text, value in _objects(content, key, url) if _bare(text) not in quoted]
    if len(own) != 1:
        raise unreadable(
            f"judge at {url} gave {len(own)} JSON objects with a {key} of its own, expected exactly one; it said "
            f"{content[:200]!r}"
        )
    return own[0]


def _bare(text: str) -> str:
    return "".join(text.split()).replace("\\", "")


def model_of(reply: bytes) -> str | None:
    """Return the model that a chat completion names, or None."""
    try:
        model = json.loads(reply).get("model")
    except (ValueError, AttributeError, RecursionError):  # `text_of` refuses it
        return None
    return model if isinstance(model, str) and model else None


def _check_end(finish_reason: Any, question: JudgeQuestion, url: str) -> None:
    """Raise ScoreError(judge_answer) for an answer that did not end by itself."""
    ending = finish_reason.casefold() if isinstance(finish_reason, str) else finish_reason
    if ending in ("length", "max_tokens"):
        raise ScoreError(
            f"judge at {url} was cut off after {question.max_tokens} tokens (finish_reason {finish_reason}), with "
            f"what it thought; raise {question.limit}",
            reason="judge_answer",
        )
    if ending not in _ENDS:
        raise unreadable(f"judge at {url} ended with finish_reason {finish_reason!r}, expected 'stop'")


def _content_of(content: Any) -> str:
    """Return the text of a message's content, which some servers send in parts; empty without one."""
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content if part.get("type") == "text")
    return content if isinstance(content, str) else ""


def _without_thought(content: str) -> str:
    """Return the judge's text after its thoughts, of which some servers leave out the opening tag."""
    if thought := _THOUGHT.match(content):
        return content[thought.end() :]
    after = content.rpartition("</think>")[2]
    return after if "{" in after else content


def _objects(content: str, key: str, url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (text, value) of each JSON object in `content` that has `key`, including nested ones."""
    inside: list[dict[str, Any]] = []

    def remember(value: dict[str, Any]) -> dict[str, Any]:
        if key in value:
            inside.append(value)
        return value

    if content.count("{") > MAX_BRACES:
        raise unreadable(f"judge at {url} gave more than {MAX_BRACES} opening braces: {content[:200]!r}")
    decoder, start = json.JSONDecoder(object_hook=remember), content.find("{")
    while start >= 0:
        inside.clear()
        try:
            _, end = decoder.raw_decode(content, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield from [(content[start:end], value) for value in inside]
        start = content.find("{", end)


def unreadable(message: str) -> ScoreError:
    """Return the error of an answer that is not a verdict."""
    return ScoreError(message + "; try a larger model, or another template", reason="judge_answer", again=True)


def _start(answer: bytes) -> str:
    return repr(answer[:200].decode(errors="replace"))
