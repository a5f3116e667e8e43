"""The naive way in the place of each measure: with it, the tests that hold the measure have to fail.

Each function takes one measure away. Only what runs is changed, never a test.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch

from gateway.agents import anthropic, chat
from gateway.agents.protocols import AgentProtocols
from gateway.http import body as bodies
from schemas.events import Message, Tool, Turn
from schemas.tokens import Logprobs, TokenIds
from streams import advantage_formulas
from streams.engines.local import decoding_row
from streams.engines.rendering import template_rendering as rendering
from streams.engines.rendering.chat_template import ChatTemplate
from streams.engines.rendering.control_tokens import ANSWER, MESSAGE, ControlTokens, RenderedText
from streams.engines.rendering.stand_ins import StandIns
from streams.engines.rendering.template_rendering import ChatRendering
from streams.kafka.consumer import OffsetTracker
from streams.stages.advantages.reducer import GroupReducer
from streams.stages.agents.recording import turn_recording
from streams.stages.agents.recording.answer_sampling import AnswerText
from streams.stages.agents.recording.call_prompts import CallPrompts
from streams.stages.agents.recording.conversations import Conversations
from streams.stages.agents.recording.turn_writer import TurnWriter
from streams.stages.agents.trajectories import call_chains, fold as folding, run_answer
from streams.stages.agents.trajectories.call_chains import Chains, PlacedTurn, Placement
from streams.stages.agents.trajectories.fold import Trajectory
from streams.tools.audit.recount import Ledger

OURS = ("gateway", "schemas", "streams", "tests", "trainer")


def everywhere(patch: pytest.MonkeyPatch, measure: Any, naive: Any) -> None:
    """Put a function in the place of another, in every module that has imported it."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in OURS and isinstance(module, ModuleType) and name != __name__:
            for attribute in [known for known, value in vars(module).items() if value is measure]:
                patch.setattr(module, attribute, naive)


# --- prompts ----------------------------------------------------------------------------------------------------------


def the_whole_history_is_tokenized_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChatRendering, "extend", lambda *_: "every prompt is made of the messages")


def all_text_is_tokenized_to_find_what_is_new(patch: pytest.MonkeyPatch) -> None:
    def extend(self: ChatRendering, known: Any, finished: bool, before: Any, new: Any, tools: Any) -> tuple[int, ...]:
        return self._template.tokens(self._render((*before, *new), tools))[len(known) :]

    patch.setattr(ChatRendering, "extend", extend)


def the_template_s_end_follows_the_sampled_one(patch: pytest.MonkeyPatch) -> None:
    def extend(self: ChatRendering, known: Any, finished: bool, before: Any, new: Any, tools: Any) -> tuple[int, ...]:
        return self._template.tokens(*self._text_after_answer(before, new, tools))

    patch.setattr(ChatRendering, "extend", extend)


def every_answer_counts_as_ended(patch: pytest.MonkeyPatch) -> None:
    whole = ChatRendering.extend
    patch.setattr(ChatRendering, "extend", lambda self, known, _, *rest: whole(self, known, True, *rest))


def no_template_is_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rendering, "_check", lambda *_: None)


def system_messages_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    whole = call_chains._next
    no_template_is_checked(patch)
    patch.setattr(call_chains, "_next", lambda before, m: before if m.role == "system" else whole(before, m))


def digests_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    whole = call_chains._broken

    def broken(turn: Turn, parent: PlacedTurn | None) -> str | None:
        if parent is None:
            return whole(turn, parent)
        of = parent.turn
        same = replace(turn, tokenizer_digest=of.tokenizer_digest, template_digest=of.template_digest)
        return whole(same, parent)

    def placed(self: CallPrompts, call: Any, known: Any, prompt: Any) -> Placement:
        return (Chains() if known is None else known.chains).place(call.messages, call.tools, prompt)

    patch.setattr(call_chains, "_broken", broken)
    patch.setattr(CallPrompts, "_place", placed)


def names_of_control_tokens_become_them(patch: pytest.MonkeyPatch) -> None:
    def render_with_sources(self: ChatTemplate, *args: Any, **options: Any) -> RenderedText:
        return RenderedText(self.render(*args, **options))

    patch.setattr(ChatTemplate, "render_with_sources", render_with_sources)


def whole_names_alone_are_text(patch: pytest.MonkeyPatch) -> None:
    whole, names = StandIns.message, re.compile(r"<[|]\w+[|]>")
    alone = StandIns({MESSAGE: names, ANSWER: names})
    patch.setattr(StandIns, "message", lambda self, fields: whole(alone if self.inside else self, fields))


def text_is_written_with_the_model_s_whole_vocabulary(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControlTokens, "_without_names", lambda self, model: model)


# --- tool calls -------------------------------------------------------------------------------------------------------


def calls_are_repaired(patch: pytest.MonkeyPatch) -> None:
    whole = ChatRendering.parse
    patch.setattr(
        ChatRendering,
        "parse",
        lambda self, ids, *rest: whole(self, (*ids, *self.plain("</tool_call>")), *rest),
    )


def calls_are_taken_for_json(patch: pytest.MonkeyPatch) -> None:
    whole = ChatRendering.parse

    def parse(self: ChatRendering, ids: Sequence[int], *rest: Any) -> Any:
        inside = self.text(ids).partition("<tool_call>")[2].partition("</tool_call>")[0]
        json.loads(inside or "{}")
        return whole(self, ids, *rest)

    patch.setattr(ChatRendering, "parse", parse)


def replies_are_compared_as_they_are_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(call_chains, "_next", lambda before, message: sha256(before + repr(message).encode()).digest())


def logprobs_of_calls_are_not_streamed(patch: pytest.MonkeyPatch) -> None:
    whole = chat._end
    patch.setattr(chat, "_end", lambda done, _: whole(done, ()))


def calls_are_streamed_without_their_number(patch: pytest.MonkeyPatch) -> None:
    whole = chat._end

    def end(done: Any, tokens: Any) -> Any:
        for choice in whole(done, tokens):
            for call in choice["delta"].get("tool_calls", ()):
                call["index"] = 0
            yield choice

    patch.setattr(chat, "_end", end)


# --- what is recorded -------------------------------------------------------------------------------------------------


def tokens_are_made_of_the_answer_s_text(patch: pytest.MonkeyPatch) -> None:
    def turn_of(prepared: Any, stream: Any, reply: Any, engine: Any, render: Any) -> Turn:
        ids = render.plain(reply.message.content)
        made = whole(prepared, stream, reply, engine, render)
        return replace(made, completion_token_ids=TokenIds.of(ids), logprobs=Logprobs.of([0.0] * len(ids)))

    whole = turn_recording.turn_of
    patch.setattr(turn_recording, "turn_of", turn_of)


def a_turn_holds_the_whole_request(patch: pytest.MonkeyPatch) -> None:
    whole = turn_recording.turn_of
    patch.setattr(
        turn_recording,
        "turn_of",
        lambda prepared, *rest: replace(whole(prepared, *rest), messages=prepared.call.messages),
    )


def text_is_sent_when_the_answer_is_complete(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AnswerText, "push", lambda *_: "")


def every_answer_counts_as_delivered(patch: pytest.MonkeyPatch) -> None:
    whole = turn_recording.turn_of
    patch.setattr(
        turn_recording,
        "turn_of",
        lambda prepared, stream, reply, *rest: whole(prepared, stream, reply._replace(delivered=True), *rest),
    )


def no_call_is_a_retry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Conversations, "find_answered", lambda *_: None)


def answers_do_not_wait_for_the_log(patch: pytest.MonkeyPatch) -> None:
    whole, fold = TurnWriter.write, folding.fold

    def write(self: TurnWriter, *events: Any) -> Future[None]:
        whole(self, *events)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    patch.setattr(TurnWriter, "write", write)
    everywhere(patch, fold, lambda turns, ended=None: fold(turns))


# --- what belongs together --------------------------------------------------------------------------------------------


def what_an_agent_made_of_a_reply_does_not_matter(patch: pytest.MonkeyPatch) -> None:
    whole = call_chains._next

    def following(before: bytes, message: Message) -> bytes:
        return whole(before, replace(message, content="") if message.role == "assistant" else message)

    patch.setattr(call_chains, "_next", following)


def a_call_continues_the_newest_turn(patch: pytest.MonkeyPatch) -> None:
    def place(self: Chains, messages: Sequence[Message], tools: Sequence[Tool] = (), prompt: Any = None) -> Placement:
        for node in reversed(self.turns.values()):
            return Placement("extends", "it is the next call", node.turn, tuple(messages))
        return Placement("first", "it is the first call", None, tuple(messages))

    patch.setattr(Chains, "place", place)


def every_call_is_the_conversation_s(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Chains, "role", lambda *_: "conversation")


def the_first_chain_is_the_conversation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_answer, "_last_call", lambda _, leaves: min(leaves, key=lambda node: node.place, default=None))


def versions_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Trajectory, "versions", (0,))


def responses_are_not_continued(patch: pytest.MonkeyPatch) -> None:
    async def conversation(*_: Any) -> tuple[Message, ...]:
        return ()

    patch.setattr(AgentProtocols, "_conversation", conversation)


# --- requests ---------------------------------------------------------------------------------------------------------


def results_stand_where_their_message_does(patch: pytest.MonkeyPatch) -> None:
    whole = anthropic._messages

    def messages(body: Any) -> tuple[Message, ...]:
        found = list(whole(body))
        for n, (one, two) in enumerate(pairwise(found)):
            if (one.role, two.role) == ("tool", "user"):
                found[n : n + 2] = [two, one]
        return tuple(found)

    patch.setattr(anthropic, "_messages", messages)


def what_is_unknown_is_dropped(patch: pytest.MonkeyPatch) -> None:
    whole = bodies.checked
    patch.setattr(
        bodies, "checked", lambda model, value: whole(model, {k: value[k] for k in value if k in model.model_fields})
    )


# --- learning ---------------------------------------------------------------------------------------------------------


def logprobs_are_those_of_the_model_before_sampling(patch: pytest.MonkeyPatch) -> None:
    whole = decoding_row.draw

    def draw(logits: Any, *rest: Any) -> Any:
        raw = torch.log_softmax(logits, dim=-1)
        drawn, _ = whole(logits.clone(), *rest)
        return drawn, raw.gather(1, drawn[:, None])[:, 0]

    everywhere(patch, whole, draw)


def what_failed_counts_as_zero(patch: pytest.MonkeyPatch) -> None:
    whole = advantage_formulas.mean_and_std
    patch.setattr(advantage_formulas, "mean_and_std", lambda rewards, ddof: whole([*rewards, 0.0], ddof))


def rewards_are_added_up(patch: pytest.MonkeyPatch) -> None:
    def enter(self: GroupReducer, group: Any, task: Any, reward: Any, effects: Any) -> Any:
        known = group.scores.get(reward.response_id, {})
        before = known[reward.source].value if reward.source in known else 0.0
        score = reward.score._replace(value=reward.score.value + before)
        return group.with_scores({**group.scores, reward.response_id: {**known, reward.source: score}})

    patch.setattr(GroupReducer, "_enter_reward", enter)


# --- the log ----------------------------------------------------------------------------------------------------------


def every_offset_without_a_record_is_lost(patch: pytest.MonkeyPatch) -> None:
    whole = Ledger.report
    patch.setattr(Ledger, "report", lambda self, reach, **rest: whole(self, replace(reach, unread={}), **rest))


def a_partition_ends_with_its_last_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffsetTracker, "reach_end", lambda *_: None)
