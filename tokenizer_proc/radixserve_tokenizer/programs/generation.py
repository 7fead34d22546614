"""A generation on its way: tokens come in, complete text goes out, and at the end ids, text and log-probabilities agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.errors import OpError
from radixserve_tokenizer.programs.logprobs import describe
from radixserve_tokenizer.text.cut import cut_at
from radixserve_tokenizer.text.detokenizer import Detokenizer, prompt_tail, special_text
from radixserve_tokenizer.tools.plan import PLAIN, OutputPlan
from radixserve_tokenizer.tools.reader import OutputReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve_runtime import protocol as runtime
    from radixserve_tokenizer.programs.branch import Branch
    from radixserve_tokenizer.tenants.slots import Ticket
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
    reasoning: str = ""
    calls: tuple[wire.ToolCall, ...] = ()


@dataclass(slots=True, eq=False)
class Generation:
    """One `Gen` that has begun. Text is withheld while it may belong to a stop string or an unfinished character."""

    branch: Branch
    op: wire.Gen
    tokenizer: TextTokenizer
    sampling: runtime.Sampling
    num_prompt_tokens: int
    ticket: Ticket
    plan: OutputPlan = PLAIN
    """What it may write, and how that is read."""
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
    _num_cached_tokens: int = 0
    """Of the prompt, as the runtime said with the first token."""
    _hold_bytes: int = 0
    """What the runtime said last."""
    _held_bytes: int = 0
    """Of what has been decoded, how much is withheld."""
    _text: list[str] = field(default_factory=list[str])
    _delta_from: int = 0
    """Pieces of `_text` before this one are in deltas."""
    _delta_ids_from: int = 0
    _reasoning: list[str] = field(default_factory=list[str])
    _reasoning_from: int = 0
    """Pieces of `_reasoning` before this one are in deltas."""
    _detokenizer: Detokenizer | OutputReader = field(init=False)
    _eos_ids: frozenset[int] = field(init=False)
    _stop_ids: frozenset[int] = field(init=False)
    _is_finished: bool = False

    def __post_init__(self) -> None:
        # A grammar that is complete ends with the end-of-sequence token even where that is to be ignored.
        asked = self.op.sampling
        eos = self.tokenizer.eos_token_ids if not asked.ignore_eos or self.plan.grammar is not None else ()
        self._eos_ids = frozenset(eos) - (frozenset(asked.stop_token_ids) if asked.ignore_eos else frozenset())
        self._stop_ids = self._eos_ids | frozenset(asked.stop_token_ids)
        self._detokenizer = self._new_detokenizer()

    def reset(self) -> None:
        """Begin again: the runtime that drew these tokens is gone, and nobody saw them."""
        assert not self.is_exposed
        self.prompt_logprobs = ()
        self._ids, self._logprobs, self._text, self._reasoning = [], [], [], []
        self._reasoning_from = self._num_fed = self._hold_bytes = self._held_bytes = self._delta_from = self._delta_ids_from = 0
        self._detokenizer = self._new_detokenizer()

    @property
    def partial(self) -> str:
        """Text so far, without what is withheld."""
        self._decode_ready()
        return "".join(self._text)

    def feed(self, tokens: runtime.Tokens) -> bool:
        """Take tokens in; True if a delta may have something to say. They are decoded when it is taken, or at the end."""
        self._ids.extend(tokens.token_ids)
        self._logprobs.extend(tokens.logprobs)
        self._hold_bytes = tokens.hold_bytes
        if tokens.cached_tokens >= 0:
            self._num_cached_tokens = tokens.cached_tokens
        return self.op.stream

    def take_delta(self) -> wire.Delta | None:
        """What no delta carries yet; None if that is nothing.

        Take it only when all that the runtime said in one frame has been fed: a stop string that is complete is not held
        back by `hold_bytes` any more, but by the `Finished` that follows.
        """
        self._decode_ready()
        calls = self._detokenizer.take_calls() if isinstance(self._detokenizer, OutputReader) else ()
        has_more = self._delta_from < len(self._text) or self._reasoning_from < len(self._reasoning) or bool(calls)
        if not has_more and self._num_released == self._delta_ids_from:
            return None
        reasoning = "".join(self._reasoning[self._reasoning_from :])
        self._reasoning_from = len(self._reasoning)
        text = "".join(self._text[self._delta_from :])
        self._delta_from = len(self._text)
        end = self._num_released
        begin, self._delta_ids_from = self._delta_ids_from, end
        usage = None if self.is_exposed else self._first_usage()
        self.is_exposed = True
        return wire.Delta(
            program=self.op.program,
            op=self.op.op,
            var=self.op.var,
            text=text,
            token_ids=tuple(self._ids[begin:end]),
            logprobs=describe(self.tokenizer, self._logprobs[begin:end]),
            reasoning=reasoning,
            calls=calls,
            usage=usage,
        )

    def _first_usage(self) -> wire.Usage:
        return wire.Usage(
            prompt_tokens=self.num_prompt_tokens, cached_tokens=self._num_cached_tokens, output_tokens=len(self._ids)
        )

    def finish(self, finished: runtime.Finished) -> Output:
        """Settle what the output is. The log-probability of a token that a stop string cuts is its re-encoded part's."""
        if finished.reason == "abort":
            raise OpError("the runtime aborted this generation", code="aborted", status=503, retryable=True)
        stop_reason: str | int | None = None
        cut_bytes = 0
        if finished.stop_token_id >= 0:
            stop_reason = self._end_at(finished.stop_token_id)
        elif finished.stop:
            stop_reason = finished.stop.decode()
            cut_bytes = finished.cut_bytes - (len(finished.stop) if self.op.sampling.include_stop else 0)
        self._decode(len(self._ids), max(cut_bytes, 0))
        self._text.append(self._detokenizer.finish(cut_bytes))
        self._take_reasoning()
        if cut_bytes > 0:
            self._cut(cut_bytes)
        self._num_fed, self._held_bytes, self._is_finished = len(self._ids), 0, True
        calls = tuple(self._detokenizer.calls) if isinstance(self._detokenizer, OutputReader) else ()
        return Output(
            text="".join(self._text),
            token_ids=tuple(self._ids),
            logprobs=tuple(self._logprobs),
            finish_reason="tool_calls" if calls and finished.reason == "stop" else finished.reason,
            stop_reason=stop_reason,
            reasoning="".join(self._reasoning),
            calls=calls,
        )

    def _end_at(self, token_id: int) -> int | None:
        """The last token ended it: the stop reason, after taking the token off where it is no part of the answer."""
        if token_id not in self._stop_ids:
            return None  # a grammar is complete with an ordinary token
        is_eos = token_id in self._eos_ids
        if self._ids and self._ids[-1] == token_id and (is_eos or not self.op.sampling.include_stop):
            del self._ids[-1]
            del self._logprobs[len(self._ids) :]
        return None if is_eos else token_id

    # ---- text -----------------------------------------------------------------------------------------------------

    def _new_detokenizer(self) -> Detokenizer | OutputReader:
        log = self.branch.log
        tail = prompt_tail(self.tokenizer.vocabulary, log.ids_from(max(0, self.num_prompt_tokens - _PROMPT_TAIL_IDS)))
        shown = None if self.op.sampling.skip_special_tokens else special_text(self.tokenizer)
        if self.plan.is_plain:
            return Detokenizer(self.tokenizer.vocabulary, prompt_tail=tail, special_text=shown)
        # Two turns may have the same seed; what comes before them is never the same.
        place = f"{self.sampling.seed},{log.mark_at(self.num_prompt_tokens).hash}"
        return self.plan.reader(self.tokenizer, place, tail, shown)

    def _decode_ready(self) -> None:
        """Decode what has come in, but for a last token that may end the generation: it is no part of it until another follows."""
        if self._is_finished:
            return
        ready, self._held_bytes = len(self._ids), self._hold_bytes
        if ready and self._ids[-1] in self._stop_ids:
            ready -= 1
            self._held_bytes = max(0, self._hold_bytes - self._num_token_bytes(self._ids[-1]))
        self._decode(ready, self._held_bytes)

    def _decode(self, until: int, hold_bytes: int) -> None:
        """Feed the detokenizer the ids before `until` that it has not had."""
        new = self._ids[self._num_fed : until]
        self._num_fed = max(self._num_fed, until)
        text = self._detokenizer.feed(new, hold_bytes)
        if text:
            self._text.append(text)
        self._take_reasoning()

    def _take_reasoning(self) -> None:
        if isinstance(self._detokenizer, OutputReader):
            reasoning = self._detokenizer.take_reasoning()
            if reasoning:
                self._reasoning.append(reasoning)

    @property
    def _num_released(self) -> int:
        """How many ids are certain to stay: those whose bytes can't belong to a stop string any more."""
        held, count = self._held_bytes, self._num_fed
        while held > 0 and count > self._delta_ids_from:
            count -= 1
            held -= self._num_token_bytes(self._ids[count])
        return count

    def _num_token_bytes(self, token_id: int) -> int:
        vocabulary = self.tokenizer.vocabulary
        return len(vocabulary[token_id]) if token_id < len(vocabulary) else 0

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
