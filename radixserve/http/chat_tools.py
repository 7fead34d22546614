"""`tools` and `tool_choice` of a chat request, and the older `functions` and `function_call`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from radixserve.http.errors import BadRequestError
from radixserve.http.fields import show
from radixserve.http.tools import NO_TOOLS, AskedTools, as_list, as_object, as_string, asked_tools, check_tools, tool_spec

if TYPE_CHECKING:
    from radixserve.http.config import HttpConfig
    from radixserve.http.schemas import ChatRequest
    from radixserve_tokenizer.protocol import ToolSpec


def chat_tools(request: ChatRequest, config: HttpConfig) -> AskedTools:
    """What the model may call; raises `BadRequestError`."""
    if request.uses_functions:
        return _functions(request, config)
    specs = read_chat_tools(request.tools, config)
    return choose(specs, request.tool_choice, parallel=request.parallel_tool_calls is not False)


def read_chat_tools(value: Any, config: HttpConfig) -> tuple[ToolSpec, ...]:
    """The field `tools` in chat's form; raises `BadRequestError`."""
    items = as_list(value, "tools", config.max_tools)
    return check_tools((_tool(one, f"tools[{i}]", config) for i, one in enumerate(items)), "tools", config)


def choose(specs: tuple[ToolSpec, ...], choice: Any, *, parallel: bool) -> AskedTools:
    """OpenAI's `tool_choice`, as chat and Responses write it. A named tool is called once."""
    if choice is None or choice == "auto":
        return asked_tools(specs, "auto", parallel=parallel)
    if choice == "none":
        return asked_tools(specs, "none")
    if choice == "required":
        return asked_tools(specs, "required", parallel=parallel)
    form = cast("dict[str, Any]", choice) if isinstance(choice, dict) else {}
    if form.get("type") == "function":
        # Chat has the name in `function`, Responses beside the type.
        named = as_object(form["function"], "tool_choice.function") if form.get("function") is not None else form
        name = as_string(named.get("name"), "tool_choice.function.name")
        return asked_tools(specs, "required", names=(name,), parallel=False)
    if form.get("type") == "allowed_tools":
        return _allowed(specs, form, parallel=parallel)
    raise BadRequestError(
        f"'tool_choice' must be 'auto', 'none', 'required', a tool of type 'function' or 'allowed_tools', not {show(choice)}.",
        param="tool_choice",
        code="invalid_value",
    )


def _allowed(specs: tuple[ToolSpec, ...], form: dict[str, Any], *, parallel: bool) -> AskedTools:
    path = "tool_choice"
    if form.get("allowed_tools") is not None:
        path = "tool_choice.allowed_tools"
        form = as_object(form["allowed_tools"], path)
    mode = form.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise BadRequestError(
            f"'{path}.mode' must be 'auto' or 'required', not {show(mode)}.", param=f"{path}.mode", code="invalid_value"
        )
    names: list[str] = []
    for i, one in enumerate(as_list(form.get("tools"), f"{path}.tools", len(specs) or 1)):
        tool = as_object(one, f"{path}.tools[{i}]")
        named = as_object(tool["function"], f"{path}.tools[{i}].function") if tool.get("function") is not None else tool
        names.append(as_string(named.get("name"), f"{path}.tools[{i}].name"))
    if not names:
        raise BadRequestError(f"'{path}.tools' must name at least one tool.", param=f"{path}.tools", code="invalid_value")
    return asked_tools(specs, mode, names=names, parallel=parallel, path=f"{path}.tools")


def _tool(value: Any, path: str, config: HttpConfig) -> ToolSpec:
    tool = as_object(value, path)
    kind = tool.get("type", "function")
    if kind != "function":
        raise BadRequestError(
            f"'{path}' is of type {show(kind)}; this server knows tools of type 'function' alone.",
            param=f"{path}.type",
            code="unsupported_parameter",
        )
    return tool_spec(as_object(tool.get("function"), f"{path}.function"), f"{path}.function", config)


def _functions(request: ChatRequest, config: HttpConfig) -> AskedTools:
    if request.tools or request.tool_choice not in (None, "auto", "none"):
        raise BadRequestError(
            "'functions' is the older form of 'tools'; send one of them.", param="functions", code="invalid_value"
        )
    specs = check_tools(
        (
            tool_spec(as_object(one, f"functions[{i}]"), f"functions[{i}]", config)
            for i, one in enumerate(as_list(request.functions, "functions", config.max_tools))
        ),
        "functions",
        config,
    )
    choice = request.function_call
    if choice in (None, "auto", "none"):
        return asked_tools(specs, "none" if choice == "none" else "auto", parallel=False) if specs else NO_TOOLS
    if not isinstance(choice, dict):
        raise BadRequestError(
            f"'function_call' must be 'auto', 'none' or an object with a name, not {show(choice)}.",
            param="function_call",
            code="invalid_value",
        )
    name = as_string(cast("dict[str, Any]", choice).get("name"), "function_call.name")
    return asked_tools(specs, "required", names=(name,), parallel=False, path="function_call")
