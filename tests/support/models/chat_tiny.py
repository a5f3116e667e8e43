"""The tiny model with a chat template that has roles, ends and a generation prompt, as real ones do."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from streams.engines.base_model import Base, load_base
from streams.settings.model import Model
from tests.support.models.tiny import save_tiny, tiny_model, tiny_tokenizer

CHAT_TEMPLATE = (
    "{%- set role = {'system': '6', 'user': '7', 'assistant': '8', 'tool': '9'} -%}"
    "{%- for message in messages -%}{{ role[message['role']] + ' ' }}"
    "{%- if message['role'] == 'assistant' -%}"
    "{% generation %}{{ message['content'] + ' </s> 10' }}{% endgeneration %}{{ ' ' }}"
    "{%- else -%}{{ message['content'] + ' </s> 10 ' }}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '8 ' }}{%- endif -%}"
)
"""A number for each role, the text, the end and a line's end; what the assistant writes is marked as such."""


def chat_tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer(CHAT_TEMPLATE)


def chat_base(seed: int = 0) -> Base:
    """Return a fresh tiny model with this tokenizer."""
    return Base.of(tiny_model(seed), chat_tokenizer(), "base", "tokenizer")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """The tiny model with this tokenizer, from a folder."""
    folder = save_tiny(tmp_path_factory.mktemp("tiny"))
    chat_tokenizer().save_pretrained(folder)
    return load_base(Model(base=str(folder)))
