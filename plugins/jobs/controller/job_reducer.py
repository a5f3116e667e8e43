"""Decide what a job needs next, from the log alone.

    groups (its tasks), failed scores ──► OpenJob: which draws have a fate, tokens ─┐
    adapters           ──► versions, results of its suite ───────────┼──► due ──► tasks, jobs, adapters (retired)
    jobs               ──► JobState ─────────────────────────────────┘

    baseline ──► iteration 1: tasks until a batch is full ──► its version ──► … ──► every n-th: evaluation ──► the end

`due` is a function of the state: no clock, no I/O. Every process that folds the same log derives the same events with
the same ids, so the next controller continues a killed one, and two of them do nothing twice.

An iteration ends with the next version of its policy. A task whose group no batch will take (dropped, stale, or of
equal rewards where those are dropped) is replaced by another draw. If MOST_DRAWS batches of questions were drawn in
vain, there is nothing to learn, and the job fails.

Not counted: superseded samplings, and the in-flight work of a cancelled job. A slot without a score counts with its
maximum number of tokens, since its group does not record the number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from plugins.jobs.fold.monthly_spending import MonthBudget
from plugins.jobs.fold.questions import JOB, place_of, suite, suite_name, train_task
from plugins.jobs.fold.state import BUDGET_EXCEEDED, JobState, JobUsage, cost_usd
from schemas.conventions import OUTSIDE
from schemas.events import AdapterEvent, AdvantagedGroup, JobEvent, JobKind, Task, derive_id
from streams.adapters.learning import learning_in
from streams.adapters.serving import TRANSITIONS as ADAPTER_TRANSITIONS
from streams.adapters.versions import AdapterState
from streams.evaluation import paired, suite_tasks as evaluation
from streams.settings.model import Batches
from streams.stages.tasks.episodes import episode_player

STAGE = "jobs"
"""Actors of events that no person decides: the controller, and the process that tunes."""
MOST_DRAWS = 5
"""An iteration that needed so many times its batch in draws learns nothing."""
SKIPPED_STEPS = 3
"""So many steps in a row without a finite gradient, and the job fails."""
WARN_AT = 0.8
"""Share of the budget."""
NOT_CONVERGED = "TRAINING_CONVERGENCE_FAILED"
NOT_EVALUATED = "EVALUATION_FAILED"
NOT_ASKED = "TASK_REFUSED"

Effect = Task | JobEvent | AdapterEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob:
    """A running job, and what was counted since its newest event."""

    job: JobState
    rule: Batches
    """What the batch stage drops, and how many groups it waits for."""
    stop_after: int
    """Iterations in a row that teach nothing, after which it fails; 0: never."""
    next_offset: int
    """Groups below this offset, of the policy's partition, are in."""
    tokens: tuple[int, int] = (0, 0)
    """Of prompts, and sampled: of the job until here."""
    fates: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """By iteration and draw, for those that have not ended: why no batch takes the group; `` if one may."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Offset by group_id, of groups since the last iteration."""
    last_at: int = 0
    """When the newest of what it was made of was created, ms."""


def begin(job: JobState, rule: Batches, stop_after: int = 0) -> OpenJob:
    """Return a job as its newest event left it: groups from `job.groups_next` on are still to be counted."""
    tokens = (job.usage.prompt_tokens, job.usage.completion_tokens)
    return OpenJob(
        job=job,
        rule=rule,
        stop_after=stop_after,
        next_offset=job.groups_next,
        tokens=tokens,
        last_at=job.updated_at,
    )


def after_event(state: OpenJob, job: JobState) -> OpenJob:
    """Return the state once the job has taken another event."""
    has_ended = job.iteration > state.job.iteration
    return replace(
        state,
        job=job,
        last_at=max(state.last_at, job.updated_at),
        fates={place: fate for place, fate in state.fates.items() if place[0] > job.iteration}
        if has_ended
        else state.fates,
        counted={name: offset for name, offset in state.counted.items() if offset >= job.groups_next}
        if has_ended
        else state.counted,
    )


def after_group(state: OpenJob, group: AdvantagedGroup, offset: int, recorded_ms: int) -> OpenJob:
    """Return the state after a group of its policy; one that was read before, or is a copy, changes nothing.

    `recorded_ms`: of its record. An unanswered group has the time of its task, twenty minutes before.
    """
    if offset < state.next_offset:
        return state
    state = replace(state, next_offset=offset + 1)
    if group.metadata.get(JOB) != state.job.job_id or group.group_id in state.counted:
        return state
    prompt, sampled = _tokens(group)
    state = replace(
        state,
        tokens=(state.tokens[0] + prompt, state.tokens[1] + sampled),
        counted={**state.counted, group.group_id: offset},
        last_at=max(state.last_at, group.created_at, recorded_ms),
    )
    place = place_of(group)
    if group.purpose != "train" or place is None or place[1] <= state.job.iteration:
        return state
    fate = _why_useless(group, state.job.base_batches + place[1] - 1, state.rule)
    return replace(state, fates={**state.fates, place[1:]: fate})


def after_failed_score(state: OpenJob, task_id: str) -> OpenJob:
    """Return the state once a scorer gave up on an answer to a task: another draw takes its place.

    Its group counts after all if it comes.
    """
    number = state.job.iteration + 1
    for draw in range(draws_needed(state)):
        if (number, draw) not in state.fates and train_task(state.job, number, draw, 0).task_id == task_id:
            return replace(state, fates={**state.fates, (number, draw): "score_failed"})
    return state


def _tokens(group: AdvantagedGroup) -> tuple[int, int]:
    """Return the tokens that a group's answers read and wrote."""
    shared = len(group.prompt_token_ids)
    read = sum(group.tokens_read(response) for response in group.responses)
    wrote = sum(response.tokens_written for response in group.responses)
    if group.sampling_id is not None:
        unknown = [slot for slot in group.left_out if slot.reason not in ("response_failed", "unanswered")]
        read, wrote = read + shared * len(unknown), wrote + group.sampling.max_tokens * len(unknown)
    return read, wrote


def _why_useless(group: AdvantagedGroup, sequence: int, rule: Batches) -> str:
    """Return why the batch stage drops a group that it reads for batch `sequence`; `` if it does not."""
    if group.dropped_reason is not None:
        return group.dropped_reason
    if group.is_outside:
        return OUTSIDE
    if rule.zero_variance == "drop" and group.flat:
        return "zero_variance"
    return "stale" if sequence - group.batches > rule.max_policy_lag else ""


# --- what is due ------------------------------------------------------------------------------------------------------


def start_event(job: JobState, adapters: AdapterState, groups_next: int) -> JobEvent:
    """Return the event that starts a queued job; groups of its tasks are at `groups_next` or later."""
    return JobEvent(
        event_id=derive_id(job.job_id, "started", job.sequence),
        job_id=job.job_id,
        created_at=job.updated_at,
        kind="started",
        sequence=job.sequence,
        policy=job.policy,
        tenant=job.tenant,
        actor=STAGE,
        reason="its turn" if job.base_version is None else "resumed",
        version=adapters.newest,
        trained_batches=adapters.versions[adapters.newest].recorded_batches,
        groups_next=groups_next if job.base_version is None else job.groups_next,
    )


def refused_event(job: JobState, reason: str) -> JobEvent:
    """Return the end of a queued job that has no task to send."""
    trial = episode_player().trial or "a plugin that has episodes"
    return JobEvent(
        event_id=derive_id(job.job_id, "failed", job.sequence),
        job_id=job.job_id,
        created_at=job.updated_at,
        kind="failed",
        sequence=job.sequence,
        policy=job.policy,
        tenant=job.tenant,
        actor=STAGE,
        reason=reason,
        code=NOT_ASKED,
        suggested_action=f"{trial} plays an environment; order the job again once it passes there",
    )


def due(state: OpenJob, adapters: AdapterState, month: MonthBudget | None = None) -> Sequence[Effect]:
    """Return what a running job needs now: tasks, or one event that changes it, or the retirements before its end.

    They are asked for until they are in the log; each has an id of its own. `month` is what its tenant may spend.
    """
    job = state.job
    newest = job.version
    if job.status != "running" or newest is None or newest not in adapters.versions:
        return ()  # nothing to do, or its newest version was not read yet
    if (event := _budget(state, adapters, month)) is not None:
        return (event,)
    if not job.train:
        return (unaskable(state, adapters, "none of its questions is trained on: all are held out"),)
    if _is_due(job):
        return _evaluation(state, adapters)
    if (end := _end(state, adapters)) is not None:
        return end
    made = (number for number in range(newest + 1, adapters.newest + 1) if adapters.versions[number].took_batch)
    if (version := next(made, None)) is not None:
        return (_iteration(state, adapters, version),)
    return tuple(_tasks(state))


def unaskable(state: OpenJob, adapters: AdapterState, reason: str) -> JobEvent:
    """Return the end of a job after its tasks could not be written."""
    action = "order it again with other questions: `streamward jobs start` checks each of them"
    return _event(state, adapters, "failed", reason, code=NOT_ASKED, suggested_action=action)


def usage(state: OpenJob, adapters: AdapterState) -> JobUsage:
    """Return what the job has used until now."""
    base = state.job.base_version or 0
    seconds = [
        version.metrics.get("step_s", 0.0) for number, version in sorted(adapters.versions.items()) if number > base
    ]
    return JobUsage(*state.tokens, sum(seconds))


def over_budget(job: JobState, usage: JobUsage, month: MonthBudget | None) -> tuple[str, str] | None:
    """Return why a job that has used so much has to end, and what to do then; None if it may continue."""
    if job.spec.prices is None:
        return None
    cost, limit_usd = cost_usd(usage, job.spec.prices), job.spec.max_budget_usd
    if month is not None and (reason := month.problem(cost - cost_usd(job.usage, job.spec.prices))) is not None:
        return reason, "order it again next month, from the newest version; or raise jobs.tenant_month_usd"
    if limit_usd is None or cost < limit_usd:
        return None
    reason = f"{cost:.4f} USD of {limit_usd:.4f} are spent"
    return reason, "start another job with a larger max_budget_usd: it begins with the newest version"


def _budget(state: OpenJob, adapters: AdapterState, month: MonthBudget | None) -> JobEvent | None:
    job, usage_now = state.job, usage(state, adapters)
    if (end := over_budget(job, usage_now, month)) is not None:
        return _event(state, adapters, "budget_exceeded", end[0], code=BUDGET_EXCEEDED, suggested_action=end[1])
    limit_usd = job.spec.max_budget_usd
    if job.spec.prices is None or limit_usd is None or job.warned:
        return None
    cost = cost_usd(usage_now, job.spec.prices)
    if cost >= WARN_AT * limit_usd:
        return _event(state, adapters, "budget_warned", f"{cost:.4f} USD of {limit_usd:.4f} are spent")
    return None


# --- evaluations ------------------------------------------------------------------------------------------------------


def _is_due(job: JobState) -> bool:
    """Return whether the newest version is to be evaluated, and is not yet."""
    if not job.held_out or any(result.iteration == job.iteration for result in job.evaluations):
        return False
    return job.iteration % job.spec.evaluate_every == 0 or job.iteration >= job.spec.iterations


def _evaluation(state: OpenJob, adapters: AdapterState) -> Sequence[Effect]:
    job, version = state.job, state.job.version or 0
    name = suite_name(job)
    results = adapters.versions[version].evaluated.get(name)
    if results is None:
        tasks = evaluation.evaluation(suite(job), policy=job.policy, version=version, now_ms=state.last_at)
        return tuple(tasks)
    outcomes = (adapters.versions[number].outcomes.get(name, ()) for number in (version, job.base_version or 0))
    pairs = paired.pairs(*outcomes)
    if not pairs:
        return (
            _event(
                state,
                adapters,
                "failed",
                f"version {version}: no answer to a held-out question has a score",
                code=NOT_EVALUATED,
                suggested_action="see why answers are not scored: `streamward status` and `streamward admin dlq list`",
            ),
        )
    measured = paired.compare(pairs).metrics()
    scores = {number.version: number.metrics for number in job.evaluations if number.iteration} | (
        {version: measured} if job.iteration else {}
    )
    best = sorted(scores, key=lambda number: (-scores[number]["success"], -scores[number]["mean_reward"], number))
    reason = f"version {version}: success {measured['success']:.3f}, {measured['success_against']:.3f} before the job"
    event = _event(state, adapters, "evaluated", reason, version=version, best=tuple(best[: job.spec.keep_best]))
    return (replace(event, metrics={**event.metrics, **measured}),)


# --- the end ----------------------------------------------------------------------------------------------------------


def _end(state: OpenJob, adapters: AdapterState) -> Sequence[Effect] | None:
    """Return what ends the job: its last event, or the retirements before it; None if it continues."""
    job = state.job
    if (reason := _complete(job)) is not None:
        retired = tuple(_retirements(state, adapters))
        return retired or (_event(state, adapters, "completed", reason),)
    fault = _no_gain(job) or _no_gradient(job, adapters) or _no_difference(state, adapters) or _nothing_to_learn(state)
    if fault is None:
        return None
    reason, action = fault[0], f"{fault[1]}{_way_back(job, adapters)}"
    return (_event(state, adapters, "failed", reason, code=NOT_CONVERGED, suggested_action=action),)


def _complete(job: JobState) -> str | None:
    """Return why a job is complete; None if it is not."""
    newest = job.evaluations[-1] if job.evaluations and job.evaluations[-1].iteration else None
    target = job.spec.target_gain
    if newest is not None and target is not None:
        gain, gain_low = newest.metrics["success_gain"], newest.metrics.get("success_gain_low", -1.0)
        if gain >= target and gain_low > 0:
            return f"version {newest.version} has gained {gain:.3f}, and {target:.3f} were asked for"
    if job.iteration >= job.spec.iterations:
        return f"all {job.spec.iterations} iterations are done"
    if _without_better(job) >= job.spec.patience and _best_gain(job) > 0:
        return f"{job.spec.patience} evaluations without a better version than {job.best[0]}"
    return None


def _without_better(job: JobState) -> int:
    """Return how many evaluations there were since that of the best version."""
    versions = [result.version for result in job.evaluations if result.iteration]
    return len(versions) - 1 - versions.index(job.best[0]) if job.best and job.best[0] in versions else 0


def _best_gain(job: JobState) -> float:
    return max((result.gain for result in job.evaluations if result.iteration), default=0.0)


def version_to_keep(job: JobState) -> int:
    """Return the version that a job should end with: its best, or if none was better the one before it."""
    return job.best[0] if job.best and _best_gain(job) > 0 else job.base_version or 0


def _way_back(job: JobState, adapters: AdapterState) -> str:
    """Return how the version to keep can answer again; nothing if it does."""
    version = version_to_keep(job)
    if adapters.primary == version:
        return ""
    what = "its best version" if version > (job.base_version or 0) else "the version before it"
    return f". `streamward jobs keep-best {job.job_id}` goes back to {what}, {version}"


def _no_gain(job: JobState) -> tuple[str, str] | None:
    evaluated = sum(result.iteration > 0 for result in job.evaluations)
    if evaluated <= job.spec.patience or _without_better(job) < job.spec.patience or _best_gain(job) > 0:
        return None
    return (
        f"no version is better than the one before the job, by iteration {job.iteration}",
        "look at the rewards of its groups (`streamward query`): a scorer that pays for the wrong thing, or questions "
        "that are never answered right, teach nothing; lower trainer.learning_rate if success fell",
    )


def _no_gradient(job: JobState, adapters: AdapterState) -> tuple[str, str] | None:
    last = job.versions[-SKIPPED_STEPS:]
    if len(last) < SKIPPED_STEPS or not all(adapters.versions[number].metrics.get("skipped") for number in last):
        return None
    return (
        f"the gradient was not finite in the last {SKIPPED_STEPS} steps, up to version {last[-1]}",
        "lower trainer.learning_rate or set trainer.max_grad_norm, and begin again from a good version",
    )


def _no_difference(state: OpenJob, adapters: AdapterState) -> tuple[str, str] | None:
    count, versions = state.stop_after, state.job.versions
    if not count or len(versions) < count:
        return None
    steps = [learning_in(adapters.versions[number].metrics) for number in versions[-count:]]
    if any(step is None or step.differed for step in steps):
        return None
    return (
        f"{count} steps in a row taught nothing, up to version {versions[-1]} (learning.stop_after): {steps[-1]}",
        "`streamward doctor` says why groups do not differ, and what would change it",
    )


def _nothing_to_learn(state: OpenJob) -> tuple[str, str] | None:
    job = state.job
    if draws_needed(state) <= MOST_DRAWS * _batch(state):
        return None
    fates = Counter(fate for (number, _), fate in state.fates.items() if number == job.iteration + 1 and fate)
    causes = ", ".join(f"{count} {fate}" for fate, count in fates.most_common())
    return (
        f"iteration {job.iteration + 1} has too few groups to learn from: {causes}",
        "where rewards are equal (zero_variance) give questions that are neither always nor never answered right, "
        "raise n_trajectories_per_query or the temperature; where answers are missing see `streamward status`",
    )


def _retirements(state: OpenJob, adapters: AdapterState) -> Iterator[AdapterEvent]:
    """Yield the events that retire what the job made and does not keep: not the best, the newest or the primary."""
    job = state.job
    if not job.best:
        return
    for number in job.versions[:-1]:
        event_id = derive_id(job.policy, number, "retired", job.job_id)
        allowed = adapters.versions[number].status in ADAPTER_TRANSITIONS["retired"].allowed
        if number in job.best or not allowed or event_id in adapters.decided:
            continue
        yield AdapterEvent(
            event_id=event_id,
            policy=job.policy,
            created_at=state.last_at,
            version=number,
            kind="retired",
            actor=STAGE,
            reason=f"job {job.job_id} keeps {', '.join(map(str, job.best))}",
        )


# --- iterations -------------------------------------------------------------------------------------------------------


def draws_needed(state: OpenJob) -> int:
    """Return how many tasks the iteration under way needs: as many more than a batch as were drawn in vain."""
    number, batch = state.job.iteration + 1, _batch(state)
    count = batch
    while True:
        fates = [state.fates.get((number, draw)) for draw in range(count)]
        usable = fates.count("")
        if None in fates or usable >= batch or count > MOST_DRAWS * batch:
            return count
        count += batch - usable


def _batch(state: OpenJob) -> int:
    """Return how many groups make a version: what the job asked for, or more if `batches.groups` was raised since."""
    return max(state.job.spec.batch_size, state.rule.groups)


def _tasks(state: OpenJob) -> Iterator[Task]:
    number = state.job.iteration + 1
    for draw in range(draws_needed(state)):
        if (number, draw) not in state.fates:
            yield train_task(state.job, number, draw, state.last_at)


def _iteration(state: OpenJob, adapters: AdapterState, version: int) -> JobEvent:
    trained_version = adapters.versions[version]
    learning = learning_in(trained_version.metrics)
    taught = "" if learning is None else f": {learning}"
    event = _event(state, adapters, "iteration", f"version {version} is trained{taught}", version=version)
    step_metrics = {
        name: trained_version.metrics[name]
        for name in ("reward", "loss", "grad_norm")
        if name in trained_version.metrics
    }
    created_at = max(event.created_at, trained_version.created_at)
    return replace(
        event, created_at=created_at, iteration=state.job.iteration + 1, metrics={**event.metrics, **step_metrics}
    )


def _event(state: OpenJob, adapters: AdapterState, kind: JobKind, reason: str, **changes: Any) -> JobEvent:
    job = state.job
    return JobEvent(
        event_id=derive_id(job.job_id, kind, job.sequence),
        job_id=job.job_id,
        created_at=state.last_at,
        kind=kind,
        sequence=job.sequence,
        policy=job.policy,
        tenant=job.tenant,
        actor=STAGE,
        reason=reason,
        iteration=job.iteration,
        groups_next=state.next_offset,
        metrics=usage(state, adapters).metrics(job.spec.prices),
        **changes,
    )
