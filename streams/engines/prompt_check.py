"""Find prompts that the model cannot answer before any is sampled.

    tasks, model.base ──► the files of the model on this machine ──► (task, reason), …

The tokenizer, which takes seconds to load, is read only if a prompt may be too long or has tool calls, or the chat
template refuses any messages.

Not covered: a base that is not on this machine, an image without transformers, servers with a shorter context, and the
prompts of agents and episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from schemas import json_text
from schemas.events import Task
from streams.engines.base_model import load_token_table, local_folder
from streams.engines.rendering.prompts import PromptRenderer
from streams.errors import EventError
from streams.settings.model import Settings

TEMPLATE_BYTES = 512
"""Assumed maximum that a template adds to a conversation, and to each message."""
REFUSES = "raise_exception"
"""Function that a template calls to refuse messages."""


def unanswerable_prompts(settings: Settings, tasks: Iterable[Task]) -> Iterator[tuple[Task, str]]:
    """Yield each task with a prompt that the chat template refuses or cuts, or that exceeds the context, and the
    reason.

    Raises SettingsError if the tokenizer is needed and cannot be loaded.
    """
    base = settings.model.base
    folder = None if settings.policy.engine == "scripted" else local_folder(base)
    if folder is None:
        return
    context_tokens, can_refuse = _limits(folder)
    for task in tasks:
        if task.agent is not None or task.environment is not None:
            continue
        size = sum(len(message.content.encode()) + TEMPLATE_BYTES for message in task.messages) + TEMPLATE_BYTES
        with_tools = any(message.tool_calls or message.role == "tool" for message in task.messages)
        if not can_refuse and size < context_tokens and not with_tools:
            continue
        if (renderer := local_renderer(base)) is None:
            return
        try:
            renderer.tokens(task.messages)
        except EventError as exc:
            yield task, str(exc)


def local_renderer(base: str) -> PromptRenderer | None:
    """Return the renderer of a base; None if it is not on this machine, or this image has no tokenizers.

    Raises SettingsError if the tokenizer cannot be loaded.
    """
    folder = local_folder(base)
    try:
        return None if folder is None else _renderer(base, _limits(folder)[0])
    except ImportError:
        return None


@cache
def _limits(folder: Path) -> tuple[int, bool]:
    """Return the context of the model in a folder, and whether its template may refuse messages; (0, True): unknown."""
    config, tokenizer = (_json(folder / name) for name in ("config.json", "tokenizer_config.json"))
    windows = (config.get("sliding_window"), config.get("max_position_embeddings"))
    context_tokens = min((window for window in windows if isinstance(window, int) and window), default=0)
    own_file = folder / "chat_template.jinja"
    template = own_file.read_text(encoding="utf-8") if own_file.exists() else str(tokenizer.get("chat_template"))
    return context_tokens, REFUSES in template


@cache
def _renderer(base: str, context_tokens: int) -> PromptRenderer:
    return PromptRenderer(*load_token_table(base), context_tokens or 2**31)


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json_text.parse(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
