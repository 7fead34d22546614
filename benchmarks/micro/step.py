"""Decode steps and prompts through the whole model, in each form of weights, against the machine's own limits.

    python -m benchmarks.micro.step [--batch 1 16] [--prompt 512]

A step is timed with the limits in turn, and the fastest round of each counts: on a machine that others use too, that is the one
nobody disturbed. "read" is the time to read the bfloat16 weights, with all threads, from memory. A prompt's rate is held against
the best bfloat16 rate of square matrix products.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import torch

from radixserve.models import resolve
from radixserve_kernels.registry import load_backend
from radixserve_runtime.model.config import read_config
from radixserve_runtime.model.decoder import attention_spec, load_model
from radixserve_runtime.model.quantize import Quantization
from tests.support.run_decoder import Runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime.model.architecture import ModelConfig

CONTEXT = 192
SQUARE = 1024


def layer_weights(config: ModelConfig) -> int:
    """Values of all layers' matrices."""
    attention = config.hidden_size * (2 * config.q_size + 2 * config.kv_size)
    return config.num_layers * (attention + 3 * config.hidden_size * config.intermediate_size)


def fastest(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each one's fastest round, in turn."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


class Model:
    """One form of the weights, with sequences to decode and a prompt to read."""

    def __init__(self, path: Path, quantization: Quantization, batch: int, prompt: int) -> None:
        backend = load_backend("auto", attention_spec(read_config(path)))
        decoder = load_model(path, "bfloat16", backend, quantization=quantization)
        self._runner = Runner(decoder, num_pages=(CONTEXT // 16 + 8) * batch + prompt // 16 + 2)
        self._prompt = [(31 * i) % 40_000 + 5 for i in range(prompt)]
        for sequence in range(batch):
            self._runner.step([(sequence, [(13 * sequence + i) % 40_000 + 5 for i in range(CONTEXT)])])

    def decode(self, batch: int) -> None:
        """One step of the first sequences. Lengths are put back, so that every round does the same work."""
        lengths = dict(self._runner.lengths)
        self._runner.step([(sequence, [7]) for sequence in range(batch)])
        self._runner.lengths.update(lengths)

    def read(self) -> None:
        """A cold prompt."""
        self._runner.step([(-1, self._prompt)])
        self._runner.drop(-1)


def main() -> None:
    """Two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    path = Path(str(resolve("smollm2-135m")))
    config = read_config(path)
    head = config.vocab_size * config.hidden_size
    memory = torch.zeros(layer_weights(config) + head, dtype=torch.bfloat16).view(torch.float32)
    square = torch.randn(SQUARE, SQUARE).bfloat16()
    models: dict[str, Model] = {form: Model(path, form, max(options.batch), options.prompt) for form in get_args(Quantization)}
    with torch.inference_mode():
        for batch in options.batch:
            runs: dict[str, Callable[[], object]] = {form: partial(model.decode, batch) for form, model in models.items()}
            times = fastest({**runs, "read": memory.sum}, options.rounds)
            shown = "  ".join(f"{form} {1e3 * times[form]:.2f} ms ({times['none'] / times[form]:.2f}x)" for form in models)
            print(
                f"decode step of {batch}: {shown}  read {1e3 * times['read']:.2f} ms; bf16 / read {times['none'] / times['read']:.2f}"
            )
        prompts: dict[str, Callable[[], object]] = {form: model.read for form, model in models.items()}
        times = fastest({**prompts, "square": partial(torch.matmul, square, square)}, max(3, options.rounds // 4))
        peak = 2 * SQUARE**3 / times["square"]
        work = 2 * (layer_weights(config) * options.prompt + head)
        shown = "  ".join(f"{form} {1e3 * times[form]:.1f} ms, {work / times[form] / peak:.2f} of peak" for form in models)
        print(f"prompt of {options.prompt}: {shown}; peak {peak / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
