"""A byte-level tokenizer of 600 tokens, and chat templates that get history right or wrong, each in its own way."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from streams.engines.rendering.template_rendering import ChatRendering
from streams.engines.rendering.token_table import TokenTable

END, OTHER_END = "<|im_end|>", "<|endoftext|>"
SPECIAL = ["<|im_start|>", END, OTHER_END]
CORPUS = [
    "the user asks for the weather in Zürich, and the assistant answers 東京 … 12 345 times",
    "aaaa bbbb abab " * 9,
]
TURN = "<|im_start|>{{ m['role'] }}\n"
CALLS = (
    "{% for c in m.get('tool_calls', []) %}<tool_call>\n"
    '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}"
)
TOOLS = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"


def looping(content: str, *, end: str = END, front: str = "", answer: str = "<|im_start|>assistant\n") -> str:
    loop = f"{{% for m in messages %}}{TURN}{content}{CALLS}{end}\n{{% endfor %}}"
    return f"{TOOLS}{front}{loop}{{% if add_generation_prompt %}}{answer}{{% endif %}}"


KEEPS = looping("{{ m['content'] }}")
STRIPS_REASONING = looping(
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}"
)
OTHER_END_IN_HISTORY = looping("{{ m['content'] }}", end=OTHER_END)
COUNTS_IN_SYSTEM = looping("{{ m['content'] }}", front="<|im_start|>system\n{{ messages | length }}<|im_end|>\n")
WRITES_TWICE = looping("{{ m['content'] }}{% if m.get('tool_calls') %}{{ m['content'] }}{% endif %}")
DROPS_TEXT = looping("{% if not m.get('tool_calls') %}{{ m['content'] }}{% endif %}")
THINKS_FIRST = looping("{{ m['content'] }}", answer="<|im_start|>assistant\n<think>\n")
NO_TOOLS = "{% for m in messages %}" + TURN + "{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"


def chat_tokenizer(template: str) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, additional_special_tokens=[SPECIAL[0], OTHER_END]
    )
    tokenizer.chat_template = template
    return tokenizer


def rendering(template: str) -> ChatRendering:
    tokenizer = chat_tokenizer(template)
    ends = tokenizer.convert_tokens_to_ids([END, OTHER_END])
    return ChatRendering(tokenizer, TokenTable.of(tokenizer, generation_ends=ends), "tokenizer")
