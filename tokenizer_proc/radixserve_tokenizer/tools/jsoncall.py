"""Reads one call that is a JSON object, byte by byte: {"name": ..., "arguments": {...}}."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

from radixserve_tokenizer.tools.errors import CallSyntaxError

if TYPE_CHECKING:
    from collections.abc import Callable

WHITE_SPACE = b" \t\r\n"
_QUOTE, _BACKSLASH, _COLON, _COMMA, _OPEN, _CLOSE = b'"\\:,{}'
_OPENING, _CLOSING = b"{[", b"}]"
_ARGUMENTS = ("arguments", "parameters")


class CallSink(Protocol):
    """Where calls go while they are read."""

    def begin(self, name: str) -> None:
        """A call of this tool."""
        ...

    def arguments(self, data: bytes) -> None:
        """More of its arguments."""
        ...

    def end(self) -> None:
        """It is whole."""
        ...


class JsonValue:
    """Finds where a JSON value ends. It trusts that there is one: only brackets and quotes are looked at."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._is_scalar = False

    def scan(self, data: bytes, at: int) -> tuple[int, bool]:
        """Where the value stops in `data` from `at` on (exclusive), and whether it ends there."""
        for position in range(at, len(data)):
            byte = data[position]
            if self._in_string:
                self._string_byte(byte)
                if not self._in_string and not self._depth:
                    return position + 1, True
            elif self._is_scalar:
                if byte in b",}]" or byte in WHITE_SPACE:
                    return position, True
            elif self._open_byte(byte):
                return position + 1, True
        return len(data), False

    def _string_byte(self, byte: int) -> None:
        if self._escaped:
            self._escaped = False
        elif byte == _BACKSLASH:
            self._escaped = True
        elif byte == _QUOTE:
            self._in_string = False

    def _open_byte(self, byte: int) -> bool:
        """A byte outside strings; True if it ends the value."""
        if byte == _QUOTE:
            self._in_string = True
        elif byte in _OPENING:
            self._depth += 1
        elif byte in _CLOSING:
            self._depth -= 1
            if self._depth < 0:
                raise CallSyntaxError("a bracket closes that was never opened")
            return self._depth == 0
        elif not self._depth:
            self._is_scalar = True
        return False


class JsonCall:
    """One call object. `name` may come after the arguments, further keys are skipped, white space may stand anywhere."""

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._step: Callable[[bytes, int], int] = self._start
        self._value = JsonValue()
        self._key = ""
        self._text = bytearray()
        """The key or value being read that isn't passed on as it comes."""
        self._name: str | None = None
        self._early = bytearray()
        """Arguments that came before the name."""
        self._has_arguments = False
        self.is_done = False

    def feed(self, data: bytes, at: int = 0) -> int:
        """Read on from `at`; answers where it stopped: at the end of `data`, or behind the object. Raises `CallSyntaxError`."""
        while at < len(data) and not self.is_done:
            at = self._step(data, at)
        return at

    def _start(self, data: bytes, at: int) -> int:
        if data[at] in WHITE_SPACE:
            return at + 1
        return self._expect(data[at], {_OPEN: self._before_key}, at)

    def _before_key(self, data: bytes, at: int) -> int:
        byte = data[at]
        if byte in WHITE_SPACE:
            return at + 1
        if byte == _CLOSE:
            return self._finish(at)
        self._text.clear()
        self._value = JsonValue()
        if byte != _QUOTE:
            raise CallSyntaxError("a call has a key that is no string")
        self._step = self._in_key
        return at

    def _in_key(self, data: bytes, at: int) -> int:
        end, done = self._value.scan(data, at)
        self._text += data[at:end]
        if done:
            self._key = _string(self._text)
            self._step = self._before_colon
        return end

    def _before_colon(self, data: bytes, at: int) -> int:
        if data[at] in WHITE_SPACE:
            return at + 1
        return self._expect(data[at], {_COLON: self._before_value}, at)

    def _before_value(self, data: bytes, at: int) -> int:
        if data[at] in WHITE_SPACE:
            return at + 1
        self._text.clear()
        self._value = JsonValue()
        self._step = self._in_value
        return at

    def _in_value(self, data: bytes, at: int) -> int:
        end, done = self._value.scan(data, at)
        piece = data[at:end]
        if self._key in _ARGUMENTS:
            self._has_arguments = True
            if self._name is None:
                self._early += piece
            elif piece:
                self._sink.arguments(piece)
        elif self._key == "name":
            self._text += piece
            if done:
                self._begin(_string(self._text))
        if done:
            self._step = self._after_value
        return end

    def _after_value(self, data: bytes, at: int) -> int:
        byte = data[at]
        if byte in WHITE_SPACE:
            return at + 1
        if byte == _CLOSE:
            return self._finish(at)
        return self._expect(byte, {_COMMA: self._before_key}, at)

    def _expect(self, byte: int, steps: dict[int, Callable[[bytes, int], int]], at: int) -> int:
        if byte not in steps:
            raise CallSyntaxError(f"a call has {chr(byte)!r} where {' or '.join(repr(chr(code)) for code in steps)} belongs")
        self._step = steps[byte]
        return at + 1

    def _begin(self, name: str) -> None:
        if self._name is not None:
            raise CallSyntaxError("a call has two names")
        self._name = name
        self._sink.begin(name)
        if self._early:
            self._sink.arguments(bytes(self._early))
            self._early.clear()

    def _finish(self, at: int) -> int:
        if self._name is None:
            raise CallSyntaxError("a call has no name")
        if not self._has_arguments:
            self._sink.arguments(b"{}")
        self._sink.end()
        self.is_done = True
        return at + 1


def _string(raw: bytearray) -> str:
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise CallSyntaxError("a name is no JSON string") from error
    if not isinstance(value, str):
        raise CallSyntaxError("a name is no JSON string")
    return value
