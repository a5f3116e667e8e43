"""Custom losses of the Tinker API: as the SDK runs them, what of a graph is refused, and bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plugins.tinker.calls.loss_graph import MAX_NODES, loss_graph_of
from plugins.tinker.worker.called_model import CalledModel, LossExample
from plugins.tinker.worker.custom_loss import CustomLoss
from schemas.events import CallLora
from streams.errors import CallError
from streams.settings.model import Settings
from tests.support.models.chat_tiny import chat_base

pytestmark = pytest.mark.usefixtures("torch_as_before")

RECORDED = json.loads((Path(__file__).parent / "strangers" / "custom_losses.json").read_text())
"""Written by tests/plugins/tinker/strangers/custom_losses.py with the SDK itself."""


def node(op: str, name: str, target: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"op": op, "name": name, "target": target, "args": list(args), "kwargs": kwargs}


def ref(name: str) -> dict[str, str]:
    return {"ref": name}


LOGPROBS = node("placeholder", "logprobs", "logprobs")


def output(loss: str, **metrics: str) -> dict[str, Any]:
    named = {f"custom/{name}:sum": ref(metric) for name, metric in metrics.items()}
    return node("output", "output", "output", {"tuple": [ref(loss), {"dict": named}]})


def graph_of(*nodes: dict[str, Any], inputs: tuple[str, ...] = ("logprobs",)) -> CustomLoss:
    """A loss of these nodes, whose last one is the loss unless an output is among them."""
    first = [node("placeholder", name, name) for name in inputs]
    last = [] if nodes and nodes[-1]["op"] == "output" else [output(nodes[-1]["name"])]
    declared = [{"name": name, "rank": 1} for name in inputs]
    return CustomLoss(loss_graph_of("mine", declared, {"format": 1, "nodes": [*first, *nodes, *last]}))


def call(target: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return node("call_function", "x", target, *args, **kwargs)


SUM = node("call_method", "loss", "sum", ref("x"))


def run(*nodes: dict[str, Any], tokens: int = 4) -> tuple[Tensor, dict[str, float]]:
    return graph_of(*nodes)(torch.zeros(tokens, requires_grad=True), {})


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["name"])
def test_a_loss_gives_what_the_sdk_gives_on_the_client(recorded: dict[str, Any]) -> None:
    loss = CustomLoss(loss_graph_of(recorded["name"], recorded["inputs"], recorded["graph"]))
    total, sums = 0.0, dict.fromkeys(recorded["metrics"], 0.0)
    for example, gradient in zip(recorded["examples"], recorded["gradients"], strict=True):
        tensors = {name: torch.tensor(value) for name, value in example.items()}
        logp = tensors.pop("logprobs").requires_grad_()
        value, metrics = loss(logp, tensors)
        value.backward()
        total += value.item()
        sums = {name: sums[name] + metrics[name] for name in sums}
        assert logp.grad is not None
        assert torch.allclose(logp.grad, torch.tensor(gradient), rtol=1e-5, atol=1e-5)
    assert total == pytest.approx(recorded["loss"], rel=1e-5)
    means = {name: value / (len(recorded["examples"]) if name.endswith(":mean") else 1) for name, value in sums.items()}
    assert means == pytest.approx(recorded["metrics"], rel=1e-5, abs=1e-6)


def test_a_model_is_trained_by_a_custom_loss_as_by_the_same_loss_built_in() -> None:
    """- sum of weights times logprobs, written as a graph."""
    called = CalledModel(Settings(), chat_base())
    state = called.fresh(CallLora(rank=4), 1)
    called.enter(state)
    weights = torch.tensor([0.0, 0.5, 1.0, 2.0])
    inputs = {"target_tokens": torch.tensor([5, 6, 7, 8]), "weights": weights}
    example = LossExample(torch.tensor([4, 5, 6, 7]), inputs)
    built_in = called.forward_backward([example, example], "cross_entropy")
    expected = [parameter.grad for parameter in state.parameters.values()]
    for parameter in state.parameters.values():
        parameter.grad = None
    graph = graph_of(
        call("operator.mul", ref("logprobs"), ref("weights")),
        SUM,
        node("call_function", "negative", "operator.neg", ref("loss")),
        node("call_method", "count", "sum", ref("weights")),
        output("negative", weight="count"),
        inputs=("logprobs", "weights"),
    )
    passed = called.forward_backward([example, example], graph)
    assert passed.metrics == {
        "loss:sum": pytest.approx(built_in.metrics["loss:sum"], rel=1e-6),
        "custom/weight:sum": pytest.approx(7.0),
    }
    for gradient, parameter in zip(expected, state.parameters.values(), strict=True):
        assert gradient is not None and parameter.grad is not None
        assert torch.allclose(gradient, parameter.grad, atol=1e-5)


def test_inputs_are_not_changed_by_a_loss_that_adds_to_them() -> None:
    graph = graph_of(
        call("operator.iadd", ref("weights"), 1.0),
        node("call_function", "y", "operator.mul", ref("x"), ref("logprobs")),
        node("call_method", "loss", "sum", ref("y")),
        inputs=("logprobs", "weights"),
    )
    weights = torch.ones(3)
    loss, _ = graph(torch.ones(3, requires_grad=True), {"weights": weights})
    assert loss.item() == 6.0
    assert weights.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([call("torch.rand", 3)], "calls the function 'torch.rand'"),
        ([call("torch.load", "/etc/passwd")], "calls the function 'torch.load'"),
        ([call("operator.methodcaller", "x")], "calls the function 'operator.methodcaller'"),
        ([call("builtins.eval", "1")], "calls the function 'builtins.eval'"),
        ([node("call_method", "x", "add_", ref("logprobs"), 1)], "calls the method 'add_'"),
        ([node("call_method", "x", "__class__", ref("logprobs"))], "calls the method '__class__'"),
        ([node("call_method", "x", "numpy", ref("logprobs"))], "calls the method 'numpy'"),
        ([call("getattr", ref("logprobs"), "grad_fn")], "reads the attribute 'grad_fn'; those offered are T, device"),
        ([node("get_attr", "x", "_tensor_constant0")], "it uses get_attr of '_tensor_constant0'"),
        ([node("call_module", "x", "layer")], "it uses call_module of 'layer'"),
        ([call("torch.add", ref("logprobs"), 1, out=ref("logprobs"))], "it passes 'out'"),
        ([call("torch.exp", ref("later"))], "refers to 'later', which is no node before it"),
        ([call("torch.exp", {"code": "x"})], "an argument is of kind 'code'"),
        ([call("torch.exp", {"a": 1, "b": 2})], "neither a value, a list nor an object with one key"),
        ([call("torch.exp", 2**70)], r"expected less than 2\^63"),
        ([call("torch.exp", [[[[[[[[[[1]]]]]]]]]])], "nested more than 8 deep"),
        ([call("torch.stack", [0] * 10_001)], "more than 10000 values"),
        ([call("torch.zeros_like", ref("logprobs"), dtype={"dtype": "complex64"})], "dtype 'complex64'"),
        ([node("call_method", "x", "exp", ref("logprobs"))] * 2, "two nodes are called 'x'"),
        ([node("placeholder", "other", "other"), SUM], r"the graph takes \['logprobs', 'other'\]"),
        ([output("logprobs"), SUM], "does not end with its one output"),
        ([node("output", "output", "output", ref("logprobs"))], r"must return \(loss, metrics\)"),
        (
            [node("output", "output", "output", {"tuple": [ref("logprobs"), {"dict": {"loss:sum": ref("logprobs")}}]})],
            "the metric 'loss:sum' must be called custom/<name>:sum",
        ),
    ],
)
def test_a_graph_with_anything_else_is_refused_by_its_name(nodes: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(CallError, match=said) as error:
        graph_of(*nodes)
    assert str(error.value).startswith("custom loss 'mine': ")
    assert (error.value.parameter or "").startswith("graph.nodes")


def test_a_graph_of_too_many_nodes_is_refused() -> None:
    nodes = [node("call_method", f"x{number}", "exp", ref("logprobs")) for number in range(MAX_NODES)]
    with pytest.raises(CallError, match="the graph has 502 nodes, expected at most 500"):
        graph_of(*nodes)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([], "expected logprobs first"),
        ([{"name": "a", "rank": 1}], "expected logprobs first"),
        ([{"name": "logprobs", "rank": 0}], "logprobs has rank 0"),
        ([{"name": "logprobs", "rank": 3}], "logprobs has rank 3"),
        ([{"name": "logprobs", "rank": 1}, {"name": "A", "rank": 1}], "an input is called 'A'"),
    ],
)
def test_inputs_are_named_and_ranked_as_the_sdk_does(inputs: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(CallError, match=said):
        loss_graph_of("mine", inputs, {"nodes": [LOGPROBS, output("logprobs")]})


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([call("torch.zeros", [10**6, 10**6]), SUM], "make more than 67108864 numbers"),
        ([call("torch.arange", 10**12), SUM], "make more than 67108864 numbers"),
        ([call("torch.full", [10**9], 1.0), SUM], "make more than 67108864 numbers"),
        ([node("call_method", "x", "repeat", ref("logprobs"), 10**9), SUM], "make more than 67108864 numbers"),
        ([node("call_method", "x", "expand", ref("logprobs"), 10**9, 4), SUM], "make more than 67108864 numbers"),
        ([node("call_method", "x", "new_zeros", ref("logprobs"), [10**9]), SUM], "make more than 67108864 numbers"),
        ([call("operator.mul", [1], 10**9), SUM], "an operator takes tensors and numbers"),
        ([call("operator.mul", "a", 10**9), SUM], "an operator takes tensors and numbers"),
        ([call("operator.pow", 10, 10**9), SUM], "the exponent 1000000000 of an integer"),
        ([call("operator.pow", 10, 40), SUM], "an integer of 2.63 or more"),
        ([call("torch.add", ref("logprobs"), "a"), SUM], "node 'x' .torch.add. failed"),
        ([call("operator.getitem", ref("logprobs"), 9), SUM], "node 'x' .operator.getitem. failed: index 9"),
        ([call("math.exp", 1e9), SUM], "node 'x' .math.exp. failed: math range error"),
        ([call("getattr", 3, "shape"), SUM], "the attribute shape of something that is no tensor"),
        ([node("call_method", "x", "sum", 3), SUM], "the method sum of something that is no tensor"),
        ([call("torch.exp", ref("logprobs"))], r"must return a scalar loss, got shape \[4\]"),
        ([node("call_method", "x", "detach", ref("logprobs")), SUM], "does not depend on the logprobs"),
        ([node("call_method", "x", "sum", ref("logprobs")), output("x", wide="logprobs")], "is no single number"),
    ],
)
def test_a_loss_that_fails_or_grows_says_where(nodes: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(CallError, match=said) as error:
        run(*nodes)
    assert error.value.parameter == "loss_fn_config.loss_id"


def test_a_loss_that_doubles_again_and_again_is_stopped() -> None:
    nodes = [call("torch.cat", [ref("logprobs"), ref("logprobs")])]
    for number in range(60):
        before = nodes[-1]["name"]
        nodes.append(node("call_function", f"x{number}", "torch.cat", [ref(before), ref(before)]))
    with pytest.raises(CallError, match="make more than 67108864 numbers"):
        run(*nodes, node("call_method", "loss", "sum", ref(nodes[-1]["name"])))
