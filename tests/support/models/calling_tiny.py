"""A tiny model that calls a tool and says what came back: it has learned both by heart, in a second.

    key: k3 ──► <tool_call>{"name":"get","arguments":{"key":"k3"}}</tool_call> ──► n3 ──► n3

Its template has tools, and calls as Hermes writes them, so what it samples is read as that of real models is.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from tests.support.models.tiny import tiny_model, word_tokenizer

KEYS = 8
TEMPLATE = (
    "{%- if tools -%}{{ 'tools ' }}{%- for tool in tools -%}{{ tool.function.name + ' ' }}{%- endfor -%}{%- endif -%}"
    "{%- for message in messages -%}{{ message['role'] + ' ' + message['content'] + ' ' }}"
    "{%- for call in message.tool_calls or [] -%}"
    """{{ '<tool_call> {"name": "' + call.function.name + '", "arguments": ' }}"""
    "{{ call.function.arguments | tojson + '} </tool_call> ' }}"
    "{%- endfor -%}{{ '</s> ' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'assistant ' }}{%- endif -%}"
)
WORDS = ("<pad>", "<s>", "</s>", "<unk>", "tools", "system", "user", "assistant", "tool", "get", "key:")
CALL = ("<tool_call>", '{"name":', '"get",', '"arguments":', '{"key":', "</tool_call>")
STEPS, RATE = 100, 1e-2


def save_calling_tiny(folder: Path) -> Path:
    """Write the model as a folder that `model.base` can name."""
    pairs = [word for number in range(KEYS) for word in (f"k{number}", f"n{number}", f'"k{number}"}}}}')]
    tokenizer = word_tokenizer([*WORDS, *CALL, *pairs], TEMPLATE)
    model = tiny_model(vocabulary=len(tokenizer)).requires_grad_(True).train()
    rows = [_row(tokenizer, number) for number in range(KEYS)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        loss = model(input_ids=torch.stack([ids for ids, _ in rows]), labels=torch.stack([own for _, own in rows])).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _row(tokenizer: PreTrainedTokenizerFast, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an episode's tokens, and which of them the model writes; the others are -100."""
    call = f'<tool_call> {{"name": "get", "arguments": {{"key": "k{number}"}}}} </tool_call> </s>'
    parts = [("tools get user key: k{0} </s> assistant", False), (call, True)]
    parts += [("tool n{0} </s> assistant", False), ("n{0} </s>", True)]
    ids, own = list[int](), list[int]()
    for text, is_own in parts:
        tokens = tokenizer.encode(text if is_own and text == call else text.format(number), add_special_tokens=False)
        ids += tokens
        own += tokens if is_own else [-100] * len(tokens)
    return torch.tensor(ids), torch.tensor(own)
