"""Statistics by tenant, for metrics: a bounded number of rows, and the rest in one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from radixserve_runtime.protocol import TenantStats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from radixserve_tokenizer.tenants.accounts import Accounts
    from radixserve_tokenizer.tenants.identity import Tenants

_NONE = TenantStats()


def tenant_rows(accounts: Accounts, tenants: Tenants, runtime: Mapping[str, TenantStats]) -> dict[str, Any]:
    """`tenants`: a row for each of those used last. `tenants_other`: the sums of all other rows.

    A row has the runtime's `TenantStats`, the account's sums (whose `kv_token_s` outlives the runtime and so takes the
    place of the runtime's), and `num_queued`: generations that wait for their first token, those held back included.
    """
    named, rest = accounts.most_recent()
    queued = {tenant.name: tenant.num_queued for tenant in tenants.all}
    rows = {
        name: {**_builtins(runtime.get(name, _NONE)), **asdict(totals), "num_queued": queued.get(name, 0)}
        for name, totals in named.items()
    }
    other = {
        **_summed(stats for name, stats in runtime.items() if name not in named),
        **asdict(rest),
        "num_queued": sum(count for name, count in queued.items() if name not in named),
    }
    return {"tenants": rows, "tenants_other": other}


def _builtins(stats: TenantStats) -> dict[str, Any]:
    return msgspec.structs.asdict(stats)


def _summed(each: Iterable[TenantStats]) -> dict[str, Any]:
    sums = _builtins(_NONE)
    for stats in each:
        for name, value in _builtins(stats).items():
            sums[name] += value
    return sums
