"""A batch as the micro batches that prime-rl's trainer reads from a folder.

    TrainingBatch ──► rows, packed one after another ──► micro batches, dealt to ranks ──► rollouts/step_N/rank_R.bin

Its file transport has a file for each data-parallel rank and step: a list of micro batches in msgpack, each an array of
its fields, in the order in which they are declared (version 0.8 of prime-rl; later fields have defaults and are left
out). Ranks have as many micro batches as each other, so one without loss may be added. Advantages, temperatures and
logprobs are per token, as long as the tokens; a prompt has zeros and no loss.

The means of its loss are over the tokens with loss of all ranks, which it counts itself.

Not covered: its other transports, and images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.errors import SettingsError
from trainer.export.batch_rows import BatchRow, TrainingBatch
from trainer.step.collate import MICRO_TOKENS

NO_NAME = "streamward"
"""The environment of tasks without a scenario, or with the one name that prime-rl keeps for itself."""
RESERVED_NAMES = ("", "all")


class MicroBatch(NamedTuple):
    """Rows one after another, in the order of the wire; all but two are per token."""

    input_ids: list[int]
    loss_mask: list[bool]
    advantages: list[float]
    inference_logprobs: list[float]
    position_ids: list[int]
    sequence_lengths: list[int]
    """Tokens of each row."""
    temperatures: list[float]
    env_names: list[str]
    seq_lens: list[int]
    """The same, for the attention."""


def files(whole: TrainingBatch, _: Mapping[str, Any], *, ranks: int) -> dict[str, bytes]:
    """Return the files of a batch by name, below the folder that is prime-rl's output_dir, for so many ranks.

    Raises SettingsError if msgspec is not installed.
    """
    try:
        from msgspec import msgpack
    except ImportError as exc:
        raise SettingsError(f"--format prime-rl: {exc}; install it: pip install 'streamward[bridges]'") from exc
    shares = deal(list(pack(whole.rows)), ranks)
    folder = f"rollouts/step_{whole.batch.sequence}"
    return {f"{folder}/rank_{rank}.bin": msgpack.encode(micro_batches) for rank, micro_batches in enumerate(shares)}


def pack(rows: list[BatchRow]) -> Iterator[MicroBatch]:
    """Yield the rows in their order, about MICRO_TOKENS at a time; a longer one comes alone."""
    part: list[MicroBatch] = []
    tokens = 0
    for micro in map(micro_batch, rows):
        if part and tokens + len(micro.input_ids) > MICRO_TOKENS:
            yield _join(part)
            part, tokens = [], 0
        part.append(micro)
        tokens += len(micro.input_ids)
    if part:
        yield _join(part)


def micro_batch(row: BatchRow) -> MicroBatch:
    """Return a row by itself."""
    chain, before = row.chain, len(row.chain.context)
    tokens = np.concatenate([chain.context.numpy(), chain.tokens.numpy()]).tolist()
    mask = chain.loss_mask.numpy().astype(bool)

    def padded_left(values: NDArray[np.float32]) -> list[float]:
        return [0.0] * before + [float(value) for value in np.where(mask, values, 0)]

    name = NO_NAME if row.group.scenario in RESERVED_NAMES else row.group.scenario
    return MicroBatch(
        input_ids=tokens,
        loss_mask=[False] * before + mask.tolist(),
        advantages=padded_left(chain.advantages),
        inference_logprobs=padded_left(chain.logprobs.numpy()),
        position_ids=list(range(len(tokens))),
        sequence_lengths=[len(tokens)],
        temperatures=[row.group.sampling.temperature] * len(tokens),
        env_names=[name] * len(tokens),
        seq_lens=[len(tokens)],
    )


def deal(micros: list[MicroBatch], ranks: int) -> list[list[MicroBatch]]:
    """Return the micro batches of each rank, in turn; as many for each, the last ones without loss if need be."""
    no_loss = micros[0]._replace(
        loss_mask=[False] * len(micros[0].input_ids), advantages=[0.0] * len(micros[0].input_ids)
    )
    whole = micros + [no_loss] * (-len(micros) % ranks)
    return [whole[rank::ranks] for rank in range(ranks)]


def _join(part: list[MicroBatch]) -> MicroBatch:
    return MicroBatch._make(
        [value for micro in part for value in micro[place]] for place in range(len(MicroBatch._fields))
    )
