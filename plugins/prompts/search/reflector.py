"""The model that proposes texts of a prompt: any OpenAI-compatible one, or a user's function.

endpoint: http://…/v1 ──► JudgeClient, with the limits, prices and key of scoring.judge_* ─┐
endpoint: module:function ──► the function, text to text ──────────────────────────────────┴─► PromptReflection
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from schemas.events import PromptReflection, PromptSearch
from streams import references
from streams.errors import SettingsError
from streams.scorers.judge_client import JudgeClient, JudgeQuestion, text_of
from streams.settings.model import Settings

MAX_TOKENS = 4096
"""Of a proposal, with what the model thinks before it."""


def reflector_of(search: PromptSearch, settings: Settings) -> Callable[[str], PromptReflection]:
    """Return the function that asks the reflector of a search. It raises StreamwardError if there is no answer."""
    endpoint = search.endpoint or ""
    if references.is_reference(endpoint):
        function = references.load("config.endpoint", endpoint)
        return lambda request: PromptReflection(request_digest="", model=endpoint, text=str(function(request)))
    if search.model is None:
        raise SettingsError("the reflector has no model: set config.model or scoring.judge_model")
    scoring = settings.scoring.model_copy(update={"judge_url": endpoint, "judge_model": search.model})

    def ask(request: str) -> PromptReflection:
        question = JudgeQuestion(text=request, max_tokens=MAX_TOKENS, limit="the prompt's length", json_mode=False)
        with closing(JudgeClient(scoring)) as client:
            reply = client.ask(question)
            text = text_of(reply.answer, question, client.url)
        spent = reply.spent
        return PromptReflection(
            request_digest="",
            model=search.model or "",
            text=text,
            prompt_tokens=int(spent.get("prompt_tokens", 0)),
            completion_tokens=int(spent.get("completion_tokens", 0)),
            cost_usd=spent.get("cost_usd"),
        )

    return ask
