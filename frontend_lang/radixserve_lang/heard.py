"""How much of each streamed op has been heard, so that a delta that tells it again can be cut to what is new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from radixserve_tokenizer.protocol import Delta


@dataclass(slots=True)
class _Amount:
    """Of one op."""

    chars: int = 0
    ids: int = 0
    logprobs: int = 0
    reasoning: int = 0
    calls: int = 0


class Heard:
    """Of one program. After `again` the first delta of each op that streams has all of it from its beginning."""

    def __init__(self) -> None:
        self._amounts: dict[int, _Amount] = {}
        self._repeated: set[int] = set()

    def again(self) -> None:
        """The program was attached to anew."""
        self._repeated = set(self._amounts)

    def cut(self, delta: Delta) -> Delta:
        """What is new in it."""
        amount = self._amounts.setdefault(delta.op, _Amount())
        if delta.op in self._repeated:
            self._repeated.discard(delta.op)
            delta = msgspec.structs.replace(
                delta,
                text=delta.text[amount.chars :],
                token_ids=delta.token_ids[amount.ids :],
                logprobs=delta.logprobs[amount.logprobs :],
                reasoning=delta.reasoning[amount.reasoning :],
                calls=delta.calls[amount.calls :],
            )
        amount.chars += len(delta.text)
        amount.ids += len(delta.token_ids)
        amount.logprobs += len(delta.logprobs)
        amount.reasoning += len(delta.reasoning)
        amount.calls += len(delta.calls)
        return delta

    def forget(self, op: int) -> None:
        """It has ended."""
        self._amounts.pop(op, None)
        self._repeated.discard(op)
