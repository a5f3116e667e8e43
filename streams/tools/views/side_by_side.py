"""A task's answers side by side: where they differ, what each got, and why the group taught something or nothing.

tokens, or words where their texts are not known ──► what all begin with, and how each continues
group, rewards, batch, version ──► one sentence after another
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streams.tools.views.answer_tokens import TokenTexts
    from streams.tools.views.task import OneTask

Row = dict[str, Any]

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
LOOKED_AT = 20_000
"""Characters of each text that are compared."""
LEFT_OUT = {
    "response_failed": "the answer failed",
    "score_failed": "a scorer gave up on it",
    "unanswered": "nobody answered it in time",
    "unscored": "a reward was missing when the group was closed",
    "incomplete": "the group was dropped, as others of its slots were missing",
    "too_few_scored": "the group was dropped, as too few of its answers had scores",
    "too_large": "the group was dropped, as it is larger than a record may be",
}
DROPPED = {
    "unanswered": "nobody answered: no slot had an answer when its time was over",
    "unscored": "no answer had a score when its time was over",
    "incomplete": "not every slot was answered and scored in time, and advantages.partial says to drop such groups",
    "too_few_scored": "too few answers had scores to compare (advantages.min_group)",
    "too_large": "the group was larger than a record may be",
}
PASSED_OVER = {
    "zero_variance": "its batch left it out, as all of its rewards are equal (batches.zero_variance)",
    "stale": "it came too late: its answers are by a version too many steps before the batch (batches.max_policy_lag)",
    "duplicate": "its batch left it out, as the same group was read before",
    "unknown_version": "its batch left it out, as no batch can have made the version that answered",
}


@dataclass(slots=True)
class SlotAnswer:
    """One slot: its answer, if there is one, and what was made of it."""

    slot: int
    response: Row | None = None
    member: Row | None = None
    """What the group has of it; None if it is not in the group."""
    rewards: list[Row] = field(default_factory=list)
    opinions: list[Row] = field(default_factory=list)
    """Rewards that no source of the task gave: what people said."""
    turns: list[Row] = field(default_factory=list)
    left_out: str | None = None
    """Why it is not in the group."""
    rest: str = ""
    """Its text from where the answers differ."""

    @property
    def sign(self) -> str:
        """Whether it was better (+) or worse (-) than its siblings, or neither (0); empty without an advantage."""
        if self.member is None:
            return ""
        advantage = self.member["advantage"]
        return "0" if not advantage else "+" if advantage > 0 else "-"


@dataclass(slots=True)
class AnswerColumns:
    """All slots of a task."""

    shared: str
    """What all texts begin with."""
    shared_tokens: int
    """How many tokens all completions begin with."""
    by_token: bool
    """Whether texts are cut where tokens differ; else at the first word that does."""
    slots: list[SlotAnswer]
    largest: float
    """Of all advantages, whatever their sign."""


def shared_words(texts: Sequence[str]) -> str:
    """Return the words that all texts begin with; less than two texts share nothing.

    >>> shared_words(["4 + 7 is 11.", "4 + 7 is 12."])
    '4 + 7 is '
    """
    if len(texts) < 2:
        return ""
    words = [[*_WORD.findall(text[:LOOKED_AT])] for text in texts]
    return "".join(words[0][: common(words)])


def shared_by_token(
    texts: Sequence[str], tokens: Sequence[Sequence[int]], token_bytes: Callable[[int], bytes]
) -> str | None:
    """Return the text of the tokens that all begin with; None if the texts are not those of the tokens.

    A character whose bytes are divided between two tokens belongs to the second.

    >>> shared_by_token(["ab", "ac"], [[97, 98], [97, 99]], lambda token: bytes([token]))
    'a'
    """
    if len(texts) < 2:
        return None
    shared = b"".join(map(token_bytes, tokens[0][: common(tokens)])).decode(errors="ignore")
    return shared if all(text.startswith(shared) for text in texts) else None


def common(rows: Sequence[Sequence[object]]) -> int:
    """Return how many elements all rows begin with."""
    count = 0
    for column in zip(*rows, strict=False):
        if any(one != column[0] for one in column[1:]):
            break
        count += 1
    return count


def answers(found: OneTask, texts: TokenTexts | None = None) -> AnswerColumns:
    """Return every slot of a task; of several samplings the one that the group has, else the newest.

    `texts` is a tokenizer: answers that were made with it are compared token by token.
    """
    sampling = _sampling(found)
    responses = [row for row in found.responses if row["sampling_id"] == sampling]
    size = max(
        [(found.group or found.task or {}).get("group_size") or 0, *(row["slot"] + 1 for row in responses)], default=0
    )
    sources = {source["name"] for source in (found.task or {}).get("reward_sources") or ()}
    by_slot = {row["slot"]: row for row in responses}
    reasons = {one["slot"]: one["reason"] for one in (found.group or {}).get("left_out") or ()}
    slots = []
    for slot in range(size):
        answer = SlotAnswer(slot, by_slot.get(slot), found.members.get(slot))
        if answer.response is not None:
            own = answer.response["response_id"]
            about = [row for row in found.rewards if row["response_id"] == own]
            answer.rewards = [row for row in about if not sources or row["source"] in sources]
            answer.opinions = [row for row in about if sources and row["source"] not in sources]
            answer.turns = [row for row in found.turns if row["trajectory_id"] == own]
        if slot in reasons:
            answer.left_out = LEFT_OUT.get(reasons[slot], reasons[slot])
        slots.append(answer)
    said = [one for one in slots if one.response is not None and not one.response["error"]]
    rows = [one.response for one in said if one.response is not None]
    written, tokens = [row["text"] for row in rows], [row["completion_token_ids"] or [] for row in rows]
    shared = None
    if texts is not None and {row["tokenizer_digest"] for row in rows} == {texts.tokenizer_digest}:
        shared = shared_by_token(written, tokens, texts.token_bytes)
    by_token = shared is not None
    shared = shared_words(written) if shared is None else shared
    for one in said:
        one.rest = (one.response or {})["text"][len(shared) :]
    largest = max((abs(one["advantage"]) for one in found.members.values()), default=0.0)
    return AnswerColumns(shared, common(tokens) if len(tokens) > 1 else 0, by_token, slots, largest)


def _sampling(found: OneTask) -> str | None:
    ids = {row["response_id"]: row["sampling_id"] for row in found.responses}
    for member in found.members.values():
        if member["response_id"] in ids:
            return str(ids[member["response_id"]])
    for one in (found.group or {}).get("left_out") or ():
        if one["response_id"] in ids:
            return str(ids[one["response_id"]])
    return str(found.responses[-1]["sampling_id"]) if found.responses else None


# --- in words ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Why:
    """What became of a group, in words."""

    verdict: str
    """taught, nothing, waits or measured."""
    head: str
    sentences: list[str]


def why(found: OneTask) -> Why:
    """Return what a group taught, or why it taught nothing, or what it waits for."""
    group = found.group
    if group is None:
        return Why("waits", "Not grouped yet", _waits(found))
    left = _left_out(group)
    if group["dropped_reason"] is not None:
        reason = str(group["dropped_reason"])
        return Why("nothing", "It taught nothing", [f"{_capital(DROPPED.get(reason, reason))}.", *left])
    if group["purpose"] != "train":
        purpose = "held-out tasks measure a version" if group["purpose"] == "eval" else "somebody asked"
        return Why("measured", "Not for training", [f"Its purpose is {group['purpose']}: {purpose}.", *left])
    if group["flat"]:
        return Why("nothing", "It taught nothing", [*_flat(found), *_batch(group), *left])
    if group["passed_over"] is not None:
        reason = str(group["passed_over"])
        return Why("nothing", "It taught nothing", [f"{_capital(PASSED_OVER.get(reason, reason))}.", *left])
    ups = sum(one["advantage"] > 0 for one in found.members.values())
    downs = sum(one["advantage"] < 0 for one in found.members.values())
    compared = f"{ups} of {len(found.members)} answers were better than the mean of {group['reward_mean']:.3g} and are "
    compared += f"made likelier; {downs} were worse and are made less likely."
    return Why("taught", "It taught something", [compared, *_batch(group), *left])


def _flat(found: OneTask) -> list[str]:
    """Return why all advantages are 0."""
    rewards = [one["reward"] for one in found.members.values()]
    if not rewards:
        return ["It has no answers that were scored."]
    if len(rewards) == 1:
        return ["Only one answer was scored, and there is nothing to compare it with."]
    if len(set(rewards)) == 1:
        said = f"All {len(rewards)} rewards are {rewards[0]:.4g}: no answer was better than another"
        return [f"{said}, so every advantage is 0.", _all_equal(found, rewards[0])]
    return [
        f"The rewards differ by less than counts (from {min(rewards):.6g} to {max(rewards):.6g}): every advantage is 0."
    ]


def _all_equal(found: OneTask, reward: float) -> str:
    texts = {row["text"] for row in found.responses}
    if len(texts) == 1:
        return "All answers are the same text: the policy is sure, or its temperature is low."
    if found.rewards_from is None or found.rewards_to is None or found.rewards_from == found.rewards_to:
        return (
            "The answers differ, and the scorers do not tell them apart: no group of this scenario had another reward."
        )
    between = f"rewards of this policy's scenario go from {found.rewards_from:.4g} to {found.rewards_to:.4g}"
    if reward <= found.rewards_from:
        return f"The {between}, so nobody did well: the task is too hard for this version, or its scorer never agrees."
    if reward >= found.rewards_to:
        return f"The {between}, so everybody did well: the task is too easy for this version."
    return f"The {between}. The answers differ, and the scorers do not tell them apart."


def _batch(group: Row) -> list[str]:
    if group["sequence"] is None:
        return ["It is in no batch yet."]
    if group["trained"] is None:
        return [f"It is in batch {group['sequence']}, which the trainer has not learned from yet."]
    return [f"It is in batch {group['sequence']}, from which version {group['trained']} was trained."]


def _left_out(group: Row) -> list[str]:
    counted: dict[str, list[int]] = {}
    for one in group["left_out"] or ():
        counted.setdefault(one["reason"], []).append(one["slot"])
    if group["dropped_reason"] in counted and len(counted) == 1:
        return []
    return [
        f"Slot{'s' * (len(slots) > 1)} {', '.join(map(str, slots))} left out: {LEFT_OUT.get(reason, reason)}."
        for reason, slots in counted.items()
    ]


def _waits(found: OneTask) -> list[str]:
    """Return what is missing until the group can be made."""
    size = (found.task or {}).get("group_size") or max((row["group_size"] for row in found.responses), default=0)
    answered = len({row["slot"] for row in found.responses})
    if not answered:
        return ["Nobody has answered it yet."]
    if answered < size:
        return [f"{answered} of {size} slots are answered."]
    sources = [source["name"] for source in (found.task or {}).get("reward_sources") or ()]
    scored = {(row["response_id"], row["source"]) for row in found.rewards}
    good = [row["response_id"] for row in found.responses if not row["error"]]
    missing = {name: sum((one, name) not in scored for one in good) for name in sources}
    said = [f"{count} scores of {name} are missing." for name, count in missing.items() if count]
    return said or ["Everything is there; its group has not been written yet."]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def width(advantage: float, largest: float) -> int:
    """Return how long an advantage's bar is, of 100."""
    return 0 if not largest or not math.isfinite(advantage) else round(100 * abs(advantage) / largest)
