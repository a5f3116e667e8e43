"""The settings of the cache: how long answers are given again, and what is similar to a question."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from streams.references import is_reference
from streams.settings.model import Section


class Cache(Section):
    """Answers that are given again instead of sampled again."""

    exact_s: float = Field(
        0.0,
        ge=0,
        description="age up to which the answer to the same question is given again, seconds: of calls and serve tasks "
        "at temperature 0, and others that ask for it (Cache-Control: max-age); 0: never",
    )
    entries: int = Field(
        10_000, ge=1, description="maximum number of answers in memory; the least recently used leaves"
    )
    similar: Literal["off", "suggest", "serve"] = Field(
        "off",
        description="answers to similar questions: suggest names them in a header, serve gives them where the log "
        "shows that they are wrong at most as often as most_wrong; needs exact_s",
    )
    similarity: float = Field(0.9, gt=0, le=1, description="smallest cosine of similar questions")
    embedder: str = Field(
        "",
        description="module:function that returns a vector for each text of a list; empty: counts of trigrams",
    )
    most_wrong: float = Field(
        0.01, gt=0, lt=1, description="share of similar answers that may be wrong: serve needs its bound below this"
    )
    checked: float = Field(
        0.1,
        gt=0,
        le=1,
        description="share of the questions with a similar one that is sampled all the same, to compare",
    )

    @model_validator(mode="after")
    def _has_effect(self) -> Cache:
        if self.similar != "off" and not self.exact_s:
            raise ValueError(f"similar={self.similar} has no effect with exact_s=0; set exact_s, or similar=off")
        if self.embedder and not is_reference(self.embedder):
            raise ValueError(f"embedder is {self.embedder!r}; expected module:function")
        return self
