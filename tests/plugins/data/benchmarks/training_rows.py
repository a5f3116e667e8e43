"""Held-out questions among training rows, how fast they are found and how many; and rows read in and cleaned.

100,000 rows of 65 words against a suite of 1,000 questions of 5 to 80 words, on one core: seconds of the processor, and
peak memory above what the rows take. Planted: each question in another case, with other punctuation, and with each word
changed with a probability of 3 %; and short questions with words next to them, and disguised. Then 20,000 other
questions of templates that the suite has, which are no leaks: ours beside the rule of open-r1, any 8 words in common.
Near duplicates: 18 words of which one is replaced, inserted or left out, and templates, which are none; beside the
5-grams of words alone. Ingest and clean: rows a second, beside `json.loads` of each line.

Not covered: rows that do not fit the memory.
"""

from __future__ import annotations

import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from plugins.data.cleaning.clean import clean, files_of, read_steps
from plugins.data.cleaning.data_rows import read_source
from plugins.data.cleaning.steps import DEFAULT
from plugins.data.contamination.contamination_report import ContaminationReport, check_rows
from plugins.data.contamination.suite_index import SuiteIndex, SuiteQuestion
from streams.rows.near_duplicates import NEAR, Clusters, jaccard, join_similar, shingles
from streams.rows.row_texts import RowTexts
from tests.benchmarks.side_by_side import line, say

ROWS, QUESTIONS, TEMPLATED, INGESTED = 100_000, 1_000, 20_000, 50_000
LIMIT_S, LIMIT_MB, INGEST_TARGET = 30.0, 1000.0, 10_000.0
SEED = 20261126


class Texts:
    """Texts of made-up words with the frequencies of a language."""

    def __init__(self) -> None:
        self.rng = random.Random(SEED)
        syllables = [consonant + vowel for consonant in "bcdfghjklmnprstvw" for vowel in "aeiou"]
        self._words = sorted({"".join(self.rng.choices(syllables, k=self.rng.randint(1, 4))) for _ in range(20_000)})
        self._weights = list(accumulate(1 / (place + 10) for place in range(len(self._words))))

    def words(self, count: int) -> list[str]:
        """Return words."""
        return self.rng.choices(self._words, cum_weights=self._weights, k=count)

    def text(self, least: int, most: int) -> str:
        """Return a text of so many words."""
        return " ".join(self.words(self.rng.randint(least, most))).capitalize() + "."

    def changed(self, text: str, share: float) -> str:
        """Return a text with each word changed with this probability."""
        return " ".join(self.words(1)[0] if self.rng.random() < share else word for word in text.split())

    def template(self) -> str:
        """Return a question of a template."""
        first, second = self.rng.sample(["apples", "pears", "plums", "figs"], 2)
        counts = [self.rng.randint(2, 60) for _ in range(3)]
        return (
            f"A shop sells {counts[0]} {first} and {counts[1]} {second} for {counts[2]} euros each. How many euros "
            f"does {self.rng.choice(['Anna', 'Ben', 'Carla', 'Dora'])} pay for all of them together?"
        )


def run() -> Iterator[dict[str, Any]]:
    """Yield speed and memory, what was found of what was planted, templates, ingest and clean."""
    texts = Texts()
    questions = [texts.text(5, 80) for _ in range(QUESTIONS)]
    rows = [texts.text(20, 110) for _ in range(ROWS)]
    yield from _speed(questions, rows)
    yield from _planted(texts, questions)
    yield from _short(texts)
    yield from _templates(texts)
    yield from _near_duplicates(texts)
    yield from _cleaning(texts)


def _check(questions: Sequence[str], rows: Sequence[str]) -> ContaminationReport:
    index = SuiteIndex(SuiteQuestion("suite@1", number, text) for number, text in enumerate(questions))
    return check_rows(index, (RowTexts(str(number), (text,)) for number, text in enumerate(rows)))


def _speed(questions: Sequence[str], rows: Sequence[str]) -> Iterator[dict[str, Any]]:
    say(f"training_rows: {len(rows):,} rows against {len(questions):,} questions")
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.process_time()
    report = _check(questions, rows)
    taken_s = time.process_time() - began
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb
    case = f"{len(rows):,} rows against {len(questions):,} questions"
    for name, ours, limit, unit in (("time", taken_s, LIMIT_S, "s"), ("memory", max(peak_mb, 1.0), LIMIT_MB, "MB")):
        yield line(
            "training_rows", f"{case}, {name}", ours=ours, peer=limit, unit=unit, ratio=limit / ours, target=1.0,
            peer_is="a limit", false_leaks=report.figures()["leaks"],
        )  # fmt: skip


def _planted(texts: Texts, questions: Sequence[str]) -> Iterator[dict[str, Any]]:
    ways: dict[str, tuple[Callable[[str], str], float]] = {
        "in capitals": (str.upper, 1.0),
        "with other punctuation": (lambda text: text.replace(".", " !").replace(" ", "  "), 1.0),
        "with 3 % of the words changed": (lambda text: texts.changed(text, 0.03), 0.9),
    }
    for name, (change, target) in ways.items():
        planted = [change(question) for question in questions]
        found = _check(questions, planted).figures()["leaks"] / len(planted)
        grams = _eight_words(questions, planted) / len(planted)
        yield line(
            "training_rows", f"planted leaks {name}", ours=found, peer=grams, unit="share found", ratio=found,
            target=target, peer_is="any 8 words in common",
        )  # fmt: skip


BESIDE = ("Question: {}", "Q: {} A:", "{} Answer in one word.", "You may ask: {}", "**{}**", "1. {} 11")
DISGUISES: tuple[Callable[[str], str], ...] = (
    lambda text: f"{text[:3]}\u200b{text[3:]}",
    lambda text: f"{text[:3]}\u00ad{text[3:]}",
    lambda text: text.replace("a", "\u0430"),
    lambda text: text.translate({code: code + 0xFEE0 for code in range(ord("a"), ord("z") + 1)}),
)


def _short(texts: Texts) -> Iterator[dict[str, Any]]:
    questions = [f"{' '.join(texts.words(texts.rng.randint(3, 7)))} today?".capitalize() for _ in range(QUESTIONS)]
    beside = [text.format(question) for question in questions for text in BESIDE]
    disguised = [disguise(question) for question in questions for disguise in DISGUISES]
    for name, planted in (("with words next to them", beside), ("disguised", disguised)):
        found = _check(questions, planted).figures()["leaks"] / len(planted)
        grams = _eight_words(questions, planted) / len(planted)
        yield line(
            "training_rows", f"planted leaks of 4 to 8 words, {name}", ours=found, peer=grams, unit="share found",
            ratio=found, target=1.0, peer_is="any 8 words in common",
        )  # fmt: skip


def _near_duplicates(texts: Texts) -> Iterator[dict[str, Any]]:
    plain = [texts.words(18) for _ in range(QUESTIONS)]
    places = [texts.rng.randrange(18) for _ in plain]
    ways = {
        "replaced": [[*words[:at], "zebrafish", *words[at + 1 :]] for words, at in zip(plain, places, strict=True)],
        "inserted": [[*words[:at], "zebrafish", *words[at:]] for words, at in zip(plain, places, strict=True)],
        "left out": [[*words[:at], *words[at + 1 :]] for words, at in zip(plain, places, strict=True)],
    }
    for name, changed in ways.items():
        found = sum(_joined([" ".join(words) for words in (*plain, *changed)])) / len(plain)
        alone = [jaccard(shingles(old), shingles(new)) >= NEAR for old, new in zip(plain, changed, strict=True)]
        yield line(
            "training_rows", f"near duplicates of 18 words, one {name}", ours=found, peer=sum(alone) / len(alone),
            unit="share found", ratio=found, target=0.95, peer_is="5-grams alone",
        )  # fmt: skip
    task = "State the final answer to the following arithmetic problem:"
    words = texts.words(QUESTIONS)
    templates = {
        "numbers": [f"{task} {first} + {second} =" for first in range(30) for second in range(30)],
        "names": list(dict.fromkeys(texts.template() for _ in range(QUESTIONS))),
        "words": [
            f"Answer with the plural of this word, in lower case and nothing else, please: {word}"
            for word in set(words)
        ],
    }
    for name, questions in templates.items():
        flagged = sum(_joined(sorted(questions))) / len(questions)
        alone = _joined_by_shingles(sorted(questions)) / len(questions)
        yield line(
            "training_rows", f"other {name} of a template called near duplicates", ours=flagged, peer=alone,
            unit="share flagged", ratio=alone / max(flagged, 1e-4), peer_is="5-grams alone",
        )  # fmt: skip


def _joined(texts: Sequence[str]) -> list[bool]:
    """Whether each text is almost as an earlier one."""
    clusters = Clusters(len(texts))
    join_similar(texts, NEAR, clusters)
    return [clusters.root(row) != row for row in range(len(texts))]


def _joined_by_shingles(texts: Sequence[str]) -> int:
    split = [shingles(text.casefold().split()) for text in texts]
    return sum(any(jaccard(one, other) >= NEAR for other in split[:row]) for row, one in enumerate(split))


def _templates(texts: Texts) -> Iterator[dict[str, Any]]:
    questions = list(dict.fromkeys(texts.template() for _ in range(QUESTIONS)))
    rows = sorted({texts.template() for _ in range(TEMPLATED)} - set(questions))
    ours = _check(questions, rows).figures()["leaks"] / len(rows)
    theirs = _eight_words(questions, rows) / len(rows)
    yield line(
        "training_rows", "other questions of a template", ours=ours, peer=theirs, unit="share flagged",
        ratio=theirs / max(ours, 1e-4), peer_is="any 8 words in common",
    )  # fmt: skip


def _eight_words(questions: Sequence[str], rows: Sequence[str]) -> int:
    def grams(text: str) -> set[tuple[str, ...]]:
        words = text.lower().split()
        return {tuple(words[at : at + 8]) for at in range(len(words) - 7)}

    held_out = set().union(*map(grams, questions))
    return sum(bool(grams(row) & held_out) for row in rows)


def _cleaning(texts: Texts) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        with file.open("w") as out:
            for _ in range(INGESTED):
                asked, answered = ({"content": texts.text(8, 40)} for _ in range(2))
                row = {"messages": [{"role": "user", **asked}, {"role": "assistant", **answered}]}
                out.write(f"{json.dumps(row)}\n")
        began = time.process_time()
        with file.open() as lines:
            for text in lines:
                json.loads(text)
        plain = INGESTED / (time.process_time() - began)
        for name, steps in (("ingest", ()), ("clean, every step by default", DEFAULT)):
            began = time.process_time()
            ordered = read_steps(steps)
            files_of(clean(read_source(file), ordered), (), ordered, "")
            ours = INGESTED / (time.process_time() - began)
            yield line(
                "training_rows", name, ours=ours, peer=plain, unit="rows/s", ratio=ours / plain,
                peer_is=f"json.loads of each line; expected {INGEST_TARGET:,.0f} rows/s",
            )  # fmt: skip
