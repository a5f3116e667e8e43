"""Make rows to tune a policy on: a generator's questions, or a model's answers that a scorer verifies.

    TaskSpec ──► train questions, the generator's own answer ──────────────────────────► row, origin: generator
    questions with answers ──► a model, which may be the policy ──► scorer gives 1? ──► row, origin: model
                                                                            └─► no: dropped, and why

Every row records its origin. A model's answer is never trusted: a generator knows its own answers, and a model's is
kept only if the scorer gives it 1. Held-out questions of a generator are never drawn.

Not covered: questions that a model invents; nothing could verify their answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import httpx2

from plugins.data.cleaning.clean import CleanedRows, clean
from plugins.data.cleaning.data_rows import UnreadableRow
from plugins.data.cleaning.row_shapes import ANSWERS, question_of
from plugins.data.cleaning.steps import DataRow
from schemas import json_text
from schemas.events import Message, RewardSource, Task
from streams.egress.http_client import AnswerTooLarge, bearer, fetch
from streams.errors import ProviderError, SettingsError
from streams.settings.model import Scoring
from streams.stages.scoring.trial import try_texts
from streams.stages.tasks.generators import TaskSpec, generate

VERIFY = "verify"
"""The step that drops an answer."""
ASKED_S = 120.0
"""Seconds for one answer."""
MOST_BYTES = 4 * 1024 * 1024
"""Longest answer accepted."""
Ask = Callable[[list[dict[str, Any]]], str]
"""Messages to a text. Raises ProviderError."""


def rows_of(spec: TaskSpec) -> Iterator[DataRow]:
    """Yield rows of a generator, each with the answer that it verifies by.

    Raises as `generators.generate`, and SettingsError for one without an answer in words.
    """
    for number, task in enumerate(generate(spec, now_ms=0), 1):
        answer = _verified_answer(task)
        if answer is None:
            raise SettingsError(f"generator {spec.family}: no answer is known before an episode is played; sample it")
        origin = {"by": "generator", "generator": spec.family, "seed": spec.seed, "index": number - 1}
        messages = [{"role": message.role, "content": message.content} for message in task.messages]
        row = {"messages": [*messages, {"role": "assistant", "content": answer}], "answer": answer}
        yield DataRow(f"{spec.family}:{number}", row | {"origin": origin | {"options": dict(spec.options)}})


def _verified_answer(task: Task) -> str | None:
    verifier = json_text.parse(task.verifier)
    answer = verifier.get("answer", verifier.get("entry", {}).get("answer"))
    return None if answer is None else str(answer)


class AnswerModel(NamedTuple):
    """A model that answers OpenAI's chat completions: another one, the judge's, or the policy at `streamward serve`."""

    client: httpx2.Client
    url: str
    """Ends with /v1."""
    model: str
    api_key: str | None = None
    temperature: float = 1.0

    def ask(self, messages: list[dict[str, Any]]) -> str:
        """Return the model's answer. Raises ProviderError, SettingsError."""
        headers = bearer(self.api_key, "the model's API key")
        body = {"model": self.model, "messages": messages, "temperature": self.temperature}
        try:
            status, answer = fetch(
                self.client, "POST", f"{self.url}/chat/completions", limit_s=ASKED_S, most_bytes=MOST_BYTES, json=body,
                headers=headers,
            )  # fmt: skip
            if status != 200:
                raise ValueError(f"status {status}: {answer[:200].decode(errors='replace')}")
            text = json_text.parse(answer)["choices"][0]["message"]["content"]
        except (AnswerTooLarge, httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError, TypeError) as exc:
            raise ProviderError(f"{self.url}: {self.model} did not answer: {exc}") from exc
        return str(text or "")


class VerifiedModel(NamedTuple):
    """A model whose answers count if a scorer gives them 1."""

    ask: Ask
    origin: Mapping[str, Any]
    """What its rows say of it."""
    scorer: RewardSource
    scoring: Scoring

    def refusal(self, task: Task, text: str) -> str | None:
        """Return why an answer is not kept; None if the scorer gives it 1. Raises SettingsError."""
        (outcome,) = try_texts(self.scoring, task, self.scorer, [text])
        if outcome.error is not None:
            return f"{self.scorer.name}: {outcome.error}"
        score = "no opinion" if outcome.value is None else f"{outcome.value:g}"
        return None if outcome.value == 1 else f"{self.scorer.name} gives {score} to {text[:60]!r}"


def answer_questions(rows: Iterable[DataRow | UnreadableRow], model: VerifiedModel) -> CleanedRows:
    """Return the rows with the answers of a model that the scorer gives 1, and the fate of each.

    Raises ProviderError if the model does not answer, SettingsError if the scorer cannot be used.
    """

    def outcomes() -> Iterator[DataRow | UnreadableRow]:
        for row in rows:
            if not isinstance(row, DataRow):
                yield row
                continue
            task = _task(row)
            if task is None:
                names = ", ".join(ANSWERS)
                yield UnreadableRow(row.place, f"it has no answer to verify by; expected one of {names}", VERIFY)
                continue
            prompt = [{"role": message.role, "content": message.content} for message in task.messages]
            text = model.ask(prompt)
            problem = model.refusal(task, text)
            if problem is not None:
                yield UnreadableRow(row.place, problem, VERIFY)
                continue
            fields = {
                "messages": [*prompt, {"role": "assistant", "content": text}],
                "answer": answer_to_verify(row.fields),
            }
            yield DataRow(row.place, fields | {"origin": {"by": "model", **model.origin, "scorer": model.scorer.name}})

    return clean(outcomes(), ())


def _task(row: DataRow) -> Task | None:
    answer = answer_to_verify(row.fields)
    return None if answer is None else question_task(row.place, question_of(row.fields), answer)


def question_task(task_id: str, question: str, answer: Any) -> Task:
    """Return a question as a scorer knows it; `answer`: to verify by, None: there is none."""
    message = Message(role="user", content=question)
    verifier = json.dumps({} if answer is None else {"answer": answer})
    return Task(task_id=task_id, created_at=0, policy="-", purpose="serve", messages=(message,), verifier=verifier)


def answer_to_verify(fields: Mapping[str, Any]) -> Any:
    """Return the answer by which others are verified; None: the row has none."""
    truth = fields.get("reward_model")
    if isinstance(truth, Mapping) and "ground_truth" in truth:
        return truth["ground_truth"]
    return next((fields[name] for name in ANSWERS if fields.get(name) is not None), None)
