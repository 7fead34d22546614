"""Reasoning that a model writes between marks, told apart from its answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from radixserve_tokenizer.grammar.patterns import literal_rule
from radixserve_tokenizer.tools.jsoncall import WHITE_SPACE
from radixserve_tokenizer.tools.marks import Mark, mark
from radixserve_tokenizer.tools.parser import without_prefix_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_tokenizer.text.tokenizer import TextTokenizer

#: Where a turn stands: nothing said, reasoning opened, or reasoning over (or none any more).
Stage: TypeAlias = Literal["start", "inside", "after"]

_PAIRS = (("<think>", "</think>"),)
#: What templates do to past reasoning mentions the marks too; a tag in Jinja's own syntax is no text of a turn.
_JINJA = re.compile(r"\{#.*?#\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The marks around reasoning."""

    open: Mark
    close: Mark

    @property
    def control_marks(self) -> tuple[Mark, ...]:
        """Those that are control tokens."""
        return tuple(each for each in (self.open, self.close) if each.is_token)

    def rule(self, stage: Stage) -> str:
        """An EBNF expression for the reasoning that may or has to come before an answer; empty where none can."""
        if stage == "after":
            return ""
        if self.close.is_token:
            text = f"TokenTagDispatch(loop_after_dispatch=false, excludes=({self.close.token_id}))"
        else:
            text = f"TagDispatch(loop_after_dispatch=false, excludes=({literal_rule(self.close.text)}))"
        inside = f"reasoning_text {self.close.rule} [\\n]{{0,2}}"
        whole = inside if stage == "inside" else f"({self.open.rule} {inside})?"
        return f"reasoning_text ::= {text}\nreasoning ::= {whole}\n"

    def stage(self, shown: str, begun: bool) -> Stage:
        """Where an open turn stands. `shown`: the template's own text and what was said in the turn; `begun`: something was."""
        opened, closed = shown.rfind(self.open.text), shown.rfind(self.close.text)
        if opened > closed:
            return "inside"
        return "after" if begun or shown.rstrip().endswith(self.close.text) else "start"


def reasoning_marks(tokenizer: TextTokenizer) -> ReasoningMarks | None:
    """The marks that the model's template knows; None: the model isn't known to reason between marks."""
    template = _JINJA.sub("", tokenizer.chat_template or "")
    for opening, closing in _PAIRS:
        if closing in template:
            return ReasoningMarks(mark(opening, tokenizer.special), mark(closing, tokenizer.special))
    return None


class After(Protocol):
    """Who reads what is no reasoning."""

    def feed(self, data: bytes) -> None:
        """More bytes."""
        ...

    def control(self, text: str) -> None:
        """A control token."""
        ...

    def finish(self) -> None:
        """The output is over."""
        ...


class ReasoningParser:
    """Passes reasoning to `reasoning` and the rest on. White space around reasoning is neither's."""

    def __init__(self, marks: ReasoningMarks, stage: Stage, reasoning: Callable[[bytes], None], after: After) -> None:
        self._marks = marks
        self._reasoning = reasoning
        self._after = after
        self._buffer = bytearray()
        self._step = {"start": self._start, "inside": self._begin, "after": self._pass}[stage]

    def feed(self, data: bytes) -> None:
        """More bytes of the output."""
        self._buffer += data
        while self._step():
            pass

    def control(self, text: str) -> None:
        """A control token of the model's marks."""
        if self._step == self._start and text == self._marks.open.text and not self._buffer.strip():
            self._buffer.clear()
            self._step = self._begin
            return
        if self._step in (self._begin, self._inside):
            if text == self._marks.close.text:
                self._end(bytes(self._buffer))
                self._buffer.clear()
            return
        self._flush()
        self._step = self._pass
        self._after.control(text)

    def finish(self) -> None:
        """The output is over."""
        if self._step in (self._begin, self._inside):
            self._end(bytes(self._buffer))
        else:
            self._flush()
        self._after.finish()

    def _start(self) -> bool:
        """Whether the output begins with reasoning."""
        said = self._buffer.lstrip(WHITE_SPACE)
        opening = self._marks.open.raw
        if not said or (opening and len(said) < len(opening) and opening.startswith(bytes(said))):
            return False
        if opening and said.startswith(opening):
            self._buffer = said[len(opening) :]
            self._step = self._begin
        else:
            self._step = self._pass
        return True

    def _begin(self) -> bool:
        """White space at the begin of reasoning."""
        self._buffer = self._buffer.lstrip(WHITE_SPACE)
        if not self._buffer:
            return False
        self._step = self._inside
        return True

    def _inside(self) -> bool:
        closing = self._marks.close.raw
        found = self._buffer.find(closing) if closing else -1
        if found >= 0:
            self._end(bytes(self._buffer[:found]))
            del self._buffer[: found + len(closing)]
            return True
        shown = without_prefix_of(self._buffer, closing).rstrip(WHITE_SPACE)
        del self._buffer[: len(shown)]
        if shown:
            self._reasoning(shown)
        return False

    def _end(self, last: bytes) -> None:
        text = last.rstrip(WHITE_SPACE)
        if text:
            self._reasoning(text)
        self._step = self._begin_answer

    def _begin_answer(self) -> bool:
        """White space between reasoning and answer."""
        self._buffer = self._buffer.lstrip(WHITE_SPACE)
        if not self._buffer:
            return False
        self._step = self._pass
        return True

    def _pass(self) -> bool:
        self._flush()
        return False

    def _flush(self) -> None:
        if self._buffer and self._step != self._begin_answer:
            self._after.feed(bytes(self._buffer))
        self._buffer.clear()
