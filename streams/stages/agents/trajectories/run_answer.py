"""Find the call of a run that is its answer, and the calls that only came after it.

    forest, end ──► named by the end, else by its rule, else the last call ──► FoundAnswer: call, rivals, doubt
    the program's output ──► printed_answer ──► the call whose answer it repeats

A client may make one more call after its answer, with another system prompt and the conversation as history, for
example to save memories. A handoff looks the same, except for two things: the agent that hands over ends with a tool
call, not a text, and the program prints the answer. So a last call that repeats the text of an agent with another
system prompt has a rival in it, and unless the end of the run tells them apart, the answer is in doubt.

Calls that came after an answer cannot have made it better or worse: they are auxiliary.

Not covered: a program that prints its answer in other words, and a second answer under the same system prompt.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from schemas.events import TrajectoryEvent, Turn
from streams.stages.agents.trajectories.call_chains import Chains, PlacedTurn

OUTPUT_CHARACTERS = 65_536
"""Length of the end of a program's output that is compared with the answers."""
QUOTED = 200
"""Characters of an answer that a doubt quotes."""
NO_WORDS = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\\[nrt]|[\W_]")
"""Characters between the words of a printed answer: colours, JSON escapes, punctuation."""
AFTERWARDS = "it came after the answer"


class FoundAnswer(NamedTuple):
    """The call that is the answer of a run."""

    node: PlacedTurn | None
    """None: not found."""
    rivals: tuple[PlacedTurn, ...] = ()
    """Other calls that may be the answer, the oldest first."""
    doubt: str | None = None
    """Why another call may be the answer, quoting both. None: it is certain, or the end of the run decided."""


def find_answer(
    chains: Chains, leaves: Sequence[PlacedTurn], usable: Collection[str], ended: TrajectoryEvent | None
) -> FoundAnswer:
    """Return the answer of a run. `leaves`: the last calls of its chains; `usable`: the turns that are in one."""
    last = _last_call(chains, leaves)
    rivals = () if last is None else tuple(_rivals(chains, last, leaves))
    named, rule = (None, None) if ended is None else (ended.answer_turn, ended.answer_rule)
    if named is not None and named in usable:
        return FoundAnswer(chains.turns[named], rivals)
    if named is not None:
        return FoundAnswer(last, rivals, f"its end names turn {named}, which is left out, or is not of it")
    if last is None or not rivals or rule == "last_call":
        return FoundAnswer(last, rivals)
    if rule == "first_agent":
        return FoundAnswer(rivals[0], rivals)
    first, other = ((node.turn.number, node.turn.reply.content[:QUOTED]) for node in (rivals[0], last))
    doubt = f"turn {first[0]} answers {first[1]!r}, and turn {other[0]}, with another system prompt, {other[1]!r}"
    return FoundAnswer(last, rivals, doubt)


def calls_after(answer: PlacedTurn, nodes: Sequence[PlacedTurn]) -> frozenset[str]:
    """Return the turns that came after an answer: its continuations, and calls of other agents that repeat one. A call
    is excluded if the run used its answer again. `nodes` are in the order of the log.
    """
    lineage = _lineage(answer.root)
    heard = {message.content.strip() for node in nodes if node.root in lineage for message in node.turn.messages}
    used = {node.root for node in nodes if node.turn.reply.content.strip() in heard - {""}}
    roots, after = set[PlacedTurn](), set[PlacedTurn]()
    for node in nodes:
        repeated = None if node in lineage else node.rewrites
        began_after = repeated is not None and _is_of_another_agent(node, repeated) and node not in used
        if began_after or (repeated is not None and repeated.root in roots):
            roots.add(node)
        if node.root in roots or node.parent is answer or node.parent in after:
            after.add(node)
    return frozenset(node.turn.turn_id for node in after)


def printed_answer(answers: Iterable[Turn], others: Sequence[Turn], output: str) -> str | None:
    """Return the turn with the answer that the end of a program's output repeats; None if none or several match. One of
    the possible `answers` may be anywhere in it; one of the `others` must be at its very end, and the last one counts.
    """
    printed = f" {_words(output)} "
    repeated = [turn for turn in answers if f" {_words(turn.reply.content)} " in printed]
    if repeated:
        return repeated[0].turn_id if len({_words(turn.reply.content) for turn in repeated}) == 1 else None
    texts = (turn for turn in reversed(others) if is_text(turn))
    return next((turn.turn_id for turn in texts if printed.endswith(f" {_words(turn.reply.content)} ")), None)


def is_text(turn: Turn) -> bool:
    """Return whether a turn answers with text, and calls no tool."""
    return not turn.reply.tool_calls and bool(_words(turn.reply.content))


def _words(text: str) -> str:
    return " ".join(NO_WORDS.sub(" ", text.casefold()).split())


def _last_call(chains: Chains, leaves: Sequence[PlacedTurn]) -> PlacedTurn | None:
    """Return the last call of the conversation; of several answers to one call, the first."""
    of_it = [node for node in leaves if chains.role(node) == "conversation"]
    if not of_it:
        return None
    return min((node for node in of_it if call_of(node) == call_of(of_it[-1])), key=lambda node: node.turn.choice)


def call_of(node: PlacedTurn) -> tuple[str | None, str, int]:
    """Return the key that all answers to one call share."""
    return node.turn.parent_id, node.turn.request_digest, node.turn.started_at


def _rivals(chains: Chains, last: PlacedTurn, leaves: Iterable[PlacedTurn]) -> list[PlacedTurn]:
    """Return the final texts of other agents that the last call repeats, and the last call itself."""
    rivals, newest = [last], list(leaves)[::-1]
    for root in _lineage(last.root):
        repeated = root.rewrites
        if repeated is not None and _is_of_another_agent(root, repeated):
            ends = (leaf for leaf in newest if repeated in chains.path(leaf.turn.turn_id) and is_text(leaf.turn))
            rivals += [leaf for leaf in (next(ends, None),) if leaf is not None and leaf not in rivals]
    return rivals[::-1] if len(rivals) > 1 else []


def _lineage(root: PlacedTurn) -> list[PlacedTurn]:
    """Return a root, and the roots of the histories that it rewrites, the newest first."""
    lineage = [root]
    while (repeated := lineage[-1].rewrites) is not None:
        lineage.append(repeated.root)
    return lineage


def _is_of_another_agent(root: PlacedTurn, repeated: PlacedTurn) -> bool:
    """Return whether a call repeats the text of an agent with another system prompt."""
    return root.kind.system != repeated.kind.system and is_text(repeated.turn)
