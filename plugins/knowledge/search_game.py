"""The environment `search:INDEX`: a question about a document, which the policy has to find before it answers.

    element: argon ──► search(argon) ──► the best chunk, 0.2 if the answer is in it ──► 39.948 ──► 0.8 if it is right

Questions are made of the metadata of documents by the templates `ask` and `answer`. Every third document is held out,
and asked about from the seed HELD_OUT_SEEDS on. A found chunk is an observation, so it bears no loss. The digest of the
index is part of the environment's version, which each turn records. With `as_of`, the number of records of each
partition of `documents` that are read, an episode is played again in the index of then, whatever its documents became.
"""

from __future__ import annotations

import hashlib
import random
import re
import threading
from string import Formatter
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import Field, ValidationError

from plugins.environments.environment_kind import EnvironmentKind
from plugins.environments.episode_tasks import HELD_OUT_SEEDS
from plugins.environments.episodes.environment import EpisodeError, Observation
from plugins.environments.games.text_game import Command, Example, GameOptions, MoveOutcome, TextGame, unusable
from plugins.knowledge.embedders import embedder
from plugins.knowledge.index.corpus import Corpus, SearchQuery
from plugins.knowledge.index.generation import IndexGeneration, IndexRecipe, index_of
from plugins.knowledge.log.document_log import DocumentState, fold
from plugins.knowledge.log.knowledge_settings import Knowledge
from schemas.events import DocumentEvent
from streams.kafka.admin import offsets, read_topic
from streams.settings.model import Settings

FOUND_REWARD = 0.2
"""For the first search that finds the answer."""
HELD_OUT_EVERY = 3
MOST_TURNS = 3
Retriever = Literal["hybrid", "words", "vectors", "broken"]
RETRIEVERS = get_args(Retriever)
MOST_CORPORA = 4
_CORPORA: dict[tuple[Any, ...], IndexedCorpus] = {}
"""Indexes that episodes are played in, by log, index, settings and place."""
_ONE_AT_A_TIME = threading.Lock()


class SearchOptions(GameOptions):
    """Settings of `search:INDEX`."""

    ask: str = Field(description="the question of a document, as `element: {name}`; braces name its metadata")
    answer: str = Field(description="its answer, as `{weight}`")
    query: str = Field(description="what is searched for in the worked example, as `{name}`")
    about: str = Field("Search, then answer.", description="the instructions")
    retriever: Retriever = Field(
        "hybrid",
        description="how chunks are ranked; broken: one at random, which measures how much is known without search",
    )
    top: int = Field(1, ge=1, le=10, description="chunks that are shown")
    as_of: list[int] | None = Field(
        None, description="records of each partition of documents; default: as they are now"
    )


class IndexedCorpus(NamedTuple):
    """An index as it was at a place of the log."""

    corpus: Corpus
    generation: IndexGeneration
    digest: str
    weight: float


class Search(TextGame[SearchOptions]):
    """The environment."""

    name = "search"
    options_type: ClassVar[type[GameOptions]] = SearchOptions
    command = Command("search", "words", "Finds what documents say.")
    question_is_whole = True
    max_tokens = 16

    def __init__(self, options: SearchOptions, index: IndexedCorpus) -> None:
        """Raises EpisodeError(bad_settings) for an index with fewer than two such documents in a part."""
        super().__init__(options)
        self._index, self.version = index, f"1+{index.digest[:16]}"
        templates = (options.ask, options.answer, options.query)
        names = {name for template in templates for _, name, _, _ in Formatter().parse(template) if name is not None}
        rows = {row.document.document_id: row.document for row in index.corpus.rows}
        documents = [document for _, document in sorted(rows.items()) if names <= document.metadata.keys()]
        documents.sort(key=lambda document: hashlib.sha256(document.document_id.encode()).digest())
        if len(documents) < 2 * HELD_OUT_EVERY:
            raise EpisodeError(
                f"the index has {len(documents)} documents with the metadata {', '.join(sorted(names))}; expected "
                f"{2 * HELD_OUT_EVERY} or more",
                reason="bad_settings",
            )
        self._shown, *self._documents = documents

    @property
    def max_turns(self) -> int:
        """A search, the answer, and one more."""
        return MOST_TURNS

    def reset(self, seed: int) -> Observation:
        """Begin the episode of `seed`."""
        held_out = seed >= HELD_OUT_SEEDS
        documents = enumerate(self._documents)
        part = [document for place, document in documents if (place % HELD_OUT_EVERY == 0) == held_out]
        self._document, self._found = part[seed % len(part)], False
        return super().reset(seed)

    def _begin(self, rng: random.Random) -> str:
        return self._fill(self.options.ask, self._document)

    def _about(self) -> str:
        return self.options.about

    def _example(self) -> tuple[str, tuple[Example, ...]]:
        shown, options = self._shown, self.options
        search = Example(self._fill(options.query, shown), shown.text or "", command=True)
        answer = Example(self._fill(options.answer, shown), None, command=False)
        return self._fill(options.ask, shown), (search, answer)

    def _move(self, argument: str) -> MoveOutcome:
        if not argument:
            return unusable("search for words")
        text = "\n\n".join(self._texts(argument))
        answer = re.escape(self._fill(self.options.answer, self._document))
        is_found = re.search(rf"(?<![\w.]){answer}(?!\.?\w)", text) is not None  # 4 is no part of 40 or 4.0
        reward, self._found = FOUND_REWARD * (is_found and not self._found), self._found or is_found
        return MoveOutcome(text or "nothing found", reward)

    def _answer(self, text: str) -> MoveOutcome:
        is_right = text == self._fill(self.options.answer, self._document)
        return MoveOutcome(
            "right" if is_right else "wrong", (1 - FOUND_REWARD) * is_right, ended=True, success=is_right
        )

    def _texts(self, words: str) -> list[str]:
        options, corpus = self.options, self._index.corpus
        if options.retriever == "broken":
            rows = sorted((row for row in corpus.rows if row.document is not self._document), key=lambda row: row.order)
            draw = random.Random(f"{self.version}/{words}")  # noqa: S311 - the same words find the same
            return [row.text for row in draw.sample(rows, min(options.top, len(rows)))]
        vector = None if options.retriever == "words" else self._index.generation.embedder.embed([words])[0]
        query = SearchQuery(words, vector, options.top, self._index.weight, None, options.retriever)
        return [hit.row.text for hit in corpus.search(query)]

    def _fill(self, template: str, document: DocumentEvent) -> str:
        return template.format_map(document.metadata)


def pin(settings: Settings, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the records that `documents` has now. Raises NotFoundError, LogError."""
    return options if options.get("as_of") is not None else options | {"as_of": _ends(settings)}


def open_search(settings: Settings, name: str, options: dict[str, Any]) -> Search:
    """Return the environment of an index. Raises EpisodeError, NotFoundError, LogError, the embedder's errors."""
    try:
        checked = SearchOptions.model_validate(pin(settings, name, options))
    except ValidationError as exc:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in exc.errors())
        raise EpisodeError(f"{name}: {faults}", reason="bad_settings") from exc
    place = tuple(checked.as_of or ())
    key = (settings.kafka.bootstrap, settings.topics.prefix, name, settings.of_plugin(Knowledge), place)
    with _ONE_AT_A_TIME:
        if key not in _CORPORA:
            corpus = _index_at(settings, name, place)
            if len(_CORPORA) == MOST_CORPORA:
                del _CORPORA[next(iter(_CORPORA))]
            _CORPORA[key] = corpus
        return Search(checked, _CORPORA[key])


def _ends(settings: Settings) -> list[int]:
    return [end for _, (_, end) in sorted(offsets(settings, ["documents"]).items())]


def _index_at(settings: Settings, name: str, as_of: tuple[int, ...]) -> IndexedCorpus:
    """Return an index as it was when the partitions of `documents` had so many records."""
    ends, index, rule = _ends(settings), name.partition(":")[2], settings.of_plugin(Knowledge)
    if len(as_of) != len(ends) or any(not 0 <= place <= end for place, end in zip(as_of, ends, strict=True)):
        raise EpisodeError(f"{name}: as_of is {[*as_of]}; expected at most {ends}", reason="bad_settings")
    states: dict[str, DocumentState] = {}
    for record in read_topic(settings, "documents"):
        event = record.decode(DocumentEvent) if record.at.offset < as_of[record.at.partition] else None
        if isinstance(event, DocumentEvent) and index_of(event.document_id) == index:
            before = states.get(event.document_id, DocumentState(event.document_id))
            states[event.document_id] = fold(before, event, record.at)
    model = embedder(rule.embedder)
    recipe = IndexRecipe(rule.embedder, model.digest, rule.chunk_characters)
    generation = IndexGeneration(recipe, model, rule.folder)
    for document_id, state in states.items():
        if state.current is not None:
            generation.change(document_id, state.current)
    while generation.pending:
        generation.embed()
    corpus = generation.look(lambda corpora: corpora.get(index))
    if corpus is None:
        raise EpisodeError(f"{name}: index {index!r} has no documents; add some", reason="unknown_environment")
    return IndexedCorpus(corpus, generation, generation.digest_of(corpus), rule.weight)


KINDS = (EnvironmentKind("search", open_search, pin),)
