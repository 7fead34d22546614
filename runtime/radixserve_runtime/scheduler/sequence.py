"""One sequence: a token list that goes through the model, with the pages that hold its KV. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve_runtime.cache.radix import Lock


class Status(Enum):
    """Where a sequence is. A preempted one is WAITING again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Sequence:
    """A generation, or one option of a score.

    `token_ids` is the prompt and what was drawn so far, and perhaps a draft; KV exists for its first `num_computed` tokens, in `pages`.
    """

    request_id: int
    """Sequences of one score share it."""
    token_ids: list[int]
    num_prompt_tokens: int
    max_tokens: int
    """Most tokens to draw; 0 for scores."""
    namespace: tuple[tuple[str, str], ...] = ()
    """Typed key of the tree that it may share, such as (("tenant", "a"), ("salt", "x"))."""
    logprobs_from: int = -1
    """Needs the log-probability of every prompt token from this position on (-1: none), so at most `logprobs_from - 1` tokens may come from the cache."""
    tenant: str = ""
    program: int = 0
    """Sequences of one program share their attained service; 0: it belongs to none."""
    priority: str = "standard"
    arrival_s: float = 0.0

    status: Status = Status.WAITING
    num_computed: int = 0
    num_draft: int = 0
    """The last so many of `token_ids` have not been drawn: they are what is expected to be, and go through the model together with the newest token."""
    pages: list[int] = field(default_factory=list)
    lock: Lock | None = None
    """The tree path that it holds (cache/radix.py)."""
    num_cached_tokens: int = -1
    """Prompt tokens found in the cache at first admission; -1 until then."""
    num_preemptions: int = 0
    first_scheduled_s: float = -1.0
    first_token_s: float = -1.0
    kv_token_s: float = 0.0
    """KV held while running, in token-seconds: its whole context, whoever computed it."""

    @property
    def num_tokens(self) -> int:
        """Prompt, output and draft."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens drawn so far."""
        return len(self.token_ids) - self.num_prompt_tokens - self.num_draft

    @property
    def num_uncomputed(self) -> int:
        """Tokens without KV: 1 (and the draft) for a decode, more for a prefill."""
        return len(self.token_ids) - self.num_computed

    @property
    def is_prefill(self) -> bool:
        """Whether more than the newest token (and a draft after it) still has to be computed."""
        return self.num_uncomputed > 1 + self.num_draft or self.num_output_tokens == 0
