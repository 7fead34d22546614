"""Llama 3's format: one call as a bare JSON object that is the whole answer, perhaps after <|python_tag|>."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.grammar.patterns import literal_rule
from radixserve_tokenizer.tools.errors import ToolError
from radixserve_tokenizer.tools.format import CallGrammar, ToolFormat, Use, call_json, to_json
from radixserve_tokenizer.tools.jsonformats import ListParser, argument_parts, object_rule
from radixserve_tokenizer.tools.marks import Mark, mark

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve_tokenizer.protocol import Constraint
    from radixserve_tokenizer.tools.parser import CallParser, OutputSink
    from radixserve_tokenizer.tools.toolset import Tool

#: An answer that begins so is a call, and has to be one.
_BEGIN = '{"name": "'
_KEY = "parameters"


class Llama3(ToolFormat):
    """{"name": ..., "parameters": {...}}. The model was trained to make one call a turn, and its templates refuse more."""

    name = "llama3"
    max_calls = 1

    @property
    def trigger(self) -> Mark:
        """The tag, where the vocabulary has it."""
        return mark("<|python_tag|>", self.special)

    def grammar(self, tools: Sequence[Tool], most: int) -> CallGrammar:
        """The object."""
        return CallGrammar(f"{object_rule(tools, _KEY)}\ncalls ::= one", argument_parts(tools))

    def free(self) -> str:
        """A call, or text that does not begin like one."""
        tag = f"{self.trigger.rule}? " if self.trigger.is_token else ""
        return f"{_not_beginning_with(_BEGIN)}root ::= {tag}calls | free0"

    def forced(self) -> str:
        """The object alone."""
        return "calls"

    def beside(self, constraint: Constraint) -> str:
        """The tag tells a call from an object that a schema asks for."""
        if not self.trigger.is_token:
            text = "this model's calls can't be told from a constrained answer: leave the tools or the constraint out"
            raise ToolError(text, "constraint", "unsupported")
        return f"{self.trigger.rule} calls"

    def parser(self, sink: OutputSink, tools: Sequence[Tool], use: Use) -> CallParser:
        """Reads the object, where the output begins with one."""
        return _ObjectParser(sink, self.trigger, use)

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Each tool on a line of its own."""
        lines = "\n".join(to_json(dict(tool)) for tool in tools)
        return (
            f"You may call one of these functions to answer:\n{lines}\n\n"
            'To call it, answer with one JSON object and nothing else: {"name": "function name", "parameters": {"argument": "value"}}'
        )

    def calls_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """One object a line."""
        return "\n".join(call_json(name, arguments, _KEY) for name, arguments in calls)


def _not_beginning_with(text: str) -> str:
    """Rules: `free0` is any text that doesn't begin with `text`; it may be a beginning of it."""
    rules = ["any_text ::= [\\0-\\U0010ffff]*"]
    for index, char in enumerate(text):
        other = f"[^{literal_rule(char)[1:-1]}] any_text"
        same = f" | {literal_rule(char)} free{index + 1}" if index + 1 < len(text) else ""
        rules.append(f'free{index} ::= "" | {other}{same}')
    return "\n".join(rules) + "\n"


class _ObjectParser(ListParser):
    """One object at the begin of the output; whatever doesn't begin so is text."""

    def __init__(self, sink: OutputSink, tag: Mark, use: Use) -> None:
        super().__init__(sink, tag, required=use == "required")
        if use == "required":
            self._begin_calls()
        elif use == "free":
            self._step = self._first

    def _first(self) -> bool:
        """Whether the output begins with a call."""
        begin = _BEGIN.encode()
        if self._buffer.startswith(begin):
            self._begin_calls()
            return True
        if begin.startswith(bytes(self._buffer)):
            return False
        self._step = self._text
        return True

    def _text(self) -> bool:
        """All of it: a call doesn't come after text."""
        self._emit(bytes(self._buffer))
        self._buffer.clear()
        return False

    def _between_calls(self) -> bool:
        """The call is the answer: nothing follows it."""
        self._buffer.clear()
        return False
