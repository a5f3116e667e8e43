"""The environment search:INDEX: what is found is read, not learned, and an episode is repeated in the index of then."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plugins.environments.episode_player import EnvironmentPlayer
from plugins.environments.episode_tasks import HELD_OUT_SEEDS
from plugins.environments.episodes.environment import Action, EpisodeError
from plugins.environments.episodes.running_episode import LiveEpisode
from plugins.knowledge.log.document_log import DocumentAuthor, DocumentDraft, DocumentLog
from plugins.knowledge.log.document_text import LINES, read_documents
from plugins.knowledge.log.knowledge_settings import Knowledge
from plugins.knowledge.search_game import MOST_TURNS, IndexedCorpus, Search, SearchOptions
from schemas.events import AdvantagedGroup, Task
from streams.engines.scripted.scripted_engine import END_OF_TURN
from streams.settings.model import Batches, Settings, Trainer
from streams.stages.scoring import scoring_agent as scoring
from streams.stages.tasks.episodes import EpisodeSpec
from streams.stages.tasks.submit import submit
from tests.plugins.agents.test_agents_end_to_end import run
from tests.plugins.knowledge.vector_server import VectorServer, vector_server
from tests.plugins.knowledge.word_vectors import WordVectors, document, indexed
from tests.support.agent_server import serving, settings_of
from tests.support.beside import running_beside
from tests.support.processes import read, running, until
from trainer.step.collate import collate
from trainer.step.loss import LOSSES, LossTokens, ratio_of, token_losses
from trainer.step.totals import BatchTotals

ROOT = Path(__file__).parents[3]
ASK = {"ask": "element: {element}", "answer": "{weight}", "query": "{element}"}
ANN = DocumentAuthor("ann", "asked for")
FILE = ROOT / "docs/examples/knowledge/elements.jsonl"
ELEMENTS = [*read_documents(FILE.read_bytes(), DocumentDraft("elements", "", LINES))]
WEIGHTS = {draft.metadata["element"]: draft.metadata["weight"] for draft in ELEMENTS}


def index_of(folder: Path, drafts: Sequence[DocumentDraft]) -> IndexedCorpus:
    events = [document(draft.document_id, draft.text, **draft.metadata) for draft in drafts]
    generation = indexed(WordVectors(dimensions=512), folder, events)
    corpus = generation.look(lambda corpora: corpora["elements"])
    return IndexedCorpus(corpus, generation, generation.digest_of(corpus), 0.5)


@pytest.fixture(scope="module")
def elements(tmp_path_factory: pytest.TempPathFactory) -> IndexedCorpus:
    return index_of(tmp_path_factory.mktemp("elements"), ELEMENTS)


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


def test_a_broken_retriever_is_never_paid_for_a_part_of_another_text(elements: IndexedCorpus) -> None:
    environment = game(elements, retriever="broken", top=10, answer="{symbol}")
    for seed in range(2 * len(ELEMENTS)):
        name = environment.reset(seed).messages[-1].content.removeprefix("element: ")
        outcome = environment.step(Action(f"search({name})"))
        assert outcome.reward == 0, outcome.observation.messages[0].content


def test_a_broken_retriever_shows_no_more_chunks_than_there_are(tmp_path: Path) -> None:
    environment = game(index_of(tmp_path, ELEMENTS[:6]), retriever="broken", top=10)
    environment.reset(0)
    shown = environment.step(Action("search(it)")).observation.messages[0].content
    assert shown.count("atomic weight") == 5


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


@pytest.fixture(scope="module")
def server() -> Iterator[VectorServer]:
    with vector_server() as made:
        yield made


CALL = '<tool_call>{"name": "search", "arguments": {"words": "%s"}}</tool_call>'
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "text": (ASK, "search(%s)"),
    "calls": (ASK | {"ask": "call: {element}", "tools": True}, CALL),
    "broken": (ASK | {"ask": "broken: {element}", "retriever": "broken"}, "search(%s)"),
}
"""Settings of an environment, and how its policy searches."""


def script_of(names: Mapping[str, str]) -> dict[str, Any]:
    """Return a script that searches for each element, and says the weight that it reads."""
    replies = list[dict[str, str]]()
    for name, weight in names.items():
        for options, search in FORMS.values():
            replies.append({"when": options["ask"].format(element=name), "reply": search % name})
        replies += [{"when": f"{role}: {name}\nsymbol", "reply": weight} for role in ("user", "tool")]
    return {"replies": replies}


class Played(NamedTuple):
    """A log with episodes, and the groups of each form."""

    settings: Settings
    groups: dict[str, list[AdvantagedGroup]]


@pytest.fixture(scope="module")
def played(kafka_bootstrap: str, server: VectorServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Two groups of two episodes of each form, in a served log."""
    folder = tmp_path_factory.mktemp("played")
    made = settings_of(kafka_bootstrap, folder, script_of(WEIGHTS))
    knowledge = Knowledge(embedder=server.model("abcd"), folder=folder / "index")
    settings = made.model_copy(update={"batches": Batches(groups=6, zero_variance="keep"), "knowledge": knowledge})
    with serving(settings), DocumentLog(settings) as documents:
        documents.put(ELEMENTS, ANN)
        tasks = dict[str, str]()
        for form, (options, _) in FORMS.items():
            whose = {"policy": "sums", "group_size": 2, "count": 2, "max_tokens": 128}
            spec = EpisodeSpec(name="search:elements", settings=json.dumps(options), **whose)
            train = EnvironmentPlayer().tasks(settings, spec).train
            tasks |= dict.fromkeys((task.task_id for task in train), form)
            submit(settings, train)
        with running_beside(lambda stop: scoring.run(settings, stop=stop)), running(settings, folder, "streams"):
            run(settings, "agents", "run", "--environments", "--until-done")
            until(lambda: len(read(settings, AdvantagedGroup)) == len(tasks), "their groups", folder=folder)
        groups = dict[str, list[AdvantagedGroup]]()
        for _, group in read(settings, AdvantagedGroup):
            groups.setdefault(tasks[group.task_id], []).append(group)
        yield Played(settings, groups)


def rewards(groups: Sequence[AdvantagedGroup]) -> list[float]:
    return [member.reward for group in groups for member in group.responses]


@pytest.mark.kafka
def test_a_task_has_as_many_turns_as_its_environment_says(played: Played) -> None:
    assert {task.max_turns for _, task in read(played.settings, Task)} == {MOST_TURNS}


@pytest.mark.kafka
def test_who_searches_is_rewarded_in_the_log_and_not_once_the_retriever_is_broken(played: Played) -> None:
    assert {form: rewards(groups) for form, groups in played.groups.items()} == {
        "text": [pytest.approx(1)] * 4,
        "calls": [pytest.approx(1)] * 4,
        "broken": [0] * 4,
    }


@pytest.mark.kafka
@pytest.mark.parametrize("name", ["dapo", "gspo"])
@pytest.mark.parametrize("form", FORMS)
def test_what_a_search_finds_bears_no_loss(played: Played, form: str, name: str) -> None:
    """The gradient of the loss by the logprob of a token is 0 except where the policy wrote the token."""
    groups = [
        replace(group, responses=tuple(replace(member, advantage=1.0) for member in group.responses))
        for group in played.groups[form]
    ]
    micro, loss = collate(groups, pad_id=0), LOSSES[name]
    logps, mask = micro.sampled_logps.clone().requires_grad_(), micro.loss_mask
    tokens = LossTokens(
        logp=logps,
        old=micro.sampled_logps,
        ratio=ratio_of(logps, micro.sampled_logps, mask, loss.level),
        advantages=micro.advantages,
        mask=mask,
        settings=Trainer(loss=name),
    )
    BatchTotals.of(groups).mean(token_losses(loss, tokens), mask, loss.mean).backward()  # type: ignore[no-untyped-call]
    assert logps.grad is not None
    searches = {FORMS[form][1] % element for element in WEIGHTS}
    for ids, is_there, gradient in zip(micro.completion_ids, micro.completion_mask, logps.grad, strict=True):
        learned, found = (
            bytes(token for token in ids[is_there.bool() & is_of].tolist() if token < END_OF_TURN).decode()
            for is_of in (gradient != 0, gradient == 0)
        )
        search, weight = re.fullmatch(r"(.*?)([\d.]+)", learned).groups()  # type: ignore[union-attr]
        assert search in searches and f"atomic weight: {weight}" in found and search not in found


@pytest.mark.kafka
def test_an_episode_is_repeated_after_its_index_has_changed(played: Played) -> None:
    with DocumentLog(played.settings) as documents:
        documents.remove("elements/hydrogen", ANN)
        documents.put([draft._replace(text=f"{draft.text}?") for draft in ELEMENTS[1:]], ANN)
    replayed = run(played.settings, "agents", "environments", "replay", "--all", "--output", "jsonl")
    assert json.loads(replayed) == {"episodes": 12, "turns": 24, "differ": 0, "not_replayed": 0}
