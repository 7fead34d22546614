"""How close the decoder's logits are to those of transformers on the same weights.

    python -m benchmarks.fidelity [--model PATH] [--backend cpu] [--prompts 20] [--tokens 64]

Needs transformers, accelerate and gguf (the `dev` extra). transformers gives the weights and the arithmetic to compare with; its own
conversion of the GGUF tokenizer is not used, both sides get the same token ids. Exits with 1 if a bar is missed:

- float32: every logit of every prompt position within 1e-3, and greedy continuations equal;
- bfloat16: mean error against transformers in float32 at most 1.5 times that of transformers in bfloat16.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from radixserve_kernels.registry import load_backend
from radixserve_runtime.model.config import read_config
from radixserve_runtime.model.decoder import attention_spec, load_model
from tests.support.run_decoder import Runner

if TYPE_CHECKING:
    from collections.abc import Sequence

LOGIT_BAR = 1e-3
BFLOAT16_BAR = 1.5

TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived a clockmaker who",
    "def fibonacci(n):\n    ",
    "Water boils at 100 degrees Celsius, which is 212 degrees",
    '{"name": "Alice", "age": 30, "tags": ["a", "b"], "address": {"city":',
    "Q: What is 17 + 25?\nA:",
    "La lune était pleine cette nuit-là et",
    "import numpy as np\n\ndef softmax(x, axis=-1):\n    x = x - x.max(axis=axis, keepdims=True)\n    return",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "The three laws of thermodynamics are:\n1.",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    "SELECT name, COUNT(*) FROM orders WHERE",
    "The opposite of hot is cold. The opposite of up is",
    "Ein Zug fährt um 8:15 Uhr in Berlin ab und",
    "## Installation\n\n```bash\npip install",
    "In 1969, Neil Armstrong and Buzz Aldrin",
    "Photosynthesis is the process by which plants",
    "x   12   y   345\n",
    "Alice said: “I don’t know — maybe 😀?” and Bob",
    "A radix tree is a compressed trie. " * 24 + "In short, it",
)


@dataclass(frozen=True)
class Case:
    """One prompt's result."""

    num_tokens: int
    float32_error: float
    """Largest difference to transformers in float32, over all positions and tokens."""
    greedy_equal: int
    """Tokens of the greedy continuation that agree before the first that doesn't."""
    bfloat16_error: float
    """Mean difference of ours in bfloat16 to transformers in float32."""
    their_bfloat16_error: float
    """The same for transformers in bfloat16."""


class Oracle:
    """transformers on the same checkpoint."""

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM, GgufConfig
        from transformers.utils import logging

        logging.disable_progress_bar()
        options: dict[str, Any] = {"dtype": dtype}
        if path.is_file():
            options |= {"gguf_file": path.name, "quantization_config": GgufConfig(dequantize=True)}
        self._model = AutoModelForCausalLM.from_pretrained(path.parent if path.is_file() else path, **options).eval()
        self._model.generation_config.eos_token_id = None  # no end token ends `greedy`

    @torch.inference_mode()
    def logits(self, prompt: Sequence[int]) -> torch.Tensor:
        """[T, vocab] float32."""
        logits: torch.Tensor = self._model(torch.tensor([prompt])).logits[0].float()
        return logits

    @torch.inference_mode()
    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The most likely continuation, past end tokens too."""
        tokens = torch.tensor([prompt])
        output = self._model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=num_tokens)
        ids: list[int] = output[0, len(prompt) :].tolist()
        return ids


def load_runner(path: Path, dtype: str, backend: str) -> Runner:
    """The decoder on a backend, with a pool for a few thousand tokens."""
    spec = attention_spec(read_config(path))
    return Runner(load_model(path, dtype, load_backend(backend, spec)), num_pages=400)


def encode(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """Token ids; every third prompt is put as a user's message, with its control tokens."""
    from radixserve_tokenizer.text.load import load_tokenizer

    tokenizer = load_tokenizer(path)
    prompts: list[list[int]] = []
    for i, text in enumerate(texts):
        ids = tokenizer.encode(text)
        if i % 3 == 1 and {"<|im_start|>", "<|im_end|>"} <= tokenizer.special.keys():
            start, end = tokenizer.special["<|im_start|>"], tokenizer.special["<|im_end|>"]
            newline = tokenizer.encode("\n")
            user = [start, *tokenizer.encode("user\n"), *ids, end, *newline]
            ids = [*user, start, *tokenizer.encode("assistant\n")]
        prompts.append(ids)
    return prompts


def compare(path: Path, prompts: Sequence[Sequence[int]], num_tokens: int, backend: str) -> list[Case]:
    """Ours in float32 runs all greedy continuations as one batch, transformers each alone."""
    oracle = Oracle(path, torch.float32)
    expected = [oracle.logits(prompt) for prompt in prompts]
    continuations = [oracle.greedy(prompt, num_tokens) for prompt in prompts]
    del oracle
    runner = load_runner(path, "float32", backend)
    float32_errors = [float((logits - want).abs().max()) for logits, want in zip(_each(runner, prompts), expected, strict=True)]
    equal = [_agreement(a, b) for a, b in zip(_greedy_batch(runner, prompts, num_tokens), continuations, strict=True)]
    del runner
    oracle = Oracle(path, torch.bfloat16)
    their_errors = [float((oracle.logits(prompt) - want).abs().mean()) for prompt, want in zip(prompts, expected, strict=True)]
    del oracle
    ours = _each(load_runner(path, "bfloat16", backend), prompts)
    our_errors = [float((logits - want).abs().mean()) for logits, want in zip(ours, expected, strict=True)]
    lengths = [len(prompt) for prompt in prompts]
    return [Case(*row) for row in zip(lengths, float32_errors, equal, our_errors, their_errors, strict=True)]


def _each(runner: Runner, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Logits of every position of every prompt, one prompt a step."""
    results: list[torch.Tensor] = []
    for prompt in prompts:
        results.append(runner.step([(0, prompt)], all_logits=True))
        runner.drop(0)
    return results


def _greedy_batch(runner: Runner, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    outputs: list[list[int]] = [[] for _ in prompts]
    step: list[tuple[int, Sequence[int]]] = list(enumerate(prompts))
    for _ in range(num_tokens):
        for output, token in zip(outputs, runner.step(step).argmax(dim=-1).tolist(), strict=True):
            output.append(token)
        step = [(i, output[-1:]) for i, output in enumerate(outputs)]
    for i in range(len(prompts)):
        runner.drop(i)
    return outputs


def _agreement(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def misses(cases: Sequence[Case], num_tokens: int) -> list[str]:
    """The bars that these results miss, in words."""
    found: list[str] = []
    worst = max(case.float32_error for case in cases)
    if not worst <= LOGIT_BAR:
        found.append(f"float32 logits differ by up to {worst:.2e}, more than {LOGIT_BAR:.0e}")
    different = sum(case.greedy_equal < num_tokens for case in cases)
    if different:
        found.append(f"greedy continuations of {different} prompts differ")
    ratio = bfloat16_ratio(cases)
    if not ratio <= BFLOAT16_BAR:
        found.append(f"bfloat16 error is {ratio:.2f} times that of transformers, more than {BFLOAT16_BAR}")
    return found


def bfloat16_ratio(cases: Sequence[Case]) -> float:
    """Our mean error over theirs, all prompts together: of a single short prompt either may be the luckier one."""
    return sum(case.bfloat16_error for case in cases) / sum(case.their_bfloat16_error for case in cases)


def main() -> int:
    """Print the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description="Compare logits with transformers on the same weights.")
    parser.add_argument("--model", type=Path, help="GGUF file or Hugging Face folder (default: the bundled model)")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--prompts", type=int, default=len(TEXTS), choices=range(1, len(TEXTS) + 1), metavar=f"1..{len(TEXTS)}")
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    path: Path | None = options.model
    if path is None:
        from radixserve.models import resolve

        path = resolve("smollm2-135m")
    started = time.perf_counter()
    cases = compare(path, encode(path, TEXTS[: options.prompts]), options.tokens, options.backend)
    print("prompt tokens | float32 max error | greedy equal | bfloat16 mean error | of transformers | ratio")
    for case in cases:
        print(
            f"{case.num_tokens:13} | {case.float32_error:17.2e} | {case.greedy_equal:9}/{options.tokens} | "
            f"{case.bfloat16_error:19.4f} | {case.their_bfloat16_error:15.4f} | {case.bfloat16_error / case.their_bfloat16_error:5.2f}"
        )
    worst = max(case.float32_error for case in cases)
    equal = sum(case.greedy_equal == options.tokens for case in cases)
    print(f"{'all':>13} | {worst:17.2e} | {equal:5} of {len(cases):3} | {'':19} | {'':15} | {bfloat16_ratio(cases):5.2f}")
    found = misses(cases, options.tokens)
    print(
        f"{len(cases)} prompts, {options.backend} backend, {time.perf_counter() - started:.0f} s: {'; '.join(found) or 'all bars hold'}"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
