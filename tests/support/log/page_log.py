"""A log with one group of every fate, for pages to show, and one with texts that do harm unless shown as text."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from typing import Any

from schemas.events import (
    AccessEvent,
    AdvantagedGroup,
    DeadLetter,
    DroppedGroup,
    Event,
    JobEvent,
    LagCount,
    LeftOut,
    Message,
    Outcome,
    Response,
    Reward,
    Task,
    ToolCall,
    derive_id,
)
from streams.advantage_formulas import advantages
from streams.engines.scripted.scripted_tokens import ScriptedRendering
from streams.kafka.topics import SHAPES
from tests.support.factories import (
    T0,
    adapter_event,
    batch,
    evaluated,
    group,
    job_event,
    job_spec,
    member,
    promoted,
    response,
    reward,
    task,
    trained,
    trajectory,
    turn,
)

HOSTILE = (
    "<script>alert(1)</script>",
    "</pre><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "{{ 7 * 7 }}{% raw %}",
    "\x1b[2J\x1b[31mred\x07",
    "left\u202etfel\u2066hidden\u200b",
    "\ufeffbroken\x00null\x9b",
    "x" * 1_000_000,
)
"""Markup, a template, a terminal's commands, marks that turn and hide text, and one line of a megabyte."""
ODD_TASK = "odd/<b>id</b> \u202e"
Log = dict[str, list[Event | bytes]]


class LogMaker:
    """Writes tasks with all that becomes of them, in the order of their offsets."""

    def __init__(self, chance: Callable[[int], float] = lambda number: -0.5, **of_answers: Any) -> None:
        """`chance`: the logprob of a token by its number; `of_answers`: fields of every answer."""
        self._chance, self._of_answers = chance, of_answers
        self.log: Log = {
            label: []
            for label in ("tasks", "responses", "rewards", "groups", "batches", "adapters", "dead-letters", "turns",
                          "trajectories", "jobs", "agents", "experiments", "group-control", "access")
            if label in SHAPES
        }  # fmt: skip

    def asked(self, task_id: str, text: str, **changes: Any) -> Task:
        """Add a task."""
        made = task(task_id=task_id, messages=(Message(role="user", content=text),), **changes)
        self.log["tasks"].append(made)
        return made

    def answered(self, of: Task, texts: list[str | None], *, version: int = 0, **changes: Any) -> list[Response]:
        """Add an answer for each text; None is a slot that failed."""
        made = []
        for slot, text in enumerate(texts):
            failed = {"error": "out of memory"} if text is None else {"text": text}
            tokens = {} if text is None else {"completion_token_ids": _tokens(text)}
            count = len(_tokens(text or ""))
            per_token = {
                "logprobs": tuple(map(self._chance, range(count))),
                "loss_mask": (True,) * count,
                "completion_tokens": count,
            }
            made.append(
                response(
                    task_id=of.task_id, sampling_id=f"of {of.task_id}", slot=slot, group_size=of.group_size,
                    policy=of.policy, adapter_version=version,
                    **(failed | tokens | (per_token if text is not None else {}) | self._of_answers | changes),
                )
            )  # fmt: skip
        self.log["responses"] += made
        return made

    def judged(self, of: list[Response], values: list[float | None], **changes: Any) -> list[Reward]:
        """Add a score of each answer; None is one that failed."""
        made = [
            reward(one, **({"value": value} if value is not None else {"error": "the judge is away"}), **changes)
            for one, value in zip(of, values, strict=True)
        ]
        self.log["rewards"] += made
        return made

    def grouped(
        self,
        of: Task,
        answers: list[Response],
        values: list[float],
        components: list[dict[str, float]] | None = None,
        **changes: Any,
    ) -> AdvantagedGroup:
        """Add the group of these answers; `components` of each, if its source is not `exact` alone."""
        parts = components or [{"exact": value} for value in values]
        first = self.log["responses"].index(answers[0]) if answers else 0
        gained = advantages("grpo", values, eps=1e-4, ddof=1) if len(values) > 1 else [0.0] * len(values)
        mean = sum(values) / len(values) if values else 0.0
        spread = (sum((one - mean) ** 2 for one in values) / max(len(values) - 1, 1)) ** 0.5
        members = tuple(
            member(
                one.slot, response_id=one.response_id, offset=first + number, reward=value, advantage=advantage,
                components=part, finish_reason=one.finish_reason,
            )
            for number, (one, value, advantage, part) in enumerate(zip(answers, values, gained, parts, strict=False))
        )  # fmt: skip
        whole: dict[str, Any] = {
            "task_id": of.task_id, "policy": of.policy, "purpose": of.purpose, "scenario": of.scenario,
            "sampling_id": f"of {of.task_id}", "group_size": of.group_size, "reward_mean": mean, "reward_std": spread,
            "responses": members, "adapter_version": answers[0].adapter_version if answers else -1,
        }  # fmt: skip
        made = group(**whole | changes)
        self.log["groups"].append(made)
        return made


def _tokens(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text[:50]))


def small_log() -> Log:
    """Return a log with a group that taught, and others that taught nothing for each reason; two versions."""
    return _small(LogMaker()).log


def pictured_log() -> Log:
    """Return the small log, and after it a policy that gets better with each version."""
    odd = (-0.02, -0.3, -4.0, -0.05, -1.1)
    maker = LogMaker(lambda number: odd[number % len(odd)], tokenizer_digest=ScriptedRendering.tokenizer_digest)
    return _learning(_small(maker)).log


def _small(maker: LogMaker) -> LogMaker:
    taught = maker.asked("taught", "4 + 7 =", group_size=4)
    texts: list[str | None] = ["The sum is 11.", "The sum is 12.", "The sum was 11", "The sum is eleven"]
    answers = maker.answered(taught, texts)
    maker.judged(answers, [1.0, 0.0, 1.0, 0.0], rationale="compared with 11")
    maker.grouped(taught, answers, [1.0, 0.0, 1.0, 0.0])
    for name, value, said in (("flat", 0.0, "No idea"), ("easy", 1.0, "It is 2")):
        asked = maker.asked(name, "1 + 1 =", group_size=3)
        answers = maker.answered(asked, [f"{said} {n}" for n in range(3)])
        maker.judged(answers, [value] * 3)
        maker.grouped(asked, answers, [value] * 3)
    few = maker.asked("few", "2 + 2 =", group_size=3)
    answers = maker.answered(few, ["4", None, "5"])
    maker.judged([answers[0], answers[2]], [1.0, None])
    reasons = ("too_few_scored", "response_failed", "score_failed")
    left = tuple(LeftOut(slot=n, response_id=answers[n].response_id, reason=why) for n, why in enumerate(reasons))
    maker.grouped(
        few, answers, [], dropped_reason="too_few_scored", reward_mean=1.0, responses=(), left_out=left, complete=False
    )
    nobody = maker.asked("nobody", "3 + 3 =", group_size=2)
    left = tuple(LeftOut(slot=n, reason="unanswered") for n in range(2))
    maker.grouped(nobody, [], [], dropped_reason="unanswered", left_out=left, sampling_id=None, complete=False)
    open_ = maker.asked("open", "5 + 5 =", group_size=2)
    maker.judged(maker.answered(open_, ["10", "11"])[:1], [1.0])
    maker.asked("waiting", "6 + 6 =", group_size=2)
    held = maker.asked("held", "4 + 7 =", group_size=2, purpose="eval", scenario="sums", adapter_version=1)
    answers = maker.answered(held, ["11", "11"], version=1)
    maker.judged(answers, [1.0, 1.0])
    maker.grouped(held, answers, [1.0, 1.0])
    late = maker.asked("late", "8 + 1 =", group_size=2)
    answers = maker.answered(late, ["9", "8"])
    maker.judged(answers, [1.0, 0.0])
    passed = maker.grouped(late, answers, [1.0, 0.0])
    at = len(maker.log["groups"]) - 1
    dropped = (DroppedGroup(group_id=passed.group_id, offset=at, reason="stale"),)
    cut: list[Event] = [batch(0, groups_offsets=(0,)), batch(1, groups_offsets=(1,), dropped=dropped)]
    maker.log["batches"] += cut
    maker.log["adapters"] += [
        evaluated(0, 0.25),
        trained(1, metrics={"loss": 0.5, "mean_reward": 0.5}, recipe={"seed": "7"}),
        evaluated(1, 0.75),
        adapter_event("judged", 1, suite="sums@1", verdict="promote"),
        promoted(1, reason="0.75 of 40 are right"),
    ]
    return maker


def _learning(maker: LogMaker, versions: int = 20) -> LogMaker:
    """Add what policy `learner` does, in two scenarios."""
    draw, noise = random.Random(7), random.Random(11)
    for version in range(versions + 1):
        first = len(maker.log["groups"])
        for number in range(4):
            scenario = ("sums", "products")[number % 2]
            right = min(0.95, 0.1 + 0.05 * version * (1 if number % 2 else 1.4))
            asked = maker.asked(
                f"learner-{version}-{number}", "6 + 7 =", policy="learner", group_size=6, scenario=scenario
            )
            values = [float(draw.random() < right) for _ in range(6)]
            texts: list[str | None] = ["13" if value else "is 12"[min(version // 5, 3) :] for value in values]
            ending = "length" if version < 6 and not number else "stop"
            answers = maker.answered(asked, texts, version=version, finish_reason=ending)
            maker.judged(answers, list(values))
            maker.grouped(asked, answers, values)
        if version < versions:
            maker.log["batches"].append(
                batch(
                    version, policy="learner", groups_offsets=tuple(range(first, first + 4)), responses=24,
                    lags=(LagCount(lag=0, groups=3), LagCount(lag=min(version, 2), groups=1)),
                )
            )  # fmt: skip
        if version:
            share = min(1.0, 0.05 * version + 0.05)
            outcomes = _held_out(maker, version, lambda index, share=share: float(noise.random() < share))
            score = sum(outcome.success or 0.0 for outcome in outcomes) / len(outcomes)
            maker.log["adapters"] += [
                trained(version, policy="learner", metrics=_step_metrics(version, noise)),
                evaluated(version, score, tasks=len(outcomes), policy="learner", outcomes=outcomes),
                promoted(version, policy="learner", actor="rollouts", reason="better on the held-out tasks"),
            ]
    maker.log["jobs"] += _job_of_learner()
    return maker


def _step_metrics(version: int, noise: random.Random) -> dict[str, float]:
    """Return what the trainer would measure of a step."""
    return {
        "loss": 0.2 / version + 0.01 * noise.random(),
        "mean_reward": 0.5,
        "kl": 0.002 * noise.random(),
        "kl_reference": 0.0,
        "entropy": 0.9 - 0.03 * version,
        "grad_norm": 0.4 + 0.2 * noise.random(),
        "clipped": 0.02 * noise.random(),
        "effective": 0.95 + 0.05 * noise.random(),
        "groups": 4.0,
        "responses": 24.0,
        "answers_distinct": 24.0 - version,
        "answers_cut": 0.0,
        "groups_differed": 4.0,
        "tokens": 480.0,
        "step_s": 1.5 + noise.random(),
    }


def _held_out(maker: LogMaker, version: int, success: Callable[[int], float]) -> tuple[Outcome, ...]:
    """Return how a version of `learner` did on its held-out questions, and add the tasks in which it was asked some."""
    for index in range(3):
        maker.asked(
            f"held-{version}-{index}", f"{index + 3} + {index + 8} =", policy="learner", purpose="eval", group_size=1,
            adapter_version=version, metadata={"suite": "sums@1", "suite_index": str(index), "suite_size": "12"},
        )  # fmt: skip
    values = [success(index) for index in range(12)]
    return tuple(
        Outcome(index=index, scenario="sums", success=value, reward=value, tokens=3.0)
        for index, value in enumerate(values)
    )


def _job_of_learner() -> list[JobEvent]:
    """Return the events of a job of four iterations, which failed after three, and was evaluated after each."""
    events = [
        job_event("created", policy="learner", spec=job_spec(iterations=4, max_budget_usd=2.0)),
        job_event("started", 1, version=0),
    ]
    for number in range(1, 4):
        used = {"prompt_tokens": 9000.0 * number, "completion_tokens": 24_000.0 * number, "trainer_s": 240.0 * number}
        gain = {"success_gain": number / 4, "success_gain_low": number / 9, "success_gain_high": number / 3}
        events += [
            job_event(
                "iteration", len(events), iteration=number, version=number,
                metrics=used | {"reward": number / 5, "cost_usd": 0.25 * number},
            ),
            job_event(
                "evaluated", len(events) + 1, iteration=number, version=number, best=(number,),
                metrics=used | gain | {"success": number / 4, "n": 4.0, "mean_reward": number / 4, "gain": 0.0},
            ),
        ]  # fmt: skip
    way_out = {"code": "NO_TRAINER", "suggested_action": "start `streamward train`"}
    return [*events, job_event("failed", len(events), reason="no trainer took the batch", **way_out)]


def hostile_log() -> Log:
    """Return a log in which everything that others write is hostile."""
    maker = LogMaker()
    bad = HOSTILE[0] + HOSTILE[4] + HOSTILE[5]
    asked = maker.asked(
        ODD_TASK,
        "\n".join(HOSTILE[:7]),
        policy=bad,
        scenario=bad,
        group_size=len(HOSTILE),
        verifier='{"answer": "<i>"}',
    )
    answers = maker.answered(asked, [*HOSTILE])
    values = [float(n % 2) for n in range(len(HOSTILE))]
    maker.judged(answers, values, rationale=bad, components={bad: 1.0}, source="exact")
    maker.grouped(asked, answers, values)
    own = answers[0].response_id
    said = Message(
        role="assistant", content=bad, tool_calls=(ToolCall(id="1", name=bad, arguments=f'{{"a": "{bad}"}}'),)
    )
    run = {
        "trajectory_id": own,
        "task_id": ODD_TASK,
        "agent_id": "tourist",
        "policy": bad,
        "sampling_id": f"of {ODD_TASK}",
    }
    maker.log["trajectories"] += [trajectory("started", reason=bad, **run), trajectory("ended", reason=bad, **run)]
    maker.log["turns"] += [
        turn(reply=said, malformed=bad, messages=(Message(role=bad, content=bad),), **run),
        turn(1, continuity="extends", parent_id=derive_id(own, 0), error=bad, **run),
    ]
    maker.log["adapters"] += [
        trained(1, policy=bad, reason=bad, metrics={bad: 1.0}, recipe={bad: bad}),
        evaluated(1, policy=bad, suite=bad),
        promoted(1, policy=bad, actor=bad, reason=bad),
    ]
    maker.log["batches"] += [batch(0, policy=bad)]
    maker.log["jobs"] += [job_event("created", policy=bad, actor=bad, reason=bad, tenant=bad)]
    maker.log["dead-letters"] += [
        DeadLetter(
            dead_letter_id=derive_id("scoring", bad), created_at=T0, stage="scoring", reason=bad, error=bad,
            source_topic=bad, source_partition=0, source_offset=1, source_timestamp=T0, key="/w==",
            payload="/v88c2NyaXB0PgAb",
        ),
        b"\x00no event",
    ]  # fmt: skip
    return maker.log


TENANT_WORDS = {"red": "crimson", "blue": "azure"}
"""What every text, id and reason of a tenant has in it."""
TENANT_TOPICS = ("tasks", "responses", "rewards", "groups", "batches", "adapters", "turns", "trajectories", "jobs")


def tenants_log() -> Log:
    """Return a log of two tenants, each with a policy, a run, a job and a dead letter, and a task that is no one's."""
    maker = LogMaker()
    for tenant, word in TENANT_WORDS.items():
        own = {"policy": f"{tenant}.coach", "scenario": word}
        asked = maker.asked(f"{word}-0", f"{word} =", group_size=2, **own)
        answers = maker.answered(asked, [f"{word} 1", f"{word} 2"])
        maker.judged(answers, [1.0, 0.0], rationale=word)
        at = len(maker.log["groups"])
        maker.grouped(asked, answers, [1.0, 0.0])
        maker.asked(f"{word}-1", f"{word} ?", group_size=2, tenant=tenant, scenario=word)
        maker.asked(f"{word}-2", f"{word} ?", group_size=2, **own)
        maker.log["batches"].append(batch(0, policy=f"{tenant}.coach", groups_offsets=(at,)))
        maker.log["adapters"] += [
            trained(1, policy=f"{tenant}.coach", reason=word),
            promoted(1, policy=f"{tenant}.coach", reason=word, actor=word),
        ]
        walk = {
            "trajectory_id": f"{word}-walk", "task_id": f"{word}-walk", "agent_id": f"{tenant}.heron",
            "sampling_id": None, "slot": None, "group_size": None, "purpose": "serve",
        }  # fmt: skip
        maker.log["trajectories"].append(trajectory("started", reason=word, **walk))
        said = Message(role="assistant", content=word)
        called = {name: value for name, value in walk.items() if name not in ("group_size", "purpose")}
        maker.log["turns"].append(turn(reply=said, messages=(Message(role="user", content=word),), **called))
        maker.log["jobs"].append(
            job_event(
                "created", event_id=word, job_id=f"{word}-job", policy=f"{tenant}.coach", tenant=tenant, reason=word
            )
        )
        maker.log["dead-letters"].append(
            DeadLetter(
                dead_letter_id=derive_id("scoring", word), created_at=T0, stage="scoring", reason="late", error=word,
                source_topic="responses", source_partition=0, source_offset=0, source_timestamp=T0,
                key=base64.b64encode(f"{word}-0".encode()).decode(), payload=base64.b64encode(word.encode()).decode(),
            )
        )  # fmt: skip
    maker.asked("azure-0", "crimson wants to read this", group_size=2, tenant="red", scenario="crimson")
    maker.asked("shared", "nobody's", group_size=2)
    if "access" in maker.log:
        maker.log["access"].append(
            AccessEvent(
                event_id=derive_id("ann", "user_created", 0), subject_id="ann", created_at=T0, kind="user_created",
                actor="bob", reason="asked for", sequence=0, roles=("admin",),
                password_hash="$argon2id$v=19$m=8,t=1,p=1$AAAA$secret",
            )
        )  # fmt: skip
    return maker.log
