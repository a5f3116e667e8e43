"""Answer by a script, without weights, to try out scorers, topics and operations without a model.

    task.verifier {"answer": ...} + the script ──► the right answer, a wrong one, an echo, nothing, or a failure

An answer is a function of the script, the sampling and the served version, so running the whole loop again gives the
same result. Tokens are the bytes of the text, plus one that ends the turn. Nothing is learned: `accuracy_per_version`
and rules imitate it.

A rule changes the answers of one version, to one scenario, or both; if several match, the last one counts:

    {"accuracy": 0.5, "rules": [{"version": 2, "accuracy": 1}, {"version": 2, "scenario": "long", "answers": "wrong"}]}

A conversation has no verifier. There `replies` decide, and if none fits, the last line is echoed:

    {"replies": [{"when": "weather", "reply": "<tool_call>...</tool_call>"}, {"when": "sunny", "reply": "Wear a hat."}]}

Rounds are answered here and not by streams (scripted_tokens.py): these know no task and its verifier, and a token at a
time takes twice the CPU time (34,000 against 16,000 short answers a second).
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from schemas import json_text
from schemas.events import Message, Sampling, Task
from streams.engines.protocol import Completion, SamplingRequest, check_folder, failed_slot, uniform
from streams.engines.rendering.tool_calls import HermesCalls
from streams.errors import EventError, SettingsError
from streams.settings.model import Section, Settings

END_OF_TURN = 256
"""The token after the 256 bytes."""
CALLS = HermesCalls()
"""The format of tool calls."""
FAILS, IS_RIGHT, HOW_WRONG, FIRST_LOGPROB = range(4)
"""The decision that each random number of a slot makes."""


Answers = Literal["oracle", "wrong", "echo", "nothing"]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class ScriptRule(Section):
    """An exception for one version or scenario; omitted values are those of the script."""

    version: Count | None = Field(None, description="for this version only")
    scenario: str | None = Field(None, description="for tasks of this scenario only")
    answers: Answers | None = None
    accuracy: Share | None = None
    padding: Count | None = None


class ScriptReply(Section):
    """A reply to a conversation that contains `when`; of several, the one with the last `when` in it counts."""

    when: str = Field(description="a text of the conversation")
    reply: str
    token_ms: float = Field(0.0, ge=0, description="how long each token takes after the first")


class Script(Section):
    """The rules, from `policy.script`."""

    answers: Answers = Field("oracle", description="the task's answer, a wrong one, its last message, or an empty text")
    accuracy: float = Field(1.0, ge=0, le=1, description="share of right answers of an oracle at version 0")
    accuracy_per_version: float = Field(0.0, description="added for each version; the sum is kept within 0 and 1")
    padding: Count = Field(0, description="spaces after each answer, which make it longer and nothing else")
    rules: tuple[ScriptRule, ...] = Field((), description="exceptions, by version and scenario")
    replies: tuple[ScriptReply, ...] = Field((), description="replies in conversations")
    latency_ms: float = Field(0.0, ge=0, description="how long a call of `sample`, or an answer's first token, takes")
    fail_rate: float = Field(0.0, ge=0, le=1, description="share of slots that fail for good")
    context_tokens: int = Field(8192, ge=2, description="a prompt with as many bytes, or more, fails")

    def by(self, version: int, scenario: str) -> Script:
        """Return the script that holds for this version and scenario."""
        changed: dict[str, Any] = {}
        for rule in self.rules:
            if rule.version in (None, version) and rule.scenario in (None, scenario):
                changed |= rule.model_dump(exclude={"version", "scenario"}, exclude_none=True)
        if "accuracy" in changed:
            changed["accuracy_per_version"] = 0.0  # it is this version's
        return self.model_copy(update=changed) if changed else self

    def check_fail_rate(self, draw_key: str, slot: int) -> None:
        """Raise EventError if this slot is one of those that fail for good."""
        if uniform(draw_key, slot, FAILS) < self.fail_rate:
            raise EventError(f"slot {slot} fails because policy.script has fail_rate {self.fail_rate}")


def read_script(text: str) -> Script:
    """Return the script in a JSON object. Raises SettingsError on an unknown key or a bad value."""
    try:
        return Script.model_validate(json_text.parse(text))
    except ValueError as exc:  # ValidationError and JSONDecodeError are ValueErrors
        raise SettingsError(
            f"policy.script: {_explain(exc)}; expected a JSON object with any of {', '.join(Script.model_fields)}"
        ) from exc


class ScriptedEngine:
    """Serves a `Script`."""

    name = "scripted"
    base_digest = hashlib.sha256(b"streamward scripted base 1").hexdigest()
    tokenizer_digest = hashlib.sha256(b"streamward bytes and end of turn 1").hexdigest()

    def __init__(self, script: str = "{}") -> None:
        """Take the script as a JSON object. Raises SettingsError on an unknown key or a bad value."""
        self.script = read_script(script)
        self.served_version = 0

    def serve(self, version: int, adapter: Path | None) -> None:
        """Pretend to serve `version`. Raises EventError (bad_adapter) if its folder is missing."""
        check_folder(version, adapter)
        self.served_version = version

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        """Answer every slot of every request; see `Engine.sample`."""
        time.sleep(self.script.latency_ms / 1000)
        return [[self._slot(request, slot) for slot in range(request.task.group_size)] for request in requests]

    def close(self) -> None:
        """Nothing to release."""

    def _slot(self, request: SamplingRequest, slot: int) -> Completion:
        try:
            prompt = request.fork_tokens(self.tokenizer_digest) or tuple(lines_of(request.messages).encode())
            if len(prompt) >= self.script.context_tokens:
                context = f"do not fit the context of {self.script.context_tokens}"
                raise EventError(f"{len(prompt)} prompt tokens {context}; shorten it")
            self.script.check_fail_rate(request.draw_key, slot)
            text = self._text(request, slot)
        except EventError as exc:
            return failed_slot(slot, f"task {request.task.task_id}: {exc}")
        tokens, finish, _ = spell(text, request.sampling)
        return Completion(
            slot=slot,
            text=bytes(tokens[:-1] if tokens[-1] == END_OF_TURN else tokens).decode(errors="ignore"),
            finish_reason=finish,
            prompt_token_ids=prompt,
            completion_token_ids=tokens,
            logprobs=tuple(logprob(request.draw_key, slot, step) for step in range(len(tokens))),
        )

    def _text(self, request: SamplingRequest, slot: int) -> str:
        """Return the text of an answer. Raises EventError if the task has no known answer."""
        script = self.script.by(self.served_version, request.task.scenario)
        text = "" if script.answers == "nothing" else request.messages[-1].content
        if script.answers in ("oracle", "wrong"):
            answer = _answer(request.task)
            share = script.accuracy + script.accuracy_per_version * self.served_version
            is_right = script.answers == "oracle" and uniform(request.draw_key, slot, IS_RIGHT) < share
            text = answer if is_right else _wrong(answer, uniform(request.draw_key, slot, HOW_WRONG))
        return text + " " * script.padding


def build_engine(settings: Settings, capacity: int | None) -> ScriptedEngine:
    """Return the engine of `policy.script`, which keeps nothing in memory. Raises SettingsError for a bad script."""
    return ScriptedEngine(settings.policy.script)


def lines_of(messages: Sequence[Message]) -> str:
    """Return a conversation with its calls, a line for each message."""
    lines = []
    for message in messages:
        calls = "".join(
            f'{CALLS.begin}{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}{CALLS.end}'
            for call in message.tool_calls
        )
        lines.append(f"{message.role}: {message.content}{calls}\n")
    return "".join(lines)


def spell(text: str, sampling: Sampling) -> tuple[tuple[int, ...], Literal["stop", "length"], str | None]:
    """Return the tokens of an answer, how it ends, and the stop text that ends it, which is not in the tokens."""
    places = [(place, stop) for stop in sampling.stop if stop and (place := text.find(stop)) >= 0]
    place, stop = min(places, default=(len(text), None))
    tokens = (*text[:place].encode(), END_OF_TURN)
    if len(tokens) > sampling.max_tokens:
        return tokens[: sampling.max_tokens], "length", None
    return tokens, "stop", stop


def logprob(key: str, slot: int, step: int) -> float:
    """Return the made-up logprob of the token of this step: a float32, which the log stores exactly."""
    exact = math.log1p(-uniform(key, slot, FIRST_LOGPROB + step) / 2)
    return float(struct.unpack("f", struct.pack("f", exact))[0])


def _answer(task: Task) -> str:
    """Return the right answer to a task. Raises EventError if it has none."""
    try:
        verifier = json_text.parse(task.verifier)
    except ValueError:
        verifier = None
    answer = verifier.get("answer") if isinstance(verifier, dict) else None
    if answer is None:
        raise EventError('its verifier has no "answer"; give one, or set answers to echo')
    return str(answer)


def _wrong(answer: str, number: float) -> str:
    """Return a wrong answer near the right one."""
    off = 1 + int(number * 9)
    try:
        return str(int(answer) + off)
    except ValueError:
        return f"not {answer} but {off}"


def _explain(exc: ValueError) -> str:
    if isinstance(exc, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r})" for e in exc.errors())
    return str(exc)
