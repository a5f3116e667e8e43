"""Ask recorded tasks again with another prompt.

    tasks of the source ──► each question once, after the prompt ──► the experiment's agents ──► groups, `evaluated`

Answers to one prompt do not count for another, so only the questions are copied, and version 0 of the experiment, the
base model, answers them. Two experiments with a prompt each have the same suite, `recorded@DIGEST`: `replay
compare` shows them side by side, and view `prompt_rewards` of each log has the rewards of its prompt.

Not covered: tasks that an agent works on, and training. Adapters of the source did not learn with this prompt; a search
for a better prompt (docs/prompts.md) compares prompts under an adapter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from schemas.events import Message, PromptUse, Task
from streams.errors import EventError, SettingsError
from streams.kafka.topics import topics
from streams.stages.tasks import suites
from streams.stages.tasks.prompted import after_prompt
from streams.tools.replay import held_out
from streams.tools.replay.held_out import HeldOutSuite
from streams.tools.replay.replay_context import Replay
from streams.tools.replay.selection import bounds

SUITE = "recorded"


def text_of(prompt: PromptUse) -> str:
    """Return a prompt as an experiment's settings have it."""
    return f"{prompt} {prompt.values}"


def ask(replay: Replay, prompt: PromptUse) -> Counter[str]:
    """Ask each question with the prompt, and return how many tasks and groups there are then.

    Raises SettingsError for tasks that cannot be asked so, Stopped, LogError, what the agents raise.
    """
    suite = suites.of_tasks(SUITE, list(_questions(replay)))
    try:
        asked = tuple(after(prompt, question) for question in suite.questions)
    except EventError as exc:
        raise SettingsError(f"--prompt: {exc}") from exc
    whole = HeldOutSuite(suite=replace(suite, questions=asked), versions=("0",), scorers=replay.scorers)
    progress = replay.progress
    held_out.ask(replay.settings, whole, since_ms=0, stop=progress.stop, report=progress.report)
    return Counter(tasks=len(asked), groups=len(asked))


def after(prompt: PromptUse, task: Task) -> Task:
    """Return a task with its own messages after a prompt. Raises EventError if no question is left."""
    return replace(task, prompt_version=prompt, messages=after_prompt(prompt, task.messages))


def _questions(replay: Replay) -> Iterator[Task]:
    """Yield the chosen tasks without a prompt, each question once."""
    topic, seen = topics(replay.source.topics)["tasks"].name, set[object]()
    starts, ends = bounds(replay.about.ranges, topic)
    for record in replay.history.read(starts, ends):
        task = record.decode(Task) if record.key in replay.keys else None
        if not isinstance(task, Task):
            continue
        if task.agent is not None or task.environment is not None:
            raise SettingsError(
                f"--prompt: agent {task.agent} works on task {task.task_id}, and the policy itself is asked "
                "with another prompt; leave such tasks out, e.g. with --where 'agent IS NULL'"
            )
        bare = replace(task, prompt_version=None, messages=_own(task))
        if (question := (bare.messages, bare.verifier)) not in seen:
            seen.add(question)
            yield bare


def _own(task: Task) -> tuple[Message, ...]:
    """Return the messages of a task without its prompt, or without the system message that was one."""
    if task.prompt_version is not None:
        return task.messages[len(task.prompt_version.messages) :]
    return task.messages[1:] if task.messages and task.messages[0].role == "system" else task.messages
