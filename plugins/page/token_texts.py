"""The texts of tokens, by the tokenizer files of a model alone: for readers that show recorded tokens.

    model.base ──► its folder on this machine ──► tokenizer.json, chat template ──► TokenizerTexts, with the digest

Neither weights nor transformers are read, and nothing is downloaded or converted.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path

from schemas import json_text
from streams.engines.base_model import local_folder
from streams.engines.rendering.template_rendering import byte_alphabet, bytes_of_name
from streams.engines.scripted.scripted_tokens import ScriptedRendering
from streams.settings.model import Settings

TOKENIZER, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"


class TokenizerTexts:
    """The texts of the tokens in a folder of a model. Files are read at the first question."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def tokenizer_digest(self) -> str:
        """The digest of this tokenizer in records; empty if the folder cannot be read, which is no record's."""
        if self._tokenizer is None:
            return ""
        vocabulary = sorted((index, token) for token, index in self._tokenizer.get_vocab(True).items())
        return hashlib.sha256(json.dumps([vocabulary, self._chat_template]).encode()).hexdigest()

    def token_bytes(self, token: int) -> bytes:
        """Return a token's text; for a token that is part of a character, its bytes."""
        name = None if self._tokenizer is None else self._tokenizer.id_to_token(token)
        return b"" if name is None else bytes_of_name(name, self._alphabet)

    @cached_property
    def _tokenizer(self):  # type: ignore[no-untyped-def]
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_file(str(self._folder / TOKENIZER))
        except Exception:  # tokenizers raises plain exceptions for missing and for broken files
            return None

    @cached_property
    def _alphabet(self) -> dict[str, int]:
        return byte_alphabet() if "ByteLevel" in repr(self._tokenizer.decoder) else {}

    @property
    def _chat_template(self) -> str | None:
        try:
            return (self._folder / TEMPLATE).read_text(encoding="utf-8")
        except OSError:
            pass
        try:
            config = json_text.parse((self._folder / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        template = config.get("chat_template") if isinstance(config, dict) else None
        return template if isinstance(template, str) else None


def texts_of(settings: Settings) -> TokenizerTexts | ScriptedRendering | None:
    """Return the texts of the policy's tokens; None if its model is not on this machine."""
    if settings.policy.engine == "scripted":
        return ScriptedRendering()
    folder = local_folder(settings.model.base)
    return None if folder is None else TokenizerTexts(folder)
