"""A select or score on its way: options become ids, and log-probabilities become scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.errors import OpError

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime import protocol as runtime
    from radixserve_tokenizer.programs.branch import Branch
    from radixserve_tokenizer.programs.log import TokenLog
    from radixserve_tokenizer.tenants.slots import Ticket
    from radixserve_tokenizer.text.tokenizer import TextTokenizer


def encode_options(tokenizer: TextTokenizer, options: tuple[str, ...], max_options: int) -> tuple[tuple[int, ...], ...]:
    """Ids of each option as it goes on from the branch. Raises `OpError` for none, too many, or an empty one."""
    if not 1 <= len(options) <= max_options:
        raise OpError(f"options must hold between 1 and {max_options} strings, not {len(options)}", param="options")
    encoded: list[tuple[int, ...]] = []
    for number, option in enumerate(options):
        token_ids = tuple(tokenizer.encode(option, continues=True))
        if not token_ids:
            raise OpError(f"option {number} ({option!r}) has no tokens: an option must not be empty", param="options")
        encoded.append(token_ids)
    return tuple(encoded)


@dataclass(slots=True, eq=False)
class Scoring:
    """One `Select` or `Score` that has begun. With method "unconditional" it is two requests: with and without the branch's context."""

    branch: Branch
    op: wire.Select | wire.Score
    option_ids: tuple[tuple[int, ...], ...]
    ticket: Ticket
    conditional_id: int = -1
    unconditional_id: int = -1
    is_queued: bool = True
    undo: Callable[[], None] | None = None
    temporary: dict[int, TokenLog] = field(default_factory=dict[int, "TokenLog"])
    """Runtime branches made for this op alone."""
    _conditional: runtime.Scored | None = None
    _unconditional: runtime.Scored | None = None

    @property
    def partial(self) -> str:
        """Nothing: a score is whole or not there."""
        return ""

    def take(self, scored: runtime.Scored) -> bool:
        """Take a result in; True when all are there."""
        if [len(each) for each in scored.logprobs] != [len(each) for each in self.option_ids]:
            raise OpError("the runtime scored other options than it was given", code="internal", status=500)
        if scored.request_id == self.unconditional_id:
            self._unconditional = scored
        else:
            self._conditional = scored
        return self._conditional is not None and (self.unconditional_id < 0 or self._unconditional is not None)

    def scores(self) -> tuple[tuple[wire.OptionScore, ...], int]:
        """All options' scores and the index of the best (the first of equals)."""
        assert self._conditional is not None
        sums = [sum(each) for each in self._conditional.logprobs]
        if self._unconditional is not None:
            values = [a - sum(b) for a, b in zip(sums, self._unconditional.logprobs, strict=True)]
        elif self.op.method == "mean":
            values = [total / len(ids) for total, ids in zip(sums, self.option_ids, strict=True)]
        else:
            values = sums
        scores = tuple(
            wire.OptionScore(option=option, score=value, logprob_sum=total, num_tokens=len(ids))
            for option, value, total, ids in zip(self.op.options, values, sums, self.option_ids, strict=True)
        )
        # NaN compares with nothing: whatever made it, it must not win.
        best = max(range(len(values)), key=lambda index: values[index] if values[index] == values[index] else float("-inf"))
        return scores, best

    @property
    def usage(self) -> runtime.Usage:
        """Of the request in the branch's context."""
        assert self._conditional is not None
        return self._conditional.usage
