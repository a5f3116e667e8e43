"""A batch as verl's DataProto, which `DataProto.load_from_disk` reads.

    TrainingBatch ──► prompts, responses, masks, logprobs, advantages, [C, ...], a row a chain ──► TensorDict ─┐
                 uid, response_id, data_source, ... , an object array each ───────────────────────────────┼──► a pickle
                 temperature, and what the batch is ──────────────────────────────────────────────────────┘

verl's own `save_to_disk` pickles a DataProto, whose state is a TensorDict as torch.save writes it, a dict of arrays and
a dict. The same is written here without verl or tensordict: both are named in the pickle, and made where it is read, by
`DataProto()` and `TensorDict(source, batch_size)`. Names and shapes are those of its PPO trainer: prompts are padded on
the left, responses on the right, and what is per token has the width of the responses.

`old_log_probs` are the sampler's, as in verl's bypass mode, so they are those in `rollout_log_probs`; a trainer that
computes its own replaces them.

Not covered: batches of several temperatures, since verl has one per batch; images.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streams.errors import RefusedError
from trainer.export.batch_rows import BatchRow, TrainingBatch
from trainer.step.collate import pad

PROTOCOL = 4
PAD = 0
"""Which token pads; the masks say where."""


def check(whole: TrainingBatch) -> float:
    """Return the temperature of a batch. Raises RefusedError if it has several."""
    temperatures = sorted({group.sampling.temperature for group in whole.groups})
    if len(temperatures) > 1:
        raise RefusedError(
            f"{whole.at}: batch {whole.batch.sequence} was sampled at temperatures "
            f"{', '.join(f'{value:g}' for value in temperatures)}, and verl has one for a batch; use --format "
            "prime-rl, which has one for each token"
        )
    return temperatures[0]


def files(whole: TrainingBatch, about: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the one file of a batch by name. Raises as `check`."""
    return {f"batch-{whole.batch.sequence}.pkl": encode(whole, about)}


def encode(whole: TrainingBatch, about: Mapping[str, Any]) -> bytes:
    """Return the file of a batch; `about` becomes `meta_info["streamward"]`. Raises as `check`."""
    temperature, rows = check(whole), whole.rows
    batch = tensors(rows)
    meta = {
        "temperature": temperature,
        "global_token_num": batch["attention_mask"].sum(-1).tolist(),
        "streamward": dict(about),
    }
    tensor_dict = _Made(_Named("tensordict", "TensorDict"), (batch, [len(rows)]))
    buffer = io.BytesIO()
    torch.save(tensor_dict, buffer, pickle_module=_MODULE, pickle_protocol=PROTOCOL)
    proto = _Made(_Named("verl.protocol", "DataProto"), (), (buffer.getvalue(), _arrays(rows), meta))
    file = io.BytesIO()
    _Pickler(file, protocol=PROTOCOL).dump(proto)
    return file.getvalue()


def tensors(rows: list[BatchRow]) -> dict[str, Tensor]:
    """Return what is per token: C rows, P and W the longest prompt and response."""
    wide, long = (max(1, *(len(part(row)) for row in rows)) for part in (_context, _tokens))
    prompts, prompt_mask = pad([_context(row) for row in rows], wide, PAD, np.int64, left=True)
    responses, response_mask = pad([_tokens(row) for row in rows], long, PAD, np.int64)
    mask = [row.chain.loss_mask.numpy().astype(np.int64) for row in rows]
    logps = [np.where(row_mask, row.chain.logprobs.numpy(), 0) for row, row_mask in zip(rows, mask, strict=True)]
    advantages = [np.where(row_mask, row.chain.advantages, 0) for row, row_mask in zip(rows, mask, strict=True)]
    attention = np.concatenate([prompt_mask, response_mask], axis=1)
    scores = np.zeros(responses.shape, np.float32)
    scores[np.arange(len(rows)), response_mask.sum(1).clip(min=1) - 1] = [row.response.reward for row in rows]

    def per_token(values: list[NDArray[Any]], dtype: Any) -> Tensor:  # [C, W], 0 where padded
        return torch.from_numpy(pad(values, long, 0, dtype)[0])

    return {
        "prompts": torch.from_numpy(prompts),  # [C, P] int64
        "responses": torch.from_numpy(responses),  # [C, W] int64
        "input_ids": torch.from_numpy(np.concatenate([prompts, responses], axis=1)),  # [C, P + W] int64
        "attention_mask": torch.from_numpy(attention),  # [C, P + W] int64, 0 where padded
        "position_ids": torch.from_numpy((attention.cumsum(1) - 1).clip(min=0)),  # [C, P + W] int64
        "response_mask": per_token(mask, np.int64),  # 1 where the policy wrote the token
        "old_log_probs": per_token(logps, np.float32),  # nats, as sampled
        "rollout_log_probs": per_token(logps, np.float32),
        "advantages": per_token(advantages, np.float32),
        "returns": per_token(advantages, np.float32),  # as verl's GRPO has them
        "token_level_scores": torch.from_numpy(scores),  # [C, W] float32: the response's reward, at its last token
        "token_level_rewards": torch.from_numpy(scores.copy()),
    }


def _context(row: BatchRow) -> NDArray[Any]:
    return row.chain.context.numpy()


def _tokens(row: BatchRow) -> NDArray[Any]:
    return row.chain.tokens.numpy()


def _arrays(rows: list[BatchRow]) -> dict[str, NDArray[Any]]:
    """Return what is per row and no tensor. Rows of one `uid` are compared with each other."""
    named = {
        "uid": [row.group.group_id for row in rows],
        "data_source": [row.group.scenario for row in rows],
        "task_id": [row.group.task_id for row in rows],
        "response_id": [row.response.response_id for row in rows],
        "slot": [row.response.slot for row in rows],
        "chain": [row.number for row in rows],
        "adapter_version": [row.group.adapter_version for row in rows],
    }
    return {name: np.array(values, dtype=object) for name, values in named.items()}


# --- a pickle of classes that are not here ----------------------------------------------------------------------------


class _Named(NamedTuple):
    """A class by name."""

    module: str
    name: str

    def __call__(self, *_: Any) -> NoReturn:
        raise NotImplementedError(f"{self.module}.{self.name} is made where the file is read")


class _Made:
    """An object that is made by calling a class where it is read."""

    def __init__(self, cls: _Named, arguments: tuple[Any, ...], state: Any = None) -> None:
        self._reduced = (cls, arguments) if state is None else (cls, arguments, state)

    def __reduce__(self) -> Any:
        return self._reduced


def _save_named(pickler: Any, named: _Named) -> None:
    pickler.save(named.module)
    pickler.save(named.name)
    pickler.write(pickle.STACK_GLOBAL)
    pickler.memoize(named)


class _Pickler(pickle._Pickler):
    """Pickles `_Named` as the class that it names."""

    dispatch: ClassVar[dict[type, Any]] = {**pickle._Pickler.dispatch, _Named: _save_named}


_MODULE = SimpleNamespace(__name__=__name__, Pickler=_Pickler)
"""What torch.save takes for the pickle module."""
