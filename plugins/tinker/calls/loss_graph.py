"""The graph of a custom loss as the SDK traces it, and what of it is refused. Gateway and worker share it: no torch.

    create_custom_loss: name, inputs, graph (JSON) ──► loss_graph_of ──► LossGraph ──► custom_loss.py runs it

A graph is data: nodes in order, each a parameter, a call of a function or of a tensor's method, or what is returned.
Only what the lists below name can be called: elementwise and reducing functions, shapes and indices. Nothing of them
draws, reads or writes outside its arguments, or makes a number a Python object but sizes.

Refused by name: every other function, method and attribute, methods that change a tensor in place (`x += y` is not one
of them), random numbers, constants that are tensors, modules, more than MAX_NODES nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streams.errors import CallError

MAX_NODES = 500
MAX_INPUTS = 16
MAX_VALUES = 10_000
"""Most numbers, names and the like in the arguments of a graph."""
MAX_DEPTH = 8
INPUT_NAME = re.compile(r"[a-z_][a-z0-9_]{0,63}")
METRIC_NAME = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")
RANKS = (0, 1, 2)


def _words(text: str) -> list[str]:
    return text.split()


_ELEMENTWISE = _words(
    "abs absolute add ceil clamp clamp_max clamp_min clip cos cosh deg2rad div divide eq erf erfc exp exp2 expm1 floor "
    "floor_divide fmax fmin fmod ge gt isfinite isinf isnan le lerp log log10 log1p log2 logaddexp logaddexp2 "
    "logical_and logical_not logical_or logical_xor logit lt maximum minimum mul multiply nan_to_num ne neg negative "
    "pow positive reciprocal relu remainder round rsqrt sgn sigmoid sign sin sinh sqrt square sub subtract tan tanh "
    "true_divide trunc where xlogy masked_fill addcdiv addcmul"
)
_REDUCING = _words(
    "all amax amin aminmax any argmax argmin count_nonzero cummax cummin cumprod cumsum diff dot logcumsumexp "
    "logsumexp max mean median min nanmean nansum norm prod std std_mean sum topk var var_mean softmax "
    "log_softmax sort argsort"
)
_SHAPES = _words(
    "broadcast_to chunk diagonal flatten flip gather index_select masked_select movedim narrow numel outer permute "
    "reshape roll select split squeeze swapaxes t take take_along_dim tile transpose tril triu unbind unflatten "
    "unsqueeze detach clone scatter scatter_add index_add"
)
_LIKE = _words("zeros_like ones_like full_like")

FUNCTIONS = frozenset(
    [f"torch.{name}" for name in (*_ELEMENTWISE, *_REDUCING, *_SHAPES, *_LIKE)]
    + [f"torch.{name}" for name in _words("stack cat concat hstack vstack zeros ones full arange linspace matmul")]
    + [f"torch.functional.{name}" for name in _words("norm split")]
    + [
        f"torch.nn.functional.{name}"
        for name in _words(
            "relu softmax log_softmax softmin sigmoid tanh mse_loss l1_loss huber_loss smooth_l1_loss kl_div silu elu "
            "leaky_relu hardtanh binary_cross_entropy binary_cross_entropy_with_logits softsign"
        )
    ]
    + ["torch._C._nn.softplus", "torch._C._nn.log_sigmoid", "torch._C._nn.gelu"]
    + [
        f"operator.{name}"
        for name in _words(
            "abs add and_ eq floordiv ge getitem gt iadd imul inv invert isub itruediv le lt matmul mod mul ne neg "
            "not_ or_ pos pow sub truediv xor"
        )
    ]
    + [f"math.{name}" for name in _words("ceil exp fabs floor log log10 log1p log2 pow sqrt")]
    + ["getattr"]
)
METHODS = frozenset(
    (
        *_ELEMENTWISE,
        *_REDUCING,
        *_SHAPES,
        *_words("bool contiguous dim double expand expand_as float int long matmul ndimension new_full new_ones"),
        *_words("new_zeros repeat reshape_as size to type_as view view_as"),
    )
)
ATTRIBUTES = frozenset(_words("T dtype device mT ndim shape"))
BARRED = frozenset({"out", "pin_memory", "names", "generator"})
"""Keywords of functions, which would write somewhere or draw."""
CONSTANTS = frozenset(_words("tuple dict slice ellipsis float dtype device layout memory_format"))
DTYPES = frozenset(_words("float32 float64 int64 int32 bool"))


@dataclass(frozen=True, slots=True)
class LossNode:
    """A step of the loss."""

    op: str
    name: str
    target: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LossGraph:
    """A custom loss that may be run."""

    name: str
    ranks: Mapping[str, int]
    """Of each input, logprobs first, in the order that the graph takes them."""
    nodes: tuple[LossNode, ...]


def loss_graph_of(name: str, inputs: Sequence[Mapping[str, Any]], graph: Mapping[str, Any]) -> LossGraph:
    """Return the loss that a create_custom_loss asks for. Raises CallError with the first thing that is refused."""
    ranks = _ranks(inputs)
    if graph.get("format", 1) != 1:
        raise _refusal(name, f"the graph has format {graph['format']!r}, expected 1", "graph.format", "unsupported")
    nodes = tuple(_node(name, number, node) for number, node in enumerate(graph.get("nodes") or ()))
    if not nodes or nodes[-1].op != "output" or any(node.op == "output" for node in nodes[:-1]):
        raise _refusal(name, "the graph does not end with its one output", "graph.nodes")
    if len(nodes) > MAX_NODES:
        raise _refusal(
            name, f"the graph has {len(nodes)} nodes, expected at most {MAX_NODES}", "graph.nodes", "too_large"
        )
    parameters = [node.target for node in nodes if node.op == "placeholder"]
    if parameters != list(ranks):
        raise _refusal(name, f"the graph takes {parameters}, but its inputs are {list(ranks)}", "graph.nodes")
    earlier: set[str] = set()
    values = 0
    for number, node in enumerate(nodes):
        path = f"graph.nodes[{number}]"
        if node.name in earlier:
            raise _refusal(name, f"two nodes are called {node.name!r}", f"{path}.name")
        for value in (*node.args, *node.kwargs.values()):
            values += sum(1 for _ in _checked_values(name, value, earlier, path, 0))
        if values > MAX_VALUES:
            raise _refusal(name, f"the graph has more than {MAX_VALUES} values in its arguments", path, "too_large")
        _check_target(name, node, path)
        earlier.add(node.name)
    _check_output(name, nodes[-1], f"graph.nodes[{len(nodes) - 1}]")
    return LossGraph(name, ranks, nodes)


def output_of(graph: LossGraph) -> tuple[str, dict[str, str]]:
    """Return the names of the nodes of the loss and of each metric."""
    loss, metrics = _items(graph.nodes[-1].args[0])
    return loss["ref"], {key: value["ref"] for key, value in metrics["dict"].items()}


def _ranks(inputs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    ranks: dict[str, int] = {}
    for number, declared in enumerate(inputs):
        key, rank = declared.get("name"), declared.get("rank")
        if not isinstance(key, str) or not INPUT_NAME.fullmatch(key) or key in ranks:
            raise CallError(
                "invalid", f"an input is called {key!r}, expected a name of its own", f"inputs[{number}].name"
            )
        if rank not in RANKS or isinstance(rank, bool) or (rank == 0 and key == "logprobs"):
            raise CallError("invalid", f"{key} has rank {rank!r}, expected 0, 1 or 2", f"inputs[{number}].rank")
        ranks[key] = rank
    if not ranks or next(iter(ranks)) != "logprobs" or len(ranks) > MAX_INPUTS:
        raise CallError(
            "invalid", f"the inputs are {list(ranks)}, expected logprobs first and at most {MAX_INPUTS}", "inputs"
        )
    return ranks


def _node(name: str, number: int, node: Mapping[str, Any]) -> LossNode:
    path = f"graph.nodes[{number}]"
    op, called, target = (node.get(key) for key in ("op", "name", "target"))
    args, kwargs = node.get("args") or [], node.get("kwargs") or {}
    if not all(isinstance(text, str) for text in (op, called, target)) or not isinstance(args, list):
        raise _refusal(name, "a node has no op, name, target or list of args", path)
    if not isinstance(kwargs, dict):
        raise _refusal(name, "a node's kwargs are no object", f"{path}.kwargs")
    return LossNode(str(op), str(called), str(target), args, kwargs)


def _check_target(name: str, node: LossNode, path: str) -> None:
    if node.op in ("placeholder", "output"):
        return
    allowed = {"call_function": FUNCTIONS, "call_method": METHODS}.get(node.op)
    if allowed is None:
        raise _refusal(
            name, f"it uses {node.op} of {node.target!r}, which is not offered here", f"{path}.op", "unsupported"
        )
    if node.target not in allowed:
        kind = "function" if node.op == "call_function" else "method"
        raise _refusal(
            name, f"it calls the {kind} {node.target!r}, which is not offered here", f"{path}.target", "unsupported"
        )
    if barred := sorted(BARRED & set(node.kwargs)):
        raise _refusal(name, f"it passes {barred[0]!r}, which is not offered here", f"{path}.kwargs", "unsupported")
    if node.target == "getattr" and (len(node.args) != 2 or node.args[1] not in ATTRIBUTES):
        attribute = node.args[1] if len(node.args) > 1 else None
        raise _refusal(
            name,
            f"it reads the attribute {attribute!r}; those offered are {', '.join(sorted(ATTRIBUTES))}",
            f"{path}.args",
            "unsupported",
        )


def _checked_values(name: str, value: Any, earlier: set[str], path: str, depth: int) -> Iterator[Any]:
    """Yield every value in an argument, and refuse what is none of the SDK's."""
    if depth > MAX_DEPTH:
        raise _refusal(name, f"arguments are nested more than {MAX_DEPTH} deep", path, "too_large")
    yield value
    if value is None or isinstance(value, bool | int | float | str):
        if isinstance(value, int) and abs(value) >= 2**63:
            raise _refusal(name, f"an argument is {value}, expected less than 2^63", path)
        return
    if isinstance(value, list):
        for item in value:
            yield from _checked_values(name, item, earlier, path, depth + 1)
        return
    if not isinstance(value, dict) or len(value) != 1:
        raise _refusal(name, "an argument is neither a value, a list nor an object with one key", path)
    ((kind, content),) = value.items()
    if kind == "ref":
        if content not in earlier:
            raise _refusal(name, f"a node refers to {content!r}, which is no node before it", path)
    elif kind not in CONSTANTS:
        raise _refusal(name, f"an argument is of kind {kind!r}, which is not offered here", path, "unsupported")
    elif kind == "dtype" and content not in DTYPES:
        raise _refusal(name, f"dtype {content!r} is not offered here", path, "unsupported")
    elif kind == "float" and content not in ("inf", "-inf", "nan"):
        raise _refusal(name, f"a float is {content!r}, expected inf, -inf or nan", path)
    elif kind == "slice" and not (isinstance(content, list) and len(content) == 3):
        raise _refusal(name, "a slice does not have three parts", path)
    elif kind in ("tuple", "slice"):
        yield from _checked_values(name, content, earlier, path, depth + 1)
    elif kind == "dict":
        if not isinstance(content, dict):
            raise _refusal(name, "a dict is no object", path)
        yield from _checked_values(name, list(content.values()), earlier, path, depth + 1)


def _check_output(name: str, node: LossNode, path: str) -> None:
    items = _items(node.args[0]) if len(node.args) == 1 else None
    if not isinstance(items, list) or len(items) != 2 or not _is_ref(items[0]) or not _is_dict(items[1]):
        raise _refusal(name, "it must return (loss, metrics), a tensor and a dict", f"{path}.args")
    for key, value in items[1]["dict"].items():
        if not METRIC_NAME.fullmatch(key):
            raise _refusal(
                name, f"the metric {key!r} must be called custom/<name>:sum or custom/<name>:mean", f"{path}.args"
            )
        if not _is_ref(value):
            raise _refusal(name, f"the metric {key!r} must be a tensor", f"{path}.args")


def _items(value: Any) -> Any:
    return value["tuple"] if isinstance(value, dict) and "tuple" in value else value


def _is_ref(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("ref"), str)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("dict"), dict)


def _refusal(name: str, problem: str, path: str, kind: Any = "invalid") -> CallError:
    return CallError(kind, f"custom loss {name!r}: {problem}", path)
