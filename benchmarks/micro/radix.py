"""What insert, match and evict cost in a small and in a large radix tree: microseconds a token.

    python benchmarks/micro/radix.py

The tree is built of prompts that share prefixes in three levels, then the three operations are measured at that size:
each inserts, finds or evicts prompts of the same shape. The bar: at 10^4, 10^5 and 10^6 nodes within 2x of each other.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from array import array
from typing import TYPE_CHECKING, TypeAlias

from radixserve_runtime.cache.pages import PagePool
from radixserve_runtime.cache.radix import RadixCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime.cache.node import TokenRun

Prompt: TypeAlias = "tuple[int, TokenRun]"
NAMESPACES = tuple((("tenant", str(number)),) for number in range(8))
PAGE = 16
SYSTEM, TURN, TAIL = 48, 32, 32
LENGTH = SYSTEM + TURN + TAIL


class Forest:
    """Prompts: 64 beginnings, about a hundred continuations of each for every 10^4 nodes, and a tail of their own."""

    def __init__(self, num_nodes: int, num_extra: int) -> None:
        self._source = random.Random(1)
        self._beginnings = [self._run(SYSTEM) for _ in range(64)]
        self._turns = [self._run(TURN) for _ in range(max(1, num_nodes // 64))]
        self.pool = PagePool((num_nodes + num_extra) * (LENGTH // PAGE), PAGE)
        self.cache = RadixCache(self.pool)
        self.prompts: list[Prompt] = []
        while self.cache.num_nodes < num_nodes:
            self.insert(self.new_prompt())

    def _run(self, length: int) -> TokenRun:
        return array("i", array("H", self._source.randbytes(2 * length)))

    def new_prompt(self) -> Prompt:
        """One more: a namespace and its tokens."""
        source = self._source
        tokens = source.choice(self._beginnings) + source.choice(self._turns) + self._run(TAIL)
        return source.randrange(len(NAMESPACES)), tokens

    def insert(self, prompt: Prompt) -> None:
        """As a sequence does it: match, lock, allocate what is new, publish, let go."""
        number, tokens = prompt
        cache, pool, owner = self.cache, self.pool, NAMESPACES[number][0]
        match = cache.match(NAMESPACES[number], tokens)
        lock, pages = cache.lock(match), match.pages
        pool.hold(pages)
        pages += pool.allocate(pool.pages_for(len(tokens)) - len(pages), owner)
        cache.extend(lock, tokens, pages)
        cache.unlock(lock)
        pool.release(pages)
        self.prompts.append(prompt)


def timed(run: Callable[[], int]) -> float:
    """Microseconds a token; `run` returns how many there were."""
    started = time.perf_counter()
    num_tokens = run()
    return (time.perf_counter() - started) / num_tokens * 1e6


def measure(num_nodes: int, count: int) -> tuple[int, float, float, float]:
    """Nodes, and the cost of each operation over `count` prompts."""
    forest = Forest(num_nodes, 2 * count)
    cache, source = forest.cache, random.Random(2)
    # As the engine does it once it is loaded: what is there need not be looked at by the collector again and again.
    gc.collect()
    gc.freeze()
    size = cache.num_nodes
    new = [forest.new_prompt() for _ in range(count)]
    old = source.choices(forest.prompts, k=count)

    def insert() -> int:
        for prompt in new:
            forest.insert(prompt)
        return count * LENGTH

    def match() -> int:
        return sum(cache.match(NAMESPACES[number], tokens).num_tokens for number, tokens in old)

    def evict() -> int:
        return sum(cache.evict(2) for _ in range(count)) * PAGE

    costs = timed(insert), timed(match), timed(evict)
    gc.unfreeze()
    return size, *costs


def main() -> None:
    """Measure each size, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--count", type=int, default=5_000, help="prompts for each operation")
    arguments = parser.parse_args()
    rows = [measure(size, arguments.count) for size in arguments.sizes]
    print(f"{'nodes':>10} {'insert':>8} {'match':>8} {'evict':>8}   microseconds a token")
    for size, *costs in rows:
        print(f"{size:>10,} " + " ".join(f"{cost:>8.3f}" for cost in costs))
    ratios = [max(column) / min(column) for column in list(zip(*rows, strict=True))[1:]]
    print(f"{'ratio':>10} " + " ".join(f"{ratio:>8.2f}" for ratio in ratios) + "   bar: 2")


if __name__ == "__main__":
    main()
