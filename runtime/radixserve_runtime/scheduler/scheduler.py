"""Which tokens go through the model next.

A step mixes one decode token of every running sequence, and perhaps a draft of what follows, with chunks of prefill. Pages are allocated as chunks need them;
when none is left, the cache is evicted, and then the least entitled running sequence is preempted: its KV stays in the
tree, evictable, and it waits at the front again, so that resuming it is a prefix hit if the pages were not needed.

That nothing stalls rests on three rules. The most entitled sequence that has no chunk yet may preempt all others that
have none, so a step with running sequences is never empty. With nothing running, the first of the waiting starts
whatever the careful rules of admission say, if need be after emptying the cache. And a sequence that could not have
the pool for itself is refused when it is added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.cache.node import token_run
from radixserve_runtime.scheduler.accounts import Accounts
from radixserve_runtime.scheduler.admission import Admission
from radixserve_runtime.scheduler.batching import make_gate
from radixserve_runtime.scheduler.budget import UNPROTECTED, StepBudget, count_backlog, step_budget
from radixserve_runtime.scheduler.config import EmptySequenceError, SchedulerConfig, SequenceTooLongError
from radixserve_runtime.scheduler.cost import CostModel, StepFeatures
from radixserve_runtime.scheduler.decodes import Decodes
from radixserve_runtime.scheduler.guessing import Guessing
from radixserve_runtime.scheduler.holding import Holding
from radixserve_runtime.scheduler.kv import SequencePages
from radixserve_runtime.scheduler.ledger import Ledger
from radixserve_runtime.scheduler.plan import StepPlan
from radixserve_runtime.scheduler.policy import Policy, make_policy
from radixserve_runtime.scheduler.pressure import Pressure
from radixserve_runtime.scheduler.selection import Selection
from radixserve_runtime.scheduler.sequence import Sequence, Status
from radixserve_runtime.scheduler.state import SchedulerState, Step, Tracked
from radixserve_runtime.scheduler.waiting import WaitingQueue
from radixserve_runtime.scheduler.yielding import Yielding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from radixserve_runtime.cache.pages import PagePool
    from radixserve_runtime.cache.radix import RadixCache
    from radixserve_runtime.protocol import TenantStats
    from radixserve_runtime.scheduler.accounts import Tenant
    from radixserve_runtime.scheduler.counters import Counters


class Scheduler:
    """Forms steps. The engine's loop is `schedule`, run the plan, `complete`, then `append_token` or `finish` for each completed chunk."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: RadixCache,
        pool: PagePool,
        clock: Callable[[], float],
        policy: Policy | None = None,
    ) -> None:
        self.cost = CostModel()
        """What steps are predicted to take. Learned from `complete`."""
        self._config = config
        self._cache = cache
        self._pool = pool
        self._clock = clock
        policy = policy or make_policy(config)
        self._accounts = Accounts(config)
        self._state = SchedulerState(WaitingQueue(policy, self._accounts, config.ageing_s))
        self._ledger = Ledger(self._state, self._accounts, config.charge)
        self._gate = make_gate(config)
        self._pages = SequencePages(cache, pool)
        self._pressure = Pressure(self._state, cache, pool, self._pages, self._ledger, config.growth_tokens)
        guessing = Guessing(self._state, self.cost, config)
        self._decodes = Decodes(self._state, self._pages, self._pressure, guessing, config)
        self._holding = Holding(self._state, pool, self.cost, config, policy.switch_cost > 0 and self._gate.makes_way)
        self._admission = Admission(self._state, cache, pool, self._pages, self._pressure, self._holding, config.num_slots)
        self._selection = Selection(self._state, policy, cache, self._pages, config)
        self._yielding = Yielding(self._state, policy, self._selection, self._pressure, self._pages, self._admission, config)
        self._starved: Sequence | None = None

    # ---- state -----------------------------------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        """What was done since start."""
        return self._state.counters

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._state.running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait, preempted ones too."""
        return len(self._state.waiting)

    @property
    def has_work(self) -> bool:
        """Whether any sequence has not ended."""
        return bool(self._state.tracked)

    @property
    def next_deadline_s(self) -> float | None:
        """When to call `schedule` again after it returned None, if nothing else happens. None: nothing waits for a time."""
        if self._state.running:
            return None
        held_s = self._holding.deadline_s
        return self._gate.deadline_s(self._state.waiting) if held_s is None else held_s

    def tenant_stats(self) -> dict[str, TenantStats]:
        """Accounts of all tenants that are remembered, without `pages`. O(tenants), so not for every step."""
        return self._ledger.tenants()

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Weights of tenants from now on; what they were charged stays as it is. Raises `ValueError`."""
        self._accounts.set_weights(weights)

    # ---- what the engine tells -------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """A new sequence waits. Its arrival is now unless it names one. Raises `EmptySequenceError`, `SequenceTooLongError`."""
        if not sequence.token_ids:
            raise EmptySequenceError("a sequence needs at least one token")
        # The last token drawn never goes through the model.
        most = sequence.num_tokens + max(0, sequence.max_tokens - sequence.num_output_tokens - 1)
        tokens = token_run(sequence.token_ids)
        capacity = self._pages.capacity_tokens(sequence, tokens)
        if most > capacity:
            raise SequenceTooLongError(
                f"prompt and max_tokens need KV for {most} tokens and the pool holds {capacity} for this tenant"
            )
        now_s = self._clock()
        if not sequence.arrival_s:
            sequence.arrival_s = now_s
        sequence.status = Status.WAITING
        tenant, program = self._accounts.enter(sequence.tenant), self._accounts.enter_program(sequence)
        tracked = self._state.tracked[sequence] = Tracked(tokens, now_s, tenant, program, self._cache.tick, last_chunk_s=now_s)
        tracked.num_known_tokens = self._pages.known(program, tokens)
        self._state.waiting.push(sequence, tracked)
        self._selection.look_up((sequence,))
        if self._pages.promise(sequence, tracked.tokens, tracked.num_known_tokens, now_s):
            self._holding.came_back(sequence, now_s)

    def append_token(self, sequence: Sequence, token_id: int) -> None:
        """A token was drawn (or forced) for a running sequence."""
        sequence.token_ids.append(token_id)
        self._state.tracked[sequence].tokens.append(token_id)
        self.counters.num_output_tokens += 1
        if sequence.first_token_s < 0:
            sequence.first_token_s = self._clock()

    def draft(self, sequence: Sequence, token_ids: Iterable[int]) -> None:
        """Let a running sequence, whose newest token is all that is uncomputed, go on with tokens that are expected to be drawn. Raises `ValueError`.

        They are computed in its next step, which gives logits for each; then `accept_draft` or `reject_draft` says what came of them.
        They are dropped if there is no room for them, and when the sequence loses its slot.
        """
        self._decodes.draft(sequence, token_ids)

    def accept_draft(self, sequence: Sequence) -> None:
        """The first token of the draft was drawn. Raises `ValueError` where there is none."""
        self._decodes.accept(sequence)

    def reject_draft(self, sequence: Sequence) -> None:
        """Another token than the first of the draft was drawn: forget what is left of it, and its KV."""
        self._decodes.reject(sequence)

    def truncate(self, sequence: Sequence, num_tokens: int) -> None:
        """Drop a running sequence's tokens from `num_tokens` on, and their KV. Raises `ValueError` if nothing would be left."""
        if not 0 < num_tokens <= sequence.num_tokens:
            raise ValueError(f"a sequence of {sequence.num_tokens} tokens can't be cut to {num_tokens}")
        self._state.cut(sequence, num_tokens)
        if sequence.status is Status.RUNNING:
            self._pages.truncate(sequence, self._state.tracked[sequence].tokens)

    def finish(self, sequence: Sequence) -> None:
        """It ended. Its KV stays in the tree, evictable. Does nothing if it has ended before."""
        tracked = self._state.tracked.get(sequence)
        if tracked is None:
            return
        self._decodes.drop(sequence)
        if sequence.status is Status.RUNNING:
            self._state.stop(sequence)
            self._holding.ended(sequence)
            self._pages.remember(sequence, tracked.tokens, tracked.program)
            self._pages.detach(sequence, tracked.tokens)
        else:
            self._state.waiting.remove(sequence, tracked)
            self._pages.fulfil(sequence)
        del self._state.tracked[sequence]
        self._accounts.leave(tracked.tenant)
        self._accounts.leave_program(sequence, tracked.program)
        sequence.status = Status.FINISHED
        self._gate.left(sequence, len(self._state.waiting))

    def cancel(self, sequence: Sequence) -> None:
        """Stop it at once, whatever its state. What it has computed stays in the tree. Does nothing if it has ended."""
        if sequence in self._state.tracked:
            self.counters.num_aborted += 1
            self.finish(sequence)

    def complete(self, plan: StepPlan, duration_s: float) -> None:
        """The step was computed. Call it before the drawn tokens are appended. Sequences that ended since are passed over."""
        self.cost.observe(StepFeatures.of(plan.chunks), duration_s)
        self.counters.num_steps += 1
        self.counters.num_padded_slots += self._gate.num_padded
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if sequence.status is not Status.RUNNING or sequence.num_computed != chunk.start:
                continue
            was_prefill = sequence.is_prefill
            sequence.num_computed = chunk.end
            self.counters.num_batched_tokens += chunk.count
            self.counters.num_prompt_tokens_computed += max(0, min(chunk.end, sequence.num_prompt_tokens) - chunk.start)
            if was_prefill:
                self._pages.publish(sequence, self._state.tracked[sequence].tokens)
        self._ledger.hold(duration_s)

    # ---- planning --------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """The next step, or None if nothing can run now (see `next_deadline_s`).

        Its copies come with this plan alone: a step that fails is run again from its plan, not scheduled again.
        """
        step = Step(sorted(self._state.running, key=self._selection.entitlement), self._clock())
        self._admission.look(step.now_s)
        candidates, favoured, ahead = self._candidates(step)
        self._help_starved(step)
        self._decodes.plan(step, may_start=bool(candidates) and len(self._state.running) < self._config.num_slots)
        prefills = [sequence for sequence in step.running if sequence in self._state.running and sequence not in step.planned]
        num_startable = min(len(candidates), max(0, self._config.num_slots - len(self._state.running)))
        # Whoever lost its pages in this step waits at least until the next.
        if not num_startable or (step.is_short_of_pages and step.chunks):
            candidates = []
        budget = self._budget(step, ahead, [*prefills, *candidates[:num_startable]])
        self._fill(step, prefills, candidates, favoured, budget)
        self._pressure.adapt(step.is_short_of_pages)
        self._holding.end(bool(step.chunks))
        if not step.chunks:
            return None
        return StepPlan(tuple(step.chunks), tuple(step.copies), tuple(step.preempted))

    def _candidates(self, step: Step) -> tuple[list[Sequence], list[Sequence], set[Tenant]]:
        """Those that may start, those of them for which others lost their slots, and the tenants that are ahead of others that wait."""
        served = {self._state.tracked[sequence].tenant: None for sequence in step.running}
        candidates = self._gate.candidates(self._state.waiting, self._config.window, step.now_s, served)
        if not candidates or not self._gate.makes_way:
            self._selection.look_up(candidates)
            return candidates, [], set()
        held = self._yielding.hold(step, candidates)
        candidates = [sequence for sequence in candidates if self._state.tracked[sequence].tenant not in held]
        favoured = self._yielding.make_way(step, candidates)
        if len(self._state.running) < self._config.num_slots:
            self._selection.look_up(candidates)
        return candidates, favoured, self._yielding.over(candidates, 1.0)

    def _budget(self, step: Step, ahead: set[Tenant], wanting: list[Sequence]) -> StepBudget:
        """For the prefill of those that have or could have a slot."""
        tracked = self._state.tracked
        decoding = {tracked[chunk.sequence].tenant for chunk in step.chunks} - ahead
        backlog = count_backlog(decoding, [tracked[sequence].tenant for sequence in wanting])
        num_beginners = sum(sequence.num_output_tokens + 1 < sequence.max_tokens for sequence in wanting)
        return step_budget(self._config, self.cost, step.chunks, self._ranks(step, ahead), backlog, num_beginners)

    def _ranks(self, step: Step, ahead: set[Tenant]) -> list[int]:
        """Classes of the decodes, for the budget."""
        tracked = self._state.tracked
        return [
            UNPROTECTED if tracked[chunk.sequence].tenant in ahead else self._state.class_rank(chunk.sequence)
            for chunk in step.chunks
        ]

    def _fill(
        self, step: Step, prefills: list[Sequence], candidates: list[Sequence], favoured: list[Sequence], budget: StepBudget
    ) -> None:
        """Prefill, of those that run and of those that may start, as far as the budget goes."""
        if not prefills and not candidates:
            return
        admissions = self._admission.begin(step)
        for sequence in self._selection.line(prefills, candidates, favoured, step.now_s):
            if budget.is_spent:
                break
            if sequence.status is Status.RUNNING:
                self._plan_prefill(step, sequence, budget)
            else:
                leader = admissions.offer(sequence, budget)
                if leader is not None:
                    self._plan_prefill(step, leader, budget)  # or the less entitled would hold up the more entitled

    def _help_starved(self, step: Step) -> None:
        """A prefill that found no page beside the decodes of the last step takes one from the less entitled before they go on."""
        starved, self._starved = self._starved, None
        if starved is not None and starved in self._state.running:
            self._pressure.make_room(step, starved, starved.num_computed + 1)

    def _plan_prefill(self, step: Step, sequence: Sequence, budget: StepBudget) -> None:
        if sequence not in self._state.running or sequence in step.planned or budget.is_spent:
            return
        rank = self._state.class_rank(sequence)
        granted = budget.grant(sequence.num_computed, sequence.num_uncomputed, rank)
        if granted and not step.chunks:
            # The most entitled of those left: it must get on, at the cost of the others.
            self._pressure.make_room(step, sequence, sequence.num_computed + 1)
        count = self._pages.fitting(sequence, granted)
        if count:
            self._pressure.plan(step, sequence, count)
            budget.take(sequence.num_computed, count, rank)
        elif granted and self._starved is None:
            self._starved = sequence
