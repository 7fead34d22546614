"""User inputs on their way through a chat template.

A template renders one string, in which user text could pass for control tokens. So the template is given one private-use
character for each input instead, and the inputs are put back after its rendering has been split at its own control tokens.
One character cannot be torn by whatever a template does with strings.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeAlias

from radixserve_tokenizer.text.errors import TemplateError
from radixserve_tokenizer.text.tokenizer import check_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from radixserve_tokenizer.text.tokenizer import TextTokenizer

Ids: TypeAlias = tuple[int, ...]
Content: TypeAlias = tuple[str | Ids, ...]
"""One input: pieces of text and of known token ids, in order."""

_PLAIN = 0xF0000
_QUOTED = 0x100000
_MAX_INPUTS = 0xFFFD
_CONTENT_BYTES, _ENTRY_BYTES = 8, 100

#: Splits a rendering into the template's own text (even positions) and inputs (odd positions).
INPUT_PATTERN = re.compile("([\U000f0000-\U0010ffff])")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")

#: Names of JSON Schema and of OpenAI's messages, which templates look up and compare.
# fmt: off
_KNOWN_NAMES = frozenset({
    "string", "number", "integer", "boolean", "array", "object", "null", "function",
    "type", "name", "description", "parameters", "properties", "required", "items", "enum", "default", "additionalProperties",
    "anyOf", "oneOf", "allOf", "title", "format", "strict", "id", "arguments", "tool_calls", "content", "role",
})
# fmt: on


class Inputs:
    """The inputs of one conversation. Their contents are shared by copies; only `extend` replaces one, and in one copy alone."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._control_texts = "\n".join(tokenizer.special)
        self._contents: list[Content] = []
        self._by_text: dict[str, str] = {}

    def copy(self) -> Inputs:
        """An independent copy."""
        other = Inputs.__new__(Inputs)
        other._tokenizer = self._tokenizer
        other._control_texts = self._control_texts
        other._contents = self._contents.copy()
        other._by_text = self._by_text.copy()
        return other

    @property
    def copied_bytes(self) -> int:
        """About how much memory a copy takes."""
        return _CONTENT_BYTES * len(self._contents) + _ENTRY_BYTES * len(self._by_text)

    def add(self, content: Content) -> str:
        """The character that stands for a new input."""
        if len(self._contents) >= _MAX_INPUTS:
            raise TemplateError(f"a conversation holds at most {_MAX_INPUTS} messages and texts")
        self._contents.append(content)
        return chr(_PLAIN + len(self._contents) - 1)

    def add_text(self, text: str, param: str) -> str:
        """The character that stands for a text, the same for equal texts; an empty text stands for itself."""
        if not text:
            return ""
        if text not in self._by_text:
            check_text(text, param)
            self._by_text[text] = self.add((text,))
        return self._by_text[text]

    def add_value(self, value: Any, param: str) -> Any:
        """A JSON value with its strings and keys replaced, except for plain names, which templates compare and which cannot
        be part of a control token. Raises `TemplateError`, `InvalidTextError`."""
        if isinstance(value, str):
            return value if self._is_plain_name(value) else self.add_text(value, param)
        if value is None or isinstance(value, bool | int | float):
            return value
        try:
            if isinstance(value, dict):
                return {self.add_value(key, param): self.add_value(item, f"{param}.{key}") for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [self.add_value(item, f"{param}[{index}]") for index, item in enumerate(value)]
        except RecursionError:
            raise TemplateError("nested too deeply", param.partition(".")[0]) from None
        raise TemplateError(f"a value of type {type(value).__name__} is no JSON", param)

    def extend(self, placeholder: str, ids: Sequence[int]) -> None:
        """Append known ids to an input."""
        index = ord(placeholder) - _PLAIN
        self._contents[index] = (*self._contents[index], tuple(ids))

    def content(self, placeholder: str) -> Content:
        """What a character stands for, as it is to be encoded."""
        code = ord(placeholder)
        if code >= _QUOTED:
            return (quoted(self.text(chr(code - _QUOTED + _PLAIN))),)
        return self._contents[code - _PLAIN]

    def text(self, placeholder: str) -> str:
        """What a character stands for, as text."""
        pieces = (piece if isinstance(piece, str) else self._raw(piece) for piece in self.content(placeholder))
        return "".join(pieces)

    def restore(self, rendered: str) -> str:
        """A rendering with the inputs put back, as text."""
        return INPUT_PATTERN.sub(lambda match: self.text(match[0]), rendered)

    def _raw(self, ids: Iterable[int]) -> str:
        return b"".join(self._tokenizer.vocabulary[id] for id in ids).decode("utf-8", "replace")

    def _is_plain_name(self, text: str) -> bool:
        if text in _KNOWN_NAMES:
            return True
        if _NAME.fullmatch(text) is None or any(token in text for token in self._tokenizer.special):
            return False
        # "eot" is no plain name where <|eot|> is a control token: a template may put the rest around it.
        return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", self._control_texts) is None


def quoted(text: str) -> str:
    """A text as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def quote_inputs(json_text: str) -> str:
    """JSON text whose strings hold input characters: those inputs will be put back in JSON's spelling."""
    return INPUT_PATTERN.sub(
        lambda match: chr(ord(match[0]) - _PLAIN + _QUOTED) if ord(match[0]) < _QUOTED else match[0], json_text
    )
