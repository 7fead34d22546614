"""What the tokenizer process asks of the cache itself: leases of branches, and public prefixes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from radixserve_runtime.cache.accounts import OPERATOR, PUBLIC_DRAFT, owner_of
from radixserve_runtime.cache.public import PublicPrefixError, PublicPrefixes
from radixserve_runtime.engine.branches import MissingBaseError
from radixserve_runtime.engine.requests import namespace, start_generation
from radixserve_runtime.protocol import Base, Generate, LeaseLost, Owner, Sampling, TenantStats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from radixserve_runtime.cache.pages import PagePool
    from radixserve_runtime.cache.radix import RadixCache
    from radixserve_runtime.engine.branches import BranchTable
    from radixserve_runtime.engine.draw import Drawer
    from radixserve_runtime.engine.requests import Generation
    from radixserve_runtime.protocol import Lease
    from radixserve_runtime.scheduler.plan import StepPlan
    from radixserve_runtime.scheduler.sequence import Sequence

#: For so long what a branch has just computed is kept for what its program does next, which is on its way or being thought of.
GRACE_S = 0.25

#: Under this name the operator's own work is charged. No tenant is called so.
OPERATOR_NAME = "(operator)"


class BusyError(RuntimeError):
    """Requests under way would not fit beside a public prefix. Publish when they have ended."""


class Tenancy:
    """Leases by branch, and public prefixes by the request that computes them."""

    def __init__(self, cache: RadixCache, pool: PagePool, branches: BranchTable) -> None:
        self._cache = cache
        self._pool = pool
        self._branches = branches
        self._public = PublicPrefixes(cache, pool)
        self._set_aside: dict[int, int] = {}
        """Pages promised to each public prefix that is being computed, by request."""
        self._returning: dict[Sequence, int] = {}
        """Sequences that wait and whose branch is leased, as far as that."""
        self._lost: list[int] = []

    # ---- leases ------------------------------------------------------------------------------------------------

    @property
    def num_leases(self) -> int:
        """Branches under a lease."""
        return self._cache.leases.num_told

    def lease(self, message: Lease, now_s: float) -> None:
        """Lease a branch; where its tokens or its time are not good, it is lost at once."""
        leases = self._cache.leases
        try:
            token_ids = self._branches.apply(message.branch_id, message.base)
        except MissingBaseError:
            leases.release(message.branch_id)
            self._lost.append(message.branch_id)
            return
        if math.isnan(message.ttl_s) or message.ttl_s <= 0:
            leases.release(message.branch_id)
            self._lost.append(message.branch_id)
            return
        leases.release(_grace(message.branch_id))
        leases.take(message.branch_id, namespace(message.owner), token_ids, now_s + message.ttl_s)

    def release(self, branch_ids: Iterable[int]) -> None:
        """End leases; branches without one are passed over."""
        for branch_id in branch_ids:
            self._cache.leases.release(branch_id)
            self._cache.leases.release(_grace(branch_id))

    def ended(self, branch_id: int, sequence: Sequence, now_s: float) -> None:
        """A sequence of a program's branch is complete. Its client has yet to hear of it: a step that is planned meanwhile keeps its context."""
        if sequence.program and branch_id in self._branches:
            self._cache.leases.take(_grace(branch_id), sequence.namespace, sequence.token_ids, now_s + GRACE_S)

    def expire(self, now_s: float) -> None:
        """End leases whose time is over. To be called when what has arrived was handled: a step may take longer than a lease has left."""
        self._cache.leases.expire(now_s)

    def take_lost(self) -> list[LeaseLost]:
        """Leases that eviction or time has ended since the last call."""
        lost = [*self._lost, *self._cache.leases.take_lost()]
        self._lost.clear()
        return [LeaseLost(branch_id=branch_id) for branch_id in lost]

    def added(self, sequence: Sequence, branch_id: int) -> None:
        """A generation of a branch waits: the branch's lease goes on until it starts, and then its pages are locked."""
        if branch_id in self._cache.leases:
            self._returning[sequence] = branch_id

    def waits(self, branch_id: int) -> None:
        """The scheduler has it, and keeps its context until it starts."""
        self._cache.leases.release(_grace(branch_id))

    def scheduled(self, plan: StepPlan) -> None:
        """Sequences that started need their lease no longer."""
        if self._returning:
            for chunk in plan.chunks:
                branch_id = self._returning.pop(chunk.sequence, None)
                if branch_id is not None:
                    self._cache.leases.release(branch_id)

    def clear(self) -> None:
        """Whoever held leases is gone."""
        self._cache.leases.clear()
        self._returning.clear()
        self._lost.clear()

    # ---- public prefixes ---------------------------------------------------------------------------------------

    def is_public(self, token_ids: tuple[int, ...]) -> bool:
        """Whether all of a prompt is pinned already."""
        return self._public.is_pinned(token_ids)

    def start_public(
        self, request_id: int, token_ids: tuple[int, ...], live: Iterable[Sequence], now_s: float, drawer: Drawer
    ) -> Generation:
        """Set pages aside for a public prefix; returns what computes it. Raises `PublicPrefixError`, `BusyError`."""
        num_pages = self._public.set_aside(token_ids)
        accounts = self._pool.accounts
        for sequence in live:
            # The longest that it may become; what it shares with a public prefix is left out, as it may hold its own copy.
            most = self._pool.pages_for(sequence.num_tokens + max(0, sequence.max_tokens - sequence.num_output_tokens - 1))
            if most > accounts.capacity(owner_of(sequence.namespace)):
                self._public.give_back(num_pages)
                raise BusyError(f"request {sequence.request_id} would not fit beside this prefix: publish it when that has ended")
        self._set_aside[request_id] = num_pages
        message = Generate(
            request_id=request_id,
            branch_id=-1,
            base=Base(new_ids=token_ids),
            sampling=Sampling(max_tokens=0, seed=0),
            owner=Owner(tenant=OPERATOR_NAME),
        )
        generation = start_generation(message, list(token_ids), now_s, drawer.vocabulary, drawer.eos_token_ids)
        generation.sequence.namespace = PUBLIC_DRAFT
        return generation

    def computed(self, request_id: int, sequence: Sequence) -> None:
        """A request is complete and its sequence still holds its pages: a public prefix is pinned."""
        if self._set_aside.pop(request_id, None) is not None:
            self._public.pin(sequence.token_ids, sequence.pages)

    def abandoned(self, request_id: int, sequences: Iterable[Sequence]) -> None:
        """A request will not be completed."""
        num_pages = self._set_aside.pop(request_id, None)
        if num_pages is not None:
            self._public.give_back(num_pages)
        for sequence in sequences:
            self._returning.pop(sequence, None)

    # ---- statistics --------------------------------------------------------------------------------------------

    def tenants(self, charged: Mapping[str, TenantStats]) -> dict[str, TenantStats]:
        """The scheduler's accounts, with the pages that each tenant holds. The operator's are no tenant's."""
        stats = {name: entry for name, entry in charged.items() if name != OPERATOR_NAME}
        for account in self._pool.accounts.by_index:
            kind, name = account.owner
            if kind == "tenant" and (account.num_pages or name in stats):
                stats[name] = msgspec.structs.replace(stats.get(name, TenantStats()), pages=account.num_pages)
        return stats

    @property
    def num_public_pages(self) -> int:
        """Pages that the operator's prefixes hold."""
        return self._pool.accounts.get(OPERATOR).num_pages


def _grace(branch_id: int) -> tuple[str, int]:
    """Key of the lease that a branch has for a moment without having asked for it."""
    return ("grace", branch_id)


__all__ = ["OPERATOR_NAME", "BusyError", "PublicPrefixError", "Tenancy"]
