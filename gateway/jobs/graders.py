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
PLACEHOLDER = re.compile(r"\{\{\s*(.*?)\s*\}\}")
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
    """What judges the answers of a job."""

    scorer: str
    settings: dict[str, Any]
    reference: str | None
    """Template of the right answer of each question; None: the scorer needs none."""

    def answer(self, item: Mapping[str, Any]) -> str | None:
        """Return the right answer to the question of a line. Raises JobRequestError."""
        return None if self.reference is None else _rendered(self.reference, item)


def grading(given: Mapping[str, Any], where: str) -> Grading:
    """Return what judges as a grader does; `where` is its path. Raises CallError that names what cannot be."""
    kind = given.get("type")
    if kind == "multi":
        return _mixed(checked(MultiGrader, given, where), where)
    if kind != "string_check":
        why = NOT_SCORED.get(str(kind), "there is no such grader")
        raise CallError("unsupported", f"{where}.type {str(kind)[:40]!r}: {why}; {POSSIBLE}", f"{where}.type")
    return _checks(checked(StringCheckGrader, given, where), where)


def _checks(one: StringCheckGrader, where: str) -> Grading:
    reference, compared = one.reference, "reference"
    if SAMPLE.fullmatch(one.input) is None:
        if one.operation not in ("eq", "ne") or SAMPLE.fullmatch(reference) is None:
            raise CallError(
                "unsupported",
                f"{where}.input has to be {{{{sample.output_text}}}}, the answer alone: no scorer compares "
                f"{one.input[:60]!r}",
                f"{where}.input",
            )
        reference, compared = one.input, "input"  # equal is equal both ways round
    names = PLACEHOLDER.findall(reference)
    if "{{" in (rest := PLACEHOLDER.sub("", reference)) or "}}" in rest:
        raise CallError("invalid", f"{where}.{compared}: a {{{{ or }}}} is alone in it", f"{where}.{compared}")
    if (wrong := next((name for name in names if ITEM.fullmatch(name) is None), None)) is not None:
        what = f"{where}.{compared}: {{{{{wrong[:60]}}}}} is nothing to compare with; use {{{{item.NAME}}}}"
        raise CallError("unsupported", what, f"{where}.{compared}")
    if one.operation == "eq":
        return Grading("exact", {"strip": False}, reference)
    if names:
        raise CallError(
            "unsupported",
            f"{where}.operation {one.operation!r} compares with the same text for every question; with {{{{item.…}}}} "
            "only 'eq' is possible",
            f"{where}.operation",
        )
    if not reference:
        raise CallError(
            "invalid", f"{where}.{compared} is empty: every answer would get the same", f"{where}.{compared}"
        )
    text = re.escape(reference)
    if one.operation == "ne":
        return Grading("regex", {"pattern": rf"(?!{text}\Z).*", "dot_all": True, "strip": False}, None)
    return Grading(
        "regex",
        {"pattern": text, "mode": "search", "ignore_case": one.operation == "ilike", "strip": False},
        None,
    )


def _mixed(one: MultiGrader, where: str) -> Grading:
    of, references = [], set[str]()
    weights = _weights(one, f"{where}.calculate_output")
    for name, given in one.graders.items():
        inner = f"{where}.graders.{name}"
        if given.get("type") == "multi":
            raise CallError("unsupported", f"{inner}.type: a multi inside a multi; {POSSIBLE}", f"{inner}.type")
        found = grading(given, inner)
        of.append({"name": found.scorer, "as": name, "weight": weights[name], "settings": found.settings})
        references |= {found.reference} - {None}  # type: ignore[arg-type]
    if len(references) > 1:
        several = ", ".join(sorted(references))[:200]
        what = f"{where}.graders compare with several answers, and a question has one: {several}"
        raise CallError("unsupported", what, f"{where}.graders")
    return Grading("mix", {"of": of}, next(iter(references), None))


# --- the formula of a multi -------------------------------------------------------------------------------------------


def _weights(one: MultiGrader, where: str) -> dict[str, float]:
    """Return the weight of each grader in the formula. Raises CallError if it is no weighted sum of all of them."""
    try:
        found = _linear(ast.parse(one.calculate_output.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as exc:
        raise CallError(
            "unsupported", f"{where} has to be a weighted sum, e.g. 0.8 * first + 0.2 * second: {exc}", where
        ) from exc
    if unknown := sorted(name for name in found if name and name not in one.graders):
        raise CallError("invalid", f"{where} names {unknown[0]!r}, which is none of the graders", where)
    if found.get("", 0.0):
        raise CallError("unsupported", f"{where} adds {found['']:g} to every answer, which teaches nothing", where)
    if unused := sorted(name for name in one.graders if not found.get(name)):
        raise CallError("invalid", f"{where}: grader {unused[0]!r} has no effect in it; leave it out", where)
    return found


def _linear(node: ast.expr) -> dict[str, float]:
    """Return the weight of each name, that of 1 under ``. Raises ValueError for anything else."""
    match node:
        case ast.Name(id=name):
            return {name: 1.0}
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return {"": float(value)}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _scaled(_linear(operand), -1.0)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            one, two = _linear(left), _scaled(_linear(right), 1.0 if isinstance(op, ast.Add) else -1.0)
            return {name: one.get(name, 0.0) + two.get(name, 0.0) for name in {**one, **two}}
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, two = _linear(left), _linear(right)
            return _scaled(two, _number(one)) if one.keys() <= {""} else _scaled(one, _number(two))
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _scaled(_linear(left), 1.0 / _number(_linear(right)))
    raise ValueError(f"{ast.unparse(node)[:60]!r} is none")


def _number(found: Mapping[str, float]) -> float:
    if found.keys() != {""}:
        raise ValueError("it multiplies or divides by a grader")
    return found[""]


def _scaled(found: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: weight * factor for name, weight in found.items()}


# --- templates --------------------------------------------------------------------------------------------------------


def _rendered(template: str, item: Mapping[str, Any]) -> str:
    """Return a template with the fields of a line in it. Raises JobRequestError."""

    def field(found: re.Match[str]) -> str:
        path = found[1].removeprefix("item.")
        value: Any = item
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return str(value)
        raise JobRequestError(f"{path}: expected a text or a whole number to compare with, got {str(value)[:40]}")

    return PLACEHOLDER.sub(field, template)
