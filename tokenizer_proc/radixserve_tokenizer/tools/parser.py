"""What all parsers of calls share: text up to the mark that begins calls, held back only as long as it could be that mark.

A parser is fed the bytes of the output as they come, and told of control tokens. What it says depends on the bytes alone,
never on how they were cut: it acts on a byte only when nothing that may follow could change what the byte means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from radixserve_tokenizer.tools.errors import CallSyntaxError
from radixserve_tokenizer.tools.jsoncall import WHITE_SPACE, CallSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_tokenizer.tools.marks import Mark


class OutputSink(CallSink, Protocol):
    """Where text and calls go."""

    def text(self, data: bytes) -> None:
        """More text beside the calls."""
        ...


class CallParser(ABC):
    """Text, then calls. A subclass reads what follows the trigger, by steps.

    White space between text and calls is neither's. With `required` there is no text: whatever isn't a call is dropped.
    What began as a call and did not become one (the output was cut there) is dropped too: no half of a call is text.
    """

    def __init__(self, sink: OutputSink, trigger: Mark, *, required: bool = False) -> None:
        self._sink = sink
        self._trigger = trigger
        self._required = required
        self._buffer = bytearray()
        self._step: Callable[[], bool] = self._text
        """One step over the buffer; False when it needs more."""
        self._in_calls = False
        self._is_lost = False

    def feed(self, data: bytes) -> None:
        """More bytes of the output."""
        if self._is_lost:
            return
        self._buffer += data
        self._run()

    def control(self, text: str) -> None:
        """A control token of the format. Bytes before it and after it are never one mark."""
        if self._is_lost:
            return
        if not self._in_calls:
            self._flush_text(keep_white_space=False)
            if text == self._trigger.text:
                self._begin_calls()
            return
        try:
            self._control(text)
        except CallSyntaxError:
            self._lose()
        self._run()

    def finish(self) -> None:
        """The output is over: what was held back as text is text after all."""
        if not self._in_calls and not self._is_lost:
            self._flush_text(keep_white_space=True)

    # ---- for subclasses --------------------------------------------------------------------------------------------

    @abstractmethod
    def _after_trigger(self) -> Callable[[], bool]:
        """The step that reads what follows the trigger."""

    def _control(self, text: str) -> None:
        """A control token among the calls."""
        if text != self._trigger.text or self._step != self._between_calls:
            raise CallSyntaxError(f"the control token {text!r} is out of place")
        self._buffer.clear()
        self._step = self._after_trigger()

    def _skip_white_space(self) -> bool:
        """Drop white space at the front; False when nothing is left."""
        kept = self._buffer.lstrip(WHITE_SPACE)
        del self._buffer[: len(self._buffer) - len(kept)]
        return bool(self._buffer)

    def _take_literal(self, literal: bytes) -> bool:
        """Take a literal off the front; False when more bytes are needed. Raises `CallSyntaxError`."""
        if self._buffer.startswith(literal):
            del self._buffer[: len(literal)]
            return True
        if literal.startswith(bytes(self._buffer)):
            return False
        raise CallSyntaxError(f"{literal.decode()!r} is missing")

    def _between_calls(self) -> bool:
        """After calls: another trigger, or text."""
        if not self._skip_white_space():
            return False
        trigger = self._trigger.raw
        if trigger and self._buffer.startswith(trigger):
            del self._buffer[: len(trigger)]
            self._step = self._after_trigger()
            return True
        if trigger and trigger.startswith(bytes(self._buffer)):
            return False
        self._in_calls = False
        self._step = self._text
        return True

    # ---- text ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_lost and self._step():
                pass
        except CallSyntaxError:
            self._lose()

    def _text(self) -> bool:
        trigger = self._trigger.raw
        found = self._buffer.find(trigger) if trigger else -1
        if found >= 0:
            self._emit(bytes(self._buffer[:found]).rstrip(WHITE_SPACE))
            del self._buffer[: found + len(trigger)]
            self._begin_calls()
            return True
        shown = without_prefix_of(self._buffer, trigger).rstrip(WHITE_SPACE)
        self._emit(bytes(shown))
        del self._buffer[: len(shown)]
        return False

    def _begin_calls(self) -> None:
        self._in_calls = True
        self._step = self._after_trigger()

    def _flush_text(self, *, keep_white_space: bool) -> None:
        text = bytes(self._buffer)
        self._buffer.clear()
        self._emit(text if keep_white_space else text.rstrip(WHITE_SPACE))

    def _emit(self, text: bytes) -> None:
        if text and not self._required:
            self._sink.text(text)

    def _lose(self) -> None:
        """What follows the trigger is no call."""
        self._is_lost = True
        self._buffer.clear()


def without_prefix_of(data: bytearray, mark: bytes) -> bytes:
    """`data` without the longest end that may turn out to begin `mark`."""
    for length in range(min(len(mark) - 1, len(data)), 0, -1):
        if data.endswith(mark[:length]):
            return bytes(data[:-length])
    return bytes(data)
