"""Texts of recorded tokens by the tokenizer's files alone: the same as the engine's, under the same digest."""

from __future__ import annotations

from pathlib import Path

from plugins.page.token_texts import TokenizerTexts, texts_of
from streams.engines.base_model import digest_of_tokenizer, load_token_table
from streams.engines.rendering.template_rendering import ChatRendering
from streams.settings.model import Model, Policy, Settings
from tests.support.models.tiny import save_tiny


def test_files_of_a_tokenizer_give_the_texts_and_the_digest_of_the_engine(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path)
    tokenizer, table = load_token_table(str(folder))
    rendering = ChatRendering(tokenizer, table, digest_of_tokenizer(tokenizer))
    texts = texts_of(Settings(model=Model(base=str(folder)), policy=Policy(engine="transformers")))
    assert isinstance(texts, TokenizerTexts) and texts.tokenizer_digest == rendering.tokenizer_digest
    tokens = [token for token in tokenizer.get_vocab().values() if token not in table.silent]
    assert len(tokens) > 5
    assert [texts.token_bytes(token) for token in tokens] == [rendering.token_bytes(token) for token in tokens]
    assert texts.token_bytes(10**6) == b""


def test_a_folder_without_a_tokenizer_is_that_of_no_answer(tmp_path: Path) -> None:
    assert TokenizerTexts(tmp_path).tokenizer_digest == "" and TokenizerTexts(tmp_path).token_bytes(0) == b""
    assert texts_of(Settings(model=Model(base=str(tmp_path / "none")), policy=Policy(engine="transformers"))) is None
