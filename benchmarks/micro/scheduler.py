"""CPU time of a scheduling decision, by how much waits. No model; run it as `python benchmarks/micro/scheduler.py`.

Two kinds of decision: the slots are full, and a quarter of them has just become free while the tree has grown, so that
candidates are looked up in it again.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import TYPE_CHECKING, get_args

from radixserve_runtime.cache.pages import PagePool
from radixserve_runtime.cache.radix import RadixCache
from radixserve_runtime.scheduler.config import PolicyName, SchedulerConfig
from radixserve_runtime.scheduler.scheduler import Scheduler
from radixserve_runtime.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from radixserve_runtime.scheduler.plan import StepPlan

_PROMPT_TOKENS = 512
_SHARED_TOKENS = 384


class Bench:
    """A scheduler with `num_waiting` sequences of `num_tenants` tenants waiting, and a fixed step time."""

    def __init__(self, policy: PolicyName, num_waiting: int, num_tenants: int) -> None:
        self.now_s = 1.0
        self.source = random.Random(0)
        self.num_tenants = num_tenants
        self.number = 0
        pool = PagePool(16_384, 16)
        config = SchedulerConfig(policy=policy, max_running=64)
        self.scheduler = Scheduler(config, RadixCache(pool), pool, lambda: self.now_s)
        self.shared = {name: self._tokens(_SHARED_TOKENS) for name in range(num_tenants)}
        self.running: list[Sequence] = []
        for _ in range(num_waiting + config.max_running):
            self.add()
        while self.scheduler.num_running < config.max_running:
            self.run(self.scheduler.schedule())

    def _tokens(self, count: int) -> list[int]:
        return [self.source.randrange(30_000) for _ in range(count)]

    def add(self) -> None:
        """One more waits."""
        self.number += 1
        name = self.number % self.num_tenants
        tokens = [*self.shared[name], *self._tokens(_PROMPT_TOKENS - _SHARED_TOKENS)]
        tenant = f"tenant {name}"
        self.scheduler.add(
            Sequence(self.number, tokens, len(tokens), 256, (("tenant", tenant),), tenant=tenant, program=self.number)
        )

    def run(self, plan: StepPlan | None) -> None:
        """Let a step pass."""
        if plan is None:
            return
        self.now_s += 0.03
        self.scheduler.complete(plan, 0.03)
        self.running = [chunk.sequence for chunk in plan.chunks]
        for chunk in plan.chunks:
            if chunk.completes:
                self.scheduler.append_token(chunk.sequence, self.source.randrange(30_000))

    def measure(self, repeats: int, num_freed: int) -> list[float]:
        """Thread CPU seconds of each decision, with so many slots freed before each."""
        took = []
        for _ in range(repeats):
            for sequence in self.running[:num_freed]:
                self.scheduler.finish(sequence)
                self.add()
            before = time.thread_time()
            plan = self.scheduler.schedule()
            took.append(time.thread_time() - before)
            self.run(plan)
        return took


def main() -> None:
    """Print a table: median and slowest decision, in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", nargs="+", default=list(get_args(PolicyName)))
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    print(f"{'policy':8}{'waiting':>8}{'tenants':>8}   slots full: median   max   slots free: median   max   (ms of thread CPU)")
    for policy in options.policies:
        for num_waiting, num_tenants in ((100, 10), (1000, 1), (1000, 1000), (4000, 1000)):
            bench = Bench(policy, num_waiting, num_tenants)
            full, free = bench.measure(options.repeats, 0), bench.measure(options.repeats, 16)
            columns = [1e3 * value for took in (full, free) for value in (sorted(took)[len(took) // 2], max(took))]
            print(
                f"{policy:8}{num_waiting:8}{num_tenants:8}{columns[0]:22.2f}{columns[1]:6.2f}{columns[2]:21.2f}{columns[3]:6.2f}"
            )


if __name__ == "__main__":
    main()
