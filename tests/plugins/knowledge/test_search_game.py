"""The environment search:INDEX: what is found is read, not learned, and an episode is repeated in the index of then."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from plugins.environments.episode_player import EnvironmentPlayer
from plugins.environments.episode_tasks import HELD_OUT_SEEDS
from plugins.environments.episodes.environment import Action, EpisodeError
from plugins.environments.episodes.running_episode import LiveEpisode
from plugins.knowledge.log.document_log import DocumentAuthor, DocumentDraft, DocumentLog
from plugins.knowledge.log.document_text import LINES, read_documents
from plugins.knowledge.log.knowledge_settings import Knowledge
from plugins.knowledge.search_game import MOST_TURNS, IndexedCorpus, Search, SearchOptions
from schemas.events import AdvantagedGroup, Reward
from streams.settings.model import Batches, Settings
from streams.stages.tasks.episodes import EpisodeSpec
from streams.stages.tasks.submit import submit
from tests.plugins.agents.test_agents_end_to_end import run, scorers
from tests.plugins.knowledge.vector_server import VectorServer, vector_server
from tests.plugins.knowledge.word_vectors import WordVectors, document, indexed
from tests.support.agent_server import serving, settings_of
from tests.support.processes import read, running, until

__all__ = ["scorers"]

ROOT = Path(__file__).parents[3]
ASK = {"ask": "element: {element}", "answer": "{weight}", "query": "{element}"}
ANN = DocumentAuthor("ann", "asked for")
FILE = ROOT / "docs/examples/knowledge/elements.jsonl"
ELEMENTS = [*read_documents(FILE.read_bytes(), DocumentDraft("elements", "", LINES))]
WEIGHTS = {draft.metadata["element"]: draft.metadata["weight"] for draft in ELEMENTS}


@pytest.fixture(scope="module")
def elements(tmp_path_factory: pytest.TempPathFactory) -> IndexedCorpus:
    events = [document(draft.document_id, draft.text, **draft.metadata) for draft in ELEMENTS]
    generation = indexed(WordVectors(dimensions=512), tmp_path_factory.mktemp("elements"), events)
    corpus = generation.look(lambda corpora: corpora["elements"])
    return IndexedCorpus(corpus, generation, generation.digest_of(corpus), 0.5)


def game(index: IndexedCorpus, **settings: Any) -> Search:
    return Search(SearchOptions(**ASK | settings), index)


def score(environment: Search, seed: int) -> float:
    """Return the reward of a policy that searches for the element, and says the last word of what it reads."""
    episode = LiveEpisode(environment, "search:elements", seed, environment.max_turns)
    name = episode.begin().messages[-1].content.removeprefix("element: ")
    found = episode.act(Action(f"search({name})"))
    answer = episode.act(Action(found.observation.messages[-1].content.split()[-1]))
    return (found.reward or 0) + (answer.reward or 0)


@pytest.mark.parametrize("retriever", ["hybrid", "words", "vectors"])
def test_who_searches_and_reads_is_right_and_with_a_broken_retriever_is_not(
    elements: IndexedCorpus, retriever: str
) -> None:
    seeds = [*range(20), *range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 20)]
    assert [score(game(elements, retriever=retriever), seed) for seed in seeds] == [pytest.approx(1)] * 40
    assert sum(score(game(elements, retriever="broken"), seed) for seed in seeds) == 0


def test_held_out_documents_are_never_asked_about_in_training(elements: IndexedCorpus) -> None:
    environment = game(elements)
    asked = [
        {environment.reset(first + number).messages[-1].content for number in range(len(ELEMENTS))}
        for first in (0, HELD_OUT_SEEDS)
    ]
    shown = environment.reset(0).messages[1].content
    assert not asked[0] & asked[1] and shown not in asked[0] | asked[1]
    assert len(asked[0] | asked[1]) == len(ELEMENTS) - 1 and len(asked[1]) == pytest.approx(len(ELEMENTS) / 3, abs=1)


def test_an_answer_that_is_found_twice_is_paid_once_and_a_guess_is_paid_without_a_search(
    elements: IndexedCorpus,
) -> None:
    environment = game(elements)
    name = environment.reset(4).messages[-1].content.removeprefix("element: ")
    rewards = [environment.step(Action(text)).reward for text in (f"search({name})", f"search({name})", WEIGHTS[name])]
    assert rewards == [0.2, 0, 0.8]
    environment.reset(4)
    assert environment.step(Action(WEIGHTS[name])).reward == 0.8
    environment.reset(4)
    empty, other = environment.step(Action("search()")), environment.step(Action("find(it)"))
    assert [empty.observation.messages[0].content, other.observation.messages[0].content] == [
        "error: search for words",
        "error: there is no tool find, only search",
    ]


def test_too_few_documents_with_the_metadata_are_refused(elements: IndexedCorpus) -> None:
    with pytest.raises(EpisodeError, match="the index has 0 documents with the metadata colour; expected 6 or more"):
        game(elements, ask="{colour}", answer="{colour}", query="{colour}")


# --- in the log -------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[VectorServer]:
    with vector_server() as made:
        yield made


def script_of(names: Mapping[str, str]) -> dict[str, Any]:
    """Return a script that searches for each element, and says its weight."""
    replies = list[dict[str, str]]()
    for name, weight in names.items():
        replies.append({"when": f"user: element: {name}", "reply": f"search({name})"})
        replies.append({"when": f"user: {name}\nsymbol", "reply": weight})
    return {"replies": replies}


@pytest.fixture
def settings(kafka_bootstrap: str, server: VectorServer, tmp_path: Path) -> Settings:
    made = settings_of(kafka_bootstrap, tmp_path, script_of(WEIGHTS))
    knowledge = Knowledge(embedder=server.model("abcd"), folder=tmp_path / "index")
    return made.model_copy(update={"batches": Batches(groups=1, zero_variance="keep"), "knowledge": knowledge})


@pytest.mark.kafka
def test_an_episode_is_repeated_after_its_index_has_changed_and_what_was_found_bears_no_loss(
    settings: Settings, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with serving(settings), DocumentLog(settings) as documents:
        documents.put(ELEMENTS, ANN)
        spec = EpisodeSpec(name="search:elements", settings=json.dumps(ASK), count=2, policy="sums", group_size=2)
        tasks = EnvironmentPlayer().tasks(settings, spec).train
        request.getfixturevalue("scorers")
        with running(settings, tmp_path, "streams"):
            submit(settings, tasks)
            run(settings, "agents", "run", "--environments", "--until-done")
            until(lambda: len(read(settings, AdvantagedGroup)) == 2, "their groups", folder=tmp_path)
        assert [reward.value for _, reward in read(settings, Reward)] == [pytest.approx(1)] * 4
        for _, group in read(settings, AdvantagedGroup):
            for member in group.responses:
                shares = [*zip(member.completion_token_ids, member.loss_mask.data, strict=True)]
                learned, found = (bytes(token for token, bit in shares if bit == of and token < 256) for of in (1, 0))
                command, name, answer = re.fullmatch(rb"(search\((\w+)\))([\d.]+)", learned).groups()  # type: ignore[union-attr]
                assert answer.decode() == WEIGHTS[name.decode()]
                assert b"atomic weight: " + answer in found and command not in found
        documents.remove("elements/hydrogen", ANN)
        documents.put([draft._replace(text=f"{draft.text}?") for draft in ELEMENTS[1:]], ANN)
        replayed = run(settings, "agents", "environments", "replay", "--all", "--output", "jsonl")
    assert {task.max_turns for task in tasks} == {MOST_TURNS}
    assert json.loads(replayed) == {"episodes": 4, "turns": 8, "differ": 0, "not_replayed": 0}
