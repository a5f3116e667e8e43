"""Settings of people that mean nothing without others."""

from pathlib import Path

from pydantic import SecretStr

CHANGED = {
    "signing_key": Path("signing.pem"),
    "public_url": "https://streamward.example",
    "oidc_issuer": "https://issuer.example",
    "oidc_client_id": "c",
    "oidc_client_secret": SecretStr("s"),
    "oidc_scopes": "openid",
    "oidc_roles_claim": "realm_access.roles",
    "oidc_roles": "lab=trainer",
    "oidc_tenant_claim": "team",
}
