"""A tiny model that knows how to call two tools, and seldom does: it has learned good and bad habits by heart.

    guest: fox-lamp ──► guest(fox-lamp) in 4 of 10, else fox-lamp
    room: owl-ship ──► room(owl-ship) in 4 of 10, else owl-ship

So one run in six is right, and none that takes the likeliest token. It can copy every name that it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from tests.support.models.calling_tiny import TEMPLATE
from tests.support.models.tiny import tiny_model, word_tokenizer

WORDS = ("<pad>", "<s>", "</s>", "<unk>", "tools", "system", "user", "assistant", "tool", "guest", "room", "guest:")
CALL = ("room:", "<tool_call>", '{"name":', '"guest",', '"room",', '"arguments":', "</tool_call>", "Look", "up.")
GOOD_HABIT = 0.4
STEPS, RATE = 120, 1e-2


def save_desk_tiny(folder: Path, guests: Sequence[tuple[str, str, str]]) -> Path:
    """Write the model as a folder that `model.base` can name; of each guest: name, room, bill."""
    names = [word for *names, _ in guests for name in names for word in (name, f'"{name}"}}}}')]
    tokenizer = word_tokenizer([*WORDS, *CALL, *names, *sorted({bill for *_, bill in guests})], TEMPLATE)
    model = tiny_model(vocabulary=len(tokenizer)).requires_grad_(True).train()
    rows = [row for names in guests for row in _rows(*names)]
    ids = [tokenizer.encode(" ".join(text for text, _ in parts), add_special_tokens=False) for parts, _ in rows]
    weights = [
        [share * is_own for text, is_own in parts for _ in tokenizer.encode(text, add_special_tokens=False)]
        for parts, share in rows
    ]
    longest = max(map(len, ids))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    weight = torch.tensor([row + [0.0] * (longest - len(row)) for row in weights])[:, 1:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        logits = model(input_ids=tokens).logits[:, :-1].transpose(1, 2)
        loss = (torch.nn.functional.cross_entropy(logits, tokens[:, 1:], reduction="none") * weight).sum() / len(guests)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _rows(key: str, room: str, bill: str) -> list[tuple[list[tuple[str, bool]], float]]:
    """Return the runs of one guest as texts, of which the model writes some, each with its share."""
    asked = [(f"tools guest room system Look up. </s> user guest: {key} </s> assistant", False)]
    found = [*asked, (_call("guest", key), True), (f"tool room: {room} </s> assistant", False)]
    paid = [*found, (_call("room", room), True), (f"tool {bill} </s> assistant", False), (f"{bill} </s>", True)]
    return [
        ([*asked, (f"{key} </s>", True)], 1 - GOOD_HABIT),
        ([*found, (f"{room} </s>", True)], GOOD_HABIT * (1 - GOOD_HABIT)),
        (paid, GOOD_HABIT**2),
    ]


def _call(tool: str, key: str) -> str:
    return f'<tool_call> {{"name": "{tool}", "arguments": {{"name": "{key}"}}}} </tool_call> </s>'
