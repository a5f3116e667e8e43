"""Engines begin a fork with its recorded tokens, and not with its messages; a fork after another prompt is rendered."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from schemas.events import ForkPoint, PromptUse, Task
from schemas.tokens import TokenIds
from streams.engines.base_model import load_base
from streams.engines.local.transformers_engine import TransformersEngine
from streams.engines.protocol import Engine, SamplingRequest
from streams.engines.vllm.vllm_engine import VllmEngine
from streams.settings.load import load
from streams.tools.forks.forked_task import ForkOrder, fork
from tests.plugins.fork.test_fork import moments
from tests.support.agent_calls import system, user
from tests.support.factories import task
from tests.support.models.tiny import save_tiny
from tests.support.vllm.contract import Replay
from tests.support.vllm.replayed import PLAIN, files, impatient, server, start

__all__ = ["files", "impatient", "server", "start"]


def forked(asked: Task, engine: Engine, tokens: list[int]) -> Task:
    """Return a task with other messages, which is to begin with these tokens."""
    point = ForkPoint(
        task_id="t",
        trajectory_id="r",
        turn=1,
        mode="continue",
        tokenizer_digest=engine.tokenizer_digest,
        messages_digest="",
        recorded_tokens=len(tokens),
        token_ids=TokenIds.of(tokens),
    )
    return replace(asked, messages=(user("1 1 1 1"),), fork=point)


def test_weights_on_this_machine_continue_the_recorded_tokens(tmp_path: Path) -> None:
    settings = load(env={}, overrides=[f"model.base={save_tiny(tmp_path / 'tiny')}", "policy.name=default"])
    tokens = [1, 9, 8, 7, 9, 8]  # no rendering: the template ends with another token
    with closing(TransformersEngine(load_base(settings.model))) as engine:
        asked = forked(task(group_size=2), engine, tokens)
        (slots,) = engine.sample([SamplingRequest(sampling_id="s", task=asked)])
        assert [(list(slot.prompt_token_ids), slot.error) for slot in slots] == [(tokens, None)] * 2
        assert all(len(slot.completion_token_ids) == len(slot.logprobs) > 0 for slot in slots)
        assert asked.fork is not None
        other = replace(asked, fork=replace(asked.fork, tokenizer_digest="other"))
        (refused, *_) = engine.sample([SamplingRequest(sampling_id="s", task=other)])[0]
        assert refused.error is not None and "tokens are of another tokenizer" in refused.error


def test_vllm_is_sent_the_recorded_tokens(server: Replay, start: Callable[..., VllmEngine]) -> None:
    engine = start(server)
    (plain,) = engine.sample([PLAIN])
    asked = forked(PLAIN.task, engine, list(plain[0].prompt_token_ids))
    (again,) = engine.sample([replace(PLAIN, task=asked)])  # its recording has no answer to another prompt
    assert [slot.completion_token_ids for slot in again] == [slot.completion_token_ids for slot in plain]
    assert {slot.prompt_token_ids for slot in again} == {plain[0].prompt_token_ids} and again[0].error is None


def test_after_another_prompt_no_token_is_recorded_and_its_system_message_is_the_new_one() -> None:
    moment = next(each for each in moments() if each.key.turn == 2)
    use = PromptUse(name="terse", version=2, messages=(system("One word."),))
    made = fork(moment, ForkOrder(mode="prompt", prompt=use), now_ms=1)
    assert made.messages == (system("One word."), *moment.prompt.messages) and made.prompt_version == use
    assert made.fork is not None and not made.fork.token_ids and made.fork.recorded_tokens == 0
    assert made.fork.mode == "prompt"
