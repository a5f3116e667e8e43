"""Run the jobs that search for a better prompt.

    jobs ──► the oldest job of each policy that searches, and is ours ──► asks ──► tasks
    groups ──► answers ──► halving, live or reflection ──► prompts: created, activated, reported ──► completed ──► jobs

The log is the only state. Answers are found by the ids of their tasks, texts and reflections by their digests, so a
process that is killed is continued by the next, which asks for what is missing and pays for nothing twice. Members of
one consumer group share the jobs. Between two looks a job may be cancelled, paused or over its budget; then only
answers in flight are still paid for. A live comparison sends no questions itself, so the process runs other jobs
between two of its looks; however its job ends, its alias means one version again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from plugins.jobs.controller.job_reducer import over_budget
from plugins.jobs.fold.state import BUDGET_EXCEEDED, JobState, JobUsage, place
from plugins.jobs.log.job_log import JobLog
from plugins.prompts.search import reflection
from plugins.prompts.search.activation import check_not_in_training
from plugins.prompts.search.halving import Ask, SearchPlan, SearchVerdict, next_step
from plugins.prompts.search.live_search import LiveSearch
from plugins.prompts.search.reflection import AnsweredQuestion, ReflectionPlan, SearchEnded, request_digest
from plugins.prompts.search.reflector import reflector_of
from plugins.prompts.search.search_tasks import AnswerReader, SearchTasks, texts_of, tokens_paid
from plugins.prompts.versions.prompt_log import Activation, PromptLog, PromptText, event_of
from plugins.prompts.versions.prompt_state import PromptVersion
from schemas.events import JobEvent, JobKind, Message, Outcome, PromptSearch, derive_id
from streams.adapters.decisions import read_history
from streams.errors import EventError, LogError, SettingsError, StreamwardError
from streams.evaluation import paired
from streams.kafka import times
from streams.kafka.key_membership import KeyMembership
from streams.kafka.producer import Producer
from streams.kafka.record import cut
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.settings.model import Settings

ACTOR = "prompts"
GROUP = "prompts"
"""Consumer group of the processes that run these jobs."""
SAY_EVERY_S = 60.0
"""How often a search says what it waits for."""
LOOK_S = 0.5
"""How long a process without a job waits until it looks again."""

log = logging.getLogger("streamward.prompts")


def run(settings: Settings, *, stop: threading.Event, until_done: str | None = None) -> None:
    """Run jobs until `stop` is set, or the job `until_done` has ended.

    Raises NotFoundError for a missing topic, LogError.
    """
    try:
        with (
            JobLog(settings) as jobs,
            PromptLog(settings) as prompts,
            PromptWorker(settings, jobs, prompts, stop) as worker,
        ):
            while not stop.is_set() and not (until_done is not None and jobs.get(until_done).has_ended):
                if not worker.step():
                    stop.wait(LOOK_S)
    except StoppedWaiting as exc:
        log.warning("%s", exc)


class PromptWorker:
    """One process. Use as a context manager, and call `step` from one thread."""

    def __init__(self, settings: Settings, jobs: JobLog, prompts: PromptLog, stop: threading.Event) -> None:
        self._settings, self._jobs, self._prompts, self._stop = settings, jobs, prompts, stop
        self._members = KeyMembership(settings, GROUP, "jobs", BrokerOutage(settings.kafka, stop))
        self._producer = Producer(settings, linger_ms=0)
        self._live: dict[str, LiveSearch] = {}
        """Live comparisons that this process looks at, by job."""
        self._said_at: dict[str, float] = {}
        """When each job last said what it waits for (time.monotonic)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._members.close()
        self._producer.__exit__(kind)

    def step(self) -> bool:
        """Run a job that is due, and return whether there was one. Raises LogError."""
        self._members.poll(timeout_s=0.0)
        self._end_comparisons()
        for job in self._jobs.next_of_each_policy():
            search = job.spec.search
            if search is None or not self._members.has(job.job_id):
                continue
            if job.status == "queued":
                job = self._jobs.append(
                    _event(job, "started", "its turn", version=self._answering(job, search), groups_next=0)
                )
            if job.status == "running" and self._carry_out(job, search):
                return True
        return False

    def _end_comparisons(self) -> None:
        """Point each alias with a cancelled or failed live comparison to the version in use again."""
        for state in self._prompts.states.values():
            for alias, target in state.aliases.items():
                job = None if target.version is not None else self._jobs.jobs.get(target.event.job_id or "")
                if job is None or not job.has_ended or not self._members.has(job.job_id):
                    continue
                self._live.pop(job.job_id, None)
                self._prompts.activate(
                    Activation(
                        prompt=state.prompt,
                        alias=alias,
                        version=target.arms[0].version,
                        actor=ACTOR,
                        reason=cut(f"the live comparison is {job.status}: {job.reason}"),
                        job_id=job.job_id,
                    )
                )

    def _answering(self, job: JobState, search: PromptSearch) -> int:
        """Return the adapter version that answers: the same one from the beginning to the end."""
        if job.base_version is not None:
            return job.base_version
        state = read_history(self._settings, job.policy).state
        return state.primary if search.adapter_version is None else search.adapter_version

    def _carry_out(self, job: JobState, search: PromptSearch) -> bool:
        """Carry a job on, and return whether it took any time: a live comparison is only looked at."""
        try:
            if search.method != "live":
                self._conclude(job, search)
            elif (verdict := self._look(job, search)) is not None:
                self._conclude(job, search, verdict)
            else:
                return False
        except SearchEnded as exc:
            log.info("job %s: %s", job.job_id, exc)
        except LogError:
            raise
        except StreamwardError as exc:
            action = "correct what the reason names, and order it again"
            job = self._jobs.get(job.job_id)
            self._jobs.append(_event(job, "failed", cut(str(exc)), code="SEARCH_FAILED", suggested_action=action))
        return True

    def _look(self, job: JobState, search: PromptSearch) -> SearchVerdict | None:
        """Look at a live comparison. Raises SearchEnded, StreamwardError."""
        self.check(job, JobUsage(0, 0, 0.0))
        live = self._live.get(job.job_id)
        if live is None:
            first = Activation(
                prompt=search.prompt,
                alias=search.alias or "",
                version=search.versions[1],
                actor=ACTOR,
                reason="",
                job_id=job.job_id,
            )
            check_not_in_training(self._jobs.jobs.values(), first)
            live = self._live[job.job_id] = LiveSearch(self._settings, self._prompts, job, search, ACTOR)
        if (verdict := live.look()) is None:
            self.say_waiting(
                job, f"users of {search.prompt}@{search.alias}: {live.answers} of their answers are scored"
            )
        return verdict

    def say_waiting(self, job: JobState, what: str) -> None:
        """Say what a job waits for, once every SAY_EVERY_S."""
        now = time.monotonic()
        if now - self._said_at.setdefault(job.job_id, now) >= SAY_EVERY_S:
            self._said_at[job.job_id] = now
            log.info("job %s waits for %s", job.job_id, what)

    def _conclude(self, job: JobState, search: PromptSearch, verdict: SearchVerdict | None = None) -> None:
        """Search until there is a verdict, and end the job with it. Raises SearchEnded."""
        reader = AnswerReader(self._settings, job.policy)
        try:
            running = ActiveSearch(self, job, search, reader)
            running.conclude(running.search() if verdict is None else verdict)
            self._live.pop(job.job_id, None)
        finally:
            reader.close()

    def check(self, job: JobState, usage: JobUsage) -> None:
        """Raise SearchEnded if a job is not to be continued; over its budget it is ended before."""
        self._members.poll(timeout_s=0.0)
        if self._stop.is_set():
            raise SearchEnded("this process is stopping: another one continues it")
        current = self._jobs.get(job.job_id)
        if current.status != "running":
            raise SearchEnded(f"it is {current.status}: {current.reason}")
        over = over_budget(current, usage, self._jobs.month(job.tenant, times.now_ms()))
        if over is not None:
            metrics = usage.metrics(job.spec.prices)
            about = {"code": BUDGET_EXCEEDED, "suggested_action": over[1], "metrics": metrics}
            self._jobs.append(_event(current, "budget_exceeded", over[0], **about))
            raise SearchEnded(over[0])

    def send(self, tasks: Iterable[Any]) -> None:
        """Write tasks, and return once they are in the log."""
        for task in tasks:
            self._producer.send(task)
        self._producer.flush()

    @property
    def settings(self) -> Settings:
        """The settings of the process."""
        return self._settings

    @property
    def prompts(self) -> PromptLog:
        """The prompts of the log."""
        return self._prompts

    @property
    def jobs(self) -> JobLog:
        """The jobs of the log."""
        return self._jobs


class ActiveSearch:
    """One search, from its beginning: what it did before is found in the log."""

    def __init__(self, worker: PromptWorker, job: JobState, search: PromptSearch, reader: AnswerReader) -> None:
        self._worker, self._job, self._search, self._reader = worker, job, search, reader
        self._tasks = SearchTasks(job, job.base_version or 0)
        self._sent: set[str] = set()
        self._asked: set[Ask] = set()
        while not reader.poll(0.0):
            self._check()

    def search(self) -> SearchVerdict:
        """Return the outcome of the search. Raises SearchEnded, StreamwardError."""
        return self._reflect() if self._search.method == "reflection" else self._compare()

    # --- given versions -----------------------------------------------------------------------------------------------

    def _compare(self) -> SearchVerdict:
        search, job = self._search, self._job
        questions = sorted(job.train, key=lambda number: place(f"{search.seed} {job.spec.questions[number].query}"))
        plan = SearchPlan(search.versions, tuple(questions), search.max_answers, search.alpha)
        while not isinstance(step := next_step(plan, self._tasks.rewards(self._reader.answers)), SearchVerdict):
            self.ask(step.asks)
        return step

    # --- reflection ---------------------------------------------------------------------------------------------------

    def _reflect(self) -> SearchVerdict:
        search, job = self._search, self._job
        seed = self._version(search.versions[0])
        if not seed.messages or seed.messages[0].role != "system":
            raise SettingsError(f"prompt {seed} begins with no system message, which is what reflection changes")
        picks = {
            number: place(f"validation {job.spec.questions[number].query}") < search.validation_share
            for number in job.train
        }
        training = [number for number, is_picked in picks.items() if not is_picked]
        validation = [number for number, is_picked in picks.items() if is_picked]
        if not training or not validation:
            raise SettingsError("of the questions none is left to reflect on, or to pick by; give more of them")
        plan = ReflectionPlan(
            text=seed.messages[0].content,
            training=tuple(training),
            validation=tuple(validation),
            max_answers=search.max_answers,
            minibatch=min(search.minibatch, len(training)),
            seed=search.seed,
        )
        text = reflection.search(plan, partial(self._evaluate, seed), self._ask_reflector, lambda: len(self._asked))
        best = self._create(seed, text)
        return self._verdict_on(seed, best, validation)

    def _evaluate(self, seed: PromptVersion, text: str, questions: Sequence[int]) -> list[AnsweredQuestion]:
        version = self._create(seed, text)
        asks = [Ask(version.number, question) for question in questions]
        self.ask(asks)
        answers = [self._tasks.answer(ask, self._reader.answers) for ask in asks]
        texts = texts_of(self._worker.settings, answers)
        asked = [self._job.spec.questions[question] for question in questions]
        return [
            AnsweredQuestion(question=one.query, answer=text, reward=answer.reward or 0.0, expected=one.verifier)
            for one, text, answer in zip(asked, texts, answers, strict=True)
        ]

    def _create(self, seed: PromptVersion, text: str) -> PromptVersion:
        """Return the version with this text, created if not found."""
        messages = (Message(role="system", content=text), *seed.messages[1:])
        texts = [part for question in self._job.spec.questions for part in (question.query, question.verifier)]
        if quoted := reflection.quotations(text, texts):
            log.warning("job %s: a proposal quotes questions or answers: %s", self._job.job_id, quoted[0])
        proposal = PromptText(
            prompt=seed.name,
            messages=messages,
            variables=seed.variables,
            actor=ACTOR,
            reason=f"proposed by reflection; it quotes {len(quoted)} runs of words of the questions and answers",
            job_id=self._job.job_id,
        )
        return self._worker.prompts.create(proposal).version

    def _ask_reflector(self, request: str) -> str:
        """Return what the reflector proposes: of the log if it was asked before."""
        search, prompts = self._search, self._worker.prompts
        model = search.model or search.endpoint or ""
        digest = request_digest(model, request)
        if (known := prompts.state(search.prompt).reflections.get(digest)) is not None:
            return known.text
        self._check()
        try:
            answered = reflector_of(search, self._worker.settings)(request)
        except StreamwardError as exc:  # gepa would take it for a proposal that failed, and ask again
            raise SearchEnded(str(exc)) from exc
        while digest not in prompts.state(search.prompt).reflections:
            state = prompts.state(search.prompt)
            event = event_of(state, "reflected", actor=ACTOR, reason="asked by reflection", now_ms=times.now_ms())
            prompts.append(
                replace(
                    event, job_id=self._job.job_id, reflection=replace(answered, request_digest=digest, model=model)
                )
            )
        return prompts.state(search.prompt).reflections[digest].text

    def _verdict_on(self, seed: PromptVersion, best: PromptVersion, questions: Sequence[int]) -> SearchVerdict:
        """Return the verdict on the version that earned most on the validation questions."""
        asks = [Ask(version.number, number) for version in (seed, best) for number in questions]
        self.ask(asks)
        plan = SearchPlan((seed.number, best.number), tuple(questions), len(asks), self._search.alpha)
        if seed.number == best.number:
            rewards = self._tasks.rewards(self._reader.answers)
            values = [rewards[ask] or 0.0 for ask in asks[: len(questions)]]
            mean = sum(values) / max(1, len(values))
            return SearchVerdict(
                winner=None, candidate=seed.number, e_value=1.0, pairs=0, gain=0.0, answers=len(self._asked),
                means={seed.number: mean},
            )  # fmt: skip
        verdict = next_step(plan, self._tasks.rewards(self._reader.answers))
        while not isinstance(verdict, SearchVerdict):
            self.ask(verdict.asks)
            verdict = next_step(plan, self._tasks.rewards(self._reader.answers))
        return replace(verdict, answers=len(self._asked))

    # --- both ---------------------------------------------------------------------------------------------------------

    def ask(self, asks: Sequence[Ask]) -> None:
        """Return once each of these is answered: by the log, or by tasks that are written now. Raises SearchEnded."""
        tasks = [self._tasks.task(self._version(ask.version), ask.question) for ask in asks]
        self._asked |= set(asks)
        answers = self._reader.answers
        new = {task.task_id: task for task in tasks if task.task_id not in answers.keys() | self._sent}
        self._check()
        self._worker.send(new.values())
        self._sent |= new.keys()
        while missing := [task for task in tasks if task.task_id not in answers]:
            self._reader.poll(LOOK_S)
            self._check()
            what = f"{len(missing)} of {len(tasks)} answers of policy {self._job.policy}"
            self._worker.say_waiting(self._job, f"{what}, e.g. to task {missing[0].task_id}")

    def conclude(self, verdict: SearchVerdict) -> None:
        """Report the verdict with figures of questions that the search did not use, move the alias, end the job."""
        search, prompts = self._search, self._worker.prompts
        report = self._report(verdict)
        metrics = verdict.metrics() | report
        reason = self._reason(verdict, report)
        while self._job.job_id not in prompts.state(search.prompt).reports:
            state = prompts.state(search.prompt)
            event = event_of(state, "reported", actor=ACTOR, reason=reason, now_ms=times.now_ms())
            prompts.append(replace(event, job_id=self._job.job_id, version=verdict.candidate, metrics=metrics))
        is_live = search.method == "live"
        best = search.versions[0] if verdict.winner is None and is_live else verdict.winner
        if best is not None and search.alias is not None:
            target = prompts.state(search.prompt).aliases.get(search.alias)
            expected = None if is_live else 0 if target is None else search.versions[0]
            prompts.activate(
                Activation(
                    prompt=search.prompt,
                    alias=search.alias,
                    version=best,
                    actor=ACTOR,
                    reason=reason,
                    expect=expected,
                    job_id=self._job.job_id,
                    metrics=metrics,
                )
            )
        usage = self._usage().metrics(self._job.spec.prices)
        current = self._worker.jobs.get(self._job.job_id)
        self._worker.jobs.append(_event(current, "completed", reason, metrics=usage | metrics))

    def _report(self, verdict: SearchVerdict) -> dict[str, float]:
        """Return the figures of the candidate against the version in use, on the held-out questions."""
        base, held_out = self._search.versions[0], self._job.held_out
        if self._search.method == "live":  # which was decided on no question of the order
            held_out = (*self._job.train, *held_out)
        if not held_out or verdict.candidate == base:
            return {}
        asks = {version: [Ask(version, number) for number in held_out] for version in (verdict.candidate, base)}
        self.ask([ask for side in asks.values() for ask in side])
        rewards = self._tasks.rewards(self._reader.answers)
        first, second = (_outcomes(side, rewards) for side in asks.values())
        pairs = paired.pairs(first, second)
        if not pairs:
            return {}
        figures = paired.compare(pairs).metrics()
        names = ("n", "mean_reward", "mean_reward_against", "gain", "gain_low", "gain_high")
        report = {f"test_{name}": figures[name] for name in names if name in figures}
        return report | {"overfit": verdict.gain - report.get("test_gain", 0.0)}

    def _reason(self, verdict: SearchVerdict, report: dict[str, float]) -> str:
        name, base = self._search.prompt, self._search.versions[0]
        test = f"; {report['test_gain']:+.3f} on {report['test_n']:.0f} held-out questions" if report else ""
        pairs = "pairs of threads, one of each" if self._search.method == "live" else "questions of both"
        if verdict.winner is None:
            return (
                f"no version is shown to be better than {name}@{base}: {name}@{verdict.candidate} earned "
                f"{verdict.gain:+.3f} on {verdict.pairs} {pairs}{test}"
            )
        better = f"{name}@{verdict.winner} is better than {name}@{base}"
        return f"{better}: {verdict.gain:+.3f} on {verdict.pairs} {pairs}{test}"

    def _version(self, number: int) -> PromptVersion:
        version = self._worker.prompts.get(self._search.prompt).version(number)
        if version is None:
            raise EventError(f"prompt {self._search.prompt} has no version {number}")
        return version

    def _usage(self) -> JobUsage:
        read, sampled = tokens_paid(self._reader.answers.values(), self._job.job_id)
        reflections = self._worker.prompts.state(self._search.prompt).reflections.values()
        if self._search.method == "reflection":
            read += sum(one.prompt_tokens for one in reflections)
            sampled += sum(one.completion_tokens for one in reflections)
        return JobUsage(read, sampled, 0.0)

    def _check(self) -> None:
        self._worker.check(self._job, self._usage())


def _outcomes(asks: Sequence[Ask], rewards: dict[Ask, float | None]) -> list[Outcome]:
    return [Outcome(index=ask.question, scenario="prompts", reward=rewards[ask]) for ask in asks]


def _event(job: JobState, kind: JobKind, reason: str, **changes: Any) -> JobEvent:
    return JobEvent(
        event_id=derive_id(job.job_id, kind, job.sequence),
        job_id=job.job_id,
        created_at=max(times.now_ms(), job.updated_at),
        kind=kind,
        sequence=job.sequence,
        policy=job.policy,
        tenant=job.tenant,
        actor=ACTOR,
        reason=reason,
        **changes,
    )
