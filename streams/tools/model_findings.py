"""Findings about a model's tokens and chat template: the table that engines and trainers use, and each oddity.

    tokenizer, TokenTable ──► small conversations through the template ──► findings

No weights are read. Not covered: the model's behaviour with its template.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from schemas.events import Message, Tool, ToolCall
from streams.engines.rendering.chat_template import ChatTemplate
from streams.engines.rendering.template_rendering import ChatRendering
from streams.engines.rendering.token_table import TokenTable
from streams.errors import StreamwardError

NAMES_SHOWN = 8
"""Most tokens that a finding names."""
RULE = Message(role="system", content="be brief")
QUESTION, ANSWER = Message(role="user", content="how warm"), Message(role="assistant", content="ten degrees")
NEXT_QUESTION = Message(role="user", content="and tomorrow")
THOUGHT = Message(role="assistant", content="<think>\nit is autumn\n</think>\n\nten degrees")
PROBE = Tool(name="thermometer")
PROBE_CALL = ToolCall(id="abcdefghi", name=PROBE.name, arguments='{"of": "air"}')
CALL = Message(role="assistant", content="", tool_calls=(PROBE_CALL,))
RESULT = Message(role="tool", content="10", tool_call_id=PROBE_CALL.id)


class ModelFinding(NamedTuple):
    """One row of the table, or an oddity."""

    check: str
    what: str
    do: str = ""
    is_odd: bool = False


def model_findings(tokenizer: Any, table: TokenTable) -> Iterator[ModelFinding]:
    """Yield the table of a model, and then every oddity. Raises SettingsError for a tokenizer that cannot be used."""
    rendering = ChatRendering(tokenizer, table, "")
    yield ModelFinding("rows", f"the head has {table.rows}, the tokenizer {len(tokenizer.get_vocab())} tokens")
    yield from _table_rows(tokenizer, table)
    if rendering.markers:
        yield ModelFinding("tools", f"a call begins with {' or '.join(rendering.markers)}")
    oddities = [*_odd_tokens(tokenizer, table), *template_oddities(tokenizer, rendering)]
    yield from oddities
    if not any(oddity.check == "template" for oddity in oddities):
        yield ModelFinding("template", "it takes a system message, keeps history, and begins and ends an answer")


# --- the table --------------------------------------------------------------------------------------------------------


def _table_rows(tokenizer: Any, table: TokenTable) -> Iterator[ModelFinding]:
    ends = [f"{_token_name(tokenizer, token)} ({', '.join(origins)})" for token, origins in table.ends.items()]
    yield ModelFinding("ends", ", ".join(ends) or "none")
    yield ModelFinding("ids", f"{table.drawable} may be drawn, of those from 0 to {table.size - 1}")
    special = [_token_name(tokenizer, token) for token in sorted(table.special)]
    yield ModelFinding("special", f"{len(special)} are never text: {_some(special)}")
    pad = _token_name(tokenizer, table.pad)
    is_end = (
        ", which also ends an answer: as an end it has loss once, as padding none" if table.pad in table.ends else ""
    )
    yield ModelFinding("pad", f"{pad}{is_end}")


def _odd_tokens(tokenizer: Any, table: TokenTable) -> Iterator[ModelFinding]:
    if not table.ends:
        do = "Every answer has max_tokens tokens; use an instruct or chat model"
        yield ModelFinding("ends", "neither tokenizer, generation config nor chat template names an end", do, True)
    if table.undrawable_ends:
        ids = ", ".join(map(str, table.undrawable_ends))
        do = "Correct eos_token_id in generation_config.json"
        yield ModelFinding("ends", f"the generation config names id {ids} as an end, which is no token", do, True)
    if table.without_token:
        ids = _ranges(table.without_token)
        yield ModelFinding(
            "ids",
            f"{len(table.without_token)} of the head's rows have no token ({ids}): none is drawn or in a softmax",
            "With policy.engine=vllm start the servers with --logprobs-mode processed_logprobs",
            True,
        )
    if table.rowless:
        names = _some([f"{token} {name}" for token, name in table.rowless.items()])
        count = len(table.rowless)
        have = "1 token has" if count == 1 else f"{count} tokens have"
        do = "Prompts with one are refused: use the tokenizer that the model was trained with, or resize its embeddings"
        yield ModelFinding("ids", f"{have} no row in the model: {names}", do, True)


# --- the template -----------------------------------------------------------------------------------------------------


def template_oddities(tokenizer: Any, rendering: ChatRendering) -> Iterator[ModelFinding]:
    """Yield what the template does not take, does not write, or writes otherwise than conversations expect."""
    template = ChatTemplate(tokenizer)
    for what, do in (
        *_message_refusals(template),
        *_edges_of_answers(template),
        *_history_changes(tokenizer, rendering),
        *_inseparable_names(template),
    ):
        yield ModelFinding("template", what, do, True)
    missing = _refusal(template, [QUESTION, CALL, RESULT], [PROBE])
    refused = "Requests with tools" + (", and tasks and tuning examples with calls," if missing else "")
    unread = "" if rendering.markers else "the template writes tools and calls in none of the formats that are read"
    if problem := unread or missing:
        yield ModelFinding("tools", problem, f"{refused} are refused", True)


Oddity = tuple[str, str]
"""What, and what to do."""


def _message_refusals(template: ChatTemplate) -> Iterator[Oddity]:
    if (refusal := _refusal(template, [QUESTION])) is not None:
        yield f"it refuses a single question: {refusal}", "Give it the messages that it names"
        return
    if (refusal := _refusal(template, [RULE, QUESTION])) is not None:
        yield f"it refuses a system message: {refusal}", "Leave out --system and system messages"
    elif RULE.content not in template.render([RULE, QUESTION]):
        yield "it leaves out what a system message says", "Write it into the question"
    if (refusal := _refusal(template, [QUESTION, NEXT_QUESTION])) is not None:
        yield f"roles must take turns: {refusal}", "Join messages of one role that follow each other"
    if (refusal := _refusal(template, [QUESTION, ANSWER, NEXT_QUESTION])) is not None:
        yield f"it refuses a second question: {refusal}", "Give it conversations of one turn"


def _edges_of_answers(template: ChatTemplate) -> Iterator[Oddity]:
    if template.end is None:
        do = "An answer ends only with what else is in the table, and an example to tune on with its text"
        yield "it writes no control token after an answer", do
    try:
        prompt, whole = template.render([QUESTION]), template.render([QUESTION, ANSWER], answer=False)
    except Exception:  # a template is a program; what it refuses is another finding
        return
    before, _, after = whole.partition(ANSWER.content)
    if template.end is not None and not after.strip():
        do = "The last answer of an example to tune on has no end that bears loss; write it after every answer"
        yield "it ends an answer only where another message follows", do
    missing = before.removeprefix(prompt) if before.startswith(prompt) else ""
    if missing.strip():
        do = "The model has to write that by itself: write it where add_generation_prompt is set"
        yield f"it has no generation prompt: before an answer it writes {missing!r}, which no prompt has", do
    end = "" if template.end is None else str(template.tokenizer.convert_ids_to_tokens(template.end))
    opening = after.strip().removeprefix(end).strip()
    if opening and prompt.strip().endswith(opening):
        do = "Write that only where add_generation_prompt is set, else tuned answers end with it"
        yield f"it always begins another answer, also after a complete one: {opening!r}", do


def _history_changes(tokenizer: Any, rendering: ChatRendering) -> Iterator[Oddity]:
    do = "A call that sends such a history begins a trajectory of its own, with the tokens that the template writes"
    try:
        if (reason := _reason(rendering, ANSWER)) is not None:
            yield reason, do
        elif "</think>" in str(tokenizer.chat_template) and (reason := _reason(rendering, THOUGHT)) is not None:
            yield f"with reasoning in an answer {reason}", do
    except StreamwardError:  # what it refuses is another finding
        return


def _reason(rendering: ChatRendering, answer: Message) -> str | None:
    """Return how a second question changes what the model has seen, None if it does not."""
    recorded = (*rendering.first([QUESTION], ()), *rendering.plain(answer.content))
    following = rendering.extend(recorded, False, (QUESTION, answer), (NEXT_QUESTION,), ())
    return following if isinstance(following, str) else None


def _inseparable_names(template: ChatTemplate) -> Iterator[Oddity]:
    if template.inseparable:
        names = ", ".join(template.inseparable)
        yield f"it looks for {names} in messages", "A message that says so is refused; leave it out"


def _refusal(template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str | None:
    try:
        template.render_with_sources(messages, tools)
    except Exception as exc:  # a template is a program: whatever it raises, it refuses the messages
        return str(exc)
    return None


# --- words ------------------------------------------------------------------------------------------------------------


def _token_name(tokenizer: Any, token: int) -> str:
    return f"{token} {tokenizer.convert_ids_to_tokens(token)}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join([*names[:NAMES_SHOWN], *([f"and {more} more"] if more > 0 else [])]) or "none"


def _ranges(ids: Iterable[int]) -> str:
    """Return ascending ids in words.

    >>> _ranges([1, 5, 6, 7])
    '1, 5 to 7'
    """
    spans: list[list[int]] = []
    for number in ids:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return _some([str(first) if first == last else f"{first} to {last}" for first, last in spans])
