"""What a call forces on its answer, for the engine; or the sentence that says what cannot be forced.

AnswerForm ──► grammar, by the model's way to write calls ──► compiled by the engine ──► Constraint
"""

from __future__ import annotations

import asyncio

from streams.engines.constraint import Constraint
from streams.engines.protocol import TokenEngine
from streams.engines.rendering.answer_form import schema_alone
from streams.engines.rendering.rendering import Rendering
from streams.errors import CallError, EventError
from streams.stages.agents.recording.calls import ModelCall


async def compiled(call: ModelCall, engine: TokenEngine, rendering: Rendering) -> Constraint | None:
    """Return the constraint of a call, None without one. Raises CallError, before anything is sampled."""
    if call.form is None:
        return None
    try:
        return await asyncio.to_thread(engine.constrain, rendering.grammar(call.form, call.tools))
    except EventError as exc:
        what = await asyncio.to_thread(_what_it_is, call, engine, str(exc))
        where = call.form_parameter
        raise CallError("unsupported", f"{where} cannot be forced on the answer: {what}", where) from exc


def _what_it_is(call: ModelCall, engine: TokenEngine, problem: str) -> str:
    """Return the problem, with the name of the tool whose parameters have it."""
    for tool in call.tools:
        if call.form is not None and tool.name in call.form.tools:
            try:
                engine.constrain(schema_alone(tool.parameters, is_object=True))
            except EventError as exc:
                return f"in the parameters of tool {tool.name}: {exc}"
    return problem
