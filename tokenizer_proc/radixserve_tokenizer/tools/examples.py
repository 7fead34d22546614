"""A conversation in which tools are called, for models that were not trained to: they do as they have seen done before.

Told how to call, SmolLM2-135M never does; shown it, with its own tools and between the template's own marks, it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve_tokenizer.tools.format import ToolFormat

MAX_SHOWN = 3
"""Tools that are shown being called; the prompt grows with each."""
_MAX_REQUEST_CHARS = 200
_MAX_DEPTH = 3
_TEXT = "Blue Bird"
_TEXTS = (_TEXT, "Green Hill", "Red Rose")
_VALUES: dict[str, Any] = {"string": _TEXT, "integer": 1, "number": 1.5, "boolean": True, "array": [], "null": None}


def shown_calls(tools: Sequence[Mapping[str, Any]], form: ToolFormat) -> list[tuple[str, str]]:
    """Roles and texts: an answer without a call, a call whose result is told, then a call of each of the first tools (OpenAI's definitions)."""
    calls = [_call(tool["function"], form) for tool in tools[:MAX_SHOWN]]
    hello = [("user", "Good evening!"), ("assistant", "Good evening! How can I help you?")]
    told = [("user", form.result_text("It worked.", tools[0]["function"]["name"])), ("assistant", "It worked.")]
    # A model does most readily what it has seen last: a call, or it never calls.
    return [*hello, *calls[0], *told, *(turn for call in calls for turn in call)]


def _call(function: Mapping[str, Any], form: ToolFormat) -> list[tuple[str, str]]:
    shown = example_value(function.get("parameters"))
    # A schema that is no object's is refused when its grammar is asked for; until then a prompt with it can be written.
    arguments = cast("dict[str, Any]", shown) if isinstance(shown, dict) else {}
    return [("user", _request(function, arguments)), ("assistant", form.calls_text([(function["name"], arguments)]))]


def example_value(schema: Any, depth: int = 0) -> Any:
    """A value of about the form that a JSON Schema asks for, with what is required. It need not match."""
    if not isinstance(schema, dict):
        return _TEXT
    known = cast("dict[str, Any]", schema)
    if "const" in known:
        return known["const"]
    if isinstance(known.get("enum"), list) and known["enum"]:
        return known["enum"][0]
    kind = known.get("type")
    if isinstance(kind, list) and kind:
        kind = kind[0]
    if kind != "object" and "properties" not in known:
        return _VALUES.get(kind, _TEXT) if isinstance(kind, str) else _TEXT
    properties, required = known.get("properties"), known.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list) or depth >= _MAX_DEPTH:
        return {}
    shown = {name: example_value(inner, depth + 1) for name, inner in properties.items() if name in required}
    texts = iter(_TEXTS)
    return {name: next(texts, value) if value == _TEXT else value for name, value in shown.items()}


def _request(function: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """What somebody would say who wants it called: its description, else its name, and the texts that the call then has.

    Shown a call with texts that nobody asked for, a small model writes those, whatever is asked.
    """
    lines = str(function.get("description") or "").strip().splitlines()
    asked = lines[0][:_MAX_REQUEST_CHARS] if lines else str(function["name"]).replace("_", " ")
    said = [f"{name.replace('_', ' ')} {value}" for name, value in arguments.items() if isinstance(value, str)]
    return f"{asked.rstrip('.')}: {', '.join(said)[:_MAX_REQUEST_CHARS]}." if said else asked
