"""The settings of people: how they log in to a server with serve.auth=keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast, get_args

from pydantic import Field, SecretStr, field_validator, model_validator

from schemas.events import AccessRole
from streams.settings.model import Section


class People(Section):
    """How users log in to the server, with serve.auth=keys."""

    signing_key: Path | None = Field(
        None,
        description="PEM file of the private key that signs access tokens, the same for every server of a log; "
        "`streamward admin access signing-key rotate` creates it. Without it there is no login, only keys",
    )
    public_url: str = Field(
        "", description="public address of the server, e.g. https://streamward.example.org; empty: its own address"
    )
    session_h: float = Field(720.0, gt=0, description="lifetime of a login, hours")
    oidc_issuer: str = Field("", description="issuer URL of an OpenID Connect provider; empty: only passwords")
    oidc_client_id: str = Field("", description="client id of this deployment at the issuer")
    oidc_client_secret: SecretStr | None = Field(None, description="secret of that client; empty: a public client")
    oidc_scopes: str = Field("openid profile email", description="scopes to request, separated by spaces")
    oidc_roles_claim: str = Field(
        "roles", min_length=1, description="claim to map to roles; dots go deeper: realm_access.roles"
    )
    oidc_roles: str = Field(
        "", description="role for each value of that claim: ml-team=trainer, leads=promoter. Other values give none"
    )
    oidc_tenant_claim: str = Field(
        "",
        description="claim with a user's tenant. If set, users without this claim are refused; if unset, every user "
        "sees all tenants",
    )

    @property
    def roles_of_claims(self) -> dict[str, AccessRole]:
        """The role that each value of the claim gives. Raises ValueError."""
        roles: dict[str, AccessRole] = {}
        for pair in filter(None, map(str.strip, self.oidc_roles.split(","))):
            value, is_pair, role = (part.strip() for part in pair.rpartition("="))
            if not is_pair or not value or role not in get_args(AccessRole):
                raise ValueError(
                    f"oidc_roles has {pair!r}; expected comma separated VALUE=ROLE, with ROLE one of "
                    f"{', '.join(get_args(AccessRole))}"
                )
            roles[value] = cast(AccessRole, role)
        return roles

    @field_validator("public_url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        if value and (not value.startswith(("http://", "https://")) or value.endswith("/")):
            raise ValueError(f"{value!r} is not an address; write it as https://host, without a / at the end")
        return value

    @field_validator("oidc_issuer")
    @classmethod
    def _is_secure(cls, value: str) -> str:
        if value and not re.match(r"https://|http://(127\.0\.0\.1|\[::1\]|localhost)(?=[:/]|$)", value):
            raise ValueError(f"oidc_issuer is {value!r}; expected an address that begins with https://")
        return value

    @model_validator(mode="after")
    def _an_issuer_is_whole(self) -> People:
        fields = type(self).model_fields
        named = [name for name in fields if name.startswith("oidc_") and getattr(self, name) != fields[name].default]
        if named and not self.oidc_issuer:
            raise ValueError(f"{named[0]} has no effect without oidc_issuer; set it, or leave {named[0]} out")
        missing = [
            name
            for name in ("oidc_client_id", "oidc_roles", "public_url", "signing_key")
            if self.oidc_issuer and not getattr(self, name)
        ]
        if missing:
            raise ValueError(f"oidc_issuer needs {' and '.join(missing)}, too; set them, or leave oidc_issuer out")
        _ = self.roles_of_claims
        return self
