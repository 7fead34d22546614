"""Text of exact token lengths without a tokenizer.

The server is asked how long a few probes are (by `/tokenize`, by its socket, or by what a request of one token says of its
prompt). Words that each add a known number of tokens wherever they stand are then put together to any length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.bench.ask import BenchError

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from radixserve.bench.ask import Message

#: Common words, most of them one token in most vocabularies.
WORDS = [
    "water",
    "house",
    "green",
    "paper",
    "money",
    "light",
    "music",
    "story",
    "world",
    "school",
    "family",
    "garden",
    "window",
    "table",
    "river",
    "mountain",
    "city",
    "street",
    "market",
    "doctor",
    "teacher",
    "child",
    "friend",
    "mother",
    "father",
    "brother",
    "sister",
    "summer",
    "winter",
    "spring",
    "morning",
    "evening",
    "letter",
    "number",
    "word",
    "book",
    "page",
    "line",
    "side",
    "part",
    "place",
    "point",
    "time",
    "year",
    "week",
    "month",
    "hour",
    "minute",
    "state",
    "country",
    "church",
    "office",
    "court",
    "party",
    "group",
    "member",
    "law",
    "power",
    "force",
    "army",
    "war",
    "peace",
    "death",
    "life",
    "heart",
    "head",
    "hand",
    "face",
    "body",
    "voice",
    "eye",
    "door",
    "room",
    "floor",
    "wall",
    "road",
    "car",
    "train",
    "ship",
    "plane",
    "field",
    "farm",
    "tree",
    "animal",
    "horse",
    "dog",
    "fish",
    "bird",
    "food",
    "bread",
    "meat",
    "milk",
    "coffee",
    "tea",
    "wine",
    "fire",
    "wind",
    "rain",
    "snow",
    "sun",
    "moon",
    "star",
    "sky",
    "earth",
    "stone",
    "iron",
    "gold",
    "silver",
]

FIRST = "The"
SYSTEM = "You answer briefly."


class Speller:
    """Writes texts and prompts of exact lengths. Texts are functions of their `random.Random` alone."""

    def __init__(self, costs: dict[str, int], overhead: int) -> None:
        """`costs`: tokens that each word adds; `overhead`: tokens of a prompt whose user says `FIRST` alone."""
        self._costs = costs
        self._overhead = overhead
        self._words = list(costs)
        self._largest = max(costs.values())
        self._endings = self._make_endings()

    def text(self, num_tokens: int, source: random.Random) -> str:
        """So many tokens, the first word (counted as one) included."""
        return FIRST + self.more(num_tokens - 1, source)

    def more(self, num_tokens: int, source: random.Random) -> str:
        """Text of so many tokens that can follow any other of these. Raises `BenchError` when no words add up to it."""
        parts: list[str] = []
        left = num_tokens
        while left >= 2 * self._largest * self._largest + self._largest or (left > 0 and self._largest == 1):
            word = source.choice(self._words)
            parts.append(word)
            left -= self._costs[word]
        ending = self._endings.get(left)
        if ending is None:
            raise BenchError(f"no text of {num_tokens} tokens can be made of words of {sorted(set(self._costs.values()))} tokens")
        return "".join(f" {word}" for word in (*parts, *ending))

    def prompt(self, num_tokens: int, source: random.Random) -> list[Message]:
        """A system and a user message that are so many tokens with the chat template around them."""
        if num_tokens < self._overhead:
            raise BenchError(f"a prompt needs at least {self._overhead} tokens on this model, so {num_tokens} is too short")
        return [("system", SYSTEM), ("user", FIRST + self.more(num_tokens - self._overhead, source))]

    def _make_endings(self) -> dict[int, tuple[str, ...]]:
        """For every short length the words that add up to it, where there are any."""
        by_cost = {cost: word for word, cost in self._costs.items()}
        endings: dict[int, tuple[str, ...]] = {0: ()}
        for length in range(1, 2 * self._largest * self._largest + 2 * self._largest):
            for cost, word in by_cost.items():
                rest = endings.get(length - cost)
                if rest is not None:
                    endings[length] = (*rest, word)
                    break
        return endings


async def calibrate(count: Callable[[Sequence[Message]], Awaitable[int]]) -> Speller:
    """Find out what words cost on a server. A dozen short probes where most words are one token each.

    Raises `BenchError`, also when the server's counts make no sense.
    """
    overhead = await count(_probe(()))
    costs: dict[str, int] = {}

    async def weigh(words: Sequence[str]) -> None:
        cost = await count(_probe(words)) - overhead
        if cost < len(words):
            raise BenchError(
                f"the server counts {cost} tokens for {len(words)} more words; its count of prompt tokens can't be used"
            )
        if cost == len(words) or len(words) == 1:
            costs.update(dict.fromkeys(words, cost // len(words)))
            return
        middle = len(words) // 2
        await weigh(words[:middle])
        # One-token words are all that is needed; what costs more is weighed only while there are too few of them.
        if sum(value == 1 for value in costs.values()) < len(WORDS) // 2:
            await weigh(words[middle:])

    await weigh(WORDS)
    single = {word: 1 for word, cost in costs.items() if cost == 1}
    return Speller(single if len(single) >= 8 else costs, overhead)


def _probe(words: Sequence[str]) -> list[Message]:
    return [("system", SYSTEM), ("user", " ".join((FIRST, *words)))]
