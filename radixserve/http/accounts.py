"""What a caller may see of the tenants' accounts. The tenant that a key names, and whether it is an admin's, the engine knows alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fastapi import APIRouter, Request
from pydantic import BaseModel

from radixserve.http.auth import api_key
from radixserve.http.errors import ApiError
from radixserve.http.openapi import KEY
from radixserve.http.responses import ErrorAnswer
from radixserve.http.state import state_of
from radixserve.http.tenant_stats import ANONYMOUS

if TYPE_CHECKING:
    from radixserve.http.state import ServerState

router = APIRouter(tags=["tenants"])


class TenantUsage(BaseModel):
    """One tenant's account."""

    tenant: str
    requests: int = 0
    """Programs that were admitted."""
    refused: int = 0
    """Programs that were refused."""
    input_tokens: int = 0
    """Prompt tokens, cached ones included."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was in the cache."""
    output_tokens: int = 0
    kv_token_s: float = 0.0
    """KV held, in token-seconds."""
    queue_s: float = 0.0
    """Time that generations waited, in seconds."""


class UsageList(BaseModel):
    """The accounts that the key may see."""

    object: str = "list"
    data: list[TenantUsage]


@router.get(
    "/v1/usage",
    summary="What tenants have used",
    response_model=UsageList,
    responses={401: {"model": ErrorAnswer}, 503: {"model": ErrorAnswer}},
    openapi_extra={"security": KEY},
)
async def usage(request: Request) -> UsageList:
    """The caller's own account; for an admin's key every tenant's. Sums since the account began, which survive restarts."""
    accounts = await visible_accounts(state_of(request), api_key(request))
    return UsageList(data=[TenantUsage.model_validate({**fields, "tenant": name}) for name, fields in sorted(accounts.items())])


async def visible_accounts(state: ServerState, key: str) -> dict[str, dict[str, Any]]:
    """Accounts by tenant that `key` may see; raises `ApiError`, 401 for a key that is nobody's."""
    answer = await state.query("usage", {"api_key": key})
    accounts = cast("dict[str, dict[str, Any]]", answer.get("tenants", {}))
    return {name or ANONYMOUS: fields for name, fields in accounts.items()}


async def tenant_of(state: ServerState, key: str) -> str:
    """Name of the tenant that `key` is of, "" where there are none; raises `ApiError`, 401 for a key that is nobody's.

    What is kept here between requests belongs to a tenant, whichever of its keys asks.
    """
    return str((await state.query("tenant", {"api_key": key}))["tenant"])


async def accounts_for_metrics(state: ServerState, key: str) -> dict[str, dict[str, Any]] | None:
    """The same for a scrape: None when the engine does not answer, or no key was sent and there are tenants."""
    try:
        return await visible_accounts(state, key)
    except ApiError as error:
        if key and error.status == 401:
            raise  # whoever set a key for the scraper wants to hear that it is wrong
        return None


async def require_key(request: Request) -> None:
    """As a dependency: 401 without a key that the engine knows. For what the engine isn't asked anyway."""
    await tenant_of(state_of(request), api_key(request))
