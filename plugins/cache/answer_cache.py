"""Give the answer to a question again instead of sampling it again.

    call ──► tenant, question ──► an answer of the log: its tokens, as a stream ───────────┐
                  │          ├──► an answer in progress: its tokens as they come ──────────┼──► recorded: cached_from
                  │          └──► neither: sampled, and kept once it is in the log ────────┘
                  └── serve task: the same between the tasks of this agent

The question: the tokens of the prompt, version, tools, forced form, prompt version and sampling. The tenant is a key of
its own. Only questions at temperature 0 and those with `Cache-Control: max-age` are answered so, none during a canary,
and no run of a task. Only answers that were recorded and read whole are kept. The server reads them from the log when
it begins, so a restart changes nothing.

Not covered: answers to a person whose words are sealed, answers of several choices, and calls that limit which tools
are called: they are sampled. Policy agents share no answers, and begin without any.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NamedTuple

from plugins.cache.answer_streams import CACHED_FROM, KeptAnswer, SharedSampling, with_notes
from plugins.cache.cache_settings import Cache
from plugins.cache.similar_questions import SimilarAnswer, SimilarQuestions, Trials, place_of
from schemas.events import Sampling, Turn, derive_id
from schemas.tokens import TokenIds
from streams.access.tenants.tenant_names import tenant_in
from streams.engines.protocol import Completion, Engine, SamplingRequest, TokenEngine, uniform
from streams.engines.sampling_step import Begins, LoggedAnswer, RoundVersion, Samples, SamplingStep, ServedCall
from streams.engines.token_stream import TokenStream
from streams.kafka import times
from streams.settings.model import Settings

MAX_AGE = re.compile(r"(?:^|[,\s])max-age=(\d{1,9})(?:$|[,\s])")
CONTROL = "cache_control"
"""Metadata of a task: as Cache-Control of a call."""


class CacheQuestion(NamedTuple):
    """A question that may be answered from the cache."""

    key: bytes
    most_s: float
    """Maximum age of its answer, seconds; 0: it is sampled, and its answer kept."""
    place: tuple[bytes, str] | None
    """Where similar questions are, and its text."""


@dataclass(frozen=True, slots=True)
class LoggedQuestion:
    """A question and its answer, as the log has them."""

    key: bytes
    place: tuple[bytes, str] | None
    turn: Turn

    @classmethod
    def of(cls, answer: LoggedAnswer, *, has_place: bool = True) -> LoggedQuestion | None:
        """Return an answer that may be given again, with where similar questions are; None for any other."""
        turn = answer.turn
        if not is_whole(turn) or turn.choices > 1 or turn.observed is not None:
            return None
        sampling, tenant = same_draws(turn.sampling), tenant_in(turn.agent_id) or ""
        version = turn.policy, turn.adapter_version
        conditions = (*version, answer.tools, sampling, turn.constraint, turn.prompt_version)
        place = place_of(tenant, conditions, answer.messages) if has_place else None
        return cls(question_key(tenant, conditions, answer.prompt), place, turn)


class AnswerCache(SamplingStep):
    """The answers to questions. A server or a policy agent has one."""

    def __init__(self, rule: Cache) -> None:
        """Raises SettingsError if its embedder cannot be imported."""
        self._rule = rule
        self._answers: OrderedDict[bytes, KeptAnswer] = OrderedDict()
        self._in_progress: dict[bytes, SharedSampling] = {}
        self._of_tasks: OrderedDict[bytes, tuple[float, list[Completion], str]] = OrderedDict()
        self.similar = SimilarQuestions(rule)
        self.trials = Trials()
        self._asked: dict[str, CacheQuestion] = {}
        """Questions of the calls in progress, by the turn of the call."""
        self._suggestions: dict[str, SimilarAnswer] = {}
        """Answers to compare with those that are sampled, by the turn of the call."""

    # --- calls --------------------------------------------------------------------------------------------------------

    async def begin(self, call: ServedCall, begin: Begins) -> list[TokenStream]:
        """Return the stream of a call: an answer that is kept, or in progress, or is sampled now."""
        question = self._question(call)
        if question is None:
            return await begin(call)
        self._asked[call.turn_id] = question
        [generation] = call.generations
        answer = self._kept_answer(question)
        if answer is not None:
            return [answer.stream(generation)]
        sampling = self._in_progress.get(question.key)
        if sampling is not None and sampling.is_open and question.most_s:
            return [await sampling.follow(generation)]
        suggestion = self._suggestion(call, question)
        if suggestion is not None and self._may_serve(call):
            answer = self._answers.get(suggestion.key)
            if answer is not None:
                return [answer.stream(generation, similar_to=suggestion.turn_id)]
        sampling = self._in_progress[question.key] = SharedSampling(call.turn_id)
        try:
            [source] = await begin(call)
        except BaseException as exc:  # CancelledError too: other calls wait for this one
            del self._in_progress[question.key]
            sampling.fail(exc)
            raise
        stream = sampling.lead(source)
        if suggestion is not None:
            self._suggestions[call.turn_id] = suggestion
            stream.origin = with_notes(stream.origin, similar_to=suggestion.turn_id)
        return [stream]

    def note_ended(self, call: ServedCall, turns: Sequence[Turn]) -> None:
        """Keep the answer of a call that was recorded and read whole."""
        question, suggestion = self._asked.pop(call.turn_id, None), self._suggestions.pop(call.turn_id, None)
        if question is None:
            return
        sampling = self._in_progress.get(question.key)
        source = None if sampling is None else sampling.source
        if sampling is not None and not (sampling.is_open and source is not None and not source.done):
            del self._in_progress[question.key]
        if len(turns) != 1 or not is_whole(turns[0]) or is_other(source, call.version):
            return
        if suggestion is not None:
            self.trials.take(is_same=same_reply(turns[0], suggestion))
        if CACHED_FROM not in turns[0].metadata:
            self._keep(LoggedQuestion(question.key, question.place, turns[0]), None if source is None else source.stop)

    def restore(self, answer: LoggedAnswer) -> None:
        """Take in an answer of the log, and what it says about a similar one."""
        question = LoggedQuestion.of(answer, has_place=self._rule.similar != "off")
        if question is None or CACHED_FROM in question.turn.metadata or question.turn.subject is not None:
            return
        if question.place is not None and question.key not in self._answers:
            suggestion = self.similar.find(*question.place)
            if suggestion is not None:
                self.trials.take(is_same=same_reply(question.turn, suggestion))
        if not question.turn.sampling.stop:  # the log does not say which stop text ended it
            self._keep(question, None)

    def _question(self, call: ServedCall) -> CacheQuestion | None:
        """Return the question of a call, if its answer may be kept."""
        if call.in_canary or call.subject is not None or len(call.generations) != 1:
            return None
        if call.tools and not call.calls_freely:
            return None
        [generation] = call.generations
        most_s = self._most_s(call.cache_control, generation.sampling)
        if most_s is None:
            return None
        sampling, tenant = same_draws(generation.sampling), tenant_in(call.agent_id) or ""
        conditions = (call.policy, call.version, call.tools, sampling, call.form, call.prompt_version)
        place = None if self._rule.similar == "off" else place_of(tenant, conditions, call.messages)
        return CacheQuestion(question_key(tenant, conditions, generation.prompt_token_ids), most_s, place)

    def _most_s(self, control: str | None, sampling: Sampling) -> float | None:
        """Return the maximum age of an answer; None if it is neither given nor kept."""
        control = (control or "").casefold()
        if "no-store" in control:
            return None
        if "no-cache" in control:
            return 0.0
        limit = MAX_AGE.search(control)
        if limit is None and sampling.temperature > 0:
            return None
        return self._rule.exact_s if limit is None else min(self._rule.exact_s, float(limit[1]))

    def _kept_answer(self, question: CacheQuestion) -> KeptAnswer | None:
        answer = self._answers.get(question.key)
        if answer is None or times.now_ms() - answer.created_at >= question.most_s * 1000:
            return None
        self._answers.move_to_end(question.key)
        return answer

    def _keep(self, question: LoggedQuestion, stop: str | None) -> None:
        turn = question.turn
        self._answers[question.key] = KeptAnswer(
            turn.turn_id,
            turn.created_at,
            turn.completion_token_ids,
            turn.logprobs,
            "length" if turn.finish_reason == "length" else "stop",
            stop,
        )
        self._answers.move_to_end(question.key)
        if len(self._answers) > self._rule.entries:
            self._answers.popitem(last=False)
        if question.place is not None:
            self.similar.add(*question.place, SimilarAnswer(turn.turn_id, question.key, turn.reply.content))

    def _suggestion(self, call: ServedCall, question: CacheQuestion) -> SimilarAnswer | None:
        return None if question.place is None or not question.most_s else self.similar.find(*question.place)

    def _may_serve(self, call: ServedCall) -> bool:
        """Return whether a similar answer is given: so far they were right, and this one is not compared."""
        rule = self._rule
        is_compared = uniform(call.turn_id, 0, 0) < rule.checked
        return rule.similar == "serve" and self.trials.upper_limit < rule.most_wrong and not is_compared

    # --- tasks --------------------------------------------------------------------------------------------------------

    def sample(self, requests: list[SamplingRequest], served: RoundVersion, sample: Samples) -> list[list[Completion]]:
        """Return the answers to serve tasks; equal ones are sampled once."""
        now_s, sampled = times.now_ms() / 1000, list[SamplingRequest]()
        keys, first = dict[str, bytes](), dict[bytes, SamplingRequest]()
        answers: dict[str, list[Completion]] = {}
        for request in requests:
            most_s = self._most_s(request.task.metadata.get(CONTROL), request.task.sampling)
            if most_s is not None and request.task.subject is None:
                key = keys[request.sampling_id] = _task_key(request, served.version)
                at_s, completions, sampling_id = self._of_tasks.get(key, (0.0, [], ""))
                if completions and now_s - at_s < most_s:
                    answers[request.sampling_id] = _repeat(completions, sampling_id)
                    continue
                if most_s and first.setdefault(key, request) is not request:
                    continue
            sampled.append(request)
        results = sample(sampled) if sampled else []
        answers |= zip((request.sampling_id for request in sampled), results, strict=True)
        for request in sampled:
            completions = answers[request.sampling_id]
            if request.sampling_id in keys and all(c.error is None and c.origin is None for c in completions):
                self._of_tasks[keys[request.sampling_id]] = now_s, completions, request.sampling_id
        while len(self._of_tasks) > self._rule.entries:
            self._of_tasks.popitem(last=False)
        for request in requests:
            if request.sampling_id not in answers:
                source = first[keys[request.sampling_id]].sampling_id
                answers[request.sampling_id] = _repeat(answers[source], source)
        return [answers[request.sampling_id] for request in requests]


def build_cache(settings: Settings, engine: Engine | TokenEngine) -> AnswerCache | None:
    """Return the cache; None if it is off. Raises SettingsError if its embedder cannot be imported."""
    rule = settings.of_plugin(Cache)
    return AnswerCache(rule) if rule.exact_s else None


def same_draws(sampling: Sampling) -> Sampling:
    """Return sampling without what changes no draw: at temperature 0 the likeliest token is taken."""
    return replace(sampling, top_p=1.0, seed=None) if sampling.temperature == 0 else sampling


def question_key(tenant: str, conditions: tuple[Any, ...], prompt: Sequence[int]) -> bytes:
    """Return the key of a question: tenant asks is a key of its own, so no tenant's question is another's."""
    digest = sha256(repr(conditions).encode() + b"\0" + TokenIds.of(prompt).data).digest()
    return tenant.encode() + b"\0" + digest


def is_whole(turn: Turn) -> bool:
    """Return whether an answer was given whole, and can be read."""
    return turn.delivered and turn.error is None and turn.malformed is None and turn.finish_reason != "cancelled"


def same_reply(turn: Turn, suggestion: SimilarAnswer) -> bool:
    return turn.reply.content.split() == suggestion.reply.split()


def is_other(source: TokenStream | None, version: int) -> bool:
    """Return whether another version or engine than the one that the call names answered."""
    origin = None if source is None else source.origin
    return origin is not None and (origin.engine is not None or origin.version not in (None, version))


def _task_key(request: SamplingRequest, version: int) -> bytes:
    task = request.task
    conditions = (task.policy, version, task.tools, same_draws(task.sampling), str(task.prompt_version))
    return question_key(task.tenant or "", (*conditions, task.group_size, task.messages), ())


def _repeat(completions: list[Completion], sampling_id: str) -> list[Completion]:
    """Return the answers of a sampling for another one; failed slots have failed for both."""
    return [
        completion
        if completion.error is not None
        else replace(
            completion, origin=with_notes(completion.origin, cached_from=derive_id(sampling_id, completion.slot))
        )
        for completion in completions
    ]
