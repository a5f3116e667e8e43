"""OpenAI's graders, where a scorer gives the same score.

    string_check  eq             ──► exact: the answer that each question has
                  ne, like, ilike──► regex: the same text for every question
    multi, a weighted sum        ──► mix of them

`{{sample.output_text}}` is the answer, `{{item.NAME}}` a field of the question's line, a text or a whole number. What
no scorer computes exactly so is refused.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from gateway.http.body import Body, checked
from streams.errors import CallError, JobRequestError

SAMPLE = re.compile(r"\s*\{\{\s*sample\.output_text\s*\}\}\s*")
PLACEHOLDER = re.compile(r"\{\{([^{}]*)\}\}")
ITEM = re.compile(r"item\.(\w+(?:\.\w+)*)")
NOT_SCORED = {
    "text_similarity": "no scorer measures similarity",
    "score_model": "the judge has a scale and a prompt of its own: order the job with reward_sources `judge` "
    "(JSON-RPC, or POST /finetune/jobs)",
    "label_model": "no scorer asks a model for a label",
    "python": "nothing that a request brings is run: order the job with a scorer of your own, module:function "
    "(JSON-RPC, or POST /finetune/jobs)",
}
POSSIBLE = "possible are string_check, and multi as a weighted sum of such"


class StringCheckGrader(Body):
    """Compares the answer with a text."""

    type: Literal["string_check"]
    name: str
    input: str
    reference: str
    operation: Literal["eq", "ne", "like", "ilike"]


class MultiGrader(Body):
    """Combines graders by a formula."""

    type: Literal["multi"]
    name: str
    graders: Annotated[dict[str, dict[str, Any]], Field(min_length=1, max_length=32)]
    calculate_output: Annotated[str, Field(max_length=1000)]


class Grading(NamedTuple):
    """The scorer of the answers of a job."""

    scorer: str
    settings: dict[str, Any]
    reference: str | None
    """Template of the right answer of each question; None: the scorer needs none."""

    def answer(self, item: Mapping[str, Any]) -> str | None:
        """Return the right answer to the question of a line. Raises JobRequestError."""
        return None if self.reference is None else _render(self.reference, item)


def read_grader(grader: Mapping[str, Any], path: str) -> Grading:
    """Return the scorer that judges as a grader does. Raises CallError that names what cannot be."""
    kind = grader.get("type")
    if kind == "multi":
        return _mix(checked(MultiGrader, grader, path), path)
    if kind != "string_check":
        problem = NOT_SCORED.get(str(kind), "there is no such grader")
        raise CallError("unsupported", f"{path}.type {str(kind)[:40]!r}: {problem}; {POSSIBLE}", f"{path}.type")
    return _checks(checked(StringCheckGrader, grader, path), path)


def _checks(grader: StringCheckGrader, path: str) -> Grading:
    reference, compared = grader.reference, "reference"
    if SAMPLE.fullmatch(grader.input) is None:
        if grader.operation not in ("eq", "ne") or SAMPLE.fullmatch(reference) is None:
            raise CallError(
                "unsupported",
                f"{path}.input has to be {{{{sample.output_text}}}}, the answer alone: no scorer compares "
                f"{grader.input[:60]!r}",
                f"{path}.input",
            )
        reference, compared = grader.input, "input"  # equal is equal both ways round
    names = [name.strip() for name in PLACEHOLDER.findall(reference)]
    if "{{" in (rest := PLACEHOLDER.sub("", reference)) or "}}" in rest:
        raise CallError("invalid", f"{path}.{compared}: a {{{{ or }}}} is alone in it", f"{path}.{compared}")
    if (wrong := next((name for name in names if ITEM.fullmatch(name) is None), None)) is not None:
        problem = f"{path}.{compared}: {{{{{wrong[:60]}}}}} is nothing to compare with; use {{{{item.NAME}}}}"
        raise CallError("unsupported", problem, f"{path}.{compared}")
    if grader.operation == "eq":
        return Grading("exact", {"strip": False}, reference)
    if names:
        raise CallError(
            "unsupported",
            f"{path}.operation {grader.operation!r} compares with the same text for every question; with "
            "{{item.…}} only 'eq' is possible",
            f"{path}.operation",
        )
    if not reference:
        raise CallError("invalid", f"{path}.{compared} is empty: every answer would get the same", f"{path}.{compared}")
    text = re.escape(reference)
    if grader.operation == "ne":
        return Grading("regex", {"pattern": rf"(?!{text}\Z).*", "dot_all": True, "strip": False}, None)
    return Grading(
        "regex",
        {"pattern": text, "mode": "search", "ignore_case": grader.operation == "ilike", "strip": False},
        None,
    )


def _mix(multi: MultiGrader, path: str) -> Grading:
    members, references = [], set[str]()
    weights = _weights(multi, f"{path}.calculate_output")
    for name, grader in multi.graders.items():
        inner = f"{path}.graders.{name}"
        if grader.get("type") == "multi":
            raise CallError("unsupported", f"{inner}.type: a multi inside a multi; {POSSIBLE}", f"{inner}.type")
        part = read_grader(grader, inner)
        members.append({"name": part.scorer, "as": name, "weight": weights[name], "settings": part.settings})
        references |= {part.reference} - {None}  # type: ignore[arg-type]
    if len(references) > 1:
        listed = ", ".join(sorted(references))[:200]
        problem = f"{path}.graders compare with several answers, and a question has one: {listed}"
        raise CallError("unsupported", problem, f"{path}.graders")
    return Grading("mix", {"of": members}, next(iter(references), None))


# --- the formula of a multi -------------------------------------------------------------------------------------------


def _weights(multi: MultiGrader, path: str) -> dict[str, float]:
    """Return the weight of each grader in the formula. Raises CallError if it is no weighted sum of all of them."""
    try:
        weights = _linear(ast.parse(multi.calculate_output.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as exc:
        raise CallError(
            "unsupported", f"{path} has to be a weighted sum, e.g. 0.8 * first + 0.2 * second: {exc}", path
        ) from exc
    if unknown := sorted(name for name in weights if name and name not in multi.graders):
        raise CallError("invalid", f"{path} names {unknown[0]!r}, which is none of the graders", path)
    if weights.get("", 0.0):
        raise CallError("unsupported", f"{path} adds {weights['']:g} to every answer, which teaches nothing", path)
    if unused := sorted(name for name in multi.graders if not weights.get(name)):
        raise CallError("invalid", f"{path}: grader {unused[0]!r} has no effect in it; leave it out", path)
    return weights


def _linear(node: ast.expr) -> dict[str, float]:
    """Return the weight of each name, that of 1 under ``. Raises ValueError for anything else."""
    match node:
        case ast.Name(id=name):
            return {name: 1.0}
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return {"": float(value)}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _scale(_linear(operand), -1.0)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            first, second = _linear(left), _scale(_linear(right), 1.0 if isinstance(op, ast.Add) else -1.0)
            return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = _linear(left), _linear(right)
            return _scale(second, _number(first)) if first.keys() <= {""} else _scale(first, _number(second))
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _scale(_linear(left), 1.0 / _number(_linear(right)))
    raise ValueError(f"{ast.unparse(node)[:60]!r} is none")


def _number(weights: Mapping[str, float]) -> float:
    if weights.keys() != {""}:
        raise ValueError("it multiplies or divides by a grader")
    return weights[""]


def _scale(weights: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: weight * factor for name, weight in weights.items()}


# --- templates --------------------------------------------------------------------------------------------------------


def _render(template: str, item: Mapping[str, Any]) -> str:
    """Return a template with the fields of a line in it. Raises JobRequestError."""

    def field(match: re.Match[str]) -> str:
        path = match[1].strip().removeprefix("item.")
        value: Any = item
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return str(value)
        raise JobRequestError(f"{path}: expected a text or a whole number to compare with, got {str(value)[:40]}")

    return PLACEHOLDER.sub(field, template)
