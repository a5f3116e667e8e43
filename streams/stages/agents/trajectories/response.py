"""Make the Response for scorers, join and trainer from a trajectory that ended.

    Trajectory, ended ──► prompt | answer, tool result, answer, … ──► Response, mask 1 on the policy's free text
                                                 other chains ──► its branches
                  environment's observations, tools' results ──► its turns: observation before, tool, ok, reward
                      └─► anything in doubt ──► Response with the error, and no tokens

It depends only on records, times included, so every writer writes the same bytes. Doubtful data is not trained on: a
run that did not complete, one of two answers, calls by several versions, tokens that do not fit. An environment's
result of an action comes with its next observation: with the next call, or with the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from schemas.events import (
    Branch,
    FinishReason,
    Observed,
    Response,
    ResponseTurn,
    Sampling,
    TrajectoryEvent,
    Turn,
    derive_id,
)
from schemas.tokens import Logprobs, LossMask, TokenIds
from streams.stages.agents.trajectories.fold import CallChain, Trajectory
from streams.stages.agents.trajectories.tool_results import results_of

UNANSWERED = -1
"""The version for a run that made no call and was not pinned."""
NAME_IT = "Print the answer, name it at the end of the run, or set which counts (`agents run --answer`)"
"""What to do about a doubtful answer."""
ENDED = "ended"
"""Key in the metadata of an environment's response: why it ended, e.g. because it had its max_turns."""


def missing(trajectory: Trajectory, ended: TrajectoryEvent) -> list[int]:
    """Return the numbers of missing turns that were recorded before the end."""
    numbers = {step.turn.number for step in trajectory.steps}
    return [number for number in range(ended.turns or 0) if number not in numbers]


def response_of(trajectory: Trajectory, ended: TrajectoryEvent, unusable: str | None = None) -> Response:
    """Return the run's response to its task; a failed one if it is `unusable`, which is the reason. Raises ValueError
    if the run has no task, has not ended, or lacks turns: the caller has to read further.
    """
    if ended.sampling_id is None or ended.slot is None or ended.group_size is None or ended.kind != "ended":
        raise ValueError(f"trajectory {ended.trajectory_id} is not that of a task, or has not ended: it is no response")
    if lost := missing(trajectory, ended):
        raise ValueError(
            f"trajectory {ended.trajectory_id} has {ended.turns} turns, and {lost[0]} is not among those given "
            f"({len(lost)} are missing). Read its partition of `turns` to the end first"
        )
    error = _error(trajectory, ended) if unusable is None else unusable
    chains = trajectory.chains if error is None else ()
    turns = [turn for chain in trajectory.chains for turn in chain.turns] or [step.turn for step in trajectory.steps]
    first = turns[0] if turns else None
    free = next((turn for turn in turns if turn.constraint is None), first)
    parts = [_parts(chain) for chain in chains]
    prompt, completion, logprobs, mask = _conversation(chains[0]) if chains else (b"", b"", b"", b"")
    version = ended.adapter_version if first is None else first.adapter_version
    return Response(
        response_id=derive_id(ended.sampling_id, ended.slot),
        sampling_id=ended.sampling_id,
        task_id=ended.task_id,
        created_at=ended.created_at,
        traceparent=ended.traceparent,
        metadata={**ended.metadata, "purpose": ended.purpose}
        | ({} if ended.observed is None else {ENDED: ended.reason}),
        subject=ended.subject,
        policy=ended.policy,
        slot=ended.slot,
        group_size=ended.group_size,
        adapter_version=UNANSWERED if version is None else version,
        trained_batches=None if first is None else first.trained_batches,
        base_digest="" if first is None else first.base_digest,
        tokenizer_digest="" if first is None else first.tokenizer_digest,
        engine="" if first is None else first.engine,
        finish_reason=_finish(chains[0].turns[-1]) if chains else "error",
        error=error,
        prompt_tokens=len(prompt) // TokenIds.BYTES,
        completion_tokens=sum(LossMask(part[2]).trained_tokens for part in parts),
        latency_ms=float(max(0, ended.created_at - min((turn.started_at for turn in turns), default=ended.created_at))),
        text=chains[0].turns[-1].reply.content if chains else "",
        sampling=ended.sampling or Sampling() if free is None else free.sampling,
        agent_id=ended.agent_id,
        steps=trajectory.calls_in_chains,
        success=ended.success,
        prompt_version=_prompt_version(turns, ended),
        program=ended.program,
        prompt_token_ids=TokenIds(prompt),
        completion_token_ids=TokenIds(completion),
        logprobs=Logprobs(logprobs),
        loss_mask=LossMask(mask),
        branches=tuple(_branch(chain) for chain in chains[1:]),
        turns=_turns(chains, ended.observed),
    )


def _turns(chains: Sequence[CallChain], last: Observed | None) -> tuple[ResponseTurn, ...]:
    """Return the calls in the order of the log, each with its place in the chain that owns it.

    An action's result is in the next call that has its environment's observation, that of a tool's call in the messages
    of a later one.
    """
    placed = [entry for number, chain in enumerate(chains) for entry in _places(number, chain)]
    placed.sort(key=lambda entry: entry[0].number)
    sent = {call_id: ok for turn, *_ in reversed(placed) for call_id, ok in results_of(turn).items()}
    turns: list[ResponseTurn] = []
    after = last
    for turn, chain, start in reversed(placed):
        before = turn.observed
        tool, ok, reward = _result_of(turn, after, sent)
        turns.append(
            ResponseTurn(
                number=turn.number,
                chain=chain,
                start=start,
                end=start + len(turn.completion_token_ids),
                observation=None if before is None else before.digest,
                tool=tool,
                ok=ok,
                reward=reward,
            )
        )
        after = before or after
    return tuple(reversed(turns))


def _result_of(
    turn: Turn, after: Observed | None, sent: Mapping[str, bool]
) -> tuple[str | None, bool | None, float | None]:
    """Return the tool that a turn called, whether that succeeded, and the reward for it. Of several calls without an
    environment the first one names the tool, and all have to succeed; `sent`: by the id of a call, whether it did.
    """
    if turn.observed is not None:
        return (None, None, None) if after is None else (after.tool, after.ok, after.reward)
    calls = turn.reply.tool_calls
    results = [sent.get(call.id) for call in calls]
    return (calls[0].name, None if None in results else all(results), None) if calls else (None, None, None)


def _places(number: int, chain: CallChain) -> Iterator[tuple[Turn, int, int]]:
    """Yield each call that a chain owns, the chain's number, and where its answer begins in the chain's completion."""
    start = 0 if number else -len(chain.turns[0].prompt_token_ids)  # the response's own completion follows its prompt
    for turn in chain.turns[chain.shared :]:
        start += len(turn.prompt_token_ids)
        yield turn, number, start
        start += len(turn.completion_token_ids)


def _error(trajectory: Trajectory, ended: TrajectoryEvent) -> str | None:
    """Return why this run is not trained on, or None."""
    if ended.ending != "completed":
        return f"{ended.ending}: {ended.reason}"
    for step in trajectory.steps:
        if step.left_out in ("broken", "conflict"):
            return f"{step.left_out}: turn {step.turn.number} cannot be relied on: {step.reason}"
    if not trajectory.chains:
        return f"no_answer: {trajectory}"
    if trajectory.doubt is not None:
        return f"doubtful_answer: {trajectory.doubt}. {NAME_IT}"
    turns = [step.turn for step in trajectory.steps if step.chain is not None]
    if len(trajectory.versions) > 1:
        return f"mixed_versions: it was answered by versions {', '.join(map(str, trajectory.versions))}"
    if len({(turn.base_digest, turn.tokenizer_digest, turn.template_digest) for turn in turns}) > 1:
        return "mixed_models: base model, tokenizer or template changed between its calls"
    if len({(turn.sampling.temperature, turn.sampling.top_p) for turn in turns if turn.constraint is None}) > 1:
        return "mixed_sampling: temperature or top_p changed between its calls"
    if len(prompts := {turn.prompt_version for turn in turns}) > 1:
        names = ", ".join(sorted(prompt or "none" for prompt in prompts))
        return f"mixed_prompts: its calls began with different versions of a prompt: {names}"
    return None


def _prompt_version(turns: Sequence[Turn], ended: TrajectoryEvent) -> str | None:
    """Return the prompt version of a run: the pinned one, else that of its calls."""
    return ended.prompt_version or (turns[0].prompt_version if turns else None)


def _finish(turn: Turn) -> FinishReason:
    return "length" if turn.finish_reason == "length" else "stop"


Parts = tuple[bytes, bytes, bytes]
"""Token ids, logprobs and mask of the same tokens."""


def _conversation(chain: CallChain) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the prompt of the first call, and what followed it: token ids, logprobs, mask."""
    prompt = chain.turns[0].prompt_token_ids
    ids, logprobs, mask = _parts(chain)
    cut = len(prompt)
    return prompt.data, ids[cut * TokenIds.BYTES :], logprobs[cut * Logprobs.BYTES :], mask[cut * LossMask.BYTES :]


def _parts(chain: CallChain) -> Parts:
    """Return the tokens of the calls that only this chain has."""
    return _join(_of_turn(turn) for turn in chain.turns[chain.shared :])


def _of_turn(turn: Turn) -> Parts:
    """Return the tokens that a turn adds: its input, which the policy did not write, and its answer. An answer of a
    forced form was drawn from the part of the policy's distribution that the form allows. Its logprobs, which are the
    policy's, are not those of that draw: a gradient along them would teach the policy what the form decided.
    """
    prompt, answer = turn.prompt_token_ids, turn.completion_token_ids
    free = turn.constraint is None
    return (
        prompt.data + answer.data,
        bytes(len(prompt) * Logprobs.BYTES) + (turn.logprobs.data if free else bytes(len(answer) * Logprobs.BYTES)),
        bytes(len(prompt)) + (b"\1" if free else b"\0") * len(answer),
    )


def _join(parts: Iterable[Parts]) -> Parts:
    def column(number: int) -> Iterator[bytes]:
        return (part[number] for part in columns)

    columns = list(parts)
    return b"".join(column(0)), b"".join(column(1)), b"".join(column(2))


def _branch(chain: CallChain) -> Branch:
    ids, logprobs, mask = _parts(chain)
    shared = chain.turns[: chain.shared]
    return Branch(
        continuity=chain.continuity,
        reason=chain.reason,
        leaves=chain.leaves,
        shared_tokens=sum(len(turn.prompt_token_ids) + len(turn.completion_token_ids) for turn in shared),
        finish_reason=_finish(chain.turns[-1]),
        completion_token_ids=TokenIds(ids),
        logprobs=Logprobs(logprobs),
        loss_mask=LossMask(mask),
    )
