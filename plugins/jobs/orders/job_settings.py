"""The settings of jobs."""

from __future__ import annotations

from pydantic import Field, model_validator

from streams.settings.model import Section


class Jobs(Section):
    """Defaults of jobs, recorded in each job at its creation, and the limit of a tenant."""

    trainer_hour_usd: float | None = Field(
        None,
        ge=0,
        description="USD per hour of training; with the prices of tokens in [prices] jobs have prices and a budget",
    )
    max_budget_usd: float = Field(100.0, gt=0, description="budget of a job with prices that names none, USD")
    tenant_month_usd: float = Field(
        100.0,
        ge=0,
        description="spending limit of a tenant per month (UTC), for jobs with prices, USD; 0: no limit",
    )

    @model_validator(mode="after")
    def _budget_has_prices(self) -> Jobs:
        if self.trainer_hour_usd is None and self.max_budget_usd != type(self).model_fields["max_budget_usd"].default:
            raise ValueError(
                "max_budget_usd has no effect without prices; set trainer_hour_usd, prices.prompt_usd and "
                "prices.completion_usd, or leave it out"
            )
        return self
