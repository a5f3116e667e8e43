"""The result of a scorer, or its error.

    task, response, settings ──► Verdict(value, components, rationale, steps)   or ScoreError(reason)

A verdict is a finite number of magnitude at most MAX_REWARD. NaN, infinity, a bool or a text is an error, never a
score: counting it as 0 would teach the model a score that no scorer gave. Every verdict (of a built-in scorer, a
worker process, the judge) passes `check_verdict`.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas import json_text
from schemas.events import COMPONENT_CHARACTERS, MAX_COMPONENTS, MAX_REWARD, Response, Task
from schemas.faults import nearest
from streams.errors import EventError
from streams.scorers.canonical_text import canonical_text

F = TypeVar("F", bound=Callable[..., Any])
O = TypeVar("O", bound="ScorerOptions")  # noqa: E741 - options

MAX_RATIONALE = 2_000
"""Characters kept of a rationale or an error, which is stored for ever."""
MAX_VERSION = 500
"""Characters kept of a scorer's version."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One scorer's score of one response."""

    value: float | None
    """None: the scorer abstains, as it has no opinion."""
    components: dict[str, float] = field(default_factory=dict)
    """The parts of the value, by name, before weighting."""
    rationale: str | None = None
    version: str = ""
    """The scorer, e.g. `exact/1`; filled in by the caller."""
    steps: tuple[float, ...] = ()
    """The value of each turn of the response, in order; empty: only the whole is scored."""


class ScoreError(EventError):
    """No verdict. `reason` is one of unknown_scorer, bad_settings, bad_verifier, timeout, too_slow, crashed, exception,
    memory, not_a_number, too_many_components, wrong_steps, no_environment, missing_package, module_not_listed,
    needs_group, alone, judge_unreachable, judge_refused, judge_parameter, judge_budget or judge_answer."""

    reason = "exception"

    def __init__(self, message: str, *, reason: str, again: bool = False, version: str = "") -> None:
        super().__init__(message, reason=reason)
        self.again = again
        """Whether a retry may succeed."""
        self.version = version
        """The scorer that failed, if known."""
        self.tries = 1
        """Number of attempts."""
        self.spent: dict[str, float] = {}
        """Components of the failed score from all attempts, e.g. a judge's tokens."""
        self.of_request = False
        """Whether a server refused this one request, and may answer others."""


class ScorerOptions(BaseModel):
    """The settings of one scorer: strict types, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def options(model: type[O], settings: dict[str, Any], scorer: str) -> O:
    """Return `settings` as `model`.

    Raises ScoreError(bad_settings), with the nearest known key for a misspelt one.
    """
    try:
        return model.model_validate_json(json.dumps(settings))
    except RecursionError as exc:
        raise ScoreError(f"{scorer}: the settings are nested too deeply", reason="bad_settings") from exc
    except ValidationError as exc:
        keys = [field.alias or name for name, field in model.model_fields.items()]
        lines = []
        for error in exc.errors():
            key = ".".join(str(part) for part in error["loc"])
            if error["type"] == "extra_forbidden" and len(error["loc"]) == 1:
                lines.append(f"{scorer} has no setting {key!r}; {nearest(key, keys)}")
            else:
                text = error["msg"].removeprefix("Value error, ")
                lines.append(f"{scorer}{'.' if key else ''}{key}: {text} (got {_short(error['input'])})")
        raise ScoreError("; ".join(lines), reason="bad_settings") from exc


def json_object(text: str, subject: str, *, reason: str) -> dict[str, Any]:
    """Return the JSON object in `text`. Raises ScoreError(reason) naming `what`."""
    try:
        value = json_text.parse(text)
    except ValueError as exc:
        raise ScoreError(f"{subject} is not JSON ({exc}); expected an object, e.g. {{}}", reason=reason) from exc
    if not isinstance(value, dict):
        raise ScoreError(f"{subject} is {_short(value)}; expected a JSON object, e.g. {{}}", reason=reason)
    return value


def answers(task: Task, scorer: str) -> tuple[str, ...]:
    """Return the right answers of a task, canonical: `answer` in its verifier, a text, a number, or a list of these.

    Raises ScoreError(bad_verifier).
    """
    verifier = json_object(task.verifier, f"task {task.task_id}: verifier", reason="bad_verifier")
    answer = verifier.get("answer")
    right = answer if isinstance(answer, list) else [answer]
    if not right or not all(isinstance(text, str | int | float) and not isinstance(text, bool) for text in right):
        raise ScoreError(
            f'task {task.task_id}: {scorer} compares with the answer in the verifier, e.g. {{"answer": "11"}}; '
            f"got {_short(answer)}, expected a text, a number, or a list of these",
            reason="bad_verifier",
        )
    texts = tuple(canonical_text(str(text)) for text in right)
    if not all(text.strip() for text in texts):
        raise ScoreError(
            f"task {task.task_id}: the answer in the verifier is empty, and {scorer} would reward silence; write "
            "an answer",
            reason="bad_verifier",
        )
    return texts


def check_verdict(raw: Any, scorer: str) -> Verdict:
    """Return a scorer's result as a Verdict: it may be one, None, a number, or a tuple of number, components and steps.

    True and False are 1 and 0; a scalar of NumPy or torch, or an array of one, is its number. Its texts can be
    encoded as UTF-8. Raises ScoreError(not_a_number) for anything that is not a finite number, or a value beyond
    MAX_REWARD; and ScoreError(too_many_components) for components that no reward may have.
    """
    if isinstance(raw, tuple) and 2 <= len(raw) <= 3:
        raw = Verdict(raw[0], raw[1], steps=raw[2] if len(raw) == 3 else ())
    verdict = raw if isinstance(raw, Verdict) else Verdict(raw)
    if not isinstance(verdict.components, dict):
        raise ScoreError(
            f"{scorer} gave components {_short(verdict.components)}; expected a dict of name and number",
            reason="not_a_number",
        )
    if len(verdict.components) > MAX_COMPONENTS or any(
        len(str(name)) > COMPONENT_CHARACTERS for name in verdict.components
    ):
        raise ScoreError(
            f"{scorer} gave {len(verdict.components)} components; expected at most {MAX_COMPONENTS}, with names of at "
            f"most {COMPONENT_CHARACTERS} characters",
            reason="too_many_components",
        )
    rationale = None if verdict.rationale is None else storable(str(verdict.rationale)[:MAX_RATIONALE])
    version = storable(str(verdict.version)[:MAX_VERSION])
    if verdict.value is None:
        return Verdict(None, {}, rationale, version)
    value = _finite(verdict.value, scorer, "value")
    if abs(value) > MAX_REWARD:
        raise ScoreError(
            f"{scorer} gave value {value:g}; expected at most {MAX_REWARD:g} in size: scale the score down",
            reason="not_a_number",
        )
    return Verdict(
        value,
        {storable(str(name)): _finite(part, scorer, f"component {name}") for name, part in verdict.components.items()},
        rationale,
        version,
        _steps(verdict.steps, scorer),
    )


def check_steps(verdict: Verdict, response: Response, scorer: str) -> Verdict:
    """Return the verdict. Raises ScoreError(wrong_steps) if its turns differ from the response's."""
    if verdict.steps and len(verdict.steps) != len(response.turns):
        raise ScoreError(
            f"{scorer} gave {len(verdict.steps)} steps, and response {response.response_id} has {len(response.turns)} "
            "turns; give one number for each of response.turns, or none",
            reason="wrong_steps",
        )
    return verdict


def entry_point(version: str) -> Callable[[F], F]:
    """Mark a function `(task, response, settings) -> number | None | (number, components[, steps])` as a scorer.

    Tasks name functions as `module:function`. Only marked functions are called, so a task cannot call arbitrary code.
    `task` is a `ScorerTask`: `task.verifier["answer"]` is the task's right answer. `steps` is one number for
    each of `response.turns`: what an agent's model calls are worth, one by one. None: no opinion of this response.

    >>> @entry_point("halves/1")
    ... def halves(task, response, settings):
    ...     return 0.5
    >>> halves.scorer_version
    'halves/1'
    """

    def mark(function: F) -> F:
        function.scorer_version = version  # type: ignore[attr-defined]
        return function

    return mark


def storable(text: str) -> str:
    """Return `text` so that it encodes as UTF-8: a lone surrogate becomes a question mark."""
    return text.encode(errors="replace").decode()


def _finite(value: Any, scorer: str, field: str) -> float:
    number, way_out = math.nan, "say what failed by raising an error"
    if inspect.iscoroutine(value):
        value.close()
        way_out = "write a plain function; asyncio.run(…) in it calls an async one"
    if callable(item := getattr(value, "item", None)):
        with contextlib.suppress(ValueError, RuntimeError):  # an array of several
            value = item()
    if isinstance(value, Real):
        with contextlib.suppress(OverflowError):  # an int beyond float
            number = float(value)
    if not math.isfinite(number):
        raise ScoreError(
            f"{scorer} gave {field} {_short(value)}; a score is a finite number, or None for no opinion ({way_out})",
            reason="not_a_number",
        )
    return number


def _steps(steps: Any, scorer: str) -> tuple[float, ...]:
    if not isinstance(steps, tuple | list):
        raise ScoreError(f"{scorer} gave steps {_short(steps)}; expected a list of numbers", reason="not_a_number")
    numbers = tuple(_finite(step, scorer, f"step {number}") for number, step in enumerate(steps))
    if any(abs(step) > MAX_REWARD for step in numbers):
        raise ScoreError(
            f"{scorer} gave a step beyond {MAX_REWARD:g} in size: scale the scores down", reason="not_a_number"
        )
    return numbers


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
