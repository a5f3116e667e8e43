"""Variants of rows: a model asks the question of a row in other words, and a scorer checks that the answer stays right.

    row ──► is its question held out? dropped ──► the row itself
       └──► a model asks it in other words ──► new, the same numbers? ──► its answer: scorer gives 1? ──► variant
                                                                             └─► no: dropped, and why

A variant has the question of its row in `metadata.variant_of`. The gates of held-out questions read it as a text of the
row, also in tasks, and every split has both on one side.

Not covered: conversations with several questions, and pairs of answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from plugins.data.cleaning.clean import CleanedRows, clean
from plugins.data.cleaning.data_rows import UnreadableRow
from plugins.data.cleaning.row_shapes import question_of
from plugins.data.cleaning.steps import CONTAMINATION, DataRow, leave_out_held_out
from plugins.data.contamination.suite_index import SuiteIndex
from plugins.data.synthetic_rows import VERIFY, VerifiedModel, answer_to_verify, question_task
from streams.rows.near_duplicates import compared_text
from streams.rows.row_texts import VARIANT_OF, variant_of

VARY = "vary"
"""The step that drops a variant, or a row that can have none."""
PROMPT = """\
Ask the following question in other words. Keep its meaning, and every number and name in it. Reply with the new \
question and nothing else.

{question}"""
QUESTION_COLUMNS = ("question", "prompt", "problem", "query", "instruction")


def vary(
    rows: Iterable[DataRow | UnreadableRow],
    model: VerifiedModel,
    *,
    count: int = 1,
    held_out: SuiteIndex | None = None,
) -> CleanedRows:
    """Return the rows, each followed by the variants of it that hold, and the fate of all.

    Raises ProviderError if the model does not answer, SettingsError if the scorer cannot be used.
    """

    def outcomes() -> Iterator[DataRow | UnreadableRow]:
        for row in rows:
            if not isinstance(row, DataRow):
                yield row
                continue
            leak = None if held_out is None else next(leave_out_held_out([row], held_out))
            if leak is not None and leak.fields is None:
                yield UnreadableRow(row.place, leak.note, CONTAMINATION)
                continue
            yield row
            seen = {compared_text(question_of(row.fields)).words}
            for number in range(1, count + 1):
                place = f"{row.place}, variant {number}"
                yield from _variant(DataRow(place, row.fields), model, seen)

    return clean(outcomes(), ())


def _variant(row: DataRow, model: VerifiedModel, seen: set[tuple[str, ...]]) -> Iterator[DataRow | UnreadableRow]:
    """Yield a variant, or why there is none; `seen`: questions that it must not repeat, to which it is added."""
    question, answer = question_of(row.fields), answer_to_verify(row.fields)
    if answer is None or with_question(row.fields, question) is None:
        yield UnreadableRow(row.place, "it needs one question, and an answer to verify by", VARY)
        return
    text = model.ask([{"role": "user", "content": PROMPT.replace("{question}", question)}]).strip()
    compared, before = compared_text(text), compared_text(question)
    fields = with_question(row.fields, text)
    if fields is None or not text or compared.words in seen:
        yield UnreadableRow(row.place, f"the model gives no other question: {text[:60]!r}", VARY)
    elif compared.numbers != before.numbers:
        yield UnreadableRow(row.place, f"it has other numbers: {text[:60]!r}", VARY)
    elif problem := model.refusal(
        question_task(row.place, text, answer), model.ask([{"role": "user", "content": text}])
    ):
        yield UnreadableRow(row.place, problem, VERIFY)
    else:
        seen.add(compared.words)
        origin = {"by": "variant", **model.origin, "scorer": model.scorer.name}
        metadata = {**(fields.get("metadata") or {}), VARIANT_OF: variant_of(row.fields) or question}
        yield DataRow(row.place, {**fields, "metadata": metadata, "origin": origin})


def with_question(fields: Mapping[str, Any], question: str) -> dict[str, Any] | None:
    """Return a row with another question; None if it has not just one.

    >>> with_question({"messages": [{"role": "user", "content": "1 + 1?"}], "answer": 2}, "One and 1?")
    {'messages': [{'role': 'user', 'content': 'One and 1?'}], 'answer': 2}
    """
    for column in ("messages", "prompt"):
        messages = fields.get(column)
        if isinstance(messages, list):
            roles = [message.get("role") if isinstance(message, Mapping) else None for message in messages]
            if roles.count("user") != 1:
                return None
            changed = list(messages)
            changed[roles.index("user")] = {**messages[roles.index("user")], "content": question}
            return {**fields, column: changed}
    column = next((name for name in QUESTION_COLUMNS if isinstance(fields.get(name), str)), "")
    return {**fields, column: question} if column and not fields.get("input") else None
