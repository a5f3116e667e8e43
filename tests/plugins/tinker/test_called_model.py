"""Models that calls train: sums, accumulation, AdamW's parameters, files, and many of them on one base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor

from plugins.tinker.calls.call_forms import adam_of
from plugins.tinker.calls.loss_graph import loss_graph_of
from plugins.tinker.worker.called_model import CalledModel, CalledState, LossExample
from plugins.tinker.worker.custom_loss import CustomLoss
from schemas.events import CallAdam, CallLora
from streams.engines.base_model import Base
from streams.errors import CallError
from streams.settings.model import Settings
from tests.support.models.chat_tiny import chat_base
from tests.support.models.tiny import tiny_model

pytestmark = pytest.mark.usefixtures("torch_as_before")

SHAPE, SEED = CallLora(rank=4), 7


def step_of(**parameters: float) -> CallAdam:
    return adam_of(parameters)


STEP = step_of(learning_rate=1e-2)


def model(base: Base | None = None) -> CalledModel:
    return CalledModel(Settings(), base or chat_base())


def entered(lora: CallLora = SHAPE, *, moved: bool = True) -> tuple[CalledModel, CalledState]:
    """A model in its only state, whose B is not 0 if it is `moved`."""
    called = model()
    state = called.fresh(lora, SEED)
    called.enter(state)
    if moved:
        move(state)
    return called, state


def move(state: CalledState, seed: int = 3) -> None:
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in state.parameters.values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))


def example(seed: int, tokens: int = 12, width: int | None = None, *, prompt: int = 5) -> LossExample:
    """An example for cross_entropy, which begins as all others do."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.cat([torch.arange(10, 10 + prompt), torch.randint(4, 60, (tokens - prompt,), generator=draw)])
    shape = (tokens,) if width is None else (tokens, width)
    targets = torch.randint(4, 60, shape, generator=draw)
    weights = torch.rand(shape, generator=draw)
    weights[:prompt] = 0.0
    return LossExample(ids, {"target_tokens": targets, "weights": weights})


def gradient(state: CalledState) -> list[Tensor]:
    return [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in state.parameters.values()]


def weights(state: CalledState) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in state.parameters.values()]


def close(some: Sequence[Tensor], others: Sequence[Tensor], tolerance: float = 1e-5) -> bool:
    """Whether they are equal to `tolerance` of the largest number of each."""
    return all(
        (one - other).abs().max() <= tolerance * max(1.0, other.abs().max())
        for one, other in zip(some, others, strict=True)
    )


def same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


# --- forward and backward ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [None, 3])
def test_logprobs_and_gradient_are_those_of_plain_passes_of_each_example(width: int | None, tmp_path: Path) -> None:
    """The second implementation: peft's own model from our files, a pass an example, autograd through log_softmax."""
    called, state = entered()
    examples = [example(seed, tokens, width) for seed, tokens in ((0, 12), (1, 9), (2, 14))]
    passed = called.forward_backward(examples, "cross_entropy")
    called.save(tmp_path, optimizer=False)

    peer = PeftModel.from_pretrained(tiny_model(), tmp_path, is_trainable=True)
    total = torch.zeros(())
    for each, output in zip(examples, passed.outputs, strict=True):
        targets = each.inputs["target_tokens"].view(len(each.tokens), -1)
        logits = peer(input_ids=each.tokens[None]).logits[0].float()
        logp = logits.log_softmax(-1).gather(1, targets).view(each.inputs["target_tokens"].shape)
        assert output["logprobs"].dtype == torch.float32
        assert torch.allclose(output["logprobs"], logp, atol=1e-5)
        total = total - (logp * each.inputs["weights"]).sum()
    total.backward()
    assert passed.metrics["loss:sum"] == pytest.approx(total.item(), rel=1e-5)
    of_peer = {
        name.replace(".default", ""): parameter.grad
        for name, parameter in peer.named_parameters()
        if parameter.requires_grad
    }
    assert set(of_peer) == set(state.parameters)
    for name, parameter in state.parameters.items():
        assert parameter.grad is not None
        assert close([parameter.grad], [of_peer[name]]), name


def test_forward_gives_the_same_logprobs_and_no_gradient() -> None:
    called, state = entered()
    examples = [example(seed) for seed in range(3)]
    forward = called.forward_backward(examples, "cross_entropy", backward=False)
    assert not state.has_gradient()
    both = called.forward_backward(examples, "cross_entropy")
    assert state.has_gradient()
    assert same([out["logprobs"] for out in forward.outputs], [out["logprobs"] for out in both.outputs])
    assert forward.metrics == both.metrics


def test_gradients_of_two_calls_add_up_to_that_of_one() -> None:
    called, state = entered()
    examples = [example(seed) for seed in range(4)]
    called.forward_backward(examples, "cross_entropy")
    of_one = gradient(state)
    called.optim_step(step_of(learning_rate=0.0))
    assert not state.has_gradient()
    called.forward_backward(examples[:1], "cross_entropy")
    called.forward_backward(examples[1:], "cross_entropy")
    assert close(gradient(state), of_one)


def test_a_long_batch_is_run_in_parts_that_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    called, state = entered()
    examples = [example(seed) for seed in range(4)]
    whole = called.forward_backward(examples, "cross_entropy")
    of_whole = gradient(state)
    called.optim_step(step_of(learning_rate=0.0))
    monkeypatch.setattr("plugins.tinker.worker.called_model.MICRO_TOKENS", 15)
    parts = called.forward_backward(examples, "cross_entropy")
    assert close(gradient(state), of_whole)
    assert close([out["logprobs"] for out in parts.outputs], [out["logprobs"] for out in whole.outputs])


def test_a_model_that_cannot_share_prefixes_gives_the_same() -> None:
    called, state = entered()
    examples = [example(0, 12), example(1, 9), example(2, 10, 3)]
    shared = called.forward_backward(examples, "cross_entropy")
    of_shared = gradient(state)
    called.optim_step(step_of(learning_rate=0.0))
    called.plain_because = "the test says so"
    plain = called.forward_backward(examples, "cross_entropy")
    assert close([out["logprobs"] for out in plain.outputs], [out["logprobs"] for out in shared.outputs])
    assert close(gradient(state), of_shared)


def test_a_call_that_fails_leaves_the_gradient_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    called, state = entered()
    called.forward_backward([example(0)], "cross_entropy")
    before = gradient(state)
    broken = LossExample(torch.arange(5), {"target_tokens": torch.tensor([1, 2, 3, 4, 99])})
    with pytest.raises(CallError, match="token 99 is not in the vocabulary") as error:
        called.forward_backward([example(1), broken], "cross_entropy")
    assert error.value.parameter == "data[1].target_tokens"
    monkeypatch.setattr("plugins.tinker.worker.called_model.MICRO_TOKENS", 12)  # a part an example
    with pytest.raises(CallError, match="make more than"):  # found while the second part is computed
        called.forward_backward([example(1), example(2)], _Failing())
    assert same(gradient(state), before)


class _Failing(CustomLoss):
    """Fails at its second example."""

    def __init__(self) -> None:
        nodes = [
            {"op": "placeholder", "name": "logprobs", "target": "logprobs"},
            {"op": "call_method", "name": "loss", "target": "sum", "args": [{"ref": "logprobs"}]},
            {"op": "output", "name": "output", "target": "output", "args": [[{"ref": "loss"}, {"dict": {}}]]},
        ]
        super().__init__(loss_graph_of("failing", [{"name": "logprobs", "rank": 1}], {"nodes": nodes}))
        self.calls = 0

    def __call__(self, logp: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        self.calls += 1
        if self.calls == 2:
            raise CallError("too_large", "its operations make more than can be")
        return super().__call__(logp, inputs)


@pytest.mark.parametrize(
    ("loss", "changes", "said"),
    [
        ("ppo", {}, "logprobs is missing, which loss 'ppo' reads"),
        ("cross_entropy", {"target_tokens": torch.ones(12)}, "target_tokens are float32, expected int64"),
        ("cross_entropy", {"weights": torch.ones(11)}, r"weights has shape \[11\], expected \[12\]"),
        ("reinforce", {}, "there is no loss 'reinforce' here"),
        ("gspo", {"sequence_ratio_mask": torch.zeros(12)}, "sequence_ratio_mask marks no token"),
        ("stable_reinforce", {}, "a token that was not sampled has an advantage"),
    ],
)
def test_examples_that_a_loss_cannot_read_are_the_callers_mistake(
    loss: str, changes: dict[str, Tensor], said: str
) -> None:
    called, _ = entered()
    inputs = dict(example(0).inputs)
    if loss in ("gspo", "stable_reinforce"):
        inputs = {name: torch.ones(12) for name in ("logprobs", "advantages")} | {
            "target_tokens": inputs["target_tokens"]
        }
    sampled = torch.arange(12) > 4 if loss == "stable_reinforce" else None
    with pytest.raises(CallError, match=said):
        called.forward_backward([LossExample(example(0).tokens, inputs | changes, sampled)], loss)


def test_an_example_longer_than_the_context_is_refused() -> None:
    called, _ = entered()
    with pytest.raises(CallError, match="has 257 tokens, and the model takes at most 256"):
        called.forward_backward([example(0, 257)], "cross_entropy")


# --- steps ------------------------------------------------------------------------------------------------------------


def test_steps_are_those_of_adamw_with_the_parameters_of_each() -> None:
    """The second implementation: Adam's formula by hand, arXiv:1711.05101 algorithm 2, in float64."""
    called, state = entered()
    steps = [
        step_of(learning_rate=1e-2, beta1=0.8, beta2=0.9, eps=1e-8, weight_decay=0.1, grad_clip_norm=0.5),
        step_of(learning_rate=3e-3, weight_decay=0.2),
        step_of(learning_rate=1e-3, grad_clip_norm=1e6),
    ]
    expected = [each.double() for each in weights(state)]
    first, second = ([torch.zeros_like(each) for each in expected] for _ in range(2))
    for number, step in enumerate(steps, 1):
        called.forward_backward([example(number)], "cross_entropy")
        grads = [each.double() for each in gradient(state)]
        norm = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()
        if 0 < step.grad_clip_norm < norm:
            grads = [grad * step.grad_clip_norm / norm for grad in grads]
        for at, grad in enumerate(grads):
            expected[at] *= 1 - step.learning_rate * step.weight_decay
            first[at] = step.beta1 * first[at] + (1 - step.beta1) * grad
            second[at] = step.beta2 * second[at] + (1 - step.beta2) * grad.square()
            mean = first[at] / (1 - step.beta1**number)
            spread = (second[at] / (1 - step.beta2**number)).sqrt()
            expected[at] -= step.learning_rate * mean / (spread + step.eps)
        metrics = called.optim_step(step)
        assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
        assert close([each.float() for each in expected], weights(state), 1e-5)


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_cleared() -> None:
    called, state = entered()
    called.forward_backward([example(0)], "cross_entropy")
    called.optim_step(STEP)
    before = weights(state)
    called.forward_backward([example(1)], "cross_entropy")
    weight = next(iter(state.parameters.values()))
    weight.grad = torch.full_like(weight, float("nan"))
    assert called.optim_step(STEP)["skipped"] == 1.0
    assert same(weights(state), before)
    assert not state.has_gradient()


# --- states -----------------------------------------------------------------------------------------------------------


def test_a_fresh_model_answers_as_the_base_and_is_drawn_from_its_seed() -> None:
    called, state = entered(moved=False)
    tokens = example(0).tokens
    targets = example(0).inputs["target_tokens"]
    passed = called.forward_backward([example(0)], "cross_entropy", backward=False)
    logits = tiny_model()(input_ids=tokens[None]).logits[0].log_softmax(-1)
    assert torch.allclose(passed.outputs[0]["logprobs"], logits.gather(1, targets[:, None])[:, 0], atol=1e-5)
    assert called.fresh(SHAPE, SEED).digest() == state.digest()
    assert called.fresh(SHAPE, SEED + 1).digest() != state.digest()


def test_many_models_on_one_base_have_the_bytes_that_each_has_alone() -> None:
    """Two of one shape, one of another rank and one without MLP take turns in the middle of their steps."""
    shapes = [
        (SHAPE, SEED),
        (SHAPE, 8),
        (CallLora(rank=2), SEED),
        (CallLora(rank=4, train_mlp=False), SEED),
    ]

    def train(called: CalledModel, states: Sequence[CalledState]) -> list[str]:
        for number in range(2):
            for half in range(2):
                for state in states:
                    called.enter(state)
                    called.forward_backward([example(10 * number + half)], "cross_entropy")
            for state in states:
                called.enter(state)
                called.optim_step(STEP)
        return [state.digest() for state in states]

    shared = model()
    together = train(shared, [shared.fresh(*shape) for shape in shapes])
    alone = []
    for shape in shapes:
        own = model()
        alone += train(own, [own.fresh(*shape)])
    assert together == alone
    assert len(set(together)) == len(shapes)


def test_a_new_shape_does_not_disturb_the_model_that_is_in_training() -> None:
    called, state = entered()
    before = called.forward_backward([example(0)], "cross_entropy", backward=False).outputs
    called.fresh(CallLora(rank=2, train_attn=False), SEED)
    after = called.forward_backward([example(0)], "cross_entropy").outputs
    assert same([out["logprobs"] for out in before], [out["logprobs"] for out in after])
    assert state.has_gradient()


@pytest.mark.parametrize(
    ("shape", "layers"),
    [
        (SHAPE, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        (CallLora(rank=4, train_mlp=False), {"q_proj", "k_proj", "v_proj", "o_proj"}),
        (CallLora(rank=4, train_attn=False), {"gate_proj", "up_proj", "down_proj"}),
    ],
)
def test_only_the_layers_that_the_call_names_are_trained(shape: CallLora, layers: set[str]) -> None:
    _, state = entered(shape)
    assert {name.split(".")[-3] for name in state.parameters} == layers


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_state_that_was_saved_in_the_middle_of_a_step_ends_with_the_same_bytes(tmp_path: Path) -> None:
    called, state = entered()
    called.forward_backward([example(0)], "cross_entropy")
    called.optim_step(STEP)
    called.forward_backward([example(1)], "cross_entropy")
    called.save(tmp_path, optimizer=True, gradient=True)

    def finish(called: CalledModel, state: CalledState) -> str:
        called.forward_backward([example(2)], "cross_entropy")
        called.optim_step(STEP)
        return state.digest()

    undisturbed = finish(called, state)
    other = model()
    loaded = other.fresh(SHAPE, 99)
    other.enter(loaded)
    other.load(tmp_path, optimizer=True, gradient=True)
    assert finish(other, loaded) == undisturbed


def test_weights_without_the_optimizer_begin_with_a_fresh_one(tmp_path: Path) -> None:
    called, state = entered()
    called.forward_backward([example(0)], "cross_entropy")
    called.optim_step(STEP)
    called.save(tmp_path, optimizer=False)
    assert not (tmp_path / "optimizer.safetensors").exists()
    with pytest.raises(CallError, match="saved without the optimizer's state"):
        called.load(tmp_path, optimizer=True)
    called.load(tmp_path, optimizer=False)
    assert not state.optimizer.state


def test_the_file_is_the_digest_and_says_its_shape(tmp_path: Path) -> None:
    import hashlib

    called, state = entered()
    called.save(tmp_path, optimizer=False)
    content = (tmp_path / "adapter_model.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == state.digest()
    assert set(load_file(tmp_path / "adapter_model.safetensors")) == set(state.parameters)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (CallLora(rank=8), "these weights have r=4, but this model was created with 8"),
        (CallLora(rank=4, train_mlp=False), "of other layers than this model trains"),
    ],
)
def test_weights_of_another_shape_are_refused(shape: CallLora, said: str, tmp_path: Path) -> None:
    called, _ = entered()
    called.save(tmp_path, optimizer=False)
    called.enter(called.fresh(shape, SEED))
    with pytest.raises(CallError, match=said):
        called.load(tmp_path, optimizer=False)
