"""A generation on its way: tokens come in, complete text goes out, and at the end ids, text and log-probabilities agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.errors import OpError
from radixserve_tokenizer.programs.logprobs import describe
from radixserve_tokenizer.text.cut import cut_at
from radixserve_tokenizer.text.detokenizer import Detokenizer, prompt_tail, special_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve_runtime import protocol as runtime
    from radixserve_tokenizer.programs.branch import Branch
    from radixserve_tokenizer.text.tokenizer import TextTokenizer

#: No token has more bytes of an unfinished character before it than this many ids can hold.
_PROMPT_TAIL_IDS = 4


@dataclass(frozen=True, slots=True)
class Output:
    """What a finished generation gives; `token_ids`, `logprobs` and `text` describe the same tokens."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[runtime.TokenLogprob, ...]
    finish_reason: wire.FinishReason
    stop_reason: str | int | None


@dataclass(slots=True, eq=False)
class Generation:
    """One `Gen` that has begun. Text is withheld while it may belong to a stop string or an unfinished character."""

    branch: Branch
    op: wire.Gen
    tokenizer: TextTokenizer
    sampling: runtime.Sampling
    num_prompt_tokens: int
    request_id: int = -1
    is_queued: bool = True
    """No token has come yet."""
    is_exposed: bool = False
    """A `Delta` was sent: it can't be run again unnoticed."""
    undo: Callable[[], None] | None = None
    """Takes it back from wherever it waits (the compiler, the runtime)."""
    prompt_logprobs: tuple[runtime.TokenLogprob, ...] = ()
    _ids: list[int] = field(default_factory=list[int])
    _logprobs: list[runtime.TokenLogprob] = field(default_factory=list["runtime.TokenLogprob"])
    _num_fed: int = 0
    _num_bytes: int = 0
    _hold_bytes: int = 0
    _text: list[str] = field(default_factory=list[str])
    _delta_from: int = 0
    """Pieces of `_text` before this one are in deltas."""
    _delta_ids_from: int = 0
    _detokenizer: Detokenizer = field(init=False)
    _stop_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        eos = () if self.op.sampling.ignore_eos else self.tokenizer.eos_token_ids
        self._stop_ids = frozenset((*self.sampling.stop_token_ids, *eos))
        self._detokenizer = self._new_detokenizer()

    def reset(self) -> None:
        """Begin again: the runtime that drew these tokens is gone, and nobody saw them."""
        assert not self.is_exposed
        self.prompt_logprobs = ()
        self._ids, self._logprobs, self._text = [], [], []
        self._num_fed = self._num_bytes = self._hold_bytes = self._delta_from = self._delta_ids_from = 0
        self._detokenizer = self._new_detokenizer()

    @property
    def partial(self) -> str:
        """Text so far."""
        return "".join(self._text)

    def feed(self, tokens: runtime.Tokens) -> bool:
        """Take tokens in; True if a delta has something to say."""
        self._ids.extend(tokens.token_ids)
        self._logprobs.extend(tokens.logprobs)
        if not self.op.stream:
            return False
        ready, hold_bytes = len(self._ids), tokens.hold_bytes
        if ready and self._ids[-1] in self._stop_ids:
            # A token that may end the generation is no part of it until another follows.
            ready -= 1
            hold_bytes = max(0, hold_bytes - self._num_token_bytes(self._ids[-1]))
        self._hold_bytes = hold_bytes
        self._decode(ready, hold_bytes)
        return self._has_delta()

    def take_delta(self) -> wire.Delta | None:
        """What no delta carries yet; None if that is nothing."""
        if not self._has_delta():
            return None
        text = "".join(self._text[self._delta_from :])
        self._delta_from = len(self._text)
        end = self._num_released
        begin, self._delta_ids_from = self._delta_ids_from, end
        self.is_exposed = True
        return wire.Delta(
            program=self.op.program,
            op=self.op.op,
            var=self.op.var,
            text=text,
            token_ids=tuple(self._ids[begin:end]),
            logprobs=describe(self.tokenizer, self._logprobs[begin:end]),
        )

    def finish(self, finished: runtime.Finished) -> Output:
        """Settle what the output is. The log-probability of a token that a stop string cuts is its re-encoded part's."""
        if finished.reason == "abort":
            raise OpError("the runtime aborted this generation", code="aborted", status=503, retryable=True)
        stop_reason: str | int | None = None
        cut_bytes = 0
        if finished.stop_token_id >= 0:
            is_eos = finished.stop_token_id in self.tokenizer.eos_token_ids and not self.op.sampling.ignore_eos
            stop_reason = None if is_eos else finished.stop_token_id
            if self._ids and self._ids[-1] == finished.stop_token_id and (is_eos or not self.op.sampling.include_stop):
                del self._ids[-1]
                del self._logprobs[len(self._ids) :]
        elif finished.stop:
            stop_reason = finished.stop.decode()
            cut_bytes = finished.cut_bytes - (len(finished.stop) if self.op.sampling.include_stop else 0)
        self._decode(len(self._ids), max(cut_bytes, 0))
        self._text.append(self._detokenizer.finish(cut_bytes))
        if cut_bytes > 0:
            self._cut(cut_bytes)
        self._num_fed, self._hold_bytes = len(self._ids), 0
        return Output(
            text="".join(self._text),
            token_ids=tuple(self._ids),
            logprobs=tuple(self._logprobs),
            finish_reason=finished.reason,
            stop_reason=stop_reason,
        )

    # ---- text -----------------------------------------------------------------------------------------------------

    def _new_detokenizer(self) -> Detokenizer:
        log = self.branch.log
        tail = prompt_tail(self.tokenizer.vocabulary, log.ids_from(max(0, self.num_prompt_tokens - _PROMPT_TAIL_IDS)))
        shown = None if self.op.sampling.skip_special_tokens else special_text(self.tokenizer)
        return Detokenizer(self.tokenizer.vocabulary, prompt_tail=tail, special_text=shown)

    def _decode(self, until: int, hold_bytes: int) -> None:
        """Feed the detokenizer the ids before `until` that it has not had."""
        new = self._ids[self._num_fed : until]
        self._num_fed = max(self._num_fed, until)
        text = self._detokenizer.feed(new, hold_bytes)
        if text:
            self._text.append(text)

    @property
    def _num_released(self) -> int:
        """How many ids are certain to stay: those whose bytes can't belong to a stop string any more."""
        held, count = self._hold_bytes, self._num_fed
        while held > 0 and count > self._delta_ids_from:
            count -= 1
            held -= self._num_token_bytes(self._ids[count])
        return count

    def _num_token_bytes(self, token_id: int) -> int:
        vocabulary = self.tokenizer.vocabulary
        return len(vocabulary[token_id]) if token_id < len(vocabulary) else 0

    def _has_delta(self) -> bool:
        return self._delta_from < len(self._text) or self._num_released > self._delta_ids_from

    def _cut(self, cut_bytes: int) -> None:
        total = sum(map(self._num_token_bytes, self._ids))
        cut = cut_at(self.tokenizer, self._ids, total - cut_bytes)
        if self._logprobs:
            self._logprobs = recount(self._logprobs, len(cut.ids), cut.tail_ids)
        self._ids = [*cut.ids, *cut.tail_ids]


def recount(logprobs: Sequence[runtime.TokenLogprob], kept: int, tail_ids: Sequence[int]) -> list[runtime.TokenLogprob]:
    """One entry a token after a cut.

    The drawn token that was cut has no log-probability of its own for the part that stays; its first re-encoded id
    carries what the drawn token had, and any further one 0, so that sums stay what the model said.
    """
    out = list(logprobs[:kept])
    for index, token_id in enumerate(tail_ids):
        logprob = logprobs[kept].logprob if index == 0 else 0.0
        out.append(type(logprobs[kept])(token_id, logprob, logprobs[kept].rank if index == 0 else 0))
    return out
