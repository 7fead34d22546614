"""Reads calls of Qwen3-Coder's format and writes their arguments as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from radixserve_tokenizer.tools.errors import CallSyntaxError
from radixserve_tokenizer.tools.jsoncall import WHITE_SPACE, JsonValue
from radixserve_tokenizer.tools.parser import CallParser, without_prefix_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from radixserve_tokenizer.tools.marks import Mark
    from radixserve_tokenizer.tools.parser import OutputSink

END_OF_VALUE = "\n</parameter>"
_ESCAPES = {byte: json.dumps(chr(byte))[1:-1].encode() for byte in (*range(0x20), *b'"\\')}


class XmlParser(CallParser):
    """`texts`: by tool the parameters that stand as they are; the others are JSON. A tool that isn't there has texts alone
    where a value is no JSON."""

    _value: JsonValue

    def __init__(
        self, sink: OutputSink, opening: Mark, closing: Mark, texts: Mapping[str, frozenset[str]], *, required: bool
    ) -> None:
        super().__init__(sink, opening, required=required)
        self._closing = closing
        self._texts = texts
        self._tool = ""
        self._num_parameters = 0

    def _after_trigger(self) -> Callable[[], bool]:
        return self._function

    def _function(self) -> bool:
        """<function=NAME>"""
        name = self._tag(b"<function=")
        if name is None:
            return False
        self._tool = name
        self._num_parameters = 0
        self._sink.begin(name)
        self._sink.arguments(b"{")
        self._step = self._parameter
        return True

    def _parameter(self) -> bool:
        """<parameter=NAME> and a line end, or </function>."""
        if not self._skip_white_space():
            return False
        if self._buffer.startswith(b"</"):
            if not self._take_literal(b"</function>"):
                return False
            self._sink.arguments(b"}")
            self._sink.end()
            self._step = self._close
            return True
        if len(self._buffer) < len(b"</"):
            return False
        name = self._tag(b"<parameter=")
        if name is None:
            return False
        comma = ", " if self._num_parameters else ""
        self._num_parameters += 1
        self._sink.arguments(f"{comma}{json.dumps(name, ensure_ascii=False)}: ".encode())
        self._value = JsonValue()
        self._step = self._text_begins if name in self._texts.get(self._tool, ()) else self._json
        return True

    def _text_begins(self) -> bool:
        """The line end after the tag is not the value's."""
        if not self._buffer:
            return False
        if self._buffer.startswith(b"\n"):
            del self._buffer[:1]
        self._sink.arguments(b'"')
        self._step = self._text_goes_on
        return True

    def _text_goes_on(self) -> bool:
        end = END_OF_VALUE.encode()
        found = self._buffer.find(end)
        shown = bytes(self._buffer[:found]) if found >= 0 else without_prefix_of(self._buffer, end)
        del self._buffer[: len(shown)]
        if shown:
            self._sink.arguments(_escaped(shown))
        if found < 0:
            return False
        del self._buffer[: len(end)]
        self._sink.arguments(b'"')
        self._step = self._parameter
        return True

    def _json(self) -> bool:
        """A JSON value, with white space around it."""
        if not self._skip_white_space():
            return False
        self._step = self._json_goes_on
        return True

    def _json_goes_on(self) -> bool:
        if not self._buffer:
            return False
        data = bytes(self._buffer)
        end, done = self._value.scan(data, 0)
        del self._buffer[:end]
        if end:
            self._sink.arguments(data[:end])
        if done:
            self._step = self._json_ends
        return done

    def _json_ends(self) -> bool:
        if not self._skip_white_space() or not self._take_literal(b"</parameter>"):
            return False
        self._step = self._parameter
        return True

    def _close(self) -> bool:
        if self._closing.is_token or not self._skip_white_space() or not self._take_literal(self._closing.raw):
            return False
        self._step = self._between_calls
        return True

    def _control(self, text: str) -> None:
        if text == self._closing.text and self._step == self._close and not self._buffer.strip(WHITE_SPACE):
            self._buffer.clear()
            self._step = self._between_calls
        else:
            super()._control(text)

    def _tag(self, begin: bytes) -> str | None:
        """The name in a tag that begins so; None when more bytes are needed."""
        if not self._skip_white_space():
            return None
        if not self._buffer.startswith(begin):
            if begin.startswith(bytes(self._buffer)):
                return None
            raise CallSyntaxError(f"{begin.decode()!r} is missing")
        end = self._buffer.find(b">")
        if end < 0:
            return None
        name = bytes(self._buffer[len(begin) : end]).decode("utf-8", "replace")
        del self._buffer[: end + 1]
        return name


def _escaped(data: bytes) -> bytes:
    """Bytes of text as they stand in a JSON string. Works on any piece, also of a character."""
    return b"".join(_ESCAPES.get(byte, bytes((byte,))) for byte in data)
