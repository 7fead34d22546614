"""What 8 and 4 bits cost: perplexity and agreement with bfloat16 on the same checkpoint, over our own documents.

    python -m benchmarks.quality [--model PATH] [--windows 16]

The documents are cut into windows of 512 tokens. Every form sees the same ones, so the difference in perplexity is that of pairs and
is given with its standard error. "top 1" is the share of positions whose most likely next token is the same; "greedy" is how many
tokens of a continuation of 48 agree before the first that doesn't, averaged over the windows' first 64 tokens.

Bars: int8 within 1 % of bfloat16; Q4_1 in its own form (int4, on the bundled model) within 0.5 %.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from benchmarks.bars.table import show
from radixserve.models import resolve
from radixserve_kernels.registry import load_backend
from radixserve_runtime.model.config import read_config
from radixserve_runtime.model.decoder import attention_spec, load_model
from radixserve_tokenizer.text.load import load_tokenizer
from tests.support.run_decoder import Runner

if TYPE_CHECKING:
    from radixserve_runtime.model.quantize import Quantization

WINDOW, PROMPT, CONTINUATION = 512, 64, 48
BARS: dict[str, float] = {"int8": 0.01, "int4": 0.005}
ROOT = Path(__file__).resolve().parent.parent
PAGES = ("ARCHITECTURE.md", "docs/dsl.md", "docs/fairness.md", "docs/tenants.md", "docs/serving.md", "docs/decisions")


def text() -> str:
    """Our documents, one after the other."""
    files: list[Path] = []
    for page in PAGES:
        path = ROOT / page
        files += sorted(path.glob("*.md")) if path.is_dir() else [path]
    return "\n\n".join(file.read_text(encoding="utf-8") for file in files)


class Answers:
    """What one form of the weights says about the windows."""

    def __init__(self, path: Path, quantization: Quantization, windows: list[list[int]]) -> None:
        backend = load_backend("auto", attention_spec(read_config(path)))
        runner = Runner(load_model(path, "bfloat16", backend, quantization=quantization), num_pages=64)
        losses: list[torch.Tensor] = []
        tops: list[torch.Tensor] = []
        self.greedy: list[list[int]] = []
        for window in windows:
            logits = runner.step([(0, window)], all_logits=True)[:-1]
            runner.drop(0)
            losses.append(F.cross_entropy(logits, torch.tensor(window[1:]), reduction="none"))
            tops.append(logits.argmax(dim=-1))
            self.greedy.append(runner.greedy(window[:PROMPT], CONTINUATION))
        self.losses = torch.cat(losses)
        self.tops = torch.cat(tops)

    @property
    def perplexity(self) -> float:
        """Of all positions."""
        return math.exp(float(self.losses.mean()))


def _agreeing(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def measure(path: Path, num_windows: int) -> list[tuple[str, str, str, bool]]:
    """Rows (name, figure, bar, passed)."""
    ids = load_tokenizer(path).encode(text())
    windows = [ids[start : start + WINDOW] for start in range(0, len(ids) - WINDOW + 1, WINDOW)][:num_windows]
    plain = Answers(path, "none", windows)
    rows = [("bfloat16: perplexity", f"{plain.perplexity:.3f} ({len(plain.losses):,} positions)", "", True)]
    for quantization, bar in BARS.items():
        answers = Answers(path, "int8" if quantization == "int8" else "int4", windows)
        change = answers.losses - plain.losses
        worse = math.exp(float(change.mean())) - 1
        error = float(change.std()) / math.sqrt(len(change))
        same = float((answers.tops == plain.tops).float().mean())
        greedy = sum(_agreeing(a, b) for a, b in zip(answers.greedy, plain.greedy, strict=True)) / len(windows)
        figure = f"{worse:+.2%} +- {error:.2%}; top 1 {same:.1%}; greedy {greedy:.0f} of {CONTINUATION}"
        rows.append((f"{quantization}: perplexity against bfloat16", figure, f"<= +{bar:.1%}", worse <= bar))
    return rows


def main() -> int:
    """Exit status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--windows", type=int, default=16)
    options = parser.parse_args()
    with torch.inference_mode():
        rows = measure(Path(str(resolve(options.model))), options.windows)
    return 0 if show(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
