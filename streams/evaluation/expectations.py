"""Expectations about the columns of training rows, from a suite file.

expectations:                       column, or a path into it
  answer: {nulls: 0.01}             at most this share of rows without it
  reward_model.style: {one_of: [rule, model]}
  extra_info.index: {unique: true, range: [0, 99999]}
  question: {characters: [3, 4000]}

rows ──► Expectation.broken(values) ──► the rows that break it, and why
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.json_text import one_line

Bounds = tuple[float, float]


class Expectation(BaseModel):
    """Expectations about one column; None: not checked."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    nulls: float | None = Field(None, ge=0, le=1)
    """Maximum share of rows without a value."""
    range: Bounds | None = None
    """Range of a number, both ends included."""
    characters: tuple[int, int] | None = None
    """Range of a text's length, both ends included."""
    one_of: tuple[str | int | float | bool, ...] | None = Field(None, min_length=1)
    unique: bool = False

    @model_validator(mode="after")
    def _has_a_meaning(self) -> Expectation:
        for name in ("range", "characters"):
            bounds = getattr(self, name)
            if bounds is not None and bounds[0] > bounds[1]:
                raise ValueError(f"{name} begins above its end; write the lower bound first")
        if not self.model_fields_set:
            raise ValueError("it expects nothing; name nulls, range, characters, one_of or unique")
        return self

    def broken(self, values: Sequence[Any]) -> Iterator[BrokenExpectation]:
        """Yield the rows with values that break the expectation; `values` has one for each row, None if it is
        missing."""
        missing = [number for number, value in enumerate(values) if value is None]
        if self.nulls is not None and len(missing) > self.nulls * len(values):
            share = f"{len(missing)} of {len(values)} rows have none, expected at most {self.nulls:.1%}"
            yield from (BrokenExpectation(number, share) for number in missing)
        first: dict[str, int] = {}
        for number, value in enumerate(values):
            if value is None:
                continue
            if (problem := self._problem(value)) is not None:
                yield BrokenExpectation(number, f"{problem}, got {one_line(value)[:60]}")
            elif self.unique and first.setdefault(one_line(value), number) != number:
                yield BrokenExpectation(number, f"{one_line(value)[:60]} is there twice, expected once")

    def _problem(self, value: Any) -> str | None:
        if self.range is not None:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not self.range[0] <= value <= self.range[1]:
                return f"expected a number from {self.range[0]:g} to {self.range[1]:g}"
        if self.characters is not None:
            low, high = self.characters
            if not isinstance(value, str) or not low <= len(value) <= high:
                return f"expected a text of {low} to {high} characters"
        if self.one_of is not None and value not in self.one_of:
            return f"expected one of {', '.join(map(str, self.one_of))}"
        return None


class BrokenExpectation(NamedTuple):
    """A row that breaks an expectation."""

    row: int
    """Number of the row, from 0."""
    why: str


def value_at(fields: Mapping[str, Any], path: str) -> Any:
    """Return the value of a column, or at a path into it; None if missing.

    >>> value_at({"reward_model": {"style": "rule"}}, "reward_model.style")
    'rule'
    """
    if path in fields:
        return fields[path]
    value: Any = fields
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
