"""The lines of a row: its conversation, its label, and its tokens.

    JudgedRun ──► conversations: {messages, tools}      OpenAI's chat format for fine-tuning, a line for each chain
             ├──► label: {answer_id, verdict, reward, …}     what that format has no room for, line by line the same
             ├──► tokens: {chains: prompt_ids, completion_ids, loss_mask}   as sampled, a line for each run
             └──► pair, with a rejected run: OpenAI's preference format, and the same in tokens

An assistant's message has `weight` 0 where its tokens bear no loss: it was sent by the client, its form was forced, a
chain before this one has it, or a person rejected that answer of a promoted conversation. A pair has the conversation
alone, without the chains of sub-agents; its tokens have them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from plugins.improve.datasets.judged_runs import JudgedRun
from schemas.events import GroupResponse, Message, Tool
from schemas.tokens import LossMask, TokenIds
from streams.rows.row_texts import texts_of
from streams.stages.agents.trajectories.chat_format import message_of, tool_of
from streams.stages.agents.trajectories.fold import CallChain
from streams.tools.query.finished import Finished
from trainer.examples.tuned_examples import SampledExample, TunedAnswer, TunedChain, answer_of

Line = dict[str, Any]


def conversations(run: JudgedRun) -> list[Line]:
    """Return the conversation of a run, and the other chains of its calls; those without loss are left out.

    If its answer is in doubt, it has none.
    """
    if run.is_doubtful:
        return []
    if run.finished.run is not None:
        return [line for chain in run.finished.run.chains if (line := _of_chain(chain, run.rejected)) is not None]
    response = run.finished.response
    if response is None or not run.prompt.messages or not response.text.strip():
        return []
    reply = Message(role="assistant", content=response.text)
    return [_line([*(_context(message) for message in run.prompt.messages), message_of(reply)], run.prompt.tools)]


def label(run: JudgedRun, chain: int) -> Line:
    """Return the label of a line of `conversations`: verdict, scores, versions, coordinates."""
    verdict, finished = run.verdict, run.finished
    return {
        "answer_id": finished.answer_id,
        "task_id": finished.task_id,
        "chain": chain,
        "policy": verdict.policy,
        "agent_id": verdict.agent_id,
        "scenario": verdict.scenario,
        "versions": list(run.versions),
        "reward": finished.reward,
        "feedback": finished.mean_feedback,
        "labeller": verdict.labeller,
        "actor": verdict.actor,
        "rubric": verdict.rubric,
        "rationale": verdict.rationale,
        "run_at": str(finished.position),
        "verdict_at": str(run.placed.at),
    }


def tokens(run: JudgedRun) -> SampledExample | None:
    """Return a run as sampled; None if its calls were rendered by several tokenizers, or nothing bears loss."""
    finished = run.finished
    if finished.response is not None and not finished.runs:
        answer, digests = _of_response(finished), {finished.response.tokenizer_digest}
    elif finished.run is not None:
        chains = (_tokens_of_chain(chain, run.rejected) for chain in finished.run.chains)
        answer = TunedAnswer(tuple(chain for chain in chains if chain is not None))
        digests = {turn.tokenizer_digest for chain in finished.run.chains for turn in chain.turns}
    else:
        return None
    if len(digests) != 1 or not answer.loss_tokens:
        return None
    return SampledExample(digests.pop(), (answer,))


def texts(run: JudgedRun) -> tuple[str, ...]:
    """Return what a row says, without the system's instructions."""
    return tuple(text for line in conversations(run) for text in texts_of({"messages": line["messages"]}))


def pair(promoted: JudgedRun, rejected: JudgedRun) -> Line | None:
    """Return both as a preference; None if they say the same."""
    outputs = [_answers(run) for run in (promoted, rejected)]
    if outputs[0] == outputs[1] or not all(outputs):
        return None
    question = _line([_context(message) for message in promoted.prompt.messages], promoted.prompt.tools)
    return {"input": question, "preferred_output": outputs[0], "non_preferred_output": outputs[1]}


def pair_tokens(promoted: JudgedRun, rejected: JudgedRun) -> SampledExample | None:
    """Return both as sampled; None if a tokenizer differs, or their tokens do not."""
    chosen, other = tokens(promoted), tokens(rejected)
    if chosen is None or other is None or chosen.tokenizer_digest != other.tokenizer_digest:
        return None
    if chosen.example == other.example:
        return None
    return SampledExample(chosen.tokenizer_digest, (*chosen.example, *other.example))


def tokens_line(answer_ids: Sequence[str], sampled: SampledExample) -> Line:
    """Return the line of an example: one answer, or the chosen one and the rejected one."""
    answers = [_chain_lines(answer) for answer in sampled.example]
    names = ("chains",) if len(answers) == 1 else ("chosen", "rejected")
    return {
        "answer_id": answer_ids[0],
        **({} if len(answer_ids) == 1 else {"rejected_id": answer_ids[1]}),
        "tokenizer_digest": sampled.tokenizer_digest,
        **dict(zip(names, answers, strict=True)),
    }


# --- messages ---------------------------------------------------------------------------------------------------------


def _of_chain(chain: CallChain, rejected: Collection[str]) -> Line | None:
    messages: list[Line] = []
    learnt = False
    for number, turn in enumerate(chain.turns):
        messages += [_context(message) for message in turn.messages]
        bears_loss = _bears_loss(chain, number, rejected) and bool(turn.reply.content.strip() or turn.reply.tool_calls)
        messages.append(message_of(turn.reply) if bears_loss else _context(turn.reply))
        learnt = learnt or bears_loss
    return _line(messages, chain.turns[0].tools) if learnt else None


def _bears_loss(chain: CallChain, number: int, rejected: Collection[str]) -> bool:
    turn = chain.turns[number]
    return number >= chain.shared and turn.constraint is None and turn.trajectory_id not in rejected


def _context(message: Message) -> Line:
    """Return a message that bears no loss."""
    plain = message_of(message)
    return plain | {"weight": 0} if message.role == "assistant" else plain


def _line(messages: Sequence[Line], offered: Sequence[Tool]) -> Line:
    return {"messages": list(messages)} | ({"tools": [tool_of(tool) for tool in offered]} if offered else {})


def _answers(run: JudgedRun) -> list[Line]:
    """Return everything that followed the first prompt of a conversation."""
    if run.is_doubtful:
        return []
    if run.finished.run is not None and run.finished.run.chains:
        said = run.finished.run.chains[0].messages[len(run.finished.run.chains[0].turns[0].messages) :]
        return [message_of(message) for message in said]
    response = run.finished.response
    return [] if response is None else [message_of(Message(role="assistant", content=response.text))]


# --- tokens -----------------------------------------------------------------------------------------------------------


def _of_response(finished: Finished) -> TunedAnswer:
    """Return the tokens of a response, which its group may have left to it, or may not have at all."""
    group, response = finished.group, finished.response
    assert group is not None and response is not None  # noqa: S101 - FinishedReader has both
    member = GroupResponse(
        slot=response.slot,
        response_id=response.response_id,
        partition=finished.position.partition,
        offset=finished.position.offset,
        finish_reason=response.finish_reason,
        latency_ms=response.latency_ms,
        reward=0.0,
        advantage=0.0,
        prompt_token_ids=response.prompt_token_ids,
        completion_token_ids=response.completion_token_ids,
        logprobs=response.logprobs,
        loss_mask=response.loss_mask,
        branches=response.branches,
    )
    return answer_of(replace(group, prompt_token_ids=TokenIds()), member)


def _tokens_of_chain(chain: CallChain, rejected: Collection[str]) -> TunedChain | None:
    """Return the tokens of a chain; all before the first one with loss are context."""
    ids = b"".join(part.data for turn in chain.turns for part in (turn.prompt_token_ids, turn.completion_token_ids))
    mask = b"".join(_mask(chain, number, rejected) for number in range(len(chain.turns)))
    first = mask.find(1)
    if first <= 0:
        return None
    start = first * TokenIds.BYTES
    return TunedChain(TokenIds(ids[:start]), TokenIds(ids[start:]), LossMask(mask[first:]))


def _mask(chain: CallChain, number: int, rejected: Collection[str]) -> bytes:
    turn = chain.turns[number]
    loss = b"\1" if _bears_loss(chain, number, rejected) else b"\0"
    return bytes(len(turn.prompt_token_ids)) + loss * len(turn.completion_token_ids)


def _chain_lines(answer: TunedAnswer) -> list[Line]:
    return [
        {
            "prompt_ids": list(chain.context),
            "completion_ids": list(chain.tokens),
            "loss_mask": [int(item) for item in chain.loss_mask],
        }
        for chain in answer.chains
    ]
