"""Ids, ends and templates that go wrong elsewhere: what is refused, what is left out, and what doctor says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.events import Message
from schemas.tokens import TokenIds
from streams.engines.rendering.prompts import PromptRenderer
from streams.engines.rendering.token_table import TokenTable
from streams.errors import EventError, SettingsError
from streams.tools.model_findings import model_findings
from tests.support.models import chat
from tests.support.models.families import FAMILIES
from trainer.step.group_checks import unknown_token

CHATML = FAMILIES["chatml"]
BEGINS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
LOOKS = "{% for m in messages %}<|im_start|>{{ m.content.split('<|im_end|>')[-1] }}<|im_end|>\n{% endfor %}"


def odd(tokenizer: Any, rows: int | None = None, ends: tuple[int, ...] = ()) -> list[str]:
    """What doctor warns of, but for tools."""
    findings = model_findings(tokenizer, TokenTable.of(tokenizer, rows, ends))
    return [finding.what for finding in findings if finding.is_odd and finding.check != "tools"]


def with_template(template: str) -> Any:
    return replace(CHATML, template=template).tokenizer()


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (CHATML.template, []),
        (CHATML.template.replace(BEGINS, ""), ["no generation prompt: before an answer it writes '<|im_start|>assist"]),
        (CHATML.template.replace(BEGINS, "<|im_start|>assistant\n"), ["always begins another answer, also after a"]),
        (LOOKS + BEGINS.replace("assistant\n", ""), ["it looks for <|im_end|> in messages"]),
        ("{{ messages | length }}" + CHATML.template, ["changes history: it writes '3"]),
        ("{{ raise_exception('not today') }}", ["it refuses a single question: not today", "writes no control token"]),
    ],
)
def test_doctor_names_each_oddity_of_a_template(template: str, says: list[str]) -> None:
    oddities = odd(with_template(template))
    assert len(oddities) == len(says), oddities
    for expected, oddity in zip(says, oddities, strict=True):
        assert expected in oddity


def test_an_end_that_only_the_history_shows_ends_an_answer() -> None:
    (end,) = FAMILIES["strict"].tokenizer().convert_tokens_to_ids(["<|close|>"])
    assert TokenTable.of(FAMILIES["strict"].tokenizer()).ends[end] == ("chat template",)


def test_an_end_of_the_generation_config_that_is_no_token_is_left_out_and_named() -> None:
    tokenizer = CHATML.tokenizer()
    table = TokenTable.of(tokenizer, 300, [0, 270, 9999])
    assert table.ends == {2: ("tokenizer", "chat template"), 0: ("generation config",)}
    assert table.undrawable_ends == (270, 9999)
    assert any("names id 270, 9999 as an end" in oddity for oddity in odd(tokenizer, 300, (0, 270, 9999)))


def test_a_model_without_any_end_is_named() -> None:
    tokenizer = replace(FAMILIES["without_system"], eos="</s>").tokenizer()
    tokenizer.eos_token = None
    assert "neither tokenizer, generation config nor chat template names an end" in odd(tokenizer)


def test_a_template_with_a_token_that_the_model_has_no_row_for_is_refused_at_load() -> None:
    """As where the tokens of ChatML were added to a tokenizer, and the model was not resized."""
    tokenizer = chat.chat_tokenizer(chat.KEEPS.replace("<|im_start|>", "<|begin|>"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|begin|>"]})
    rows = len(tokenizer) - 1
    with pytest.raises(SettingsError, match=rf"its chat template writes <\|begin\|> \(id {rows}\), and the model has"):
        PromptRenderer(tokenizer, TokenTable.of(tokenizer, rows), 512)


def test_a_prompt_with_a_token_that_the_model_has_no_row_for_is_refused_and_a_pad_that_is_one_is_never_used() -> None:
    tokenizer = CHATML.tokenizer()
    rows = len(tokenizer) - 1
    tokenizer.pad_token = last = tokenizer.convert_ids_to_tokens(rows)
    table = TokenTable.of(tokenizer, rows)
    assert table.rowless == {rows: last} and table.pad == tokenizer.eos_token_id
    character = tokenizer.decode([rows])
    byte = next(text for text in map(chr, range(32, 0x250)) if rows in tokenizer(text)["input_ids"])
    with pytest.raises(EventError, match=rf"\(id {rows}\), for which the model has no row") as refused:
        PromptRenderer(tokenizer, table, 512).tokens([Message(role="user", content=byte)])
    assert refused.value.reason == "bad_tokens" and character
    assert any("1 token has no row" in oddity for oddity in odd(tokenizer, rows))


def test_an_id_without_a_token_amid_the_others_is_in_no_group_that_is_trained_on() -> None:
    tokenizer = FAMILIES["phi"].tokenizer()
    table = TokenTable.of(tokenizer, 286)
    assert (table.size, len(table.unassigned), table.drawable) == (279, 18, 261)
    assert table.without_token == (*range(257, 275), *range(279, 286))
    for tokens, unknown in (((0, 256, 275), None), ((0, 260), 260), ((0, 279), 279)):
        assert unknown_token(TokenIds.of(tokens), table) == table.first_unknown(tokens) == unknown
