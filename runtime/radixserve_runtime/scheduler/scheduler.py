"""Which tokens go through the model next.

A step mixes one decode token of every running sequence with chunks of prefill. Pages are allocated as chunks need them;
when none is left, the cache is evicted, and then the least entitled running sequence is preempted: its KV stays in the
tree, evictable, and it waits at the front again, so that resuming it is a prefix hit if the pages were not needed.

That nothing stalls rests on three rules. The most entitled sequence that has no chunk yet may preempt all others that
have none, so a step with running sequences is never empty. With nothing running, the first of the waiting starts
whatever the careful rules of admission say, if need be after emptying the cache. And a sequence that could not have
the pool for itself is refused when it is added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve_runtime.cache.node import TokenRun, token_run
from radixserve_runtime.scheduler.batching import make_gate
from radixserve_runtime.scheduler.budget import StepBudget, step_budget
from radixserve_runtime.scheduler.config import EmptySequenceError, SchedulerConfig, SequenceTooLongError
from radixserve_runtime.scheduler.cost import CostModel, StepFeatures
from radixserve_runtime.scheduler.counters import Counters
from radixserve_runtime.scheduler.inflight import Leaders
from radixserve_runtime.scheduler.kv import SequencePages, match_limit
from radixserve_runtime.scheduler.plan import Chunk, StepPlan
from radixserve_runtime.scheduler.policy import Policy, make_policy
from radixserve_runtime.scheduler.sequence import Sequence, Status
from radixserve_runtime.scheduler.waiting import WaitingQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime.cache.pages import PagePool
    from radixserve_runtime.cache.radix import RadixCache

#: In-flight sharing is worth a wait from this many tokens on, or a page where pages are larger.
MIN_SHARED_TOKENS = 16
#: Steps without preemption after which admission halves the output it keeps pages back for.
CALM_STEPS = 256


@dataclass(slots=True)
class _Tracked:
    """What the scheduler knows about a sequence that nobody else needs."""

    tokens: TokenRun
    since_s: float
    cache_version: int = -1
    num_cached_tokens: int = 0
    """Found in the cache when its version was `cache_version`."""


@dataclass(slots=True)
class _Step:
    """The step being planned."""

    running: list[Sequence]
    """Those that ran before, by entitlement."""
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    planned: set[Sequence] = field(default_factory=set[Sequence])
    preempted: list[Sequence] = field(default_factory=list[Sequence])
    copies: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    demand: int = 0
    """Pages that admission leaves to those who run."""

    def add(self, sequence: Sequence, count: int) -> None:
        self.chunks.append(Chunk(sequence, sequence.num_computed, count))
        self.planned.add(sequence)


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
        self.counters = Counters()
        self.cost = CostModel()
        self._config = config
        self._cache = cache
        self._pool = pool
        self._clock = clock
        self._policy = policy or make_policy(config)
        self._pages = SequencePages(cache, pool)
        self._waiting = WaitingQueue(self._policy)
        self._running: dict[Sequence, None] = {}
        self._tracked: dict[Sequence, _Tracked] = {}
        self._gate = make_gate(config)
        self._growth_tokens = config.growth_tokens
        self._calm_steps = 0
        self._starved: Sequence | None = None

    # ---- state -----------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait, preempted ones too."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether any sequence has not ended."""
        return bool(self._tracked)

    @property
    def next_deadline_s(self) -> float | None:
        """When to call `schedule` again after it returned None, if nothing else happens. None: nothing waits for a time."""
        return None if self._running else self._gate.deadline_s(self._waiting)

    # ---- what the engine tells -------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """A new sequence waits. Its arrival is now unless it names one. Raises `EmptySequenceError`, `SequenceTooLongError`."""
        if not sequence.token_ids:
            raise EmptySequenceError("a sequence needs at least one token")
        # The last token drawn never goes through the model.
        most = sequence.num_tokens + max(0, sequence.max_tokens - sequence.num_output_tokens - 1)
        capacity = self._pool.num_pages * self._pool.page_size_tokens
        if most > capacity:
            raise SequenceTooLongError(f"prompt and max_tokens need KV for {most} tokens and the pool holds {capacity}")
        now_s = self._clock()
        if not sequence.arrival_s:
            sequence.arrival_s = now_s
        sequence.status = Status.WAITING
        self._tracked[sequence] = _Tracked(token_run(sequence.token_ids), now_s)
        self._waiting.push(sequence, now_s)

    def append_token(self, sequence: Sequence, token_id: int) -> None:
        """A token was drawn (or forced) for a running sequence."""
        sequence.token_ids.append(token_id)
        self._tracked[sequence].tokens.append(token_id)
        self.counters.num_output_tokens += 1
        if sequence.first_token_s < 0:
            sequence.first_token_s = self._clock()

    def truncate(self, sequence: Sequence, num_tokens: int) -> None:
        """Drop a running sequence's tokens from `num_tokens` on, and their KV. Raises `ValueError` if nothing would be left."""
        if not 0 < num_tokens <= sequence.num_tokens:
            raise ValueError(f"a sequence of {sequence.num_tokens} tokens can't be cut to {num_tokens}")
        tracked = self._tracked[sequence]
        del sequence.token_ids[num_tokens:]
        del tracked.tokens[num_tokens:]
        if sequence.status is Status.RUNNING:
            self._pages.truncate(sequence, tracked.tokens)

    def finish(self, sequence: Sequence) -> None:
        """It ended. Its KV stays in the tree, evictable. Does nothing if it has ended before."""
        tracked = self._tracked.pop(sequence, None)
        if tracked is None:
            return
        if sequence.status is Status.RUNNING:
            del self._running[sequence]
            self._pages.detach(sequence, tracked.tokens)
        else:
            self._waiting.remove(sequence)
        sequence.status = Status.FINISHED
        self._gate.left(sequence, len(self._waiting))

    def cancel(self, sequence: Sequence) -> None:
        """Stop it at once, whatever its state. What it has computed stays in the tree. Does nothing if it has ended."""
        if sequence in self._tracked:
            self.counters.num_aborted += 1
            self.finish(sequence)

    def complete(self, plan: StepPlan, duration_s: float) -> None:
        """The step was computed. Call it before the drawn tokens are appended. Sequences that ended since are passed over."""
        self.cost.observe(StepFeatures.of(plan.chunks), duration_s)
        self.counters.num_steps += 1
        self.counters.num_padded_slots += self._gate.num_padded
        self._policy.charge(plan)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if sequence.status is not Status.RUNNING or sequence.num_computed != chunk.start:
                continue
            was_prefill = sequence.is_prefill
            sequence.num_computed = chunk.end
            self.counters.num_batched_tokens += chunk.count
            self.counters.num_prompt_tokens_computed += max(0, min(chunk.end, sequence.num_prompt_tokens) - chunk.start)
            if was_prefill:
                self._pages.publish(sequence, self._tracked[sequence].tokens)

    # ---- planning --------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """The next step, or None if nothing can run now (see `next_deadline_s`).

        Its copies come with this plan alone: a step that fails is run again from its plan, not scheduled again.
        """
        now_s = self._clock()
        step = _Step(sorted(self._running, key=self._policy.entitlement))
        self._help_starved(step)
        self._plan_decodes(step)
        prefills = [sequence for sequence in step.running if sequence in self._running and sequence not in step.planned]
        window = self._gate.candidates(self._waiting, self._config.window, now_s)
        num_startable = min(len(window), max(0, self._config.num_slots - len(self._running)))
        budget = step_budget(self._config, self.cost, step.chunks, len(prefills) + num_startable)
        for sequence in prefills:
            self._plan_prefill(step, sequence, budget)
        # Whoever was preempted in this step waits at least until the next.
        if num_startable and not budget.is_spent and not (step.preempted and step.chunks):
            self._admit(step, window, budget, now_s)
        self._adapt_growth(bool(step.preempted))
        if not step.chunks:
            return None
        return StepPlan(tuple(step.chunks), tuple(step.copies), tuple(step.preempted))

    def _help_starved(self, step: _Step) -> None:
        """A prefill that found no page beside the decodes of the last step takes one from the less entitled before they go on."""
        starved, self._starved = self._starved, None
        if starved is not None and starved in self._running:
            self._make_room(step, starved, starved.num_computed + 1)

    def _plan_decodes(self, step: _Step) -> None:
        for sequence in step.running:
            if sequence not in self._running:
                continue
            if sequence.num_uncomputed == 0:
                sequence.num_computed -= 1  # it was cut back to what is computed: its last token's logits are wanted again
            if sequence.num_uncomputed != 1:
                continue
            if self._make_room(step, sequence, sequence.num_tokens):
                self._plan(step, sequence, 1)
            else:
                self._preempt(step, sequence)

    def _plan_prefill(self, step: _Step, sequence: Sequence, budget: StepBudget) -> None:
        if sequence not in self._running or budget.is_spent:
            return
        granted = budget.grant(sequence.num_computed, sequence.num_uncomputed)
        if granted and not step.chunks:
            # The most entitled of those left: it must get on, at the cost of the others.
            self._make_room(step, sequence, sequence.num_computed + 1)
        count = self._pages.fitting(sequence, granted)
        if count:
            self._plan(step, sequence, count)
            budget.take(sequence.num_computed, count)
        elif granted and self._starved is None:
            self._starved = sequence

    def _plan(self, step: _Step, sequence: Sequence, count: int) -> None:
        """The next `count` tokens of a sequence join the step; there is room for them, if need be by evicting."""
        end = sequence.num_computed + count
        self._cache.evict(self._pages.missing(sequence, end) - self._pool.num_free)
        self._pages.grow(sequence, end, step.copies)
        step.add(sequence, count)

    # ---- pressure --------------------------------------------------------------------------------------------

    def _make_room(self, step: _Step, sequence: Sequence, end: int) -> bool:
        """See that pages for a sequence up to `end` are free or can be evicted, preempting less entitled ones without a chunk."""
        while self._pages.missing(sequence, end) > self._pool.num_available:
            victim = self._victim(step, sequence)
            if victim is None:
                break
            self._preempt(step, victim)
        if self._pages.missing(sequence, end) > self._pool.num_available:
            # Its path in the tree may lock pages beside its own (where a page was copied, or computed twice).
            self._pages.unpin(sequence)
        if self._pages.missing(sequence, end) > self._pool.num_available:
            self._cache.reset()  # a page that only the tree shared needs no copy any more
        return self._pages.missing(sequence, end) <= self._pool.num_available

    def _victim(self, step: _Step, sequence: Sequence) -> Sequence | None:
        """The least entitled running sequence without a chunk, if it is less entitled than `sequence`."""
        for victim in reversed(step.running):
            if victim is sequence:
                break
            if victim in self._running and victim not in step.planned:
                return victim
        return None

    def _preempt(self, step: _Step, sequence: Sequence) -> None:
        tracked = self._tracked[sequence]
        del self._running[sequence]
        self._pages.detach(sequence, tracked.tokens)
        sequence.status = Status.WAITING
        sequence.num_preemptions += 1
        self._waiting.push_front(sequence, tracked.since_s)
        step.preempted.append(sequence)
        self.counters.num_preemptions += 1

    def _adapt_growth(self, preempted: bool) -> None:
        """Who was let in too early is preempted and computed again: after that admission keeps more pages back, for a while."""
        if preempted:
            self._growth_tokens = min(2 * self._growth_tokens, self._pool.num_pages * self._pool.page_size_tokens)
            self._calm_steps = 0
            return
        self._calm_steps += 1
        if self._calm_steps >= CALM_STEPS:
            self._growth_tokens = max(self._growth_tokens // 2, self._config.growth_tokens)
            self._calm_steps = 0

    # ---- admission -------------------------------------------------------------------------------------------

    def _admit(self, step: _Step, window: list[Sequence], budget: StepBudget, now_s: float) -> None:
        step.demand = sum(self._demand(sequence, len(sequence.pages)) for sequence in self._running)
        leaders = self._leaders()
        for sequence in self._in_order(window, now_s):
            if len(self._running) >= self._config.num_slots or budget.is_spent:
                break
            tracked = self._tracked[sequence]
            if leaders.computes_for(sequence, tracked.tokens, tracked.num_cached_tokens, match_limit(sequence)):
                continue
            if not self._start(step, sequence, budget, now_s):
                # The next in order may be smaller, but would be let past for ever.
                break
            if sequence.num_uncomputed > 1 and self._cache.enabled:
                leaders.add(sequence, tracked.tokens)

    def _leaders(self) -> Leaders:
        leaders = Leaders(max(MIN_SHARED_TOKENS, self._pool.page_size_tokens))
        # Without a cache there is nothing to share through, and nobody leads.
        for sequence in self._running if self._cache.enabled else ():
            if sequence.num_uncomputed > 1:
                leaders.add(sequence, self._tracked[sequence].tokens)
        return leaders

    def _in_order(self, window: list[Sequence], now_s: float) -> list[Sequence]:
        """The candidates by the policy's order. They are matched again only if the tree has grown."""
        version = self._cache.version
        for sequence in window:
            tracked = self._tracked[sequence]
            if tracked.cache_version != version:
                match = self._cache.match(sequence.namespace, tracked.tokens, match_limit(sequence))
                tracked.num_cached_tokens, tracked.cache_version = match.num_tokens, version
        return sorted(window, key=lambda sequence: self._policy.key(sequence, self._tracked[sequence].num_cached_tokens, now_s))

    def _demand(self, sequence: Sequence, num_pages: int) -> int:
        """Pages that a sequence with `num_pages` pages is expected to take: for what it has to compute and some output."""
        left = max(0, sequence.max_tokens - sequence.num_output_tokens - 1)
        return self._pool.pages_for(sequence.num_tokens + min(left, self._growth_tokens)) - num_pages

    def _start(self, step: _Step, sequence: Sequence, budget: StepBudget, now_s: float) -> bool:
        """Give a waiting sequence a slot and its first chunk, if tokens and pages allow. With nothing running they are made to."""
        tracked = self._tracked[sequence]
        match = self._cache.match(sequence.namespace, tracked.tokens, match_limit(sequence))
        granted = budget.grant(match.num_tokens, sequence.num_tokens - match.num_tokens)
        demand = self._demand(sequence, self._pool.pages_for(match.num_tokens))
        # Before its pages are locked more seems available than is: this only spares the attempt.
        if not granted or (self._running and step.demand + demand > self._pool.num_available):
            return False
        self._pages.attach(sequence, match)
        demand += self._pages.missing(sequence, sequence.num_computed)
        if not self._running:
            self._make_room(step, sequence, sequence.num_computed + 1)
        elif step.demand + demand > self._pool.num_available:
            granted = 0
        count = self._pages.fitting(sequence, granted)
        if not count:
            self._pages.detach(sequence, tracked.tokens)
            return False
        self._waiting.remove(sequence)
        self._running[sequence] = None
        sequence.status = Status.RUNNING
        self._count_admission(sequence, now_s)
        step.demand += demand
        self._plan(step, sequence, count)
        budget.take(sequence.num_computed, count)
        return True

    def _count_admission(self, sequence: Sequence, now_s: float) -> None:
        if sequence.first_scheduled_s < 0:
            sequence.first_scheduled_s = now_s
        if sequence.num_cached_tokens < 0:
            sequence.num_cached_tokens = min(sequence.num_computed, sequence.num_prompt_tokens)
            self.counters.num_prompt_tokens += sequence.num_prompt_tokens
            self.counters.num_cached_tokens += sequence.num_cached_tokens
