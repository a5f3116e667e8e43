"""What a training call costs, by the prices that were agreed when its session began."""

from __future__ import annotations

from schemas.events import JobPrices


def cost_of(prices: JobPrices | None, prompt_tokens: int, completion_tokens: int, trainer_s: float) -> float | None:
    """Return the cost of a call, USD; None without prices.

    >>> cost_of(JobPrices(prompt=1.0, completion=2.0, trainer_hour=3600.0), 1_000_000, 500_000, 2.0)
    4.0
    """
    if prices is None:
        return None
    tokens = prompt_tokens * prices.prompt + completion_tokens * prices.completion
    return tokens / 1e6 + trainer_s / 3600 * prices.trainer_hour
