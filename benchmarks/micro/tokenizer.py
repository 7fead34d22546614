"""CPU time of the tokenizer process's work on text: encoding, a conversation that grows, text from tokens as they are drawn.

python -m benchmarks.micro.tokenizer [--model smollm2-135m]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from radixserve.bench.words import WORDS
from radixserve_tokenizer.text.detokenizer import Detokenizer
from radixserve_tokenizer.text.load import load_tokenizer
from radixserve_tokenizer.text.template import ChatTemplate, load_template

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_tokenizer.text.tokenizer import TextTokenizer

TURNS = 20


class Bench:
    """Work on text of which no piece comes twice, so that no cache of pieces helps more than it would on new text."""

    def __init__(self, tokenizer: TextTokenizer, template: ChatTemplate, num_words: int = 4000) -> None:
        source = random.Random(0)
        self.text = " ".join(f"{source.choice(WORDS)}{source.randrange(1000)}" for _ in range(num_words))
        self.turns = [" ".join(source.choices(WORDS, k=60)) for _ in range(TURNS)]
        self._tokenizer = tokenizer
        self._template = template
        self.ids = tokenizer.encode(self.text)

    def encode(self) -> int:
        """The whole text; how many tokens it has."""
        return len(self._tokenizer.encode(self.text))

    def detokenize(self) -> int:
        """Token by token, as they are drawn."""
        detokenizer = Detokenizer(self._tokenizer.vocabulary)
        length = sum(len(detokenizer.feed((one,))) for one in self.ids) + len(detokenizer.finish())
        if length < len(self.text) // 2:
            raise RuntimeError("the text did not come back")
        return len(self.ids)

    def converse(self) -> int:
        """Turns of a conversation, each rendered and encoded when it is added, as an agent's are; how many messages there were."""
        conversation = self._template.conversation()
        for turn in self.turns:
            conversation.add("user", [turn])
            conversation.open_assistant()
            conversation.extend_assistant_ids(self.ids[:30])
        return len(self.turns)


def cpu_s(run: Callable[[], int], repeats: int) -> tuple[float, int]:
    """Median thread CPU seconds, and what it returned."""
    took: list[float] = []
    count = 0
    for _ in range(repeats):
        began = time.thread_time()
        count = run()
        took.append(time.thread_time() - began)
    return statistics.median(took), count


def main() -> None:
    """One line a kind of work."""
    from radixserve.models import resolve

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    began = time.perf_counter()
    tokenizer = load_tokenizer(Path(resolve(options.model)))
    template = load_template(tokenizer)
    if template is None:
        raise SystemExit(f"{options.model} has no chat template")
    print(f"loaded in {time.perf_counter() - began:.2f} s: {tokenizer.vocab_size:,} tokens")
    bench = Bench(tokenizer, template)
    for name, run in (("encode", bench.encode), ("detokenize", bench.detokenize), ("converse", bench.converse)):
        seconds, count = cpu_s(run, options.repeats)
        unit = "message" if name == "converse" else "token"
        print(f"{name:12}{1e6 * seconds / count:8.2f} us of CPU a {unit} ({1e3 * seconds:.1f} ms for {count:,})")


if __name__ == "__main__":
    main()
