"""The settings of `streamward page`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from streams.settings.model import Section


class Page(Section):
    """The web page of the log, which `streamward page` serves."""

    host: Literal["127.0.0.1", "::1", "localhost"] = Field(
        "127.0.0.1", description="address to listen on: this machine only, since the page has no login"
    )
    port: int = Field(8791, ge=0, le=65535, description="0: any free port, which is printed")
