"""What one output says: text, reasoning and calls, read from its tokens as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer.protocol import CallDelta, ToolCall
from radixserve_tokenizer.text.detokenizer import TextStream
from radixserve_tokenizer.text.release import Release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from radixserve_tokenizer.tools.reasoning import After


class OutputReader:
    """Does a `Detokenizer`'s work where the output is more than text. The parsers call it back with what they find."""

    def __init__(
        self,
        vocabulary: Sequence[bytes],
        new_id: Callable[[int], str],
        *,
        prompt_tail: bytes = b"",
        marks: Mapping[int, str],
        special_text: Mapping[int, bytes] | None = None,
    ) -> None:
        """`new_id`: the id of the call with this number. `marks`: control tokens that the parsers know, by id."""
        self._marks = marks
        self._special_text = special_text or {}
        self._release = Release(vocabulary, {**self._special_text, **marks})
        self._new_id = new_id
        self._text_stream = TextStream(prompt_tail)
        self._reasoning_stream = TextStream()
        self._arguments_stream = TextStream()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._deltas: list[CallDelta] = []
        self._begun: list[str] = []
        """Names of all calls."""
        self._arguments: list[str] = []
        """Pieces of the last call's."""
        self._first: After | None = None
        self.calls: list[ToolCall] = []
        """Whole calls, in order."""

    def read_by(self, first: After) -> None:
        """The parser that gets all bytes first."""
        self._first = first

    def feed(self, token_ids: Iterable[int], hold_bytes: int = 0) -> str:
        """New text after these tokens. The last `hold_bytes` bytes of the output so far are withheld."""
        self._read(self._release.feed(token_ids, hold_bytes))
        return self._take_text()

    def finish(self, cut_bytes: int = 0) -> str:
        """The text that was withheld, less the output's last `cut_bytes` bytes."""
        self._read(self._release.finish(cut_bytes))
        assert self._first is not None
        self._first.finish()
        self._text.append(self._text_stream.finish())
        self._reasoning.append(self._reasoning_stream.finish())
        return self._take_text()

    def take_reasoning(self) -> str:
        """Reasoning since the last call."""
        text = "".join(self._reasoning)
        self._reasoning.clear()
        return text

    def take_calls(self) -> tuple[CallDelta, ...]:
        """Pieces of calls since the last call, those of one call joined."""
        joined: list[CallDelta] = []
        for delta in self._deltas:
            if joined and joined[-1].index == delta.index:
                before = joined.pop()
                delta = CallDelta(index=delta.index, id=before.id, name=before.name, arguments=before.arguments + delta.arguments)
            joined.append(delta)
        self._deltas.clear()
        return tuple(joined)

    # ---- what the parsers find -------------------------------------------------------------------------------------

    def text(self, data: bytes) -> None:
        """Text beside reasoning and calls."""
        self._text.append(self._text_stream.feed(data))

    def reasoning(self, data: bytes) -> None:
        """Reasoning."""
        self._reasoning.append(self._reasoning_stream.feed(data))

    def begin(self, name: str) -> None:
        """A call of this tool."""
        index = len(self._begun)
        self._begun.append(name)
        self._arguments.clear()
        self._arguments_stream = TextStream()
        self._deltas.append(CallDelta(index=index, id=self._new_id(index), name=name))

    def arguments(self, data: bytes) -> None:
        """More of its arguments."""
        piece = self._arguments_stream.feed(data)
        if piece:
            self._arguments.append(piece)
            self._deltas.append(CallDelta(index=len(self._begun) - 1, arguments=piece))

    def end(self) -> None:
        """It is whole."""
        index = len(self._begun) - 1
        self.calls.append(ToolCall(id=self._new_id(index), name=self._begun[index], arguments="".join(self._arguments)))

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _read(self, pieces: Iterable[bytes | int]) -> None:
        assert self._first is not None
        for piece in pieces:
            if isinstance(piece, bytes):
                self._first.feed(piece)
            elif piece in self._marks:
                self._first.control(self._marks[piece])
            else:
                self._first.feed(self._special_text[piece])

    def _take_text(self) -> str:
        text = "".join(self._text)
        self._text.clear()
        return text


class PlainText:
    """The last reader where there are no calls: all is text."""

    def __init__(self, text: Callable[[bytes], None]) -> None:
        self._text = text

    def feed(self, data: bytes) -> None:
        """More bytes."""
        self._text(data)

    def control(self, text: str) -> None:
        """A control token has no text."""

    def finish(self) -> None:
        """Nothing is held back."""
