"""Recount a prompt: its versions are 1, 2, 3 and so on, none changes, and an alias means what there is.

    created, activated, shared, … of one prompt ──► each names how many took effect before it ──► findings
    created ──► the next number, and a text that no version has
    the others ──► of versions that there are

An event that was decided when fewer had taken effect lost to another process's, which is no mistake of the log.

Not covered: whether tasks were rendered with these texts; each task carries its own, and its reader renders it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streams.tools.audit.facts import AuditFinding, Category, PromptFact
from streams.tools.audit.story import TaskOutcome


@dataclass(slots=True)
class PromptStory:
    """The events of one prompt, in the order of its partition."""

    events: list[PromptFact] = field(default_factory=list)


def recount_prompt(story: PromptStory) -> TaskOutcome:
    """Return the findings about one prompt."""
    outcome = TaskOutcome()
    count, texts = 0, list[str]()

    def find(category: Category, event: PromptFact, problem: str) -> None:
        outcome.findings.append(AuditFinding(category, event.at, problem))

    for event in story.events:
        if not event.has_own_id:
            find("contradictory", event, "its id is not that of its prompt, kind and sequence")
            continue
        is_torn = event.sequence > count
        if is_torn:
            find("lost", event, f"it follows event {event.sequence - 1} of its prompt, which is not before it")
            count = event.sequence
        if event.sequence < count:
            outcome.counts["prompt events superseded"] += 1
            continue
        problem = _problem(event, texts)
        if problem is not None and not is_torn:
            find("contradictory", event, problem)
            continue
        count += 1
        if event.kind == "created":
            texts += [""] * ((event.versions[0] or 1) - 1 - len(texts))  # those of records that are missing
            texts.append(event.digest)
            outcome.counts["prompt versions"] += 1
        elif event.kind in ("activated", "shared"):
            outcome.counts["alias moves"] += 1
    outcome.counts["prompt events"] += count
    return outcome


def _problem(event: PromptFact, texts: list[str]) -> str | None:
    """Return the problem of an event; `texts`: the digests of the versions before it."""
    if event.kind == "created":
        if event.digest in texts:
            return f"its text is that of version {texts.index(event.digest) + 1}"
        if event.versions[0] != len(texts) + 1:
            return f"it is version {event.versions[0]}, and the next one is {len(texts) + 1}"
        return None
    missing = [number for number in event.versions if not 1 <= number <= len(texts)]
    return f"it names version {missing[0]}, and the prompt has {len(texts)}" if missing else None
