"""A catalogue of scenarios to ask a policy repeatedly: YAML or JSON, frozen, with a digest.

    name: arithmetic                   key of its events: selfplay/arithmetic
    policy: default                    default: policy.name
    purpose: serve                     or eval; train needs answers that are checked
    group_size: 1
    scenarios:
      - name: sums
        category: easy                 figures are by category
        questions:
          - {question: "1 + 1 =", expected: "2"}
      - name: larger
        category: hard
        generator: sums                as `streamward tasks generate` has them, other ones with each run
        options: {digits: 2}
        count: 20
      - name: drawn
        category: curriculum
        generator: sums
        count: 40
        curriculum:                    options are drawn by success (curriculum.py)
          cells: {digits: [1, 2], terms: [2, 3]}

A question without an expected answer is asked, but not scored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from plugins.improve.triggers.rule import NAME
from plugins.jobs.orders.request import RequestPart, RewardSourceConfig
from schemas.events import MAX_GROUP_SIZE, Purpose
from schemas.faults import faults
from schemas.file_text import FileTextError, whole_text
from streams.access.tenants.tenant_names import named
from streams.errors import NotFoundError, SettingsError

RULE = "selfplay/"
"""Prefix of the key of its events in triggers."""
MOST_QUESTIONS = 10_000
MOST_CELLS = 500


class CatalogueQuestion(RequestPart):
    """One question, and what `exact` compares answers with."""

    question: str = Field(min_length=1)
    expected: str | int | float | tuple[str | int | float, ...] | None = None


class CurriculumPart(RequestPart):
    """Options of a generator that are drawn by the success that the log has for them."""

    cells: dict[str, tuple[Any, ...]] = Field(min_length=1, description="values of each option; a cell has one of each")
    floor: float = Field(0.1, gt=0, le=1, description="least weight of a cell, so that none starves")
    most_of_one: float = Field(0.5, gt=0, le=1, description="largest share of one cell in a run")
    answers: int = Field(64, ge=8, le=100_000, description="newest answers of a cell that count for its success")

    @model_validator(mode="after")
    def _has_cells(self) -> Self:
        count = 1
        for option, values in self.cells.items():
            if not values:
                raise ValueError(f"cells.{option} has no value; name those to draw from")
            count *= len(values)
        if count > MOST_CELLS:
            raise ValueError(f"cells has {count} combinations; expected at most {MOST_CELLS}")
        if count * self.most_of_one < 1:
            raise ValueError(
                f"most_of_one is {self.most_of_one:g}, and {count} cells of so much each make no whole run"
            )
        return self


class CatalogueScenario(RequestPart):
    """A family of questions."""

    name: str = Field(pattern=NAME)
    category: str = Field("default", min_length=1, max_length=100)
    system: str | None = Field(None, min_length=1, description="system prompt of its questions")
    questions: tuple[CatalogueQuestion, ...] | None = Field(None, min_length=1, max_length=MOST_QUESTIONS)
    generator: str | None = Field(None, min_length=1, description="a family of generated tasks")
    options: dict[str, Any] = Field(default_factory=dict, description="of the generator")
    count: int = Field(20, ge=1, le=MOST_QUESTIONS, description="generated tasks of each run")
    curriculum: CurriculumPart | None = None

    @model_validator(mode="after")
    def _asks_one_way(self) -> Self:
        if (self.questions is None) == (self.generator is None):
            raise ValueError(f"scenario {self.name} needs questions or a generator, one of them")
        if self.generator is None and (unused := self.model_fields_set & {"options", "count", "curriculum"}):
            raise ValueError(f"{min(unused)} is for a generator, and scenario {self.name} has questions; leave it out")
        if self.generator is not None and self.system is not None:
            raise ValueError(f"system is for questions, and the generator of scenario {self.name} has its own prompt")
        if self.curriculum is not None and (doubled := self.options.keys() & self.curriculum.cells.keys()):
            raise ValueError(f"options.{min(doubled)} is drawn by the curriculum; leave it out of one of them")
        texts = [question.question for question in self.questions or ()]
        if len(set(texts)) != len(texts):
            raise ValueError(f"scenario {self.name} asks a question twice; ask it once")
        return self


class Catalogue(RequestPart):
    """Scenarios, and how they are asked."""

    name: str = Field(pattern=NAME)
    policy: str | None = Field(None, min_length=1, description="default: policy.name")
    agent: str | None = Field(None, min_length=1, description="registered agent that answers; default: the policy")
    tenant: str | None = Field(None, min_length=1)
    purpose: Purpose = "serve"
    group_size: int = Field(1, ge=1, le=MAX_GROUP_SIZE, description="answers to each question")
    max_tokens: int = Field(256, ge=1, le=2**31 - 1)
    temperature: float = Field(1.0, ge=0, le=2)
    reward_sources: tuple[RewardSourceConfig, ...] = (RewardSourceConfig(name="exact"),)
    scenarios: tuple[CatalogueScenario, ...] = Field(min_length=1, max_length=1000)

    @field_validator("scenarios")
    @classmethod
    def _named_once(cls, scenarios: tuple[CatalogueScenario, ...]) -> tuple[CatalogueScenario, ...]:
        names = [scenario.name for scenario in scenarios]
        if len(set(names)) != len(names):
            raise ValueError("two scenarios have one name; name each once")
        return scenarios

    @model_validator(mode="after")
    def _trains_on_checked_answers(self) -> Self:
        unchecked = (
            scenario.name
            for scenario in self.scenarios
            if any(question.expected is None for question in scenario.questions or ())
        )
        if self.purpose == "train" and (name := next(unchecked, None)) is not None:
            raise ValueError(
                f"purpose is train, and scenario {name} has a question without an expected answer: what is checked "
                "against nothing cannot train. Add it, or ask the catalogue with purpose serve"
            )
        return self

    @property
    def rule(self) -> str:
        """The key of its events."""
        return RULE + self.key

    @property
    def key(self) -> str:
        """Its name in the metadata of its tasks; that of a tenant begins with the tenant's."""
        return named(self.tenant, self.name)

    @property
    def digest(self) -> str:
        """sha256 over the catalogue with its defaults."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def read_catalogue(file: Path) -> Catalogue:
    """Return the catalogue in a file. Raises NotFoundError, SettingsError that names what is wrong with it."""
    try:
        text = whole_text(file.read_bytes())
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, Loader=yaml.SafeLoader)):
            raise SettingsError(f"{file}: it has an alias (*name); write it out")
        fields = yaml.safe_load(text)  # JSON is YAML, too
    except OSError as exc:
        raise NotFoundError(f"{file}: {exc.strerror}; docs/improve.md has a catalogue to begin with") from exc
    except FileTextError as exc:
        raise SettingsError(exc.at(file)) from exc
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        place = file if mark is None else f"{file}:{mark.line + 1}"
        raise SettingsError(f"{place}: not YAML: {getattr(exc, 'problem', None) or exc}") from exc
    except (ValueError, RecursionError) as exc:  # a number of thousands of digits, endless nesting
        raise SettingsError(f"{file}: it cannot be read: {exc}") from exc
    try:
        return catalogue_of(fields)
    except SettingsError as exc:
        raise SettingsError(f"{file}: {exc}") from exc


def catalogue_of(fields: Mapping[str, Any]) -> Catalogue:
    """Return a catalogue. Raises SettingsError for its first fault."""
    try:
        return Catalogue.model_validate_json(json.dumps(fields))
    except ValidationError as exc:
        raise SettingsError(next(faults(exc, Catalogue, fields)).text) from exc
    except (TypeError, ValueError, RecursionError) as exc:  # a date, nan
        raise SettingsError(f"a value cannot be read: {exc}; write it as text, in quotes") from exc
