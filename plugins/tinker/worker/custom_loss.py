"""Run a custom loss of the Tinker API: its graph's nodes in order, on one example.

    LossGraph, logprobs with gradient, inputs ──► node by node ──► loss [] with gradient, metrics

As on the client (SDK: run_loss_handle): on the CPU, example by example, losses and metrics summed by the caller. What a
graph may call is decided before (loss_graph.py). Here its size is: before each operation of torch the size of its
result is computed without making it, and an example's operations may make MAX_ELEMENTS numbers in all.

Not covered: the time of the backward pass, which is about that of the forward pass.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from plugins.tinker.calls.loss_graph import LossGraph, LossNode, output_of
from streams.errors import CallError

MAX_ELEMENTS = 2**26
"""Numbers that the operations of one example may make: 256 MiB of float32."""
MAX_INT = 2**63
MAX_EXPONENT = 64
_ROOTS = {"torch": torch, "operator": operator, "math": math}
_FAILURES = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError)
"""How a wrong shape, a wrong argument and the like show in torch."""
_DATA_DEPENDENT = frozenset({"masked_select", "_local_scalar_dense"})
"""Their results have a size that only the numbers tell, and no more numbers than their first argument."""
_PRODUCTS = frozenset({"mm", "bmm", "mv", "dot", "addmm"})


class CustomLoss:
    """A loss that a session has created."""

    def __init__(self, graph: LossGraph) -> None:
        """Run `graph`, which loss_graph_of has passed."""
        self.name, self.ranks = graph.name, graph.ranks
        self._nodes = graph.nodes
        self._loss, self._metrics = output_of(graph)

    def __call__(self, logp: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of an example, [], with gradient, and its metrics.

        Raises CallError with the node at which it fails, or if the loss does not depend on the logprobs.
        """
        values: dict[str, Any] = {}
        with _Budget(self.name):
            for node in self._nodes:
                values[node.name] = self._run(node, values, logp, inputs)
        loss = values[self._loss]
        if not isinstance(loss, Tensor) or loss.ndim != 0:
            shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise self._refusal(f"it must return a scalar loss, got shape {shape}")
        if logp.requires_grad and not loss.requires_grad:
            raise self._refusal("its loss does not depend on the logprobs, so it has no gradient")
        metrics = {name: self._number(name, values[node]) for name, node in self._metrics.items()}
        return loss.to(logp.device, logp.dtype), metrics

    def _run(self, node: LossNode, values: Mapping[str, Any], logp: Tensor, inputs: Mapping[str, Tensor]) -> Any:
        if node.op == "output":
            return None
        if node.op == "placeholder":
            return logp.cpu() if node.target == "logprobs" else inputs[node.target].detach().cpu().clone()
        args = [_value(arg, values) for arg in node.args]
        kwargs = {name: _value(arg, values) for name, arg in node.kwargs.items()}
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        if node.op == "call_method" and node.target == "to":
            args[1:] = [torch.device("cpu") if isinstance(arg, str) else arg for arg in args[1:]]
        try:
            result = _callable(node, args)(*args, **kwargs)
            if isinstance(result, int) and abs(result) >= MAX_INT:
                raise OverflowError("an integer of 2^63 or more")
        except _FAILURES as exc:
            first_line = (str(exc).splitlines() or [type(exc).__name__])[0]
            raise self._refusal(f"node {node.name!r} ({node.target}) failed: {first_line}") from exc
        return result

    def _number(self, name: str, value: Any) -> float:
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise self._refusal(f"the metric {name!r} is no single number")
        return float(value.detach().item())

    def _refusal(self, problem: str) -> CallError:
        return CallError("invalid", f"custom loss {self.name!r}: {problem}", "loss_fn_config.loss_id")


class _Budget(TorchDispatchMode):  # type: ignore[misc]
    """Counts the numbers that operations make, and stops before one that would make too many."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._left = name, MAX_ELEMENTS

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._left -= _elements(func, args, kwargs)
        if self._left < 0:
            raise CallError(
                "too_large",
                f"custom loss {self._name!r}: its operations make more than {MAX_ELEMENTS} numbers for one example",
                "loss_fn_config.loss_id",
            )
        return func(*args, **kwargs)


def _elements(func: Any, args: Any, kwargs: Any) -> int:
    """Return how many numbers an operation makes, without running it; for a product of matrices, how many it adds."""
    name = func.overloadpacket.__name__
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if name in _DATA_DEPENDENT or (name == "index" and any(tensor.dtype == torch.bool for tensor in tensors[1:])):
        indices: int = sum(tensor.numel() for tensor in tensors[1:] if tensor.dtype != torch.bool)
        return int(tensors[0].numel()) * (1 + indices)
    args, kwargs = tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, device="meta"), (args, kwargs))
    if any(argument.name == "device" for argument in func._schema.arguments):
        kwargs = {**kwargs, "device": torch.device("meta")}
    count = sum(leaf.numel() for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor))
    return int(count * tensors[-1].shape[max(0, tensors[-1].ndim - 2)] if name in _PRODUCTS else count)


def _value(arg: Any, values: Mapping[str, Any]) -> Any:
    """Return an argument as Python has it."""
    if isinstance(arg, list):
        return [_value(item, values) for item in arg]
    if not isinstance(arg, dict):
        return arg
    ((kind, content),) = arg.items()
    if kind == "ref":
        return values[content]
    if kind in ("tuple", "slice"):
        parts = [_value(item, values) for item in content]
        return tuple(parts) if kind == "tuple" else slice(*parts)
    if kind == "dict":
        return {name: _value(item, values) for name, item in content.items()}
    if kind == "ellipsis":
        return ...
    if kind == "float":
        return float(content)
    return torch.device("cpu") if kind == "device" else getattr(torch, content)


def _callable(node: LossNode, args: list[Any]) -> Callable[..., Any]:
    """Return what a node calls. Raises TypeError for arguments that it is not offered with."""
    if node.op == "call_method":
        if not args or not isinstance(args[0], Tensor):
            raise TypeError(f"the method {node.target} of something that is no tensor")
        return getattr(torch.Tensor, node.target)  # type: ignore[no-any-return]
    if node.target == "getattr":
        if not isinstance(args[0], Tensor):
            raise TypeError(f"the attribute {args[1]} of something that is no tensor")
        return getattr
    root, *path = node.target.split(".")
    if root == "operator" and path != ["getitem"]:
        _check_numbers(node.target, args)
    function: Callable[..., Any] = functools.reduce(getattr, path, _ROOTS[root])
    return function


def _check_numbers(target: str, args: list[Any]) -> None:
    """Refuse operators on anything but tensors and numbers: `list * 10**9` and the like need no tensor to be large."""
    if not all(isinstance(arg, Tensor | int | float) for arg in args):
        raise TypeError("an operator takes tensors and numbers")
    if target == "operator.pow" and all(isinstance(arg, int) for arg in args) and abs(args[1]) > MAX_EXPONENT:
        raise TypeError(f"the exponent {args[1]} of an integer, expected at most {MAX_EXPONENT}")
