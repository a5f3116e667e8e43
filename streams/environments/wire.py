"""What an environment takes and gives, to JSON and back, between its process and ours. Types are checked on arrival."""

from __future__ import annotations

from pydantic import TypeAdapter

from streams.environments.protocol import Action, Shown, StepResult

ACTION: TypeAdapter[Action] = TypeAdapter(Action)
SHOWN: TypeAdapter[Shown] = TypeAdapter(Shown)
RESULT: TypeAdapter[StepResult] = TypeAdapter(StepResult)
