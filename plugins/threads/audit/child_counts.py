"""The runs that answer calls of other runs, for the audit: each is that of one call, whose result is its answer.

    call_begun: child_run ──► run_requested: parent ──► its id, depth and actor follow from the parent's
                              run_ended: its answer ──► call_ended: the same text

A call that was begun without a run that was requested is not a finding: its parent may have ended meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from plugins.threads.audit.call_steps import ImpossibleEvent
from plugins.threads.audit.thread_facts import ThreadFact
from schemas.events import ParentCall, derive_id
from streams.tools.audit.facts import RecountOutcome


class ChildCount:
    """The children of a log, and what their parents say of them."""

    def __init__(self) -> None:
        self._requests: dict[str, ThreadFact] = {}
        """By run, of every run."""
        self._begun: dict[str, ThreadFact] = {}
        self._results: dict[str, ThreadFact] = {}
        """By the run that answers the call."""
        self._answers: dict[str, ThreadFact] = {}

    def take(self, events: Iterable[ThreadFact]) -> None:
        """Take in the events of a thread; of two about the same, the first counts."""
        for event in events:
            if event.kind == "run_requested":
                self._requests.setdefault(event.run_id, event)
            elif event.kind == "run_ended" and event.child.text:
                self._answers.setdefault(event.run_id, event)
            elif event.child.run_id:
                known = self._begun if event.kind == "call_begun" else self._results
                known.setdefault(event.child.run_id, event)

    def report(self, outcome: RecountOutcome, *, is_whole: bool) -> None:
        """Add counts and findings; `is_whole`: whether retention has deleted nothing."""
        for name in self._begun:
            result = self._results.get(name)
            ending = "left" if result is None else "failed" if result.step.has_failed else "answered"
            outcome.counts["child runs"] += 1
            outcome.counts[f"child runs {ending}"] += 1
        for name, request in self._requests.items():
            if request.child.parent is not None:
                for found in self._problems(name, request, request.child.parent):
                    if is_whole or found.category == "contradictory":
                        outcome.find(found.category, request.at, found.problem)
        for name, result in self._results.items():
            answer = self._answers.get(name)
            if result.step.has_failed or (answer is None and not is_whole):
                continue
            if answer is None or answer.child.text != result.child.text:
                outcome.find("contradictory", result.at, f"its result is not the answer of run {name}")

    def _problems(self, name: str, request: ThreadFact, parent: ParentCall) -> Iterator[ImpossibleEvent]:
        if name != derive_id(parent.run_id, "child", parent.turn_id, parent.call_id):
            yield ImpossibleEvent("contradictory", f"run {name} has not the id of the call that it answers")
        begun, above = self._begun.get(name), self._requests.get(parent.run_id)
        if begun is None or begun.run_id != parent.run_id:
            problem = f"run {name} answers call {parent.call_id} of run {parent.run_id}, which was never begun"
            yield ImpossibleEvent("phantom", problem)
        if above is None:
            return
        depth = 0 if above.child.parent is None else above.child.parent.depth
        if parent.depth != depth + 1:
            problem = f"run {name} is {parent.depth} runs deep, and the run that it answers {depth}"
            yield ImpossibleEvent("contradictory", problem)
        if request.actor != above.actor:
            problem = f"run {name} acts for {request.actor}, and the run that it answers for {above.actor}"
            yield ImpossibleEvent("contradictory", problem)
