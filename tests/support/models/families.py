"""Small models with tokens and templates as families of real ones have them, written for these tests.

    Family ──► tokenizer of bytes and marks, chat template, generation config, rows of the head ──► a folder
               a model of 20 thousand parameters that has learnt to answer QUESTION with REPLY, and to end there

What each has that others have not is in the comment beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch.set_num_threads(1)  # more only wait for each other at this size

QUESTION, REPLY = "Is it warm?", "yes"
STEPS = 70

MUST_ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% endfor %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
HERMES = (
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}"
)
OFFERED = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
CHATML = (
    OFFERED + "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ CONTENT }}" + HERMES + "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITHOUT_THOUGHT = (
    "{% if m.role == 'assistant' and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ m.content }}{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Family:
    """Tokens, template and configs of one family."""

    template: str
    marks: tuple[str, ...]
    """Special tokens, in the order of their ids from 0 on."""
    words: tuple[str, ...] = ()
    """Tokens that are added as text."""
    eos: str
    pad: str | None = None
    bos: str | None = None
    generation_ends: tuple[str, ...] = ()
    gap: int = 0
    """Ids without a token between the bytes and the words."""
    padding: int = 0
    """Rows after the last token."""
    end: str
    """What the template writes after an answer."""
    ends: tuple[str, ...]
    """All that end one."""
    oddities: tuple[str, ...] = ()
    """What `doctor --model` says beside the table, in part."""

    def tokenizer(self) -> PreTrainedTokenizerFast:
        symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {name: number for number, name in enumerate([*self.marks, *symbols])}
        for number, word in enumerate(self.words, start=len(vocabulary) + self.gap):
            vocabulary[word] = number
        core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.decoder = decoders.ByteLevel()
        core.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in self.marks])
        core.add_tokens([AddedToken(word, normalized=False) for word in self.words])
        named = {name: token for name, token in (("pad_token", self.pad), ("bos_token", self.bos)) if token}
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=self.eos, **named)
        tokenizer.chat_template = self.template
        return tokenizer

    def save(self, folder: Path) -> Path:
        """Write the model to `folder`."""
        tokenizer = self.tokenizer()
        ends = [tokenizer.convert_tokens_to_ids(name) for name in self.generation_ends]
        model = network(max(tokenizer.get_vocab().values()) + 1 + self.padding)
        learn(model, tokenizer, self.end)
        model.generation_config = GenerationConfig(eos_token_id=ends or None)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder


def network(rows: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=rows,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config)


def learn(model: LlamaForCausalLM, tokenizer: Any, end: str) -> None:
    """Train all weights to answer QUESTION with REPLY and `end`."""
    asked = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    whole = torch.tensor([[*before, *tokenizer(REPLY + end, add_special_tokens=False)["input_ids"]]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(STEPS):
        logits = model(input_ids=whole).logits[0, len(before) - 1 : -1]
        torch.nn.functional.cross_entropy(logits, whole[0, len(before) :]).backward()
        optimizer.step()
        optimizer.zero_grad()


TAKES_NO_TOOLS = "the template writes tools and calls in none of the formats"
FAMILIES = {
    "chatml": Family(
        template=CHATML.replace("CONTENT", "m.content"),
        marks=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        eos="<|im_end|>",
        pad="<|im_end|>",  # as SmolLM2 has it
        end="<|im_end|>",
        ends=("<|im_end|>",),
    ),
    "llama3": Family(  # the tokenizer's end is not the template's; three ends in the generation config; no pad
        template=(
            "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
            "{{ m.content | trim }}<|eot_id|>{% endfor %}"
            "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
        ),
        marks=(
            *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>"),
            *("<|eot_id|>", *(f"<|reserved_special_token_{number}|>" for number in range(20))),
        ),
        eos="<|end_of_text|>",
        bos="<|begin_of_text|>",
        generation_ends=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        end="<|eot_id|>",
        ends=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        oddities=(TAKES_NO_TOOLS,),
    ),
    "mistral": Family(  # turns, and no generation prompt, which it does not need
        template="{{ bos_token }}"
        + MUST_ALTERNATE
        + "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
        "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
        marks=("<unk>", "<s>", "</s>", "[INST]", "[/INST]"),
        eos="</s>",
        bos="<s>",
        generation_ends=("</s>",),
        end="</s>",
        ends=("</s>",),
        oddities=("it refuses a system message: roles must", "roles must take turns", TAKES_NO_TOOLS),
    ),
    "gemma": Family(  # no system, another name for the assistant, and only the template knows the end of a turn
        template="{{ bos_token }}"
        + NO_SYSTEM
        + MUST_ALTERNATE
        + "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        marks=("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
        eos="<eos>",
        pad="<pad>",
        bos="<bos>",
        generation_ends=("<eos>",),
        padding=18,
        end="<end_of_turn>",
        ends=("<eos>", "<end_of_turn>"),
        oddities=(
            "18 of the head's rows have no token (262 to 279)",
            "it refuses a system message: System role not supported",
            "roles must take turns: roles must alternate",
            TAKES_NO_TOOLS,
        ),
    ),
    "phi": Family(  # ids without a token amid the others, a padded head, the pad is an end
        template=(
            "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% else %}<|endoftext|>{% endif %}"
        ),
        marks=("<|endoftext|>",),
        words=("<|assistant|>", "<|end|>", "<|user|>", "<|system|>"),
        gap=18,
        padding=7,
        eos="<|endoftext|>",
        pad="<|endoftext|>",
        generation_ends=("<|endoftext|>",),
        end="<|end|>",
        ends=("<|endoftext|>", "<|end|>"),
        oddities=("25 of the head's rows have no token (257 to 274, 279 to 285)", TAKES_NO_TOOLS),
    ),
    "qwen_thinking": Family(  # reasoning leaves the history, a padded head
        template=CHATML.replace("{{ CONTENT }}", WITHOUT_THOUGHT),
        marks=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        words=("<think>", "</think>", "<tool_call>", "</tool_call>"),
        eos="<|im_end|>",
        pad="<|endoftext|>",
        generation_ends=("<|im_end|>", "<|endoftext|>"),
        padding=25,
        end="<|im_end|>",
        ends=("<|endoftext|>", "<|im_end|>"),
        oddities=(
            "25 of the head's rows have no token (263 to 287)",
            "with reasoning in an answer the chat template changes history",
        ),
    ),
    "strict": Family(  # alternating roles, nothing but the last end, and that only between turns
        template=MUST_ALTERNATE
        + "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}{% if not loop.last %}<|close|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|close|><|turn|>assistant:{% endif %}",
        marks=("<pad>", "</s>", "<|turn|>", "<|close|>"),
        eos="</s>",
        pad="<pad>",
        end="<|close|>",
        ends=("</s>", "<|close|>"),
        oddities=(
            "it refuses a system message: roles must",
            "roles must take turns",
            "it ends an answer only where another message follows",
            TAKES_NO_TOOLS,
        ),
    ),
    "without_system": Family(  # in words, without control tokens, and system messages are left out in silence
        template=(
            "{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} ASSISTANT:"
            "{% elif m.role == 'assistant' %}{{ m.content }}{% endif %}{% endfor %}"
        ),
        marks=("<unk>", "<s>", "</s>"),
        eos="</s>",
        generation_ends=("</s>",),
        end="</s>",
        ends=("</s>",),
        oddities=(
            "it leaves out what a system message says",
            "it writes no control token after an answer",
            TAKES_NO_TOOLS,
        ),
    ),
}
