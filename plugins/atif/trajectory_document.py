"""A finished answer as ATIF documents, version 1.7 of Harbor's RFC 0001: one for each chain of its calls.

    CallChain ──► messages before each call ──► steps of system and user, observations of the step that called
             └──► each call ──► a step of the agent: text, tool calls, metrics with all token ids and logprobs

`prompt_token_ids` of a step are all tokens that the call read, so those of the next one begin with them. A chain that
shares its first calls with another marks them `is_copied_context`, as the format asks for, since the other chain has
their loss; so are answers that a prompt quotes. What ATIF has no field for is in `extra`.

Not covered: calls in no chain (failed ones, titles, summaries), and sealed records, of which no plain text is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from schemas import json_text
from schemas.events import Message, Response, Tool, ToolCall, Turn
from schemas.tokens import TokenIds
from streams.stages.agents.trajectories.chat_format import tool_of
from streams.tools.query.finished import Finished

VERSION = "ATIF-v1.7"
Step = dict[str, Any]


def documents(answer: Finished) -> Iterator[dict[str, Any]]:
    """Yield the documents of a finished answer: of a run its conversation and branches, else the answer to its task."""
    task, response = answer.task, answer.response
    if answer.run is None:
        if task is not None and response is not None and response.error is None:
            steps = _prompt_steps(task.messages)
            message = Message(role="assistant", content=response.text)
            prompt, completion = response.prompt_token_ids, response.completion_token_ids
            extra = {"finish_reason": response.finish_reason}
            steps.append(_agent_step(response, message, _metrics(prompt, completion, response.logprobs), extra))
            yield _document(answer, response, 0, task.tools, steps)
        return
    for number, chain in enumerate(answer.run.chains):
        yield _document(answer, chain.turns[-1], number, chain.turns[0].tools, _chain_steps(chain.turns, chain.shared))


def _document(
    answer: Finished, last: Turn | Response, number: int, tools: Iterable[Tool], steps: list[Step]
) -> dict[str, Any]:
    definitions = [tool_of(tool) for tool in tools]
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    digests = {name: getattr(last, name, None) for name in ("base_digest", "tokenizer_digest", "template_digest")}
    about = {
        "task_id": answer.task_id,
        "purpose": answer.purpose,
        "scenario": None if answer.task is None else answer.task.scenario,
        "reward": answer.reward,
        "feedback": answer.mean_feedback,
        "success": None if answer.response is None else answer.response.success,
        "chain": number,
        "at": str(answer.position),
    }
    return {
        "schema_version": VERSION,
        "session_id": answer.answer_id,
        "trajectory_id": answer.answer_id if number == 0 else f"{answer.answer_id}:{number}",
        "agent": {
            "name": last.agent_id or last.policy,
            "version": str(last.adapter_version),
            "model_name": f"{last.policy}@{last.adapter_version}",
            **({"tool_definitions": definitions} if definitions else {}),
            "extra": _set(digests),
        },
        "steps": [{"step_id": place, **step} for place, step in enumerate(steps, 1)],
        "final_metrics": {
            "total_prompt_tokens": sum(each["prompt_tokens"] for each in metrics),
            "total_completion_tokens": sum(each["completion_tokens"] for each in metrics),
            "total_steps": len(steps),
        },
        "extra": _set(about),
    }


def _chain_steps(turns: Sequence[Turn], shared: int) -> list[Step]:
    steps, before = list[Step](), TokenIds()
    for place, turn in enumerate(turns):
        prompt = TokenIds(before.data + turn.prompt_token_ids.data)
        _add_messages(steps, turn.messages)
        extra = {"turn_id": turn.turn_id, "finish_reason": turn.finish_reason, "constraint": turn.constraint}
        metrics = _metrics(prompt, turn.completion_token_ids, turn.logprobs)
        step = _agent_step(turn, turn.reply, metrics, _set(extra))
        steps.append(step | ({"is_copied_context": True} if place < shared else {}))
        before = TokenIds(prompt.data + turn.completion_token_ids.data)
    return steps


def _prompt_steps(messages: Iterable[Message]) -> list[Step]:
    steps = list[Step]()
    _add_messages(steps, messages)
    return steps


def _add_messages(steps: list[Step], messages: Iterable[Message]) -> None:
    for message in messages:
        named = {} if message.name is None else {"extra": {"name": message.name}}
        if message.role == "tool":
            _add_result(steps, message, named)
        elif message.role == "assistant":
            steps.append({"source": "agent", **_words(message), "is_copied_context": True, **named})
        else:
            steps.append({"source": message.role, "message": message.content, **named})


def _add_result(steps: list[Step], message: Message, named: dict[str, Any]) -> None:
    """Add a tool's result to the step that called it; without one, to the last step, with the id that it names."""
    called = message.tool_call_id
    callers = (
        step for step in reversed(steps) if called in [call["tool_call_id"] for call in step.get("tool_calls", ())]
    )
    step = next(callers, None)
    result: dict[str, Any] = {"source_call_id": called, "content": message.content, **named}
    if step is None:
        if not steps:
            steps.append({"source": "system", "message": ""})
        step = steps[-1]
        result = {"content": message.content, "extra": {**named.get("extra", {}), "tool_call_id": called}}
    step.setdefault("observation", {"results": []})["results"].append(result)


def _agent_step(record: Turn | Response, reply: Message, metrics: dict[str, Any], extra: dict[str, Any]) -> Step:
    return {
        "timestamp": datetime.fromtimestamp(record.created_at / 1000, UTC).isoformat(),
        "source": "agent",
        "model_name": f"{record.policy}@{record.adapter_version}",
        **_words(reply),
        "metrics": metrics,
        "llm_call_count": 1,
        "extra": extra,
    }


def _words(message: Message) -> dict[str, Any]:
    calls = [_tool_call(call) for call in message.tool_calls]
    return {"message": message.content, **({"tool_calls": calls} if calls else {})}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    arguments = json_text.parse_or_text(call.arguments)
    is_object = isinstance(arguments, dict)
    return {
        "tool_call_id": call.id,
        "function_name": call.name,
        "arguments": arguments if is_object else {},
        **({} if is_object else {"extra": {"arguments": call.arguments}}),
    }


def _metrics(prompt: TokenIds, completion: TokenIds, logprobs: Iterable[float]) -> dict[str, Any]:
    """Return the tokens of a call as lists of ids, and the logprobs in nats, one for each token of the completion."""
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(completion),
        "prompt_token_ids": list(prompt),
        "completion_token_ids": list(completion),
        "logprobs": list(logprobs),
    }


def _set(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
