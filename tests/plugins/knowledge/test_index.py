"""An index is a projection of documents: after any history it answers like one that was rebuilt."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from plugins.knowledge.index.chunks import chunks_of
from plugins.knowledge.index.corpus import SearchMode, SearchQuery
from plugins.knowledge.index.generation import IndexGeneration
from plugins.knowledge.index.word_index import WordIndex
from tests.plugins.knowledge.word_vectors import NOUNS, PAUSE_S, WordVectors, document, documents, indexed

Found = list[tuple[str, float]]


def find(generation: IndexGeneration, text: str, mode: SearchMode = "hybrid", limit: int = 10, **filter_: str) -> Found:
    """Return names and scores of what a search finds in the index `sea`."""
    query = SearchQuery(text, generation.embedder.embed([text])[0], limit, 0.5, filter_, mode)
    hits = generation.look(lambda corpora: corpora["sea"].search(query) if "sea" in corpora else [])
    return [(hit.row.document.document_id, hit.score) for hit in hits]


def names(found: Found) -> list[str]:
    return [name for name, _ in found]


def digest(generation: IndexGeneration) -> str:
    return generation.look(lambda corpora: generation.digest_of(corpora["sea"]))


def test_an_index_with_a_history_answers_as_one_that_is_made_anew(tmp_path: Path) -> None:
    events, embedder = documents(600), WordVectors()
    aged = IndexGeneration(indexed(embedder, tmp_path / "a", []).recipe, embedder, tmp_path / "a")
    for event in random.Random(3).sample(events, len(events)):
        aged.change(event.document_id, document(event.document_id, "an older text of moon and tide"))
    while aged.pending:
        aged.embed()
    for event in random.Random(4).sample(events, len(events)):
        aged.change(event.document_id, event)
    while aged.pending:
        aged.embed()
    for event in events[::3]:
        aged.change(event.document_id, None)
    anew = indexed(embedder, tmp_path / "b", [event for place, event in enumerate(events) if place % 3])
    assert digest(aged) == digest(anew)
    draw = random.Random(5)
    for number in range(1000):
        query = " ".join(draw.choices(NOUNS, k=2))
        mode: SearchMode = ("hybrid", "words", "vectors")[number % 3]  # type: ignore[assignment]
        assert find(aged, query, mode) == find(anew, query, mode)


def test_a_removed_document_is_not_found_and_one_that_waits_for_its_vectors_never_is(tmp_path: Path) -> None:
    generation = indexed(WordVectors(), tmp_path, documents(50))
    (first, _), *_ = find(generation, "moon tide")
    generation.change(first, None)
    assert first not in names(find(generation, "moon tide", limit=50))
    generation.change("sea/new", document("sea/new", "moon tide moon tide"))
    generation.change("sea/new", None)
    generation.embed()
    assert "sea/new" not in names(find(generation, "moon tide", limit=51))


def test_a_replaced_document_answers_in_its_old_form_until_the_new_one_has_vectors(tmp_path: Path) -> None:
    generation = indexed(WordVectors(), tmp_path, [document("sea/a", "an old anchor"), document("sea/b", "a boat")])
    generation.change("sea/a", document("sea/a", "a new oar"))
    assert names(find(generation, "anchor", "words")) == ["sea/a"] and find(generation, "oar", "words") == []
    generation.embed()
    assert names(find(generation, "oar", "words")) == ["sea/a"] and find(generation, "anchor", "words") == []


def test_a_filter_chooses_before_the_best_are_taken(tmp_path: Path) -> None:
    crowd = [document(f"sea/{number:03}", "moon tide", kind="crowd") for number in range(300)]
    rare = [document(f"sea/rare{number}", "moon over a quiet and empty beach", kind="rare") for number in range(3)]
    generation = indexed(WordVectors(), tmp_path, [*crowd, *rare])
    for mode in ("hybrid", "words", "vectors"):
        assert names(find(generation, "moon tide", mode, 5, kind="rare")) == ["sea/rare0", "sea/rare1", "sea/rare2"]  # type: ignore[arg-type]


def test_a_rebuilt_index_embeds_nothing_that_is_there_and_another_embedder_shares_no_vector(tmp_path: Path) -> None:
    first, again, other = WordVectors(), WordVectors(), WordVectors("other", 16)
    events = documents(200)
    before = indexed(first, tmp_path, events)
    texts = first.texts
    assert digest(indexed(again, tmp_path, events)) == digest(before) and again.texts == 0
    assert digest(indexed(other, tmp_path, events)) != digest(before) and other.texts == texts
    assert digest(indexed(again, tmp_path, [*events, document("sea/new", "a lamp")])) and again.texts == 1


def test_vectors_of_removed_documents_are_forgotten_on_the_disk(tmp_path: Path) -> None:
    generation = indexed(WordVectors(), tmp_path, documents(20))
    (path,) = tmp_path.glob("*.vectors")
    size = path.stat().st_size
    generation.change("sea/00003", None)
    generation.forget_others()
    assert path.stat().st_size == size // 20 * 19
    again = WordVectors()
    indexed(again, tmp_path, documents(20))
    assert again.texts == 1


@pytest.mark.parametrize(("kills", "count"), [(4, 1000), pytest.param(20, 4000, marks=pytest.mark.kills)])
def test_a_builder_that_is_killed_continues_where_it_was_and_answers_alike(
    tmp_path: Path, kills: int, count: int
) -> None:
    draw, kept = random.Random(11), [0]
    for _ in range(kills):
        command = [sys.executable, "-m", "tests.plugins.knowledge.word_vectors", str(tmp_path / "killed"), str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as builder:
            assert builder.stdout is not None and builder.stdout.readline() == "begins\n"
            goal = kept[-1] + draw.randrange(1, count // kills // 2)
            while builder.poll() is None and _kept(tmp_path / "killed") < goal:
                time.sleep(PAUSE_S / 10)
            time.sleep(draw.random() * PAUSE_S)
            builder.kill()
        assert builder.returncode == -signal.SIGKILL, "it was done before"
        kept.append(_kept(tmp_path / "killed"))
    (path,) = (tmp_path / "killed").glob("*.vectors")
    with path.open("ab") as file:
        file.write(b"a part of a record")
    embedder = WordVectors()
    after, whole = indexed(embedder, tmp_path / "killed", documents(count)), WordVectors()
    anew = indexed(whole, tmp_path / "anew", documents(count))
    assert kept[-1] > 0 and embedder.texts == whole.texts - kept[-1]
    again = WordVectors()
    indexed(again, tmp_path / "killed", documents(count))
    assert again.texts == 0, "what was written after a part of a record is found"
    assert digest(after) == digest(anew)
    for noun in NOUNS:
        assert find(after, noun) == find(anew, noun)


def _kept(folder: Path) -> int:
    return sum(path.stat().st_size // (32 + 4 + 4 * 32) for path in folder.glob("*.vectors"))


def test_a_damaged_vector_is_made_again(tmp_path: Path) -> None:
    before = indexed(WordVectors(), tmp_path, documents(20))
    (path,) = tmp_path.glob("*.vectors")
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    again = WordVectors()
    after = indexed(again, tmp_path, documents(20))
    assert again.texts == 1 and find(after, "moon") == find(before, "moon")


def test_a_query_of_ten_thousand_words_is_answered_as_one_of_its_words_is(tmp_path: Path) -> None:
    generation = indexed(WordVectors(), tmp_path, documents(200))
    nonsense = " ".join(f"w{number}" for number in range(9999))
    assert names(find(generation, f"moon {nonsense}", "words")) == names(find(generation, "moon", "words"))
    assert find(generation, nonsense, "words") == find(generation, "", "words") == []


def test_bm25_is_that_of_the_paper() -> None:
    """Worked by hand: 3 chunks of 4, 2 and 3 words; `moon` is in two of them."""
    index = WordIndex()
    for text in ("moon moon tide sea", "moon sand", "fish and rope"):
        index.add(text)
    idf = np.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    lengths = 4 / 3, 2 / 3
    expected = [
        idf * 2.2 * count / (count + 1.2 * (0.25 + 0.75 * length))
        for count, length in zip((2, 1), lengths, strict=True)
    ]
    assert index.scores("Moon!").tolist() == pytest.approx([*expected, 0.0])


def test_chunks_are_parts_of_the_text_and_cover_its_words() -> None:
    text = "# Tides\n\nThe moon pulls. " + "The sea follows it, twice a day. " * 30 + "\n\n## Waves\n\n" + "x" * 950
    for size in (100, 800):
        chunks = chunks_of(text, size)
        assert all(0 < chunk.end - chunk.start <= size for chunk in chunks)
        assert all(one.end <= other.start for one, other in pairwise(chunks))
        assert "".join("".join(text[chunk.start : chunk.end].split()) for chunk in chunks) == "".join(text.split())
    assert any(text[chunk.start :].startswith("## Waves") for chunk in chunks_of(text, 800))
    assert chunks_of(" \n ", 100) == []
