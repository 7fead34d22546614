"""How tools, calls and results reach a template: as the template's own variables, or where it knows none as text of ours.

Our own text stands inside messages, so it is encoded like any user text: nothing in a tool's description can become a
control token.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from radixserve_tokenizer.text.errors import TemplateError
from radixserve_tokenizer.text.inputs import quote_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve_tokenizer.text.inputs import Ids, Inputs
    from radixserve_tokenizer.text.jinja import Renderer

_PROBE = "\U000f0000"
#: The probe as it is rendered, plain or through `tojson`.
_SHOWN = re.compile(f"[{_PROBE}{quote_inputs(_PROBE)}]")
_USER = {"role": "user", "content": "u"}
_LONG_ID, _SHORT_ID = "call_probe_1", "callprob1"


class NativeTools(Protocol):
    """The model's native format, as text."""

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """What the system message says about the tools (OpenAI's definitions)."""
        ...

    def examples(self, tools: Sequence[Mapping[str, Any]]) -> Sequence[tuple[str, str]]:
        """Turns (role, text) that are shown before the conversation."""
        ...

    def calls_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Past calls, each a name and arguments (an object, or text)."""
        ...

    def result_text(self, text: str, name: str) -> str:
        """A tool's result. `name` is the tool's, or empty."""
        ...


class ToolSupport(NamedTuple):
    """What a template knows of tools."""

    tools: bool
    """It shows the variable `tools`."""
    calls: bool
    """It shows `tool_calls` of past turns, and results (role tool)."""
    system: bool
    """It shows a system message."""
    id_length: int
    """How long it wants ids of calls to be; 0: any."""
    repeats: bool = True
    """It takes two user messages in a row."""


def probe_support(renderer: Renderer) -> ToolSupport:
    """Find out by rendering short conversations."""
    id_length = 0
    calls = _shows_calls(renderer, _LONG_ID)
    if not calls and _shows_calls(renderer, _SHORT_ID):
        calls, id_length = True, len(_SHORT_ID)
    probe, answer = {"role": "user", "content": _PROBE}, {"role": "assistant", "content": "a"}
    return ToolSupport(
        tools=_shows_tools(renderer),
        calls=calls,
        system=_shows(renderer, [{"role": "system", "content": _PROBE}, _USER]),
        id_length=id_length,
        repeats=_shows(renderer, [_USER, answer, _USER, probe]) or not _shows(renderer, [_USER, answer, probe]),
    )


def _shows(renderer: Renderer, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> bool:
    try:
        rendered = renderer.render(messages, now=datetime.now().astimezone(), add_generation_prompt=True, tools=tools)
    except TemplateError:
        return False
    return _SHOWN.search(rendered) is not None


def _shows_tools(renderer: Renderer) -> bool:
    parameters = {"type": "object", "properties": {"x": {"type": "string", "description": "d"}}, "required": ["x"]}
    tools = [{"type": "function", "function": {"name": "look", "description": _PROBE, "parameters": parameters}}]
    system = {"role": "system", "content": "s"}
    return _shows(renderer, [_USER], tools) or _shows(renderer, [system, _USER], tools)


def _shows_calls(renderer: Renderer, call_id: str) -> bool:
    def around(name: str, result: str) -> bool:
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": {"x": "y"}}}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        return _shows(renderer, [_USER, answer, {"role": "tool", "name": "look", "tool_call_id": call_id, "content": result}])

    return around(_PROBE, "r") and around("look", _PROBE)


class Said(NamedTuple):
    """A message as the template will get it."""

    role: str
    content: list[str | Ids]
    fields: dict[str, Any]
    joins: bool = False
    """A result that has to stand in one message with results before it."""


class ToolText:
    """The tools of one conversation. Copied with it."""

    def __init__(self, support: ToolSupport, native: NativeTools | None) -> None:
        self._support = support
        self._native = native
        self._variable: list[Any] | None = None
        self._text = ""
        self._examples: tuple[Mapping[str, Any], ...] = ()
        self._merged: tuple[str, str, str] = ("", "", "")
        """A message's content, the tools' text, and the content with that text: made once, as long as they stay."""

    def copy(self) -> ToolText:
        """An independent copy."""
        other = ToolText(self._support, self._native)
        other.__dict__.update(self.__dict__)
        return other

    @property
    def variable(self) -> list[Any] | None:
        """The template's variable `tools`."""
        return self._variable

    def set(self, tools: Sequence[Mapping[str, Any]], inputs: Inputs) -> None:
        """OpenAI's definitions of the tools. Raises `TemplateError`, `InvalidTextError`."""
        native = None if self._support.tools else self._native
        self._variable = inputs.add_value(list(tools), "tools") if tools and native is None else None
        self._text = native.instructions(tools) if tools and native is not None else ""
        shown = native.examples(tools) if tools and native is not None and self._support.system else ()
        self._examples = tuple({"role": role, "content": inputs.add_text(text, "tools")} for role, text in shown)

    def said(self, role: str, content: Sequence[str | Ids], fields: Mapping[str, Any]) -> Said:
        """A message, with its calls or its result put into words where the template has none for them."""
        own = dict(fields)
        if not self._support.calls and self._native is not None:
            if own.get("tool_calls"):
                text = self._native.calls_text([_name_and_arguments(call) for call in own.pop("tool_calls")])
                return Said(role, [*content, *(["\n"] if any(content) else []), text], own)
            if role in ("tool", "function"):
                text = "".join(piece for piece in content if isinstance(piece, str))
                result = self._native.result_text(text, str(own.get("name") or ""))
                return Said("user", [result], {}, joins=not self._support.repeats)
        elif self._support.id_length:
            self._fit_ids(own)
        return Said(role, list(content), own)

    def fit_id(self, call_id: str) -> str:
        """An id of the length that the template wants: its own, or one made from it."""
        length = self._support.id_length
        if not length or (len(call_id) == length and call_id.isascii() and call_id.isalnum() and call_id[0].isalpha()):
            return call_id
        return "c" + hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[: length - 1]

    def messages(self, messages: Sequence[Mapping[str, Any]], inputs: Inputs) -> list[Mapping[str, Any]]:
        """The conversation's messages, with the tools' text in the system message (or the first user's, without such), and
        examples behind it."""
        if not self._text:
            return list(messages)
        roles = ("system", "developer") if self._support.system else ("user",)
        for index, message in enumerate(messages):
            if message["role"] in roles and (index == 0 or not self._support.system):
                merged = {**message, "content": self._merge(message["content"], inputs)}
                return [*messages[:index], merged, *self._examples, *messages[index + 1 :]]
        if not self._support.system:
            return list(messages)
        return [{"role": "system", "content": self._merge("", inputs)}, *self._examples, *messages]

    def _merge(self, content: str, inputs: Inputs) -> str:
        if self._merged[:2] != (content, self._text):
            before = inputs.content(content) if content else ()
            pieces = (*before, "\n\n" if before else "", self._text) if self._support.system else (self._text, "\n\n", *before)
            self._merged = (content, self._text, inputs.add(tuple(piece for piece in pieces if piece)))
        return self._merged[2]

    def _fit_ids(self, fields: dict[str, Any]) -> None:
        if isinstance(fields.get("tool_call_id"), str):
            fields["tool_call_id"] = self.fit_id(fields["tool_call_id"])
        if "tool_calls" in fields:
            fields["tool_calls"] = [
                {**call, "id": self.fit_id(call["id"])} if isinstance(call.get("id"), str) else call
                for call in fields["tool_calls"]
            ]


def _name_and_arguments(call: Mapping[str, Any]) -> tuple[str, Any]:
    function = call.get("function", call)
    return str(function.get("name", "")), function.get("arguments", {})
