"""What sampling remembers of one request, kept up to date token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from radixserve_runtime.sampling.ends import end_token_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from radixserve_runtime.protocol import Sampling

_INITIAL_CAPACITY = 64
#: Below this a temperature is greedy: a division by it would leave one token anyway.
_GREEDY_BELOW = 1e-5


class SeenTokens:
    """The distinct tokens of a sequence, and how often each was drawn.

    Kept as arrays that grow by doubling: adding a token costs O(1), and applying a penalty is one gather and one
    scatter over the distinct tokens, however long the output is.
    """

    def __init__(self, prompt_ids: Iterable[int] = ()) -> None:
        self._slot: dict[int, int] = {token_id: slot for slot, token_id in enumerate(dict.fromkeys(prompt_ids))}
        capacity = max(_INITIAL_CAPACITY, 2 * len(self._slot))
        self._ids: npt.NDArray[np.int64] = np.zeros(capacity, dtype=np.int64)
        self._ids[: len(self._slot)] = list(self._slot)
        self._counts: npt.NDArray[np.float32] = np.zeros(capacity, dtype=np.float32)

    def add(self, token_id: int) -> None:
        """One more token of the output."""
        slot = self._slot.get(token_id)
        if slot is None:
            slot = len(self._slot)
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._slot[token_id] = slot
            self._ids[slot] = token_id
        self._counts[slot] += 1

    def ids(self) -> torch.Tensor:
        """int64 [N] on the CPU: the distinct ids. A view: use it before the next `add`."""
        return torch.from_numpy(self._ids[: len(self._slot)])

    def counts(self) -> torch.Tensor:
        """float32 [N] on the CPU: how often each of `ids` was drawn; 0 for tokens of the prompt alone."""
        return torch.from_numpy(self._counts[: len(self._slot)])


class RowState:
    """One request's row in the batch: its sampling settings and what they need to know of its tokens.

    `prompt_ids` counts for the repetition penalty only; presence and frequency count drawn tokens, as OpenAI has it.
    A sequence that resumes after preemption passes the tokens drawn before as `output_ids`.
    """

    __slots__ = ("bias_ids", "bias_values", "min_tokens_ids", "num_output_tokens", "sampling", "seen")

    def __init__(
        self,
        sampling: Sampling,
        *,
        prompt_ids: Sequence[int] = (),
        output_ids: Sequence[int] = (),
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        self.sampling = sampling
        self.num_output_tokens = 0
        self.min_tokens_ids: torch.Tensor | None = None
        """Ids that may not be drawn before `min_tokens`; None without `min_tokens`."""
        if sampling.min_tokens > 0:
            self.min_tokens_ids = torch.tensor(sorted(end_token_ids(sampling, eos_token_ids)), dtype=torch.int64)
        self.bias_ids: torch.Tensor | None = None
        self.bias_values: torch.Tensor | None = None
        if sampling.logit_bias:
            self.bias_ids = torch.tensor(list(sampling.logit_bias), dtype=torch.int64)
            self.bias_values = torch.tensor(list(sampling.logit_bias.values()), dtype=torch.float32)
        self.seen: SeenTokens | None = None
        """Only where a penalty needs it."""
        if sampling.repetition_penalty != 1.0:
            self.seen = SeenTokens(prompt_ids)
        elif sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0:
            self.seen = SeenTokens()
        for token_id in output_ids:
            self.append(token_id)

    def append(self, token_id: int) -> None:
        """A token was drawn and kept. O(1)."""
        self.num_output_tokens += 1
        if self.seen is not None:
            self.seen.add(token_id)

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken instead of a draw."""
        return self.sampling.temperature < _GREEDY_BELOW

    @property
    def below_min_tokens(self) -> bool:
        """Whether the next token may not end the generation."""
        return self.num_output_tokens < self.sampling.min_tokens

    @property
    def edits_logits(self) -> bool:
        """Whether this row's logits change before the draw, a grammar's mask aside."""
        return self.seen is not None or self.bias_ids is not None or self.below_min_tokens
