"""Which call of a run is its answer, and which calls only came after it.

    forest, end ──► named by the end, else by its rule, else the last call ──► FoundAnswer: call, rivals, doubt
    what the program printed ──► printed_answer ──► the call whose answer it repeats

A client may call once more when it has its answer, with another system prompt and the conversation as history: to save
memories, say. A handoff looks the same, but for two things: the agent that hands over leaves a call of a tool and not a
text, and what the program prints is the answer. So a last call that repeats the text of an agent with another system
prompt has a rival in it, and unless the end of the run tells them apart, the answer is in doubt.

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
"""How much of the end of a program's output is compared with the answers."""
QUOTED = 200
"""Characters of an answer that a doubt quotes."""
NO_WORDS = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\\[nrt]|[\W_]")
"""What may stand between the words of an answer that is printed: colours, escapes of JSON, punctuation."""
AFTERWARDS = "it came after the answer"


class FoundAnswer(NamedTuple):
    """The call that is the answer of a run."""

    node: PlacedTurn | None
    """None: there is none."""
    rivals: tuple[PlacedTurn, ...] = ()
    """Calls that may be the answer as well, the oldest first."""
    doubt: str | None = None
    """Why it may be another, both quoted. None: it is certain, or the end of the run decided."""


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
    """Return the turns that came after an answer: what continues it, and calls of other agents that repeat one.

    A call whose answer the run took up again did not only come after it. `nodes` are in the order of the log.
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
    """Return the turn whose answer the end of a program's output repeats; None if it is none, or more than one.

    Of the `answers` that a run may have it repeats one anywhere; one of the `others` is the last thing that it says,
    and of these the last one counts.
    """
    printed = f" {_words(output)} "
    repeated = [turn for turn in answers if f" {_words(turn.reply.content)} " in printed]
    if repeated:
        return repeated[0].turn_id if len({_words(turn.reply.content) for turn in repeated}) == 1 else None
    texts = (turn for turn in reversed(others) if is_text(turn))
    return next((turn.turn_id for turn in texts if printed.endswith(f" {_words(turn.reply.content)} ")), None)


def is_text(turn: Turn) -> bool:
    """Return whether a turn answers with words, and calls no tool."""
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
    """Return what the answers to one call have in common."""
    return node.turn.parent_id, node.turn.request_digest, node.turn.started_at


def _rivals(chains: Chains, last: PlacedTurn, leaves: Iterable[PlacedTurn]) -> list[PlacedTurn]:
    """Return the texts of other agents that the last call repeats, each as its chain ends, and itself."""
    rivals, newest = [last], list(leaves)[::-1]
    for root in _lineage(last.root):
        repeated = root.rewrites
        if repeated is not None and _is_of_another_agent(root, repeated):
            ends = (leaf for leaf in newest if repeated in chains.path(leaf.turn.turn_id) and is_text(leaf.turn))
            rivals += [leaf for leaf in (next(ends, None),) if leaf is not None and leaf not in rivals]
    return rivals[::-1] if len(rivals) > 1 else []


def _lineage(root: PlacedTurn) -> list[PlacedTurn]:
    """Return a root, and those whose histories it goes back to, the newest first."""
    lineage = [root]
    while (repeated := lineage[-1].rewrites) is not None:
        lineage.append(repeated.root)
    return lineage


def _is_of_another_agent(root: PlacedTurn, repeated: PlacedTurn) -> bool:
    """Return whether a call repeats the words of an agent with another system prompt."""
    return root.kind.system != repeated.kind.system and is_text(repeated.turn)
