from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.bench.ask import BenchError
from radixserve.bench.words import FIRST, WORDS, Speller, calibrate
from tests.bench.fakes import AROUND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.bench.ask import Message

OVERHEAD = 2 * AROUND + 4


class Counter:
    """A server whose tokenizer is a table of words."""

    def __init__(self, costs: dict[str, int], default: int = 1) -> None:
        self.costs = costs
        self.default = default
        self.num_calls = 0

    def tokens(self, text: str) -> int:
        return sum(1 if word == FIRST else self.costs.get(word, self.default) for word in text.split())

    async def count(self, messages: Sequence[Message]) -> int:
        self.num_calls += 1
        return sum(AROUND + self.tokens(content) for _, content in messages)


def test_one_probe_is_enough_where_all_words_are_one_token() -> None:
    counter = Counter({})
    asyncio.run(calibrate(counter.count))
    assert counter.num_calls == 2


def test_words_of_several_tokens_are_left_out() -> None:
    counter = Counter({word: 2 for word in WORDS[::7]})
    speller = asyncio.run(calibrate(counter.count))
    text = speller.text(500, random.Random(1))
    assert counter.tokens(text) == 500 == len(text.split())
    assert counter.num_calls < len(WORDS)


@given(
    costs=st.lists(st.integers(1, 5), min_size=len(WORDS), max_size=len(WORDS)),
    length=st.integers(1, 300),
    seed=st.integers(0, 9),
)
def test_texts_and_prompts_have_the_length_that_was_asked_for(costs: list[int], length: int, seed: int) -> None:
    counter = Counter(dict(zip(WORDS, costs, strict=True)))
    speller = asyncio.run(calibrate(counter.count))
    try:
        text = speller.text(length, random.Random(seed))
    except BenchError:
        assert 1 not in costs or costs.count(1) < 8  # no words add up to it
        return
    assert counter.tokens(text) == length
    prompt = speller.prompt(length + 200, random.Random(seed))
    assert asyncio.run(counter.count(prompt)) == length + 200


def test_equal_seeds_give_equal_texts() -> None:
    speller = asyncio.run(calibrate(Counter({}).count))
    assert speller.text(40, random.Random("a")) == speller.text(40, random.Random("a"))
    assert speller.text(40, random.Random("a")) != speller.text(40, random.Random("b"))


def test_a_prompt_that_is_shorter_than_the_template_is_refused() -> None:
    speller = Speller({"a": 1}, overhead=30)
    with pytest.raises(BenchError, match="at least 30 tokens"):
        speller.prompt(29, random.Random(0))


def test_a_server_that_counts_nothing_is_found_out() -> None:
    async def count(messages: Sequence[Message]) -> int:
        return 7

    with pytest.raises(BenchError, match="can't be used"):
        asyncio.run(calibrate(count))
