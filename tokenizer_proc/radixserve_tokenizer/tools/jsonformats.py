"""Formats in which a call is a JSON object between tags: Hermes (also Qwen2.5 and Qwen3) and SmolLM2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.grammar.composite import Part, part_name
from radixserve_tokenizer.grammar.patterns import literal_rule
from radixserve_tokenizer.tools.errors import CallSyntaxError
from radixserve_tokenizer.tools.examples import shown_calls
from radixserve_tokenizer.tools.format import CallGrammar, ToolFormat, Use, call_json, to_json
from radixserve_tokenizer.tools.jsoncall import JsonCall
from radixserve_tokenizer.tools.marks import Mark, mark
from radixserve_tokenizer.tools.parser import CallParser

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from radixserve_tokenizer.tools.parser import OutputSink
    from radixserve_tokenizer.tools.toolset import Tool


def object_rule(tools: Sequence[Tool], key: str = "arguments") -> str:
    """The rule `one`: a call of any of these tools as an object."""
    options: list[str] = []
    for index, tool in enumerate(tools):
        head, _, tail = call_json(tool.name, "\0", key).partition("\0")
        options.append(f"{literal_rule(head)} {part_name(index)} {literal_rule(tail)}")
    return f"one ::= {' | '.join(options)}"


def argument_parts(tools: Sequence[Tool]) -> tuple[Part, ...]:
    """The parts that `object_rule` speaks of. Raises `ToolError`."""
    return tuple(Part(f"tool {tool.name!r}", tool.prepared, f"{tool.param}.parameters") for tool in tools)


class Hermes(ToolFormat):
    """<tool_call> and </tool_call> on lines of their own around each call."""

    name = "hermes"

    def __init__(self, special: Mapping[str, int]) -> None:
        super().__init__(special)
        self._open = mark("<tool_call>", special)
        self._close = mark("</tool_call>", special)

    @property
    def trigger(self) -> Mark:
        """The opening tag."""
        return self._open

    @property
    def control_marks(self) -> tuple[Mark, ...]:
        """The tags, in vocabularies that have them as control tokens."""
        return tuple(each for each in (self._open, self._close) if each.is_token)

    def grammar(self, tools: Sequence[Tool], most: int) -> CallGrammar:
        """One call on a line, and more after it."""
        newline = literal_rule("\n")
        body = f"{newline} one {newline} {self._close.rule}"
        more = f" ({newline} {self._open.rule} {body}){{0,{most - 1}}}" if most > 1 else ""
        return CallGrammar(f"{object_rule(tools)}\ncalls ::= {body}{more}", argument_parts(tools))

    def parser(self, sink: OutputSink, tools: Sequence[Tool], use: Use) -> CallParser:
        """Reads a call, or a list of calls, between the tags."""
        return _TagParser(sink, self._open, self._close, required=use == "required")

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Each tool on a line of its own."""
        lines = "\n".join(to_json(dict(tool)) for tool in tools)
        return (
            "# Tools\n\nYou may call functions to answer. Each line between the tags is the signature of one:\n"
            f"<tools>\n{lines}\n</tools>\n\n"
            "To call one, write its name and arguments as a JSON object between these tags, one pair of tags for a call:\n"
            '<tool_call>\n{"name": "<function name>", "arguments": {"<argument>": <value>}}\n</tool_call>'
        )

    def calls_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """One pair of tags a call."""
        return "\n".join(f"<tool_call>\n{call_json(name, arguments)}\n</tool_call>" for name, arguments in calls)


class SmolLM2(Hermes):
    """One pair of tags around the list of all calls, as SmolLM2 was trained; its own template knows no tools."""

    name = "smollm2"

    def grammar(self, tools: Sequence[Tool], most: int) -> CallGrammar:
        """The list, closed."""
        more = f' (", " one){{0,{most - 1}}}' if most > 1 else ""
        text = f"{object_rule(tools)}\ncalls ::= {literal_rule('[')} one{more} {literal_rule(']')} {self._close.rule}"
        return CallGrammar(text, argument_parts(tools))

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """All tools as one list."""
        return (
            "You can call functions to answer the user. These are the functions:\n"
            f"<tools>{to_json([dict(tool) for tool in tools])}</tools>\n\n"
            "To call functions, write a JSON list of calls between tags, in this form and without other text:\n"
            '<tool_call>[{"name": "function_name", "arguments": {"argument": "value"}}]</tool_call>\n'
            "Give every argument that is required, with a value of its type. If no function fits, answer in plain text."
        )

    def examples(self, tools: Sequence[Mapping[str, Any]]) -> Sequence[tuple[str, str]]:
        """Calls of the first of these tools."""
        return shown_calls(tools, self)

    def calls_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """One list."""
        return f"<tool_call>[{', '.join(call_json(name, arguments) for name, arguments in calls)}]</tool_call>"

    def result_text(self, text: str, name: str) -> str:
        """Without tags: a small model takes the one of results for the one of calls, and repeats it."""
        return f"Result: {text}"


class ListParser(CallParser):
    """Calls as JSON objects, one or a list of them."""

    _call: JsonCall
    _in_list = False

    def _after_trigger(self) -> Callable[[], bool]:
        self._in_list = False
        return self._open_list

    def _open_list(self) -> bool:
        if not self._skip_white_space():
            return False
        self._in_list = self._buffer.startswith(b"[")
        if self._in_list:
            del self._buffer[:1]
        self._step = self._next_in_list if self._in_list else self._next_call
        return True

    def _next_in_list(self) -> bool:
        if not self._skip_white_space():
            return False
        if self._buffer.startswith(b"]"):  # a model may say that nothing is to be called
            del self._buffer[:1]
            self._step = self._close
        else:
            self._step = self._next_call
        return True

    def _next_call(self) -> bool:
        self._call = JsonCall(self._sink)
        self._step = self._in_call
        return True

    def _in_call(self) -> bool:
        if not self._buffer:
            return False
        data = bytes(self._buffer)
        del self._buffer[: self._call.feed(data)]
        if self._call.is_done:
            self._step = self._after_call if self._in_list else self._close
        return self._call.is_done

    def _after_call(self) -> bool:
        if not self._skip_white_space():
            return False
        byte = bytes(self._buffer[:1])
        if byte not in (b",", b"]"):
            raise CallSyntaxError("a list of calls goes on with neither a comma nor its end")
        del self._buffer[:1]
        self._step = self._next_call if byte == b"," else self._close
        return True

    def _close(self) -> bool:
        """What follows the list or object."""
        self._step = self._between_calls
        return True


class _TagParser(ListParser):
    """The same between an opening and a closing tag."""

    def __init__(self, sink: OutputSink, opening: Mark, closing: Mark, *, required: bool) -> None:
        super().__init__(sink, opening, required=required)
        self._closing = closing

    def _close(self) -> bool:
        if self._closing.is_token or not self._skip_white_space() or not self._take_literal(self._closing.raw):
            return False
        self._step = self._between_calls
        return True

    def _control(self, text: str) -> None:
        if text == self._closing.text and self._step == self._close and not self._buffer.strip():
            self._buffer.clear()
            self._step = self._between_calls
        else:
            super()._control(text)
