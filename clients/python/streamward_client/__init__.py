"""A client of Streamward's gateway: jobs, files, agents and people.

    with Client("http://127.0.0.1:8790", key) as client:
        job = client.create_training_job({...})

Types of what is sent and answered are in `models`. To stream answers of a model, use the clients of OpenAI or Anthropic
with the same address and key.
"""

from __future__ import annotations

from typing import Self

from . import models
from .operations import AsyncOperations, Operations
from .sending import ApiError

__all__ = ["ApiError", "AsyncClient", "Client", "models"]


class Client(Operations):
    """A server, and every operation of it as a method."""

    def __enter__(self) -> Self:
        return self


class AsyncClient(AsyncOperations):
    """The same for asyncio."""

    async def __aenter__(self) -> Self:
        return self
