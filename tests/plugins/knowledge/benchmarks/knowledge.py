"""How soon 10,000 documents of the topic are indexed, how long a search takes, and how often it finds what was meant.

    WordNet's nouns, a document per gloss ──► documents ──► index: seconds until it is whole, and with kept vectors
    a noun ──► its gloss among the first ten: by words, by vectors, by both with the weight chosen on the other half
    the same, its document begins with it ──► found as often as by words alone, less HEADWORD_LOSS
    five words that follow each other in a chunk ──► that chunk first, or among the first ten

    STREAMWARD_BENCH_WORDNET=FOLDER/usr/share/wordnet python -m tests.benchmarks knowledge

The folder is that of Debian's package: `apt-get download wordnet-base` and `dpkg-deb -x wordnet-base_*.deb FOLDER`.

Without WordNet texts are drawn by lot, and no nouns are looked up. Not covered: the table of static vectors, which is
made once per machine before the clock starts.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from plugins.knowledge.embedders import embedder
from plugins.knowledge.index.corpus import SearchMode, SearchQuery
from plugins.knowledge.index.knowledge_index import KnowledgeIndex
from plugins.knowledge.index.word_index import words_of
from plugins.knowledge.log.document_log import DocumentAuthor, DocumentDraft, DocumentLog
from plugins.knowledge.log.knowledge_settings import Knowledge
from streams.settings.model import Settings
from tests.benchmarks.loop import node
from tests.benchmarks.side_by_side import line, say

WORDNET = Path(os.environ.get("STREAMWARD_BENCH_WORDNET", "/usr/share/wordnet"))
DOCUMENTS, QUERIES, AT_ONCE = 10_000, 2_000, 1_000
INDEXED_S, QUERY_MS, RECALL, KNOWN_ITEM = 10.0, 5.0, 0.46, 0.99
KNOWN_WORDS, KNOWN_ITEMS = 5, 1_000
KNOWN_BY: tuple[tuple[SearchMode, float], ...] = (("words", 0.0), ("hybrid", 0.5))
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
HEADWORD_LOSS = 0.01
"""What a hybrid search may find less of headwords than words alone."""
WEIGHTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


class Question(NamedTuple):
    """What is searched for, and the document that was meant. Each document is one chunk."""

    text: str
    document_id: str


def run() -> Iterator[dict[str, Any]]:
    """Yield the lines; without WordNet none about nouns."""
    file = WORDNET / "data.noun"
    if not file.exists():
        say(f"knowledge: there is no {file}, so texts are drawn by lot; set STREAMWARD_BENCH_WORDNET")
    nouns = read_nouns(file) if file.exists() else draw_texts()
    corpus = "a gloss" if file.exists() else "a text by lot"
    embedder("static")
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder, node() as bare:
        settings = bare.model_copy(update={"knowledge": Knowledge(folder=Path(folder))})
        drafts = [DocumentDraft(f"wordnet/{number}", gloss, "text/plain") for number, (_, gloss) in enumerate(nouns)]
        _put(settings, drafts)
        for case in ("documents indexed from the topic", "the same, of kept vectors"):
            yield _indexed(settings, case)
        if file.exists():
            _put(
                settings,
                [
                    draft._replace(document_id=f"headwords/{number}", text=f"{noun}\n{gloss}")
                    for number, (draft, (noun, gloss)) in enumerate(zip(drafts, nouns, strict=True))
                ],
            )
        with KnowledgeIndex(settings) as documents:
            documents.whole(600)
            yield _query_time(documents, nouns)
            if file.exists():
                yield from _nouns_found(documents, nouns)
                yield from _headwords_found(documents, nouns)
            yield from _known_items(documents, [text for _, text in nouns], corpus)


def read_nouns(file: Path) -> list[tuple[str, str]]:
    """Return a noun and its gloss for each of so many synsets, drawn by lot."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("  ")]
    drawn = random.Random(0).sample(lines, DOCUMENTS)
    parts = [line.partition("|") for line in drawn]
    return [(fields.split()[4].replace("_", " "), gloss.strip()) for fields, _, gloss in parts]


def draw_texts() -> list[tuple[str, str]]:
    """Return as many texts of 6 to 30 words, each with a word of it. The n-th word is drawn 1 / n as often."""
    draw = random.Random(0)
    words = ["".join(draw.choices(SYLLABLES, k=2 + rank % 3)) for rank in range(20_000)]
    counts = [*accumulate(1 / (rank + 2.7) for rank in range(len(words)))]
    drawn = [draw.choices(words, cum_weights=counts, k=draw.randint(6, 30)) for _ in range(DOCUMENTS)]
    return [(text[0], " ".join(text)) for text in drawn]


def _indexed(settings: Settings, case: str) -> dict[str, Any]:
    began, of_cpu = time.perf_counter(), time.process_time()
    with KnowledgeIndex(settings) as documents:
        documents.whole(600)
        taken, of_cpu = time.perf_counter() - began, time.process_time() - of_cpu
    return _line(f"{DOCUMENTS} {case}", taken, INDEXED_S, "s", is_most=True, cpu_s=round(of_cpu, 2))


def _query_time(documents: KnowledgeIndex, nouns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    taken, of_cpu = list[float](), time.process_time()
    for noun, _ in random.Random(1).sample(nouns, min(500, len(nouns))):
        began = time.perf_counter()
        _search(documents, noun, "hybrid", 0.5)
        taken.append((time.perf_counter() - began) * 1000)
    of_cpu = (time.process_time() - of_cpu) / len(taken) * 1000
    return _line("hybrid query, median", median(taken), QUERY_MS, "ms", is_most=True, cpu_ms=round(of_cpu, 2))


def _put(settings: Settings, drafts: list[DocumentDraft]) -> None:
    with DocumentLog(settings) as log:
        for start in range(0, len(drafts), AT_ONCE):
            log.put(drafts[start : start + AT_ONCE], DocumentAuthor("bench", "measured"))


def _nouns_found(documents: KnowledgeIndex, nouns: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    dev, held = _halves(nouns, "wordnet")
    words, vectors = _recall(documents, held, "words", 0.0), _recall(documents, held, "vectors", 1.0)
    weight = max(WEIGHTS, key=lambda weight: _recall(documents, dev, "hybrid", weight))
    yield _line("noun finds its gloss in ten, words", words, RECALL, "share")
    yield _line("noun finds its gloss in ten, vectors", vectors, RECALL, "share")
    both = _recall(documents, held, "hybrid", weight)
    yield _line("noun finds its gloss in ten, hybrid", both, max(RECALL, words, vectors), "share", weight=weight)


def _headwords_found(documents: KnowledgeIndex, nouns: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the line of a noun whose document begins with it: what words alone find is to be kept."""
    dev, held = _halves(nouns, "headwords")
    weight = max(WEIGHTS, key=lambda weight: _recall(documents, dev, "hybrid", weight))
    words, both = _recall(documents, held, "words", 0.0), _recall(documents, held, "hybrid", weight)
    yield _line("headword finds its document in ten, hybrid", both, words - HEADWORD_LOSS, "share", weight=weight)


def _halves(nouns: Sequence[tuple[str, str]], index: str) -> tuple[list[Question], list[Question]]:
    """Return questions to choose a weight on, and others to measure with."""
    numbers = random.Random(1).sample(range(len(nouns)), min(QUERIES, len(nouns)))
    meant = [Question(nouns[number][0], f"{index}/{number}") for number in numbers]
    return meant[: len(meant) // 2], meant[len(meant) // 2 :]


def _known_items(documents: KnowledgeIndex, texts: Sequence[str], corpus: str) -> Iterator[dict[str, Any]]:
    questions = known_items(texts)
    for mode, weight in KNOWN_BY:
        found = [_search(documents, question.text, mode, weight) for question in questions]
        for most, place in ((1, "first"), (10, "in ten")):
            share = mean(question.document_id in ids[:most] for question, ids in zip(questions, found, strict=True))
            yield _line(f"five words of {corpus} find it {place}, {mode}", share, KNOWN_ITEM, "share")


def known_items(texts: Sequence[str]) -> list[Question]:
    """Return five words that follow each other, of so many texts that have them, drawn by lot."""
    draw, questions = random.Random(2), list[Question]()
    for number in draw.sample(range(len(texts)), len(texts)):
        words = words_of(texts[number])
        if len(words) >= KNOWN_WORDS and len(questions) < KNOWN_ITEMS:
            start = draw.randrange(len(words) - KNOWN_WORDS + 1)
            questions.append(Question(" ".join(words[start : start + KNOWN_WORDS]), f"wordnet/{number}"))
    return questions


def _recall(documents: KnowledgeIndex, questions: Sequence[Question], mode: SearchMode, weight: float) -> float:
    index = questions[0].document_id.partition("/")[0]
    found = sum(one.document_id in _search(documents, one.text, mode, weight, index) for one in questions)
    return found / len(questions)


def _search(documents: KnowledgeIndex, text: str, mode: SearchMode, weight: float, index: str = "wordnet") -> list[str]:
    hits = documents.search(index, SearchQuery(text, None, 10, weight, None, mode), 600).hits
    return [hit.row.document.document_id for hit in hits]


def _line(case: str, ours: float, limit: float, unit: str, *, is_most: bool = False, **more: Any) -> dict[str, Any]:
    ratio = limit / ours if is_most else ours / limit
    return line("knowledge", case, ours=ours, peer=limit, unit=unit, ratio=ratio, peer_is="the aim", target=1.0, **more)
