"""Rows of a file as examples.

    {"messages": [..., {"role": "assistant", ...}]}                        sft
    {"input_ids": [...], "assistant_masks": [...]}                         sft, tokens as TRL has them: kept as they are
    {"input": "…", "response": "…", "metadata": {…}}                       sft, as `export --format interactions` has it
    {"prompt": [...], "chosen": [...], "rejected": [...]}                  dpo, as TRL has it
    {"input": {"messages": [...]}, "preferred_output": [...], ...}         dpo, as OpenAI has it
        ──► the model's chat template and tokenizer ──► TunedExample, or which line is wrong and why

In `messages` the loss is on what the assistant says, every time, except where its `weight` is 0; all other messages,
tools included, are context. In a pair it is on all that follows the prompt. The tokens of an answer begin where
the conversation with it leaves the one that ends before it, as in TRL. Nothing is cut: a line that does not fit is an
error. `streamward export` writes such files; other keys of a line are ignored. A table has these keys as columns.

Interactions are a log: of their lines those that are no example are left out, and counted by reason.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field

from schemas import json_text
from schemas.conversation import MessageIn, ToolIn, not_empty, read_as
from schemas.events import Tool, TuningMethod
from schemas.tokens import LossMask, TokenIds
from streams.arrow.file_rows import OF_EXAMPLES, Row, fields_of, rows
from streams.engines.rendering.chat_template import ChatTemplate
from streams.errors import EventError, NotFoundError, SettingsError
from trainer.examples.tuned_examples import TunedAnswer, TunedChain, TunedExample

LINES_SHOWN = 5
"""Wrong lines that a message names."""


class ExampleFile(NamedTuple):
    """A file that was read."""

    name: str
    sha256: str
    examples: list[TunedExample]
    left_out: Counter[str]
    """Lines of interactions that are no examples, by reason: held_out, call_of_run, no_answer."""


class ExampleMessage(MessageIn):
    """A message of an example."""

    weight: Literal[0, 1] = 1
    """Of the assistant: whether it bears loss."""


ExampleMessages = Annotated[list[ExampleMessage], AfterValidator(not_empty)]


def read(
    path: Path, method: TuningMethod, template: ChatTemplate, context_tokens: int, tokenizer_digest: str | None = None
) -> ExampleFile:
    """Return the examples of a file of JSON lines or a table; empty lines are skipped.

    Raises NotFoundError if it cannot be read, SettingsError, with the numbers of the lines, if a line is none.
    """
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise NotFoundError(f"{path}: {exc.strerror}; name a file of JSON lines, .csv or .parquet") from exc
    examples, problems, left_out = [], [], Counter[str]()
    try:
        entries = list(rows(path, json_columns=OF_EXAMPLES))
    except EventError as exc:
        raise SettingsError(str(exc)) from exc
    for number, row in entries:
        try:
            if method == "sft" and (reason := reason_left_out(fields_of(row))) is not None:
                left_out[reason] += 1
                continue
            example = example_of(row, method, template, context_tokens)
            _check_tokenizer(fields_of(row), tokenizer_digest)
        except ValueError as exc:
            problems.append(f"{path}:{number}: {exc}")
        else:
            examples.append(example)
    if problems:
        unnamed = len(problems) - LINES_SHOWN
        shown = "\n".join([*problems[:LINES_SHOWN], *([f"and {unnamed} more lines"] if unnamed > 0 else [])])
        raise SettingsError(f"{shown}\nNothing was trained; correct these lines, or leave them out")
    if not examples:
        reasons = "".join(f", {number} {reason}" for reason, number in left_out.most_common())
        raise NotFoundError(f"{path}: it has no line with an example{reasons}; expected {_EXPECTED[method]}")
    return ExampleFile(path.name, hashlib.sha256(data).hexdigest(), examples, left_out)


def example_of(row: Row, method: TuningMethod, template: ChatTemplate, context_tokens: int) -> TunedExample:
    """Return the example in a row. Raises ValueError, with what was expected and found."""
    fields = fields_of(row)
    prompt_part = fields.get("input")
    offered = prompt_part.get("tools") if isinstance(prompt_part, dict) else None
    if method == "sft" and "input_ids" in fields:
        return _fitting((_of_tokens(fields, len(template.tokenizer)),), context_tokens)
    render = _renderer(template, _tools(fields.get("tools", offered)))
    return _fitting((_assistant_answer(fields, render),) if method == "sft" else _pair(fields, render), context_tokens)


def _fitting(example: TunedExample, context_tokens: int) -> TunedExample:
    """Return an example. Raises ValueError if it is longer than the context."""
    if (longest := max(answer.longest for answer in example)) > context_tokens:
        raise ValueError(f"it has {longest} tokens, and the model's context {context_tokens}; shorten it")
    return example


# --- sft --------------------------------------------------------------------------------------------------------------


def is_interaction(line: Mapping[str, Any]) -> bool:
    """Return whether a line is one of `export --format interactions`."""
    return "messages" not in line and "response" in line and isinstance(line.get("metadata"), dict)


def reason_left_out(line: Mapping[str, Any]) -> str | None:
    """Return why a line of interactions is no example; None for one that is, and for any other line."""
    if not is_interaction(line):
        return None
    metadata = line["metadata"]
    if metadata.get("purpose") == "eval":
        return "held_out"
    if "trajectory_id" in metadata:  # the line has the last message alone, and the answer was to the whole conversation
        return "call_of_run"
    return None if line["response"] and line.get("input") and metadata.get("finish_reason") != "error" else "no_answer"


def _assistant_answer(line: dict[str, Any], render: Renderer) -> TunedAnswer:
    if is_interaction(line):
        said = (("user", line.get("input")), ("assistant", line["response"]))
        line = {"messages": [{"role": role, "content": content} for role, content in said]}
    messages = _messages(line, "messages", "sft")
    whole = render(messages, False)
    spans = []
    for place, message in enumerate(messages):
        if message.role != "assistant" or not message.weight:
            continue
        if _is_silent(message):
            raise ValueError(
                f"messages[{place}]: the answer is empty, and the model would learn to say nothing; write one, or give "
                "it weight 0"
            )
        start = _in_common(render(messages[:place], True) if place else (), whole)
        upto = whole if place + 1 == len(messages) else render(messages[: place + 1], False)
        if (end := _in_common(upto, whole)) < len(upto):
            raise ValueError(
                f"messages[{place}]: the chat template renders it otherwise once other messages follow, so its tokens "
                "are not those that the model would write; give it weight 0, or a line of its own"
            )
        spans.append((start, end))
    if not spans:
        raise ValueError("messages: no message of role assistant bears loss; expected an answer, the last of them")
    return TunedAnswer((_chain(whole, spans, "messages"),))


def _of_tokens(line: dict[str, Any], vocabulary: int) -> TunedAnswer:
    """Return an answer of token ids, with the loss where `assistant_masks` is 1. Raises ValueError."""
    ids = read_as(list[Annotated[int, Field(strict=True, ge=0, lt=vocabulary)]], line["input_ids"], "input_ids")
    masks = read_as(list[Literal[0, 1]], line.get("assistant_masks"), "assistant_masks")
    if len(ids) != len(masks):
        raise ValueError(f"assistant_masks: {len(masks)} of them for {len(ids)} input_ids; expected one for each")
    if 1 not in masks:
        raise ValueError("assistant_masks: all are 0, so that nothing bears loss; expected 1 for the tokens to imitate")
    edges = [place for place, (before, now) in enumerate(pairwise([0, *masks, 0])) if before != now]
    return TunedAnswer((_chain(ids, list(zip(edges[::2], edges[1::2], strict=True)), "input_ids"),))


def _check_tokenizer(line: dict[str, Any], digest: str | None) -> None:
    """Raise ValueError if a line names another tokenizer for its tokens."""
    if digest is not None and line.get("tokenizer_digest", digest) != digest:
        raise ValueError(
            f"tokenizer_digest: its tokens are of tokenizer {str(line['tokenizer_digest'])[:12]}, and the model has "
            f"{digest[:12]}; set model.base to the model that sampled them"
        )


def _is_silent(message: ExampleMessage) -> bool:
    return not (message.message.content.strip() or message.tool_calls)


# --- dpo --------------------------------------------------------------------------------------------------------------


def _pair(line: dict[str, Any], render: Renderer) -> TunedExample:
    if "input" in line or "preferred_output" in line:
        names = ("input.messages", "preferred_output", "non_preferred_output")
        prompt_part = line.get("input")
        line = {**line, names[0]: prompt_part.get("messages") if isinstance(prompt_part, dict) else None}
    else:
        names = ("prompt", "chosen", "rejected")
    prompt, chosen, rejected = (_messages(line, name, "dpo") for name in names)
    if all(_is_silent(message) for message in chosen if message.role == "assistant"):
        raise ValueError(f"{names[1]}: the answer is empty, and the model would learn to say nothing; write one")
    before = render(prompt, True)
    answers = [render([*prompt, *answer], False) for answer in (chosen, rejected)]
    start = min(_in_common(before, whole) for whole in answers)
    if answers[0] == answers[1]:
        raise ValueError(f"{names[1]} and {names[2]} are the same tokens; a pair needs two answers that differ")
    spans = ((start, len(whole)) for whole in answers)
    parts = zip(answers, spans, names[1:], strict=True)
    return tuple(TunedAnswer((_chain(whole, [span], name),)) for whole, span, name in parts)


# --- tokens -----------------------------------------------------------------------------------------------------------


Renderer = Callable[[Sequence[ExampleMessage], bool], tuple[int, ...]]
"""Messages, and whether an answer follows, to tokens."""


def _renderer(template: ChatTemplate, tools: Sequence[Tool]) -> Renderer:
    def render(messages: Sequence[ExampleMessage], answer: bool) -> tuple[int, ...]:
        try:
            return template.ids([message.message for message in messages], tools, answer=answer)
        except EventError as exc:
            raise ValueError(str(exc)) from exc
        except Exception as exc:  # a template is a program, and a file chooses what it runs on: it may raise anything
            raise ValueError(f"the chat template refuses the messages: {exc}; check their roles and order") from exc

    return render


def _chain(whole: Sequence[int], spans: Sequence[tuple[int, int]], name: str) -> TunedChain:
    first, last = spans[0][0], spans[-1][1]
    if not first:
        raise ValueError(f"{name}: nothing comes before the answer; expected a question first")
    mask = bytearray(last - first)
    for start, end in spans:
        mask[start - first : end - first] = b"\1" * (end - start)
    if not any(mask):
        raise ValueError(f"{name}: the answer has no tokens of its own; expected some text")
    return TunedChain(TokenIds.of(whole[:first]), TokenIds.of(whole[first:last]), LossMask(bytes(mask)))


def _in_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


# --- fields -----------------------------------------------------------------------------------------------------------


_EXPECTED: dict[str, str] = {
    "sft": '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}',
    "dpo": '{"prompt": [{"role": "user", "content": "…"}], "chosen": [{"role": "assistant", "content": "…"}], '
    '"rejected": […]}',
}


def _messages(line: dict[str, Any], name: str, method: TuningMethod) -> list[ExampleMessage]:
    if line.get(name) is None:
        keys = ", ".join(sorted(line)) or "nothing"
        raise ValueError(f"{name}: expected a list of messages, as in {_EXPECTED[method]}; the line has {keys}")
    messages: list[ExampleMessage] = read_as(ExampleMessages, line[name], name)
    return messages


def _tools(tools: Any) -> list[Tool]:
    """Return the tools of a line: a list, or its JSON text. Raises ValueError for anything else."""
    if tools is None:
        return []
    value = json_text.parse(tools) if isinstance(tools, str) else tools
    return [tool.tool for tool in read_as(list[ToolIn], value, "tools")]
