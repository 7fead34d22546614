"""Mistral's formats, the older with a JSON list and the newer with a name before each call's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.grammar.composite import part_name
from radixserve_tokenizer.grammar.patterns import literal_rule
from radixserve_tokenizer.tools.errors import CallSyntaxError
from radixserve_tokenizer.tools.format import CallGrammar, ToolFormat, Use, call_json, to_json
from radixserve_tokenizer.tools.jsoncall import JsonValue
from radixserve_tokenizer.tools.jsonformats import ListParser, argument_parts, object_rule
from radixserve_tokenizer.tools.marks import Mark, mark
from radixserve_tokenizer.tools.parser import CallParser

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from radixserve_tokenizer.tools.parser import OutputSink
    from radixserve_tokenizer.tools.toolset import Tool


class MistralList(ToolFormat):
    """[TOOL_CALLS] and a JSON list: Mistral 7B v0.3, Mixtral, Nemo, the first Small and Large."""

    name = "mistral"

    @property
    def trigger(self) -> Mark:
        """One control token, in the model's own vocabulary."""
        return mark("[TOOL_CALLS]", self.special)

    def grammar(self, tools: Sequence[Tool], most: int) -> CallGrammar:
        """The list, perhaps after a space that SentencePiece puts there."""
        more = f' (", " one){{0,{most - 1}}}' if most > 1 else ""
        text = f'{object_rule(tools)}\ncalls ::= " "? {literal_rule("[")} one{more} {literal_rule("]")}'
        return CallGrammar(text, argument_parts(tools))

    def parser(self, sink: OutputSink, tools: Sequence[Tool], use: Use) -> CallParser:
        """Reads the list behind the trigger."""
        return ListParser(sink, self.trigger, required=use == "required")

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """All tools as one list."""
        return (
            f"[AVAILABLE_TOOLS]{to_json([dict(tool) for tool in tools])}[/AVAILABLE_TOOLS]\n"
            'To call tools, answer with [TOOL_CALLS] and a list: [TOOL_CALLS][{"name": "tool_name", "arguments": {}}]'
        )

    def calls_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """One list."""
        return f"[TOOL_CALLS][{', '.join(call_json(name, arguments) for name, arguments in calls)}]"

    def result_text(self, text: str, name: str) -> str:
        """As the model's own tokenizer frames results."""
        return f'[TOOL_RESULTS]{{"content": {to_json(text)}}}[/TOOL_RESULTS]'


class MistralArguments(MistralList):
    """[TOOL_CALLS]name[ARGS]{...}, one after the other: Small 3.1 and later, Devstral, Magistral."""

    name = "mistral_args"

    @property
    def _separator(self) -> Mark:
        return mark("[ARGS]", self.special)

    @property
    def control_marks(self) -> tuple[Mark, ...]:
        """Both."""
        return tuple(each for each in (self.trigger, self._separator) if each.is_token)

    def grammar(self, tools: Sequence[Tool], most: int) -> CallGrammar:
        """A name, the separator, arguments; and more behind triggers of their own."""
        options = [f"{literal_rule(tool.name)} {self._separator.rule} {part_name(index)}" for index, tool in enumerate(tools)]
        more = f" ({self.trigger.rule} one){{0,{most - 1}}}" if most > 1 else ""
        return CallGrammar(f"one ::= {' | '.join(options)}\ncalls ::= one{more}", argument_parts(tools))

    def parser(self, sink: OutputSink, tools: Sequence[Tool], use: Use) -> CallParser:
        """Reads names and arguments."""
        return _ArgumentsParser(sink, self.trigger, self._separator, required=use == "required")

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """All tools as one list."""
        return (
            f"[AVAILABLE_TOOLS]{to_json([dict(tool) for tool in tools])}[/AVAILABLE_TOOLS]\n"
            'To call a tool, answer in this form, once for each call: [TOOL_CALLS]tool_name[ARGS]{"argument": "value"}'
        )

    def calls_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """One after the other."""
        texts = [(name, arguments if isinstance(arguments, str) else to_json(arguments)) for name, arguments in calls]
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{text}" for name, text in texts)


class _ArgumentsParser(CallParser):
    _value: JsonValue

    def __init__(self, sink: OutputSink, trigger: Mark, separator: Mark, *, required: bool) -> None:
        super().__init__(sink, trigger, required=required)
        self._separator = separator

    def _after_trigger(self) -> Callable[[], bool]:
        return self._in_name

    def _in_name(self) -> bool:
        separator = self._separator.raw
        found = self._buffer.find(separator) if separator else -1
        if found < 0:
            return False
        name = bytes(self._buffer[:found])
        del self._buffer[: found + len(separator)]
        self._begin(name)
        return True

    def _begin(self, name: bytes) -> None:
        text = name.strip().decode("utf-8", "replace")
        if not text:
            raise CallSyntaxError("a call has no name")
        self._sink.begin(text)
        self._value = JsonValue()
        self._step = self._in_arguments

    def _in_arguments(self) -> bool:
        if not self._buffer:
            return False
        data = bytes(self._buffer)
        end, done = self._value.scan(data, 0)
        del self._buffer[:end]
        if end:
            self._sink.arguments(data[:end])
        if done:
            self._sink.end()
            self._step = self._between_calls
        return done

    def _control(self, text: str) -> None:
        if text == self._separator.text and self._step == self._in_name:
            name = bytes(self._buffer)
            self._buffer.clear()
            self._begin(name)
        else:
            super()._control(text)
