"""A model without weights: each slot of the KV pool holds the hash of the prefix that was "computed" into it.

A step writes its slots and then reads, for each chunk, every slot that attention would read. A slot that holds another
prefix's hash fails the test. The next token is a function of the prefix alone, so outputs can be compared with a run
without cache, batch or preemption.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from radixserve_runtime.cache.check import check_cache
from radixserve_runtime.cache.pages import PagePool
from radixserve_runtime.cache.radix import RadixCache
from radixserve_runtime.scheduler.config import SchedulerConfig
from radixserve_runtime.scheduler.scheduler import Scheduler
from radixserve_runtime.scheduler.sequence import Sequence, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from radixserve_runtime.scheduler.plan import StepPlan

VOCABULARY = 50


def prompt(length: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(1000) for _ in range(length)]


def prefix_hash(namespace: Any, tokens: Iterable[int]) -> int:
    value = hash(namespace)
    for token in tokens:
        value = hash((value, token))
    return value


def next_token(tokens: list[int], namespace: Any = (), vocabulary: int = VOCABULARY) -> int:
    return prefix_hash(namespace, tokens) % vocabulary


def cpu_like(decodes: int, prefill: int, pairs: float) -> float:
    """Seconds: 15 ms to read the weights, 0.6 ms a row, 0.7 ms a token of prefill, and attention."""
    return 15e-3 + 0.6e-3 * decodes + 0.7e-3 * prefill + 1.5e-7 * pairs


class Machine:
    """Scheduler, pool and fake model, with a virtual clock."""

    def __init__(
        self,
        num_pages: int = 64,
        page_size: int = 4,
        cost: Callable[[int, int, float], float] = cpu_like,
        prefix_cache: bool = True,
        vocabulary: int = VOCABULARY,
        **config: Any,
    ) -> None:
        self.now_s = 1.0
        self.vocabulary = vocabulary
        self.cost = cost
        self.pool = PagePool(num_pages, page_size)
        self.cache = RadixCache(self.pool, prefix_cache)
        self.config = SchedulerConfig(**config)
        self.scheduler = Scheduler(self.config, self.cache, self.pool, lambda: self.now_s)
        self.slots: list[list[int]] = [[0] * page_size for _ in range(num_pages)]
        self.hashes: dict[Sequence, tuple[list[int], list[int]]] = {}
        self.ends: dict[Sequence, float] = {}
        self.token_times: dict[Sequence, list[float]] = {}
        self.order: list[Sequence] = []
        self.next_id = 0

    def add(self, tokens: list[int], max_tokens: int = 4, **fields: Any) -> Sequence:
        self.next_id += 1
        sequence = Sequence(self.next_id, list(tokens), len(tokens), max_tokens, **fields)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> StepPlan | None:
        plan = self.scheduler.schedule()
        if plan is not None:
            self.run(plan)
        return plan

    def run(self, plan: StepPlan) -> None:
        self.check_plan(plan)
        self.forward(plan)
        decodes = sum(chunk.count == 1 for chunk in plan.chunks)
        pairs = sum(chunk.count * (chunk.start + chunk.end) / 2 for chunk in plan.chunks)
        duration_s = self.cost(decodes, plan.num_tokens - decodes, pairs)
        self.now_s += duration_s
        completed = [chunk.sequence for chunk in plan.chunks if chunk.completes]
        self.scheduler.complete(plan, duration_s)
        for sequence in completed:
            self.sample(sequence)

    def check_plan(self, plan: StepPlan) -> None:
        assert plan.chunks, "an empty plan"
        assert 0 < plan.num_tokens <= self.config.max_batch_tokens
        assert len(plan.chunks) <= self.config.max_running
        assert len({chunk.sequence for chunk in plan.chunks}) == len(plan.chunks)
        assert not {chunk.sequence for chunk in plan.chunks} & set(plan.preempted), "preempted and started again in one step"
        for chunk in plan.chunks:
            assert chunk.sequence.status is Status.RUNNING
            assert chunk.start == chunk.sequence.num_computed
            assert len(chunk.sequence.pages) >= self.pool.pages_for(chunk.end)

    def forward(self, plan: StepPlan) -> None:
        size = self.pool.page_size_tokens
        for source, destination, count in plan.copies:
            self.slots[destination][:count] = self.slots[source][:count]
        for chunk in plan.chunks:
            values = self.prefix_hashes(chunk.sequence)
            for position in range(chunk.start, chunk.end):
                self.slots[chunk.sequence.pages[position // size]][position % size] = values[position]
        for chunk in plan.chunks:
            values = self.prefix_hashes(chunk.sequence)
            for number, start in enumerate(range(0, chunk.end, size)):
                seen = self.slots[chunk.sequence.pages[number]][: chunk.end - start]
                assert seen == values[start : min(start + size, chunk.end)], (
                    f"sequence {chunk.sequence.request_id} would attend to wrong KV in tokens {start} to {start + size}"
                )

    def prefix_hashes(self, sequence: Sequence) -> list[int]:
        """Hash of each prefix of a sequence, kept from step to step as far as its tokens are the same."""
        tokens, values = self.hashes.get(sequence, ([], []))
        if tokens != sequence.token_ids[: len(tokens)]:
            tokens, values = [], []
        value = values[-1] if values else hash(sequence.namespace)
        for token in sequence.token_ids[len(tokens) :]:
            value = hash((value, token))
            values.append(value)
        self.hashes[sequence] = (list(sequence.token_ids), values)
        return values

    def sample(self, sequence: Sequence) -> None:
        while sequence.num_output_tokens < sequence.max_tokens:
            token_id = self.prefix_hashes(sequence)[-1 - sequence.num_draft] % self.vocabulary
            self.token_times.setdefault(sequence, []).append(self.now_s)
            if sequence.num_draft and sequence.token_ids[-sequence.num_draft] == token_id:
                self.scheduler.accept_draft(sequence)
                continue
            if sequence.num_draft:
                self.scheduler.reject_draft(sequence)
            self.scheduler.append_token(sequence, token_id)
            break
        if sequence.num_output_tokens >= sequence.max_tokens:
            self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        self.ends[sequence] = self.now_s
        self.order.append(sequence)

    def run_all(self, max_steps: int = 100_000) -> int:
        """Until nothing is left to do; returns the number of steps."""
        for number in range(max_steps):
            if not self.scheduler.has_work:
                return number
            if self.step() is None:
                deadline_s = self.scheduler.next_deadline_s
                assert deadline_s is not None, "stalled: work to do, nothing scheduled, and no deadline"
                assert deadline_s > self.now_s, "stalled: the deadline has passed"
                self.now_s = deadline_s
        raise AssertionError(f"not done after {max_steps} steps")

    def check_idle(self) -> None:
        """Nothing is left running or locked, and all accounts balance."""
        assert not self.scheduler.has_work
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        assert self.pool.num_locked == 0
        assert self.pool.num_free + self.pool.num_cached == self.pool.num_pages
        check_cache(self.cache, self.pool)


class Quick(Machine):
    """Without the fake model: what is computed is tested elsewhere."""

    def forward(self, plan: StepPlan) -> None:
        pass

    def sample(self, sequence: Sequence) -> None:
        if sequence.max_tokens > 0:
            self.scheduler.append_token(sequence, (sequence.num_tokens * 31 + sequence.request_id) % VOCABULARY)
        if sequence.num_output_tokens >= sequence.max_tokens:
            self.end(sequence)


class Load:
    """Tenants that send random sequences; those of `backlogged` always have some waiting."""

    def __init__(self, machine: Machine, shapes: dict[str, tuple[int, int]], seed: int = 0) -> None:
        self.machine = machine
        self.shapes = shapes
        self.source = random.Random(seed)
        self.number = 0

    def waiting(self, tenant: str) -> int:
        account = self.machine.scheduler.tenant_stats().get(tenant)
        return account.num_waiting if account is not None else 0

    def send(self, tenant: str, **fields: Any) -> Sequence:
        self.number += 1
        most_prompt, most_output = self.shapes[tenant]
        own = prompt(self.source.randint(1, most_prompt), self.number)
        return self.machine.add(
            [*prompt(12, ord(tenant[0])), *own],
            self.source.randint(1, most_output),
            tenant=tenant,
            namespace=(("tenant", tenant),),
            **fields,
        )

    def keep(self, depth: int, *tenants: str) -> None:
        for tenant in tenants:
            for _ in range(self.waiting(tenant), depth):
                self.send(tenant, program=self.number + 1)

    def step(self) -> StepPlan | None:
        plan = self.machine.step()
        if plan is None:
            self.machine.now_s += 0.001
        return plan

    def charges(self) -> dict[str, float]:
        return {name: account.charge for name, account in self.machine.scheduler.tenant_stats().items()}


def expected_output(prompt: list[int], count: int, namespace: Any = (), vocabulary: int = VOCABULARY) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, namespace, vocabulary))
    return tokens[len(prompt) :]
