"""Can one tenant tell by timing, or by `cached_tokens`, whether another has asked a prompt?

    python -m benchmarks.isolation [--tries 2000] [--tokens 640] [--model PATH] [--beside]

One try: the victim asks either the prompt in question or another one of the same length, by the toss of a coin; then the
prober asks the prompt and notes its time to first token and its cached tokens. The score is the area under the ROC curve
of guessing the toss (0.5: no better than guessing, 1: always right). It is taken with two tenants, and as a check that the
probe sees anything at all with one tenant on both sides. With --beside the prober asks while the victim's prompt is still
being computed.

Without --model a tiny model with random weights is used: cached tokens and scheduling are the same, prompts are cheap.
Exits with 1 if a bar is missed: two tenants 0.5 +- 0.04 by either measure, one tenant at least 0.95.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import TYPE_CHECKING

from radixserve_runtime.model.config import read_config
from radixserve_runtime.protocol import Owner
from tests.support.engine_driver import Driver
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

VICTIM, OTHER = Owner(tenant="victim"), Owner(tenant="prober")
APART, TOGETHER = 0.04, 0.95


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Probability that a positive is above a negative, ties counted half."""
    ordered = sorted(negative)
    wins = sum(bisect_left(ordered, value) + bisect_right(ordered, value) for value in positive)
    return wins / (2 * len(positive) * len(ordered))


class Probe:
    """Tries on one engine, noted by the toss."""

    def __init__(self, driver: Driver, vocab_size: int, num_tokens: int, beside: bool) -> None:
        self._driver = driver
        self._vocab_size = vocab_size
        self._num_tokens = num_tokens
        self._beside = beside
        self._source = random.Random(5)

    def _prompt(self) -> list[int]:
        return self._source.choices(range(10, self._vocab_size), k=self._num_tokens)

    def one(self, prober: Owner, asked: bool) -> tuple[float, float]:
        """Higher means more like "it was asked": (minus time to first token, cached tokens)."""
        driver, secret = self._driver, self._prompt()
        driver.submit(secret if asked else self._prompt(), owner=VICTIM, max_tokens=1)
        if self._beside:
            driver.step()
        else:
            driver.run()
        started = time.perf_counter()
        number = driver.submit(secret, owner=prober, max_tokens=1)
        answer = driver.answers[number]
        while not answer.token_ids:
            driver.step()
        first_token_s = time.perf_counter() - started
        driver.run()
        if answer.finished is None:
            raise RuntimeError(f"the probe failed: {answer.failed}")
        driver.answers.clear()
        driver.events.clear()
        return -first_token_s, answer.finished.usage.cached_tokens

    def score(self, prober: Owner, tries: int) -> tuple[float, float]:
        """Areas by time and by cached tokens."""
        notes: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for _ in range(8):
            self.one(prober, asked=False)  # warm
        for _ in range(tries):
            asked = self._source.random() < 0.5
            notes[asked].append(self.one(prober, asked))
        by_time, by_cached = (auc([note[i] for note in notes[True]], [note[i] for note in notes[False]]) for i in (0, 1))
        return by_time, by_cached


def main() -> int:
    """Run the study; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=640)
    parser.add_argument("--model", type=Path, help="GGUF file or Hugging Face folder; default: a tiny model")
    parser.add_argument("--beside", action="store_true", help="probe while the victim's prompt is being computed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        real = arguments.model is not None
        path = arguments.model or write_tiny_checkpoint(Path(folder) / "model", max_position_embeddings=4096)
        vocab_size = read_config(path).vocab_size
        driver = Driver(
            path,
            vocabulary=tuple(b"%d," % number for number in range(vocab_size)),
            backend="cpu",
            dtype="bfloat16" if real else "float32",
            kv_tokens=16 * arguments.tokens,
            max_batch_tokens=256,
        )
        probe = Probe(driver, vocab_size, arguments.tokens, arguments.beside)
        started = time.perf_counter()
        apart = probe.score(OTHER, arguments.tries)
        together = probe.score(VICTIM, arguments.tries)
        elapsed_s = time.perf_counter() - started
    print(f"{arguments.tries} tries each, {arguments.tokens} tokens, {elapsed_s:.0f} s; area under the curve by")
    print(f"{'':12} {'time':>8} {'cached':>8}   bar")
    print(f"{'two tenants':12} {apart[0]:>8.3f} {apart[1]:>8.3f}   0.5 +- {APART:g}")
    print(f"{'one tenant':12} {together[0]:>8.3f} {together[1]:>8.3f}   at least {TOGETHER:g}")
    # Who asks beside may have to wait for the other's chunk either way, so by time alone one tenant may tell less.
    seen = together[1] if arguments.beside else min(together)
    return 0 if max(abs(area - 0.5) for area in apart) <= APART and seen >= TOGETHER else 1


if __name__ == "__main__":
    sys.exit(main())
