"""Replay the answers of the log as a cache would have given them, and count how often it would have lied.

turns, in the order of their time ──► asked before, or something similar? ──► the same answer as then? ──► counts, bound
"""

from __future__ import annotations

import sys
import threading
from dataclasses import asdict, dataclass, field
from typing import Any

from plugins.cache.answer_cache import LoggedQuestion, same_reply
from plugins.cache.answer_streams import CACHED_FROM
from plugins.cache.cache_settings import Cache
from plugins.cache.similar_questions import SimilarAnswer, SimilarQuestions, Trials
from streams.kafka import times
from streams.kafka.retry import BrokerOutage
from streams.observability.metrics import OFF
from streams.settings.model import Settings
from streams.stages.agents.recording.served_conversations import ServedConversations
from streams.stages.agents.recording.service import LoggedConversations


@dataclass(slots=True)
class Simulation:
    """What a cache would have done. Exact: the same question; similar: another one."""

    answers: int = 0
    exact: Trials = field(default_factory=Trials)
    similar: Trials = field(default_factory=Trials)

    def row(self, rule: Cache) -> dict[str, Any]:
        """Return the counts, and whether similar answers may be served."""
        return {
            "answers": self.answers,
            "exact": asdict(self.exact),
            "similar": {**asdict(self.similar), "bound": round(self.similar.upper_limit, 4)},
            "may_serve_similar": self.similar.upper_limit < rule.most_wrong,
        }


def simulate(settings: Settings, rule: Cache) -> Simulation:
    """Return what a cache with `rule` would have done with the calls of the log. Raises LogError."""
    serve = settings.serve.model_copy(update={"longest_s": times.now_ms() / 1000})
    conversations = ServedConversations(sys.maxsize, lambda _: True)
    outage = BrokerOutage(settings.kafka, threading.Event(), OFF)
    logged = LoggedConversations(settings.model_copy(update={"serve": serve}), outage, conversations)
    logged.restore(times.now_ms())
    simulation, index, replies = Simulation(), SimilarQuestions(rule), dict[bytes, SimilarAnswer]()
    for answer in sorted(conversations.logged_answers(), key=lambda answer: answer.turn.created_at):
        question = LoggedQuestion.of(answer)
        if question is None or CACHED_FROM in question.turn.metadata or question.turn.sampling.temperature > 0:
            continue
        simulation.answers += 1
        turn, place = question.turn, question.place
        if question.key in replies:
            simulation.exact.take(is_same=same_reply(turn, replies[question.key]))
            continue
        if place is not None and (suggestion := index.find(*place)) is not None:
            simulation.similar.take(is_same=same_reply(turn, suggestion))
        replies[question.key] = SimilarAnswer(turn.turn_id, question.key, turn.reply.content)
        if place is not None:
            index.add(*place, replies[question.key])
    return simulation
